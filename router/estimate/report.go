package estimate

import (
	"slices"
	"time"

	"github.com/blockyard-ai/blockyard/internal/kv"
	"github.com/blockyard-ai/blockyard/internal/kvevent"
	"github.com/blockyard-ai/blockyard/router/index"
)

const (
	// elsewhereMaxAge is how long a report of waiting requests is valid. Agents report
	// each second.
	elsewhereMaxAge = 3 * time.Second
	// reportsKept is the number of reports whose median shows which reports are far off.
	reportsKept = 5
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
	// Requests beyond our own come from other routers.
	waiting := beyond(l.Waiting, len(w.prefill.pending))
	running := max(0, beyond(l.Running+l.Waiting, len(w.prefill.pending)+len(w.decode.running))-waiting)
	if now.Sub(w.reportedAt) > elsewhereMaxAge {
		w.waitingElsewhere, w.runningElsewhere = elsewhere{}, elsewhere{}
	}
	w.waitingElsewhere.add(waiting)
	w.runningElsewhere.add(running)
	w.decode.setElsewhere(w.runningElsewhere.mean, w.runningElsewhere.mean*w.model.prompts.value, now)
	w.reportedAt, w.used = now, 0
	if l.DeviceBlocksTotal > 0 {
		w.used = float64(l.DeviceBlocksUsed) / float64(l.DeviceBlocksTotal)
	}
	e.refreshColumn(w, now)
}

// elsewhere is how many requests a worker's last reports count beyond this router's own. The zero value has no
// reports.
type elsewhere struct {
	mean float64
	// last are the last reports, counted as what they count in mean, and weight their weights in mean.
	last, counted, weight [reportsKept]float64
	count                 int // reports so far
}

// add adds a report to the mean, in which recent reports count more: a report is old before the next one comes. A
// report far above the median of the last ones may be wrong by any factor, so it counts as the median. Of five
// reports two may be wrong. The next reports decide again: a wrong first report is soon none, and a change that a
// third report confirms counts with all three.
func (e *elsewhere) add(reported float64) {
	share := 1.0 / reportsMean
	if e.count == 0 {
		share = 1
	}
	for i := range e.weight {
		e.weight[i] *= 1 - share
	}
	at := e.count % reportsKept
	e.last[at], e.counted[at], e.weight[at] = reported, e.mean, share // as if it changed nothing
	e.count++
	n := min(e.count, reportsKept)
	sorted := e.last
	slices.Sort(sorted[:n])
	median := sorted[(n-1)/2]
	for i, v := range e.last[:n] {
		if v > outlierFactor*(median+2) {
			v = median
		}
		e.mean += (v - e.counted[i]) * e.weight[i]
		e.counted[i] = v
	}
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

// load returns how many seconds it takes to bring the hit blocks in host memory and on
// disk onto a worker's device. missing names the missing measure, empty for none.
// External blocks are not loaded: see schedule.LocalTokens.
func (e *Estimator) load(w *worker, hits index.Hits, now time.Time) (seconds float64, missing string) {
	host, disk := float64(hits[kv.TierHost]), float64(hits[kv.TierDisk])
	if host+disk == 0 {
		return 0, ""
	}
	block := e.blockBytes(w, now)
	if block == 0 {
		return 0, "no size of a block of " + w.String() + " yet"
	}
	copies := e.rateOf(&w.copyRate, w.model, func(m *model) modelMedian { return m.copies }, now)
	if copies == 0 {
		return 0, "no copy rate of " + w.String() + " yet"
	}
	seconds = (host + disk) * block / copies
	if disk == 0 {
		return seconds, ""
	}
	reads := e.diskRate(w, now)
	if reads == 0 {
		return 0, "no disk rate of " + w.String() + " yet"
	}
	// The disk first reads the blocks that wait in its queue.
	return seconds + (disk+w.pool.predictedQueue(reads, now))*block/reads, ""
}

// diskRate returns how many bytes per second the disk of a worker's pool reads, 0 when
// unknown or without a pool.
func (e *Estimator) diskRate(w *worker, now time.Time) float64 {
	if w.pool == nil {
		return 0
	}
	return e.rateOf(&w.pool.diskRate, w.model, func(m *model) modelMedian { return m.disk }, now)
}

// rateOf returns the amount per second of rate r. A rate with few or old samples is replaced
// by the median over model m, which of selects. The result is 0 without both.
func (e *Estimator) rateOf(r *rate, m *model, of func(*model) modelMedian, now time.Time) float64 {
	if r.valid(&e.opts, now) {
		return r.value
	}
	m.refreshMedians(&e.opts, now)
	return of(m).value
}

// blockBytes returns the size of a block in bytes, as the worker's pool reported. Without
// a report it returns the median over the worker's model, or 0 when unknown.
func (e *Estimator) blockBytes(w *worker, now time.Time) float64 {
	if w.pool != nil && w.pool.blockBytes > 0 {
		return w.pool.blockBytes
	}
	w.model.refreshMedians(&e.opts, now)
	return w.model.blockBytes.value
}

// addSample adds a sample to a rate and counts it.
func (e *Estimator) addSample(r *rate, s sample, now time.Time) {
	e.stats.Samples++
	if r.add(s, now) {
		e.stats.Outliers++
	}
}
