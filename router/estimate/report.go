package estimate

import (
	"time"

	"github.com/blockyard-ai/blockyard/internal/kv"
	"github.com/blockyard-ai/blockyard/internal/kvevent"
)

const (
	// elsewhereMaxAge is how long a report of waiting requests is valid. Agents report
	// each second.
	elsewhereMaxAge = 3 * time.Second
	// reportsMean is about how many reports the mean of requests from elsewhere has.
	reportsMean = 4
	// queueMaxAge is how long a report of waiting blocks is valid. Blocks read since
	// are subtracted.
	queueMaxAge = time.Minute
	// maxBytesPerSecond is faster than every memory and disk. maxBusy is longer than
	// any busy time: a report covers one second, and copies that began before.
	// A report above either bound is wrong.
	maxBytesPerSecond = 1e13
	maxBusy           = time.Minute
)

// Report reads a load report that has just come. Report does not keep r.
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

// reportWorker reads a worker's load report: the bytes that it copied to its device, and how
// many requests its engine has.
func (e *Estimator) reportWorker(w *worker, l *kvevent.WorkerLoad, now time.Time) {
	e.stats.Reports++
	e.learnReported(&w.copyRate, l.CopyBytes, l.CopyMicros, now)
	// Requests beyond our own come from other routers. A report is old before the next one comes, so
	// that a mean of several says more than the last one.
	waiting := beyond(l.Waiting, len(w.prefill.pending))
	running := max(0, beyond(l.Running+l.Waiting, len(w.prefill.pending)+len(w.decode.running))-waiting)
	if now.Sub(w.reportedAt) > elsewhereMaxAge {
		w.waitingElsewhere, w.runningElsewhere = waiting, running
	}
	w.waitingElsewhere += (waiting - w.waitingElsewhere) / reportsMean
	w.runningElsewhere += (running - w.runningElsewhere) / reportsMean
	w.decode.setElsewhere(w.runningElsewhere, w.runningElsewhere*w.model.prompts.value, now)
	w.reportedAt, w.used = now, 0
	if l.DeviceBlocksTotal > 0 {
		w.used = float64(l.DeviceBlocksUsed) / float64(l.DeviceBlocksTotal)
	}
	e.refreshColumn(w, now)
}

// beyond returns how many reported requests are not ours, at most maxPending.
func beyond(reported uint64, ours int) float64 {
	return float64(min(reported-min(reported, uint64(ours)), maxPending))
}

// reportPool reads a pool's load report: its block size, the bytes that its disk read, and
// how many blocks wait to be read.
func (e *Estimator) reportPool(p *pool, l *kvevent.PoolLoad, now time.Time) {
	e.stats.Reports++
	if l.BlockBytes > 0 {
		p.blockBytes = float64(l.BlockBytes)
	}
	e.learnReported(&p.diskRate, l.DiskReadBytes, l.DiskReadMicros, now)
	p.queue, p.queueAt, p.reportedAt = float64(l.ReadQueue), now, now
}

// learnReported adds a sample from a load report to rate r: bytes moved in micros
// microseconds of busy time. A report of 0 is no sample. It counts and refuses a sample that
// no hardware can reach.
func (e *Estimator) learnReported(r *rate, bytes, micros uint64, now time.Time) {
	if bytes == 0 || micros == 0 {
		return
	}
	s := sample{float64(bytes), float64(micros) / 1e6}
	if s.rate() > maxBytesPerSecond || s.seconds > maxBusy.Seconds() {
		e.stats.Implausible++
		return
	}
	e.addSample(r, s, now)
}

// enqueue adds blocks to the predicted queue of the pool's disk, because a request that was
// just sent needs them. The disk reads bytesPerSecond, 0 when unknown.
func (p *pool) enqueue(bytesPerSecond, blocks float64, now time.Time) {
	p.queue, p.queueAt = p.predictedQueue(bytesPerSecond, now)+blocks, now
	if now.Sub(p.reportedAt) > queueMaxAge {
		p.reportedAt = now // the stale report no longer counts, but the added blocks do
	}
}

// predictedQueue returns the predicted number of blocks in the disk's queue. It adds
// the blocks requested since the last report and subtracts those read since. A stale
// report counts as an empty queue.
func (p *pool) predictedQueue(bytesPerSecond float64, now time.Time) float64 {
	if now.Sub(p.reportedAt) > queueMaxAge {
		return 0
	}
	if p.blockBytes == 0 || bytesPerSecond == 0 {
		return p.queue
	}
	return max(0, p.queue-now.Sub(p.queueAt).Seconds()*bytesPerSecond/p.blockBytes)
}
