package estimate

import (
	"slices"
	"time"
)

// refresh is the interval at which the medians of a model are computed. A model
// with more than a thousand workers waits one millisecond per worker.
const refresh = time.Second

// model is the workers that serve one model. Its medians replace missing measures.
type model struct {
	name    string
	workers map[*worker]struct{}

	taken time.Time // when the medians were computed, zero for never
	// each is the fixed cost of a request, in seconds.
	prefill, each, copies, disk, blockBytes standIn
}

// standIn is a median and the number of workers or pools behind it. It is 0 when
// none has a value.
type standIn struct {
	value float64
	from  int
}

func (e *Estimator) joinModel(k *worker, name string) {
	m := e.models[name]
	if m == nil {
		m = &model{name: name, workers: make(map[*worker]struct{})}
		e.models[name] = m
	}
	m.workers[k] = struct{}{}
	k.model = m
}

func (e *Estimator) leaveModel(k *worker) {
	if k.model == nil {
		return
	}
	delete(k.model.workers, k)
	if len(k.model.workers) == 0 {
		delete(e.models, k.model.name)
	}
	k.model = nil
}

// medians computes the medians if they are old.
func (m *model) medians(o *Options, now time.Time) {
	if !m.taken.IsZero() && now.Sub(m.taken) < max(refresh, time.Duration(len(m.workers))*time.Millisecond) {
		return
	}
	m.taken = now
	var prefill, each, copies, disk, blockBytes []float64
	seen := make(map[*pool]bool)
	for w := range m.workers {
		prefill = appendHeld(prefill, &w.prefill.rate, o, now)
		if w.prefill.requests.holds(o, now) {
			each = append(each, w.prefill.each(o, now))
		}
		copies = appendHeld(copies, &w.copies, o, now)
		if w.pool == nil || seen[w.pool] {
			continue
		}
		seen[w.pool] = true
		disk = appendHeld(disk, &w.pool.disk, o, now)
		if w.pool.blockBytes > 0 {
			blockBytes = append(blockBytes, w.pool.blockBytes)
		}
	}
	m.prefill, m.each = middleOf(prefill), middleOf(each)
	m.copies, m.disk, m.blockBytes = middleOf(copies), middleOf(disk), middleOf(blockBytes)
}

func appendHeld(values []float64, r *rate, o *Options, now time.Time) []float64 {
	if r.holds(o, now) {
		return append(values, r.value)
	}
	return values
}

func middleOf(values []float64) standIn {
	if len(values) == 0 {
		return standIn{}
	}
	slices.Sort(values)
	return standIn{values[len(values)/2], len(values)}
}
