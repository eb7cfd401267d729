package estimate

import (
	"time"

	"github.com/blockyard-ai/blockyard/internal/kv"
	"github.com/blockyard-ai/blockyard/internal/kvevent"
)

const (
	// waitingHolds is how long a report of waiting requests holds. One comes each
	// second.
	waitingHolds = 3 * time.Second
	// queueHolds is how long a report of waiting blocks holds, less what was read
	// since.
	queueHolds = time.Minute
	// maxBytesPerSecond exceeds every memory and disk. maxBusy exceeds the busy
	// time that a report of one second can have, for a copy that began long before.
	// A report beyond either is wrong.
	maxBytesPerSecond = 1e13
	maxBusy           = time.Minute
)

// Report reads a load report that has just come. The report is borrowed.
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
	// Waiting requests that this router did not send came from elsewhere.
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

// learnReported adds what an owner reports to have moved in a time, unless that is
// impossible. 0 of either is no sample.
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

// enqueue adds blocks to the disk's queue. The disk reads bytesPerSecond, 0 when
// unknown.
func (p *pool) enqueue(bytesPerSecond, blocks float64, now time.Time) {
	p.queue, p.since = p.waiting(bytesPerSecond, now)+blocks, now
	if now.Sub(p.heard) > queueHolds {
		p.heard = now // the report is stale, and the blocks added from now on have their own time
	}
}

// waiting returns the predicted number of blocks in the disk's queue: those of the
// last report and those requested since, less what was read meanwhile. It is 0 when
// the pool has not reported for long.
func (p *pool) waiting(bytesPerSecond float64, now time.Time) float64 {
	if now.Sub(p.heard) > queueHolds {
		return 0
	}
	if p.blockBytes == 0 || bytesPerSecond == 0 {
		return p.queue
	}
	return max(0, p.queue-now.Sub(p.since).Seconds()*bytesPerSecond/p.blockBytes)
}
