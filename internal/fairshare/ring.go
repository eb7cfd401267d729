package fairshare

import (
	"iter"
	"slices"
)

// Ring shares costs between members. The zero Ring is empty.
type Ring[T any] struct {
	// members are in the order of their turns. The turn is at the first one.
	members []*Member[T]
}

// Member is one queue of a Ring.
type Member[T any] struct {
	Value T
	// Quantum is what the member may spend each round, at least 1.
	Quantum int

	// deficit is what the member may still spend. paid is true when it has the quantum of this turn.
	deficit int
	paid    bool
	cost    int // of the first request, 0 while nothing of the member may go
}

// Deficit returns what the member may still spend.
func (m *Member[T]) Deficit() int { return m.deficit }

// Refund gives back what Next charged for a request that did not go.
func (m *Member[T]) Refund(cost int) { m.deficit += cost }

// Len returns the number of members.
func (r *Ring[T]) Len() int { return len(r.members) }

// Members returns the members in the order of their turns.
func (r *Ring[T]) Members() iter.Seq[*Member[T]] { return slices.Values(r.members) }

// Add makes m the last member of the round, without a deficit.
func (r *Ring[T]) Add(m *Member[T]) {
	m.deficit, m.paid = 0, false
	r.members = append(r.members, m)
}

// Remove takes a member out.
func (r *Ring[T]) Remove(m *Member[T]) {
	r.members = slices.DeleteFunc(r.members, func(other *Member[T]) bool { return other == m })
}

// Next returns the member whose first request goes next, and charges it the cost of that request. cost
// returns what the first request of a member costs, or 0 while none of its requests may go. Next
// returns nil when all costs are 0.
func (r *Ring[T]) Next(cost func(T) int) *Member[T] {
	some := false
	for _, m := range r.members {
		m.cost = cost(m.Value)
		some = some || m.cost > 0
	}
	if !some {
		return nil
	}
	r.skipRounds()
	for {
		m := r.members[0]
		if m.cost > 0 {
			if !m.paid {
				m.deficit += m.Quantum
				m.paid = true
			}
			if m.cost <= m.deficit {
				m.deficit -= m.cost
				return m
			}
		}
		m.paid = false
		copy(r.members, r.members[1:])
		r.members[len(r.members)-1] = m
	}
}

// skipRounds pays at once the rounds in which no member can afford its first request, so that a
// prompt of a million tokens takes no more time than a short one.
func (r *Ring[T]) skipRounds() {
	rounds := -1
	for _, m := range r.members {
		if m.cost == 0 {
			continue
		}
		own := (m.cost - m.deficit + m.Quantum - 1) / m.Quantum
		if m.paid {
			own++ // the turn of this round is nearly over: the next payment is a round later
		}
		// The last round is left to Next, which knows the order.
		own = max(own-1, 0)
		if rounds < 0 || own < rounds {
			rounds = own
		}
	}
	for _, m := range r.members {
		if m.cost > 0 {
			m.deficit += rounds * m.Quantum
		}
	}
}
