package admission

import (
	"cmp"
	"slices"
	"sort"
)

// quantum is the tokens that a tenant of weight 1 gets in each round.
const quantum = 256

// levels are the waiting requests by priority, the highest priority first. The zero levels
// are empty.
type levels []*level

// level is the waiting requests of one priority. It shares tokens between tenants.
type level struct {
	priority uint32
	// tenants are the tenants with waiting requests. The turn is at the first one.
	tenants []*tenantQueue
}

// tenantQueue is the waiting requests of one tenant and priority.
type tenantQueue struct {
	name    string
	weight  int
	deficit int // tokens that the tenant may still spend
	// paid is true when the deficit has the quantum of this round.
	paid     bool
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
	if len((*l)[at].tenants) == 0 {
		*l = slices.Delete(*l, at, at+1)
	}
}

func (v *level) find(tenant string) int {
	return slices.IndexFunc(v.tenants, func(t *tenantQueue) bool { return t.name == tenant })
}

func (v *level) add(w *waiter) {
	at := v.find(w.Tenant)
	if at < 0 {
		at = len(v.tenants)
		v.tenants = append(v.tenants, &tenantQueue{name: w.Tenant})
	}
	t := v.tenants[at]
	t.weight = w.Weight
	behind := sort.Search(len(t.requests), func(i int) bool { return t.requests[i].Order > w.Order })
	t.requests = slices.Insert(t.requests, behind, w)
}

func (v *level) remove(w *waiter) {
	at := v.find(w.Tenant)
	t := v.tenants[at]
	i := slices.Index(t.requests, w)
	t.requests = slices.Delete(t.requests, i, i+1)
	if len(t.requests) == 0 {
		v.tenants = slices.Delete(v.tenants, at, at+1)
	}
}

// next takes out the next request by deficit round robin.
func (v *level) next() *waiter {
	v.skipRounds()
	for {
		t := v.tenants[0]
		if !t.paid {
			t.deficit += quantum * t.weight
			t.paid = true
		}
		if w := t.requests[0]; w.Tokens <= t.deficit {
			t.deficit -= w.Tokens
			t.requests = slices.Delete(t.requests, 0, 1)
			if len(t.requests) == 0 {
				v.tenants = slices.Delete(v.tenants, 0, 1)
			}
			return w
		}
		t.paid = false
		v.tenants = append(slices.Delete(v.tenants, 0, 1), t)
	}
}

// skipRounds pays the rounds in which no tenant could afford its first request, all at
// once, so that a prompt of a million tokens costs no more time than a short one.
func (v *level) skipRounds() {
	rounds := -1
	for _, t := range v.tenants {
		missing := t.requests[0].Tokens - t.deficit
		own := (missing + quantum*t.weight - 1) / (quantum * t.weight)
		if t.paid {
			own++ // the turn of this round is nearly over: the next payment is a round later
		}
		// The last round is left to next, which knows the order.
		own = max(own-1, 0)
		if rounds < 0 || own < rounds {
			rounds = own
		}
	}
	for _, t := range v.tenants {
		t.deficit += rounds * quantum * t.weight
	}
}
