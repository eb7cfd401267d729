package estimate

import (
	"slices"
	"time"

	"github.com/blockyard-ai/blockyard/internal/kv"
)

// Source says where a measure comes from.
type Source string

const (
	// SourceMeasured marks a measure of the worker or pool itself.
	SourceMeasured Source = "measured"
	// SourceModel marks the median of the workers or pools of the model.
	SourceModel Source = "model"
	// SourceNone marks a missing measure.
	SourceNone Source = "none"
)

// Measure is a learned rate.
type Measure struct {
	// PerSecond is the amount per second of busy time, 0 with SourceNone.
	PerSecond float64 `json:"per_second"`
	Source    Source  `json:"source"`
	// Samples is the number of samples of the worker's or pool's own rate.
	// AgeSeconds is the age of the last sample. Both are 0 without samples.
	Samples    int     `json:"samples"`
	AgeSeconds float64 `json:"age_seconds"`
	// From is the number of workers or pools behind the median, with SourceModel.
	From int `json:"from,omitempty"`
}

// WorkerMeasures are the measures of one worker.
type WorkerMeasures struct {
	Worker kv.Worker `json:"-"`
	Pool   uint64    `json:"-"`
	Model  string    `json:"-"`
	// PrefillTokens, CopyBytes and DiskBytes are rates. DiskBytes is the pool's.
	PrefillTokens Measure `json:"prefill_tokens"`
	CopyBytes     Measure `json:"copy_bytes"`
	DiskBytes     Measure `json:"disk_bytes"`
	// RequestSeconds is the fixed cost of a request, 0 when unknown.
	RequestSeconds float64 `json:"request_seconds"`
	// BlockBytes is the size of a block of the pool, 0 when unknown.
	BlockBytes uint64 `json:"block_bytes"`
	// Pending is the number of requests without a first token. PendingTokens are the
	// tokens that they have to compute.
	// WaitingElsewhere is the number of waiting requests that this router did not send.
	// DiskQueue is the predicted number of blocks that wait at the pool's disk.
	Pending          int     `json:"pending"`
	PendingTokens    int     `json:"pending_tokens"`
	WaitingElsewhere int     `json:"waiting_elsewhere"`
	DiskQueue        float64 `json:"disk_queue"`
}

// Measures returns the measures of every known worker, ordered by worker.
func (e *Estimator) Measures() []WorkerMeasures {
	now := e.opts.Now()
	e.mu.Lock()
	defer e.mu.Unlock()
	out := make([]WorkerMeasures, 0, len(e.workers))
	for _, w := range e.workers {
		m := WorkerMeasures{
			Worker: w.id, Model: w.model.name,
			PrefillTokens:  e.measure(&w.prefill.tokenRate, w.model, func(m *model) modelMedian { return m.prefill }, now),
			CopyBytes:      e.measure(&w.copyRate, w.model, func(m *model) modelMedian { return m.copies }, now),
			DiskBytes:      Measure{Source: SourceNone},
			RequestSeconds: w.prefill.fixedCost(&e.opts, now),
			BlockBytes:     uint64(e.blockBytes(w, now)),
			Pending:        len(w.prefill.pending), PendingTokens: w.prefill.tokens,
		}
		if now.Sub(w.reportedAt) <= elsewhereMaxAge {
			m.WaitingElsewhere = w.queuedElsewhere
		}
		if p := w.pool; p != nil {
			m.Pool = p.id
			m.DiskBytes = e.measure(&p.diskRate, w.model, func(m *model) modelMedian { return m.disk }, now)
			m.DiskQueue = p.predictedQueue(m.DiskBytes.PerSecond, now)
		}
		out = append(out, m)
	}
	slices.SortFunc(out, func(a, b WorkerMeasures) int { return a.Worker.Compare(b.Worker) })
	return out
}

// measure returns rate r as a Measure, with its source. A rate with few or old samples is
// replaced by the median over model m, which of selects.
func (e *Estimator) measure(r *rate, m *model, of func(*model) modelMedian, now time.Time) Measure {
	out := Measure{PerSecond: e.rateOf(r, m, of, now), Samples: r.len(), Source: SourceModel}
	switch {
	case r.valid(&e.opts, now):
		out.Source = SourceMeasured
	case out.PerSecond == 0:
		out.Source = SourceNone
	default:
		out.From = of(m).sources
	}
	if r.count > 0 {
		out.AgeSeconds = now.Sub(r.last).Seconds()
	}
	return out
}
