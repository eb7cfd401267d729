package admission

import (
	"cmp"
	"slices"
	"sort"

	"github.com/blockyard-ai/blockyard/internal/fairshare"
)

// quantum is the tokens that a tenant of weight 1 gets in each round.
const quantum = 256

// levels are the waiting requests by priority, the highest priority first. The zero levels
// are empty.
type levels []*level

// level is the waiting requests of one priority. It shares tokens between tenants.
type level struct {
	priority uint32
	tenants  fairshare.Ring[*tenantQueue] // the tenants with waiting requests
}

// tenantQueue is the waiting requests of one tenant and priority.
type tenantQueue struct {
	name     string
	requests []*waiter // by Order, then in the order of arrival
}

// find returns where the level of a priority is or belongs.
func (l levels) find(priority uint32) (int, bool) {
	return slices.BinarySearchFunc(l, priority, func(v *level, p uint32) int { return cmp.Compare(p, v.priority) })
}

// add adds a request to those of its tenant.
func (l *levels) add(w *waiter) {
	at, ok := l.find(w.Priority)
	if !ok {
		*l = slices.Insert(*l, at, &level{priority: w.Priority})
	}
	(*l)[at].add(w)
}

// remove takes out a request that waits.
func (l *levels) remove(w *waiter) {
	at, _ := l.find(w.Priority)
	(*l)[at].remove(w)
	l.drop(at)
}

// next takes out the request that goes on. There is one.
func (l *levels) next() *waiter {
	w := (*l)[0].next()
	l.drop(0)
	return w
}

// drop removes a level that is empty.
func (l *levels) drop(at int) {
	if (*l)[at].tenants.Len() == 0 {
		*l = slices.Delete(*l, at, at+1)
	}
}

// find returns the queue of a tenant, nil for none.
func (v *level) find(tenant string) *fairshare.Member[*tenantQueue] {
	for m := range v.tenants.Members() {
		if m.Value.name == tenant {
			return m
		}
	}
	return nil
}

func (v *level) add(w *waiter) {
	m := v.find(w.Tenant)
	if m == nil {
		m = &fairshare.Member[*tenantQueue]{Value: &tenantQueue{name: w.Tenant}}
		v.tenants.Add(m)
	}
	m.Quantum = quantum * w.Weight
	t := m.Value
	behind := sort.Search(len(t.requests), func(i int) bool { return t.requests[i].Order > w.Order })
	t.requests = slices.Insert(t.requests, behind, w)
}

func (v *level) remove(w *waiter) {
	m := v.find(w.Tenant)
	v.take(m, slices.Index(m.Value.requests, w))
}

// take takes out a request of a tenant by its position, and the tenant with its last request.
func (v *level) take(m *fairshare.Member[*tenantQueue], at int) *waiter {
	t := m.Value
	w := t.requests[at]
	t.requests = slices.Delete(t.requests, at, at+1)
	if len(t.requests) == 0 {
		v.tenants.Remove(m)
	}
	return w
}

// next takes out the next request by deficit round robin.
func (v *level) next() *waiter {
	return v.take(v.tenants.Next(func(t *tenantQueue) int { return t.requests[0].Tokens }), 0)
}
