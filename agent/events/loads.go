package events

import (
	"context"
	"time"

	"github.com/blockyard-ai/blockyard/blockmgr"
	"github.com/blockyard-ai/blockyard/internal/kv"
	"github.com/blockyard-ai/blockyard/internal/kvevent"
)

const (
	// loadSample is how often the queues of pools are looked at, loadEvery how often
	// loads are reported.
	loadSample = 100 * time.Millisecond
	loadEvery  = time.Second
)

// loadSource is an owner that has a load, and the publisher that its announcements
// come from. One of pool and gauges is set.
type loadSource struct {
	publisher uint64
	owner     kv.Owner
	// pool returns the stats of a pool, slotBytes is the size of its slots, blockBytes
	// that of what is in one.
	pool                  func() blockmgr.Stats
	slotBytes, blockBytes uint64
	// gauges returns what an engine said last of itself, if it did; copies what its
	// workers said of theirs, and nil where they say nothing.
	gauges func() (EngineGauges, bool)
	copies func() CopySum
}

// reportLoads gives send the load of every owner that list names, once a second
// until ctx ends. An engine that says nothing of itself, and none of whose workers
// has copied, has no report. send must not block.
func reportLoads(ctx context.Context, list func() []loadSource, send func(*kvevent.LoadReport)) {
	meters := make(loadMeters)
	tick := time.NewTicker(loadSample)
	defer tick.Stop()
	due := time.Now().Add(loadEvery)
	for {
		select {
		case <-ctx.Done():
			return
		case now := <-tick.C:
			report := !now.Before(due)
			if report {
				due = now.Add(loadEvery)
			}
			lookAtLoads(meters, list(), now, report, send)
		}
	}
}

// loadMeters are what is kept of each owner from one look to the next. Those of an
// owner are of its kind.
type loadMeters map[kv.Owner]*loadMeter

type loadMeter struct {
	pool   poolMeter
	copies copyMeter
}

// lookAtLoads samples the pools, and reports all owners if it is time to.
func lookAtLoads(meters loadMeters, sources []loadSource, now time.Time, report bool, send func(*kvevent.LoadReport)) {
	live := make(map[kv.Owner]bool, len(sources))
	for i := range sources {
		s := &sources[i]
		live[s.owner] = true
		m := meters[s.owner]
		if m == nil {
			m = &loadMeter{}
			meters[s.owner] = m
		}
		r := kvevent.LoadReport{PublisherID: s.publisher, Owner: s.owner}
		said := true
		if s.pool != nil {
			st := s.pool()
			m.pool.sample(&st, now)
			if report {
				r.Pool = m.pool.report(&st, s, now)
			}
		} else if report {
			r.Worker, said = m.copies.report(s)
		}
		if report && said {
			send(&r)
		}
	}
	for o := range meters {
		if !live[o] {
			delete(meters, o)
		}
	}
}

// EngineGauges are how a worker rank stands, as its scheduler last said: blocks of
// its device pool, those that requests or copies hold, requests that took part in its
// last step and requests that wait.
type EngineGauges struct {
	DeviceBlocks, DeviceUsed uint64
	Running, Waiting         uint64
}

// CopySum is what the workers of a rank have copied between host memory and the
// device, either way, since the agent's start. Micros is the sum of their times, each
// of which copies its share of a block; Workers is how many there are now.
type CopySum struct {
	Bytes, Micros uint64
	Workers       int
}

// copyMeter turns sums of copies into what came since the last report.
type copyMeter struct {
	last CopySum
	seen bool
}

// report is what is known of an engine, false for nothing.
func (m *copyMeter) report(s *loadSource) (kvevent.WorkerLoad, bool) {
	g, said := s.gauges()
	l := kvevent.WorkerLoad{DeviceBlocksTotal: g.DeviceBlocks, DeviceBlocksUsed: g.DeviceUsed, Running: g.Running, Waiting: g.Waiting}
	if s.copies == nil {
		return l, said
	}
	now := s.copies()
	// A sum that is less than before began anew, and this is where the next is
	// counted from. The workers copy at the same time: theirs is the mean of the times.
	if m.seen && now.Bytes >= m.last.Bytes && now.Micros >= m.last.Micros {
		if d := (now.Micros - m.last.Micros) / uint64(max(now.Workers, 1)); d > 0 {
			l.CopyBytes, l.CopyMicros = now.Bytes-m.last.Bytes, d
		}
	}
	m.last, m.seen = now, true
	return l, said || l.CopyMicros > 0
}

// poolMeter turns looks at the counters of a pool into rates.
type poolMeter struct {
	// since is the time of the last report, and the counters as they were then.
	since                               time.Time
	read, written, promoted, readMicros uint64
	sampled                             time.Time
	reading                             int           // blocks under way from disk at the last look
	underWay                            time.Duration // sum over those of the time since the last report
}

// sample adds up how long blocks have been under way.
func (m *poolMeter) sample(st *blockmgr.Stats, now time.Time) {
	if m.since.IsZero() {
		m.since = now
		m.restart(st)
	} else {
		m.underWay += time.Duration(m.reading+st.PromoteQueue) * now.Sub(m.sampled) / 2
	}
	m.sampled, m.reading = now, st.PromoteQueue
}

// report is the load since the report before. The mean time of a promotion is the
// time that all of them together were under way, divided by their number (Little's
// law), so that no promotion has to be timed.
func (m *poolMeter) report(st *blockmgr.Stats, s *loadSource, now time.Time) kvevent.PoolLoad {
	slots := func(t *blockmgr.TierStats) (total, used uint64) {
		return uint64(t.Capacity) * s.slotBytes, uint64(t.Capacity-t.Free) * s.slotBytes
	}
	l := kvevent.PoolLoad{
		ReadQueue: uint64(st.PromoteQueue), WriteQueue: uint64(st.WriteQueue), BlockBytes: s.blockBytes,
		DiskReadBytes: st.BytesRead - m.read, DiskReadMicros: st.ReadMicros - m.readMicros,
	}
	l.HostBytesTotal, l.HostBytesUsed = slots(&st.Host)
	l.DiskBytesTotal, l.DiskBytesUsed = slots(&st.Disk)
	if d := now.Sub(m.since).Seconds(); d > 0 {
		l.ReadBytesPerSecond = uint64(float64(st.BytesRead-m.read) / d)
		l.WriteBytesPerSecond = uint64(float64(st.BytesWritten-m.written) / d)
	}
	if n := st.Promotions - m.promoted; n > 0 {
		l.PromoteMicros = uint64(m.underWay.Microseconds()) / n
	}
	m.since, m.underWay = now, 0
	m.restart(st)
	return l
}

// restart has the counters count from what they are.
func (m *poolMeter) restart(st *blockmgr.Stats) {
	m.read, m.written, m.promoted, m.readMicros = st.BytesRead, st.BytesWritten, st.Promotions, st.ReadMicros
}
