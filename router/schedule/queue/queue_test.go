package queue

import (
	"errors"
	"fmt"
	"math"
	"slices"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/blockyard-ai/blockyard/internal/kv"
)

// waitRoom is a queue and which workers are busy: all but those in free.
type waitRoom struct {
	testing.TB
	*Queue
	workers []kv.Worker
	taints  map[kv.Worker][]string
	free    map[kv.Worker]bool
	// asked counts the items that were looked at.
	asked int
}

func newWaitRoom(t testing.TB, o Options, workers ...kv.Worker) *waitRoom {
	t.Helper()
	if !o.Enabled() {
		fraction := 1.0
		o.Threshold = &fraction
	}
	q, err := New(o)
	if err != nil {
		t.Fatal(err)
	}
	q.SetWorkers(len(workers))
	return &waitRoom{t, q, workers, make(map[kv.Worker][]string), make(map[kv.Worker]bool), 0}
}

func (r *waitRoom) mayServe(i *Item, w kv.Worker) bool {
	if i.Pinned != nil {
		return *i.Pinned == w
	}
	if _, ok := i.Allowed[w.ID]; i.Allowed != nil && !ok {
		return false
	}
	for _, t := range i.RequiredTaints {
		if !slices.Contains(r.taints[w], t) {
			return false
		}
	}
	return true
}

func (r *waitRoom) busy(i *Item) bool {
	r.asked++
	some := false
	for _, w := range r.workers {
		if r.mayServe(i, w) {
			some = true
			if r.free[w] {
				return false
			}
		}
	}
	return some
}

// wait makes an item wait under a name.
func (r *waitRoom) wait(name string, i Item) *Item {
	r.Helper()
	i.Value = name
	if !r.Waits(&i, r.busy) {
		r.Fatalf("%s does not wait", name)
	}
	if err := r.Push(&i); err != nil {
		r.Fatal(err)
	}
	return &i
}

// release frees a worker and returns the names of those that may go then, while
// it stays free.
func (r *waitRoom) release(w kv.Worker) []string {
	r.free[w] = true
	r.Released(w, r.taints[w])
	names := r.drain()
	r.free[w] = false
	return names
}

// next takes the next request out; nil if none may go.
func (r *waitRoom) next() *Item {
	i := r.Next(r.busy)
	if i != nil {
		r.Take(i)
	}
	return i
}

func (r *waitRoom) drain() []string {
	var names []string
	for i := r.next(); i != nil; i = r.next() {
		names = append(names, i.Value.(string))
	}
	return names
}

func (r *waitRoom) expect(what string, got []string, want ...string) {
	r.Helper()
	if d := cmp.Diff(want, got); d != "" {
		r.Errorf("%s (-want +got):\n%s", what, d)
	}
}

var queueWorkers = []kv.Worker{{ID: 1}, {ID: 2}, {ID: 2, Rank: 1}}

func pin(w kv.Worker) *kv.Worker { return &w }

func only(ids ...kv.WorkerID) map[kv.WorkerID]struct{} {
	set := make(map[kv.WorkerID]struct{})
	for _, id := range ids {
		set[id] = struct{}{}
	}
	return set
}

