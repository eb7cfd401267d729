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
	// PrefillTokens, CopyBytes and DiskBytes are rates. PrefillTokens is that of a short prompt.
	// DiskBytes is the pool's.
	PrefillTokens Measure `json:"prefill_tokens"`
	CopyBytes     Measure `json:"copy_bytes"`
	DiskBytes     Measure `json:"disk_bytes"`
	// RequestSeconds is the fixed cost of a request, PairSeconds what a million pairs of a token with a
	// token that it attends to take. StepSeconds, RunningSeconds and ContextSeconds are what the next
	// token of all running requests takes: once, for each of them, and for a thousand tokens of their
	// contexts. All are 0 when unknown.
	RequestSeconds float64 `json:"request_seconds"`
	PairSeconds    float64 `json:"million_pairs_seconds"`
	StepSeconds    float64 `json:"step_seconds"`
	RunningSeconds float64 `json:"running_seconds"`
	ContextSeconds float64 `json:"thousand_context_seconds"`
	// Slowness is the time of the worker's prompts over that of its model's, and Doubt the error of its
	// logarithm.
	Slowness float64 `json:"slowness"`
	Doubt    float64 `json:"doubt"`
	// BlockBytes is the size of a block of the pool, 0 when unknown.
	BlockBytes uint64 `json:"block_bytes"`
	// Pending is the number of requests without a first token. PendingTokens are the
	// tokens that they have to compute. Running is the number of requests with a first token.
	// WaitingElsewhere is the number of waiting requests that this router did not send.
	// DiskQueue is the predicted number of blocks that wait at the pool's disk.
	Pending          int     `json:"pending"`
	PendingTokens    int     `json:"pending_tokens"`
	Running          int     `json:"running"`
	WaitingElsewhere float64 `json:"waiting_elsewhere"`
	DiskQueue        float64 `json:"disk_queue"`
}

// Measures returns the measures of every known worker, ordered by worker.
func (e *Estimator) Measures() []WorkerMeasures {
	now := e.opts.Now()
	e.mu.Lock()
	defer e.mu.Unlock()
	out := make([]WorkerMeasures, 0, len(e.workers))
	for _, w := range e.workers {
		w.model.refreshMedians(&e.opts, now)
		slow := w.prefill.speed.of(&w.model.prefill, now)
		t := e.termsOf(w, slow, now)
		m := WorkerMeasures{
			Worker: w.id, Model: w.model.name,
			PrefillTokens:  prefillMeasure(w, &t, now),
			CopyBytes:      e.measure(&w.copyRate, w.model, func(m *model) modelMedian { return m.copies }, now),
			DiskBytes:      Measure{Source: SourceNone},
			RequestSeconds: t.Request, PairSeconds: t.Pair * 1e6,
			StepSeconds: t.Step, RunningSeconds: t.Running, ContextSeconds: t.Context * 1e3, Slowness: slow.factor, Doubt: slow.doubt,
			BlockBytes: uint64(e.blockBytes(w, now)),
			Pending:    len(w.prefill.pending), PendingTokens: w.prefill.tokens, Running: len(w.decode.running),
		}
		if now.Sub(w.reportedAt) <= elsewhereMaxAge {
			m.WaitingElsewhere = w.waitingElsewhere.mean
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

// prefillMeasure returns the prefill rate of a worker. It is the model's while the worker has no
// samples.
func prefillMeasure(w *worker, t *Terms, now time.Time) Measure {
	out := Measure{Samples: w.prefill.speed.len(), Source: SourceModel}
	if t.Token > 0 {
		out.PerSecond = 1 / t.Token
	}
	if out.Samples > 0 {
		out.Source, out.AgeSeconds = SourceMeasured, now.Sub(w.prefill.speed.last).Seconds()
	}
	if out.PerSecond == 0 {
		out.Source = SourceNone
	}
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
