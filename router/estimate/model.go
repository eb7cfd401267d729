package estimate

import (
	"slices"
	"time"
)

// mediansMaxAge is the age at which the medians of a model are computed again. The
// age is one millisecond per worker in a model with more than a thousand workers.
const mediansMaxAge = time.Second

// model holds the workers that serve one model, and their medians. The medians
// replace missing measures.
type model struct {
	name    string
	workers map[*worker]struct{}

	computedAt               time.Time // when the medians were computed, zero for never
	copies, disk, blockBytes modelMedian
	// prefill has the seconds of prompts: once for each, for a thousand tokens, for a million pairs.
	// decode has the seconds of a token: once, for each running request, for a thousand tokens of
	// their contexts.
	prefill, decode fit
	// handOver is how many tokens of a prompt that another worker has computed reach a worker in a second.
	handOver rate
	// output is the number of tokens of an answer. prompts and cached are prompt tokens, all and those
	// that were cached.
	output, prompts, cached moving
	// prefillTypical and decodeTypical are the median slowness of the workers, so that the fits stay those of
	// a typical worker.
	prefillTypical, decodeTypical float64
}

// modelMedian is a median and the number of workers or pools behind it. Both are 0
// without a value.
type modelMedian struct {
	value   float64
	sources int
}

// joinModel adds a worker to the workers of a model, so that the model's medians replace
// its missing measures. The worker is in no model.
func (e *Estimator) joinModel(w *worker, name string) {
	m := e.models[name]
	if m == nil {
		m = &model{name: name, workers: make(map[*worker]struct{}), prefillTypical: 1, decodeTypical: 1}
		e.models[name] = m
	}
	m.workers[w] = struct{}{}
	w.model = m
}

// leaveModel takes a worker out of its model, if any. A model goes with its last worker.
func (e *Estimator) leaveModel(w *worker) {
	if w.model == nil {
		return
	}
	delete(w.model.workers, w)
	if len(w.model.workers) == 0 {
		delete(e.models, w.model.name)
	}
	w.model = nil
}

// refreshMedians solves the fits of the model and computes its medians again once they are
// mediansMaxAge old. Only valid measures count, and a pool counts once for all its workers.
func (m *model) refreshMedians(o *Options, now time.Time) {
	if !m.computedAt.IsZero() && now.Sub(m.computedAt) < max(mediansMaxAge, time.Duration(len(m.workers))*time.Millisecond) {
		return
	}
	m.computedAt = now
	m.prefill.solve()
	m.decode.solve()
	var copies, disk, blockBytes, prefills, decodes []float64
	seen := make(map[*pool]bool)
	for w := range m.workers {
		prefills = append(prefills, w.prefill.speed.of(&m.prefill, now).factor)
		decodes = append(decodes, w.decode.speed.of(&m.decode, now).factor)
		copies = appendValid(copies, &w.copyRate, o, now)
		if w.pool == nil || seen[w.pool] {
			continue
		}
		seen[w.pool] = true
		disk = appendValid(disk, &w.pool.diskRate, o, now)
		if w.pool.blockBytes > 0 {
			blockBytes = append(blockBytes, w.pool.blockBytes)
		}
	}
	m.prefillTypical, m.decodeTypical = medianOf(prefills).value, medianOf(decodes).value
	m.copies, m.disk, m.blockBytes = medianOf(copies), medianOf(disk), medianOf(blockBytes)
}

// appendValid appends the value of rate r if it has enough recent samples.
func appendValid(values []float64, r *rate, o *Options, now time.Time) []float64 {
	if r.valid(o, now) {
		return append(values, r.value)
	}
	return values
}

// medianOf returns the median of values, which it sorts, and their number.
func medianOf(values []float64) modelMedian {
	if len(values) == 0 {
		return modelMedian{}
	}
	slices.Sort(values)
	return modelMedian{values[len(values)/2], len(values)}
}