// TestQueueOrder: strict priority, then arrival moved forward by the jump in
// seconds, then who came first.
func TestQueueOrder(t *testing.T) {
	for _, c := range []struct {
		name  string
		items []Item
		want  []string
	}{
		{"first come", []Item{{Arrival: 0}, {Arrival: 1}, {Arrival: 2}}, []string{"0", "1", "2"}},
		{"equal arrivals", []Item{{Arrival: 3}, {Arrival: 3}, {Arrival: 3}}, []string{"0", "1", "2"}},
		{"a jump beats an earlier arrival", []Item{{Arrival: 0}, {Arrival: 4, PriorityJump: 5}}, []string{"1", "0"}},
		{"a jump that is too short", []Item{{Arrival: 0}, {Arrival: 4, PriorityJump: 3}}, []string{"0", "1"}},
		{"a jump as long as the distance", []Item{{Arrival: 0}, {Arrival: 4, PriorityJump: 4}}, []string{"0", "1"}},
		{"a negative jump is none", []Item{{Arrival: 0, PriorityJump: -100}, {Arrival: 1}}, []string{"0", "1"}},
		{"a jump that is no number is none", []Item{{Arrival: 0, PriorityJump: math.NaN()}, {Arrival: 1}}, []string{"0", "1"}},
		{"strict priority first", []Item{{PriorityJump: 1000}, {Arrival: 9, StrictPriority: 1}, {Arrival: 9, StrictPriority: 2}}, []string{"2", "1", "0"}},
	} {
		t.Run(c.name, func(t *testing.T) {
			r := newWaitRoom(t, Options{}, queueWorkers...)
			for n, i := range c.items {
				r.wait(fmt.Sprint(n), i)
			}
			r.expect("order", r.release(queueWorkers[0]), c.want...)
		})
	}
}

// TestWhoWaits: those that others of their lane wait before, and those whose
// workers are all busy; never without a threshold or with an untracked prompt.
func TestWhoWaits(t *testing.T) {
	r := newWaitRoom(t, Options{}, queueWorkers...)
	r.wait("0", Item{})
	r.free[queueWorkers[0]] = true
	for _, c := range []struct {
		name string
		item Item
		want bool
	}{
		{"behind the backlog", Item{}, true},
		{"untracked", Item{Untracked: true}, false},
		{"pinned to a busy worker", Item{Pinned: pin(queueWorkers[1])}, true},
		{"pinned to a free worker", Item{Pinned: pin(queueWorkers[0])}, false},
		{"allowed a free worker", Item{Allowed: only(1, 2)}, false},
		{"allowed a busy worker", Item{Allowed: only(2)}, true},
		{"allowed nobody", Item{Allowed: only()}, false},
		{"taints that nobody has", Item{RequiredTaints: []string{"x"}}, false},
	} {
		if got := r.Waits(&c.item, r.busy); got != c.want {
			t.Errorf("%s: waits %v", c.name, got)
		}
	}
	off, err := New(Options{})
	if err != nil {
		t.Fatal(err)
	}
	if off.Waits(&Item{}, func(*Item) bool { return true }) {
		t.Error("waits without a threshold")
	}
}

// TestEqualSetsAreOneLane: however they are written.
func TestEqualSetsAreOneLane(t *testing.T) {
	r := newWaitRoom(t, Options{}, queueWorkers...)
	r.taints[queueWorkers[0]] = []string{"a", "b"}
	r.wait("0", Item{Arrival: 0, Allowed: only(1, 2), RequiredTaints: []string{"a", "b"}})
	r.wait("1", Item{Arrival: 1, Allowed: only(2, 1), RequiredTaints: []string{"b", "a", "b"}})
	if n := r.Stats().Lanes; n != 1 {
		t.Errorf("%d lanes, want 1", n)
	}
	r.taints[queueWorkers[0]] = []string{"ab"}
	r.wait("2", Item{Arrival: 2, Allowed: only(1, 2), RequiredTaints: []string{"ab"}})
	if n := r.Stats().Lanes; n != 2 {
		t.Errorf("%d lanes, want 2", n)
	}
}

// TestReleaseLooksAtItsLanesOnly: what waits for other workers costs nothing.
func TestReleaseLooksAtItsLanesOnly(t *testing.T) {
	var workers []kv.Worker
	for n := range 1000 {
		workers = append(workers, kv.Worker{ID: kv.WorkerID(n + 1)})
	}
	r := newWaitRoom(t, Options{}, workers...)
	for n, w := range workers {
		for range 3 {
			r.wait(fmt.Sprint(n), Item{Pinned: pin(w)})
		}
	}
	r.wait("anywhere", Item{})
	r.taints[workers[8]] = []string{"x"}
	r.wait("tainted", Item{RequiredTaints: []string{"x"}})
	r.wait("tainted, allowed", Item{Allowed: only(workers[7].ID, workers[8].ID), RequiredTaints: []string{"x"}})
	r.expect("nobody is free", r.drain())
	r.asked = 0
	r.expect("one", r.release(workers[7]), "7", "7", "7", "anywhere")
	if r.asked != 4 {
		t.Errorf("looked at %d items, want 4", r.asked)
	}
	r.expect("nobody is free", r.drain())
	if r.asked != 4 {
		t.Errorf("looked at lanes that sleep")
	}
}

