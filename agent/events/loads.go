package events

import (
	"context"
	"time"

	"github.com/blockyard-ai/blockyard/blockmgr"
	"github.com/blockyard-ai/blockyard/internal/kv"
	"github.com/blockyard-ai/blockyard/internal/kvevent"
)

const (
	// loadSample is the time between two samples of the pools' queues, loadEvery that between
	// two reports.
	loadSample = 100 * time.Millisecond
	loadEvery  = time.Second
)

// loadSource is an owner with a load, and the publisher of its announcements. Either pool or
// gauges is set.
type loadSource struct {
	publisher uint64
	owner     kv.Owner
	// pool returns a pool's counters. slotBytes is the size of its slots, blockBytes that of
	// its blocks.
	pool                  func() blockmgr.Stats
	slotBytes, blockBytes uint64
	// gauges returns an engine's last gauges, if any; copies what its workers have copied, nil
	// if they do not report it.
	gauges func() (EngineGauges, bool)
	copies func() CopySum
}

// reportLoads calls send with the load of every owner that list returns, once a second until ctx
// ends. In between it samples the pools ten times a second, for the time of their disk reads. An
// engine without gauges and without copies has no report. send must not block.
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
			sampleLoads(meters, list(), now, report, send)
		}
	}
}

// loadMeters has each owner's state between two samples.
type loadMeters map[kv.Owner]*loadMeter

type loadMeter struct {
	pool   poolMeter
	copies copyMeter
}

// sampleLoads samples the disk reads of each pool of sources into meters. If report is true, it
// also sends a report for each owner, pool or worker, whose load is known. meters loses the owners
// that are not in sources any more.
func sampleLoads(meters loadMeters, sources []loadSource, now time.Time, report bool, send func(*kvevent.LoadReport)) {
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
		known := true
		if s.pool != nil {
			st := s.pool()
			m.pool.sample(&st, now)
			if report {
				r.Pool = m.pool.report(&st, s, now)
			}
		} else if report {
			r.Worker, known = m.copies.report(s)
		}
		if report && known {
			send(&r)
		}
	}
	for o := range meters {
		if !live[o] {
			delete(meters, o)
		}
	}
}

// EngineGauges are the gauges of a scheduler's last STATS: blocks of the device pool, blocks
// held by requests or copies, requests in the last step, waiting requests.
type EngineGauges struct {
	DeviceBlocks, DeviceUsed uint64
	Running, Waiting         uint64
}

// CopySum sums the copies of a rank's workers between host memory and the device since the
// agent's start, both ways. Each worker copies its share of a block. Micros is the sum of their
// times. Workers is the number of connected workers.
type CopySum struct {
	Bytes, Micros uint64
	Workers       int
}

// copyMeter turns sums into differences between two reports.
type copyMeter struct {
	last CopySum
	seen bool
}

// report returns the load of an engine: its last gauges, and what its workers have copied since
// the last report. It returns false when the engine has reported neither.
func (m *copyMeter) report(s *loadSource) (kvevent.WorkerLoad, bool) {
	g, known := s.gauges()
	l := kvevent.WorkerLoad{DeviceBlocksTotal: g.DeviceBlocks, DeviceBlocksUsed: g.DeviceUsed, Running: g.Running, Waiting: g.Waiting}
	if s.copies == nil {
		return l, known
	}
	now := s.copies()
	// A smaller sum means that the counters were reset: the next report takes the difference
	// from this sum. Workers copy in parallel, so the time of a copy is their mean.
	if m.seen && now.Bytes >= m.last.Bytes && now.Micros >= m.last.Micros {
		if d := (now.Micros - m.last.Micros) / uint64(max(now.Workers, 1)); d > 0 {
			l.CopyBytes, l.CopyMicros = now.Bytes-m.last.Bytes, d
		}
	}
	m.last, m.seen = now, true
	return l, known || l.CopyMicros > 0
}

// poolMeter turns samples of a pool's counters into rates.
type poolMeter struct {
	// reportedAt is the time of the last report. The other reported fields are the pool's
	// counters at that time.
	reportedAt                             time.Time
	reportedRead, reportedWritten          uint64 // bytes
	reportedPromotions, reportedReadMicros uint64
	sampledAt                              time.Time
	sampledReading                         int           // blocks that were being read from disk at the last sample
	blockReadTime                          time.Duration // sum over blocks of their time in disk reads, since the last report
}

// sample adds the time that blocks spent in disk reads since the last sample: the mean of
// both queue lengths times the time between the samples.
func (m *poolMeter) sample(st *blockmgr.Stats, now time.Time) {
	if m.reportedAt.IsZero() {
		m.reportedAt = now
		m.rebase(st)
	} else {
		m.blockReadTime += time.Duration(m.sampledReading+st.PromoteQueue) * now.Sub(m.sampledAt) / 2
	}
	m.sampledAt, m.sampledReading = now, st.PromoteQueue
}

// report returns a pool's load: st has its counters and gauges now, and the m.reported fields those
// of the last report. The mean time of a promotion, a read from disk to host, is the block-seconds
// of reads divided by the promotions (Little's law), so that no promotion is timed.
func (m *poolMeter) report(st *blockmgr.Stats, s *loadSource, now time.Time) kvevent.PoolLoad {
	slots := func(t *blockmgr.TierStats) (total, used uint64) {
		return uint64(t.Capacity) * s.slotBytes, uint64(t.Capacity-t.Free) * s.slotBytes
	}
	l := kvevent.PoolLoad{
		ReadQueue: uint64(st.PromoteQueue), WriteQueue: uint64(st.WriteQueue), BlockBytes: s.blockBytes,
		DiskReadBytes: st.BytesRead - m.reportedRead, DiskReadMicros: st.ReadMicros - m.reportedReadMicros,
	}
	l.HostBytesTotal, l.HostBytesUsed = slots(&st.Host)
	l.DiskBytesTotal, l.DiskBytesUsed = slots(&st.Disk)
	if d := now.Sub(m.reportedAt).Seconds(); d > 0 {
		l.ReadBytesPerSecond = uint64(float64(st.BytesRead-m.reportedRead) / d)
		l.WriteBytesPerSecond = uint64(float64(st.BytesWritten-m.reportedWritten) / d)
	}
	if n := st.Promotions - m.reportedPromotions; n > 0 {
		l.PromoteMicros = uint64(m.blockReadTime.Microseconds()) / n
	}
	m.reportedAt, m.blockReadTime = now, 0
	m.rebase(st)
	return l
}

// rebase stores the counters as the base of the next report.
func (m *poolMeter) rebase(st *blockmgr.Stats) {
	m.reportedRead, m.reportedWritten, m.reportedPromotions, m.reportedReadMicros = st.BytesRead, st.BytesWritten, st.Promotions, st.ReadMicros
}
