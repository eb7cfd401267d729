package admission

import (
	"maps"
	"sync"
)

// Models has a Queue for each model. Make one with NewModels. It may be used from any
// goroutine.
type Models struct {
	limits Limits

	mu     sync.Mutex
	queues map[string]*Queue
}

// NewModels returns queues with equal limits. The error names the limit that is out of range.
func NewModels(l Limits) (*Models, error) {
	if _, err := New(l); err != nil {
		return nil, err
	}
	return &Models{limits: l, queues: make(map[string]*Queue)}, nil
}

// Queue returns the queue of a model. The caller passes only names of models that exist,
// because a queue is kept.
func (m *Models) Queue(model string) *Queue {
	m.mu.Lock()
	defer m.mu.Unlock()
	q := m.queues[model]
	if q == nil {
		q = &Queue{limits: m.limits.withDefaults(), tenants: make(map[string]*usage)}
		m.queues[model] = q
	}
	return q
}

// Stats returns the numbers of each model's queue.
func (m *Models) Stats() map[string]Stats {
	m.mu.Lock()
	queues := maps.Clone(m.queues)
	m.mu.Unlock()
	all := make(map[string]Stats, len(queues))
	for model, q := range queues {
		all[model] = q.Stats()
	}
	return all
}