// TestLimitsAreTimesTheWorkers: the request that crosses a limit is the last one
// in, and the next one's error says what waits and what may.
func TestLimitsAreTimesTheWorkers(t *testing.T) {
	for _, c := range []struct {
		name   string
		limits Limits
		want   Rejection
	}{
		{"requests", Limits{Requests: 1}, Rejection{"default", LimitRequests, 2, 2}},
		{"tokens", Limits{Tokens: 15}, Rejection{"default", LimitTokens, 40, 30}},
		{"cached tokens", Limits{CachedTokens: 6}, Rejection{"default", LimitCachedTokens, 14, 12}},
		{"the first of several", Limits{Requests: 1, Tokens: 15}, Rejection{"default", LimitRequests, 2, 2}},
	} {
		t.Run(c.name, func(t *testing.T) {
			r := newWaitRoom(t, Options{Class: Class{Limits: c.limits}}, queueWorkers[:2]...)
			r.wait("0", Item{Tokens: 20, CachedTokens: 7})
			r.wait("1", Item{Tokens: 20, CachedTokens: 7})
			err := r.Push(&Item{})
			var got *Rejection
			if !errors.As(err, &got) || !errors.Is(err, ErrRejected) {
				t.Fatalf("error %v", err)
			}
			if d := cmp.Diff(c.want, *got); d != "" {
				t.Error(d)
			}
			if s := r.Stats(); s.Pending != 2 || s.RejectedRequests+s.RejectedTokens+s.RejectedCachedTokens != 1 {
				t.Errorf("%+v", s)
			}
			r.SetWorkers(3)
			if err := r.Push(&Item{}); err != nil {
				t.Errorf("with a third worker: %v", err)
			}
		})
	}
}

// TestPendingIsBoundedInAnyCase: by number, by the sum of the prompts, and by that of
// the sets of allowed workers, where those who wait for the same ones count once.
func TestPendingIsBoundedInAnyCase(t *testing.T) {
	pair := func(id kv.WorkerID) map[kv.WorkerID]struct{} { return only(id, id+1) }
	for _, c := range []struct {
		options Options
		want    Rejection
		counted func(*Stats) uint64
	}{
		{Options{MaxPending: 2, Class: Class{Limits: Limits{Requests: math.MaxInt}}}, Rejection{"default", LimitRequests, 2, 2},
			func(s *Stats) uint64 { return s.RejectedRequests }},
		{Options{MaxTokens: 15}, Rejection{"default", LimitTokens, 20, 15},
			func(s *Stats) uint64 { return s.RejectedTokens }},
		{Options{MaxAllowed: 3}, Rejection{"default", LimitAllowed, 2, 3},
			func(s *Stats) uint64 { return s.RejectedAllowed }},
	} {
		r := newWaitRoom(t, c.options, queueWorkers...)
		first := r.wait("0", Item{Tokens: 10, Allowed: pair(1)})
		second := r.wait("1", Item{Tokens: 10, Allowed: pair(1)})
		var got *Rejection
		if err := r.Push(&Item{Allowed: pair(2)}); !errors.As(err, &got) || *got != c.want {
			t.Errorf("error %v, want %v", err, c.want)
		}
		if s := r.Stats(); c.counted(&s) != 1 {
			t.Errorf("%+v", s)
		}
		if r.Remove(first); !r.Remove(second) || r.allowedIDs != 0 {
			t.Errorf("%d workers are named by nobody", r.allowedIDs)
		}
		if err := r.Push(&Item{Allowed: pair(2)}); err != nil {
			t.Errorf("when nobody waits: %v", err)
		}
	}
}
