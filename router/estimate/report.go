package estimate

import (
	"time"

	"github.com/blockyard-ai/blockyard/internal/kv"
	"github.com/blockyard-ai/blockyard/internal/kvevent"
)

const (
	// waitingHolds is how long a report of waiting requests is believed; one comes
	// each second.
	waitingHolds = 3 * time.Second
	// queueHolds is how long a report of waiting blocks is, less what was read since.
	queueHolds = time.Minute
	// maxBytesPerSecond is beyond any memory and any disk, maxBusy beyond what a report
	// that covers a second can have of a copy that began long before. Who exceeds them
	// has miscounted.
	maxBytesPerSecond = 1e13
	maxBusy           = time.Minute
)

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
	e.learnReported(&w.copies, l.CopyBytes, l.CopyMicros, now)
	// Those that wait and were not sent by this router came from somewhere else.
	ours := uint64(len(w.prefill.pending))
	w.waiting, w.reported = int(min(l.Waiting-min(l.Waiting, ours), maxPending)), now
	e.settle(w, now)
}

func (e *Estimator) reportPool(p *pool, l *kvevent.PoolLoad, now time.Time) {
	e.stats.Reports++
	if l.BlockBytes > 0 {
		p.blockBytes = float64(l.BlockBytes)
	}
	e.learnReported(&p.disk, l.DiskReadBytes, l.DiskReadMicros, now)
	p.queue, p.since, p.heard = float64(l.ReadQueue), now, now
}

// learnReported takes what an owner says that it has brought in a time, unless it
// cannot have. 0 of either says nothing.
func (e *Estimator) learnReported(r *rate, bytes, micros uint64, now time.Time) {
	if bytes == 0 || micros == 0 {
		return
	}
	s := sample{float64(bytes), float64(micros) / 1e6}
	if s.rate() > maxBytesPerSecond || s.seconds > maxBusy.Seconds() {
		e.stats.Implausible++
		return
	}
	e.learn(r, s, now)
}

// enqueue adds blocks to those that wait at the disk, which reads bytesPerSecond; 0
// where that is not known.
func (p *pool) enqueue(bytesPerSecond, blocks float64, now time.Time) {
	p.queue, p.since = p.waiting(bytesPerSecond, now)+blocks, now
	if now.Sub(p.heard) > queueHolds {
		p.heard = now // nothing is left of the report, and what is sent from now on has its time
	}
}

// waiting is how many blocks should wait at the disk now: those of the last report and
// those that were sent for since, less what it has read meanwhile. Of a pool that has
// not reported for long nothing is known.
func (p *pool) waiting(bytesPerSecond float64, now time.Time) float64 {
	if now.Sub(p.heard) > queueHolds {
		return 0
	}
	if p.blockBytes == 0 || bytesPerSecond == 0 {
		return p.queue
	}
	return max(0, p.queue-now.Sub(p.since).Seconds()*bytesPerSecond/p.blockBytes)
}
