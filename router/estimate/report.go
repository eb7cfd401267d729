package estimate

import (
	"time"

	"github.com/blockyard-ai/blockyard/internal/kv"
	"github.com/blockyard-ai/blockyard/internal/kvevent"
)

// waitingHolds is how long a report of waiting requests is believed; one comes each
// second.
const waitingHolds = 3 * time.Second

// Report takes a load report that has just come. It is borrowed.
func (e *Estimator) Report(r *kvevent.LoadReport) {
	now := e.opts.Now()
	e.mu.Lock()
	defer e.mu.Unlock()
	if r.Owner.Kind == kv.OwnerPool {
		if p := e.pools[r.Owner.ID]; p != nil {
			e.reportPool(p, &r.Pool, now)
			return
		}
	} else if w := e.workers[r.Owner.Worker()]; w != nil {
		e.reportWorker(w, &r.Worker, now)
		return
	}
	e.stats.Unknown++
}

func (e *Estimator) reportWorker(w *worker, l *kvevent.WorkerLoad, now time.Time) {
	e.stats.Reports++
	if l.CopyBytes > 0 && l.CopyMicros > 0 {
		e.learn(&w.copies, sample{float64(l.CopyBytes), float64(l.CopyMicros) / 1e6}, now)
	}
	// Those that wait and were not sent by this router came from somewhere else.
	ours := uint64(len(w.prefill.pending))
	w.waiting, w.reported = int(min(l.Waiting-min(l.Waiting, ours), maxPending)), now
}

func (e *Estimator) reportPool(p *pool, l *kvevent.PoolLoad, now time.Time) {
	e.stats.Reports++
	if l.BlockBytes > 0 {
		p.blockBytes = float64(l.BlockBytes)
	}
	if l.DiskReadBytes > 0 && l.DiskReadMicros > 0 {
		e.learn(&p.disk, sample{float64(l.DiskReadBytes), float64(l.DiskReadMicros) / 1e6}, now)
	}
	p.queue, p.since = float64(l.ReadQueue), now
}

// enqueue adds blocks to those that wait at the disk, which reads bytesPerSecond; 0
// where that is not known.
func (p *pool) enqueue(bytesPerSecond, blocks float64, now time.Time) {
	p.queue, p.since = p.waiting(bytesPerSecond, now)+blocks, now
}

// waiting is how many blocks should wait at the disk now: those of the last report and
// those that were sent for since, less what it has read meanwhile.
func (p *pool) waiting(bytesPerSecond float64, now time.Time) float64 {
	if p.blockBytes == 0 || bytesPerSecond == 0 {
		return p.queue
	}
	return max(0, p.queue-now.Sub(p.since).Seconds()*bytesPerSecond/p.blockBytes)
}
