package fairshare

import (
	"testing"

	"pgregory.net/rapid"
)

// heads is a ring of queues by name, and the cost of each queue's first request.
type heads struct {
	Ring[string]
	costs map[string]int
}

func (h *heads) next() string {
	m := h.Next(func(name string) int { return h.costs[name] })
	if m == nil {
		return ""
	}
	return m.Value
}

func ringOf(quanta map[string]int, order ...string) *heads {
	h := &heads{costs: make(map[string]int)}
	for _, name := range order {
		h.Add(&Member[string]{Value: name, Quantum: quanta[name]})
	}
	return h
}

// TestBulkCredit: quanta of 1000 and 2000 whose first requests cost 7000 and 9000. One round gives
// 1000 and 2000, four more 5000 and 10000: the second goes and keeps 1000.
func TestBulkCredit(t *testing.T) {
	h := ringOf(map[string]int{"throughput": 1000, "latency": 2000}, "throughput", "latency")
	h.costs["throughput"], h.costs["latency"] = 7000, 9000
	if got := h.next(); got != "latency" {
		t.Fatalf("%q goes first", got)
	}
	for m := range h.Members() {
		if want := map[string]int{"throughput": 5000, "latency": 1000}[m.Value]; m.Deficit() != want {
			t.Errorf("%s keeps %d, want %d", m.Value, m.Deficit(), want)
		}
	}
}

// TestShares: equal requests and quanta of 512 and 128 are served four to one.
func TestShares(t *testing.T) {
	for _, cost := range []int{1, 64, 1000, 1 << 20} {
		h := ringOf(map[string]int{"a": 512, "b": 128}, "a", "b")
		h.costs["a"], h.costs["b"] = cost, cost
		served := make(map[string]int)
		for range 320 {
			served[h.next()]++
		}
		// A turn of small requests may be cut off in the middle.
		if burst := max(1, 512/cost); served["a"] < 256-burst || served["a"] > 256+burst {
			t.Errorf("cost %d: served %v, want 256 and 64", cost, served)
		}
	}
}

// TestBlockedEarnsNothing: a member whose request may not go keeps its deficit, however many rounds
// pass, and one that is removed loses it.
func TestBlockedEarnsNothing(t *testing.T) {
	h := ringOf(map[string]int{"a": 10, "b": 10}, "a", "b")
	h.costs["a"], h.costs["b"] = 4, 25
	for h.next() == "a" { // until b has saved enough
	}
	b := h.members[0]
	if b.Value != "b" || b.Deficit() != 5 {
		t.Fatalf("%s keeps %d", b.Value, b.Deficit())
	}
	h.costs["b"] = 0
	for range 100 {
		if got := h.next(); got != "a" {
			t.Fatalf("%q goes while b is blocked", got)
		}
	}
	if b.Deficit() != 5 {
		t.Errorf("a blocked member has %d, want 5", b.Deficit())
	}
	h.Remove(b)
	h.Add(b)
	if b.Deficit() != 0 {
		t.Errorf("a new member has %d", b.Deficit())
	}
	h.costs["a"] = 0
	if got := h.next(); got != "" {
		t.Errorf("%q goes and all are blocked", got)
	}
}

// TestLikeRoundByRound: Next finds what paying one round after the other finds.
func TestLikeRoundByRound(t *testing.T) {
	type twin struct {
		quantum, deficit, cost int
		paid                   bool
		name                   string
	}
	rapid.Check(t, func(t *rapid.T) {
		var ring Ring[int]
		var twins []*twin
		costs := make(map[int]int)
		for n := range rapid.IntRange(1, 5).Draw(t, "members") {
			q := rapid.IntRange(1, 50).Draw(t, "quantum")
			ring.Add(&Member[int]{Value: n, Quantum: q})
			twins = append(twins, &twin{quantum: q, name: string(rune('a' + n))})
		}
		for range 50 {
			some := false
			for _, w := range twins {
				w.cost = rapid.IntRange(0, 400).Draw(t, "cost")
				costs[int(w.name[0]-'a')] = w.cost
				some = some || w.cost > 0
			}
			got := ring.Next(func(n int) int { return costs[n] })
			if !some {
				if got != nil {
					t.Fatalf("%d goes", got.Value)
				}
				continue
			}
			for {
				w := twins[0]
				if w.cost > 0 && !w.paid {
					w.deficit, w.paid = w.deficit+w.quantum, true
				}
				if w.cost > 0 && w.cost <= w.deficit {
					w.deficit -= w.cost
					break
				}
				w.paid = false
				twins = append(twins[1:], w)
			}
			if w := twins[0]; got.Value != int(w.name[0]-'a') || got.Deficit() != w.deficit {
				t.Fatalf("%d goes and keeps %d, want %s with %d", got.Value, got.Deficit(), w.name, w.deficit)
			}
		}
	})
}
