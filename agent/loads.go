package agent

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
	// pool returns the stats of a pool, blockBytes is the size of its slots.
	pool       func() blockmgr.Stats
	blockBytes uint64
	// gauges returns what an engine said last of itself, if it did.
	gauges func() (engineGauges, bool)
}

// reportLoads gives send the load of every owner that list names, once a second
// until ctx ends. An engine that says nothing of itself has no report. send must not
// block.
func reportLoads(ctx context.Context, list func() []loadSource, send func(*kvevent.LoadReport)) {
	meters := make(map[kv.Owner]*poolMeter)
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

// lookAtLoads samples the pools, and reports all owners if it is time to.
func lookAtLoads(meters map[kv.Owner]*poolMeter, sources []loadSource, now time.Time, report bool, send func(*kvevent.LoadReport)) {
	live := make(map[kv.Owner]bool, len(sources))
	for i := range sources {
		s := &sources[i]
		r := kvevent.LoadReport{PublisherID: s.publisher, Owner: s.owner}
		if s.pool != nil {
			live[s.owner] = true
			m := meters[s.owner]
			if m == nil {
				m = &poolMeter{}
				meters[s.owner] = m
			}
			st := s.pool()
			m.sample(&st, now)
			if report {
				r.Pool = m.report(&st, s.blockBytes, now)
				send(&r)
			}
			continue
		}
		if g, ok := s.gauges(); ok && report {
			r.Worker = kvevent.WorkerLoad{
				DeviceBlocksTotal: g.DeviceBlocks, DeviceBlocksUsed: g.DeviceUsed, Running: g.Running, Waiting: g.Waiting,
			}
			send(&r)
		}
	}
	for o := range meters {
		if !live[o] {
			delete(meters, o)
		}
	}
}

// poolMeter turns looks at the counters of a pool into rates.
type poolMeter struct {
	// since is the time of the last report, and the counters as they were then.
	since                   time.Time
	read, written, promoted uint64
	sampled                 time.Time
	reading                 int           // blocks under way from disk at the last look
	underWay                time.Duration // sum over those of the time since the last report
}

// sample adds up how long blocks have been under way.
func (m *poolMeter) sample(st *blockmgr.Stats, now time.Time) {
	if m.since.IsZero() {
		m.since, m.read, m.written, m.promoted = now, st.BytesRead, st.BytesWritten, st.Promotions
	} else {
		m.underWay += time.Duration(m.reading+st.PromoteQueue) * now.Sub(m.sampled) / 2
	}
	m.sampled, m.reading = now, st.PromoteQueue
}

// report is the load since the report before. The mean time of a promotion is the
// time that all of them together were under way, divided by their number (Little's
// law), so that no promotion has to be timed.
func (m *poolMeter) report(st *blockmgr.Stats, blockBytes uint64, now time.Time) kvevent.PoolLoad {
	slots := func(t *blockmgr.TierStats) (total, used uint64) {
		return uint64(t.Capacity) * blockBytes, uint64(t.Capacity-t.Free) * blockBytes
	}
	l := kvevent.PoolLoad{ReadQueue: uint64(st.PromoteQueue), WriteQueue: uint64(st.WriteQueue)}
	l.HostBytesTotal, l.HostBytesUsed = slots(&st.Host)
	l.DiskBytesTotal, l.DiskBytesUsed = slots(&st.Disk)
	if d := now.Sub(m.since).Seconds(); d > 0 {
		l.ReadBytesPerSecond = uint64(float64(st.BytesRead-m.read) / d)
		l.WriteBytesPerSecond = uint64(float64(st.BytesWritten-m.written) / d)
	}
	if n := st.Promotions - m.promoted; n > 0 {
		l.PromoteMicros = uint64(m.underWay.Microseconds()) / n
	}
	m.since, m.read, m.written, m.promoted, m.underWay = now, st.BytesRead, st.BytesWritten, st.Promotions, 0
	return l
}
