package queue

import (
	"cmp"
	"fmt"
	"slices"
	"testing"

	"pgregory.net/rapid"

	"github.com/blockyard-ai/blockyard/internal/kv"
)

// queueMachine drives a queue and a twin that is a list, which is sorted and
// searched for each question.
type queueMachine struct {
	*waitRoom
	waiting []*Item // in the order of arrival
	arrived int
	// gone have left the queue; they may come again.
	gone []*Item
}

// twinBefore is the order of waiting, from the text: strict priority, then the
// jump forward less the arrival, then who came first.
func twinBefore(a, b *Item) int {
	score := func(i *Item) float64 { return max(0, i.PriorityJump) - i.Arrival }
	return cmp.Or(cmp.Compare(b.StrictPriority, a.StrictPriority), cmp.Compare(score(b), score(a)))
}

// twinNext is the first by that order that some free worker may serve, or none
// at all may.
func (m *queueMachine) twinNext() *Item {
	sorted := slices.SortedStableFunc(slices.Values(m.waiting), twinBefore)
	for _, i := range sorted {
		if !m.busy(i) {
			return i
		}
	}
	return nil
}

func (m *queueMachine) forget(i *Item) {
	m.waiting = slices.DeleteFunc(m.waiting, func(j *Item) bool { return i == j })
	m.gone = append(m.gone, i)
}

func (m *queueMachine) sameSet(a, b *Item) bool {
	return !slices.ContainsFunc(m.workers, func(w kv.Worker) bool { return m.mayServe(a, w) != m.mayServe(b, w) })
}

// Push lets a request of any kind wait if it has to, and otherwise checks that a
// worker is free for it.
func (m *queueMachine) Push(t *rapid.T) {
	i := &Item{
		StrictPriority: rapid.Uint32Range(0, 1).Draw(t, "strict"),
		PriorityJump:   float64(rapid.IntRange(-2, 4).Draw(t, "jump")),
		Tokens:         rapid.IntRange(0, 9).Draw(t, "tokens"),
	}
	if len(m.gone) > 0 && rapid.Bool().Draw(t, "again") {
		i = m.gone[0]
		m.gone = m.gone[1:]
	}
	m.arrived++
	i.Arrival = float64(m.arrived / 2)
	i.Pinned, i.Allowed, i.RequiredTaints, i.Value = nil, nil, nil, m.arrived
	worker := rapid.SampledFrom(m.workers)
	switch rapid.IntRange(0, 4).Draw(t, "kind") {
	case 0:
		i.Pinned = pin(worker.Draw(t, "pinned"))
	case 1:
		i.Allowed = only(worker.Draw(t, "allowed").ID, worker.Draw(t, "allowed too").ID)
	case 2:
		i.RequiredTaints = []string{rapid.SampledFrom([]string{"a", "b", "nobody's"}).Draw(t, "taint")}
	case 3:
		i.Allowed = only(worker.Draw(t, "allowed").ID)
		i.RequiredTaints = []string{"a"}
	}
	switch waits := m.Waits(i, m.busy); {
	case !waits && m.busy(i):
		t.Fatalf("%+v does not wait, and nobody is free", i)
	case !waits:
		return
	case !m.busy(i) && !slices.ContainsFunc(m.waiting, func(j *Item) bool { return m.sameSet(i, j) }):
		t.Fatalf("%+v waits for nobody", i)
	}
	if err := m.Queue.Push(i); err != nil {
		t.Fatal(err)
	}
	m.waiting = append(m.waiting, i)
}

// Toggle makes a worker busy or free.
func (m *queueMachine) Toggle(t *rapid.T) {
	w := rapid.SampledFrom(m.workers).Draw(t, "worker")
	m.free[w] = !m.free[w]
	if m.free[w] {
		m.Released(w, m.taints[w])
	}
}

// Relabel gives a worker other taints, which only WakeAll makes known.
func (m *queueMachine) Relabel(t *rapid.T) {
	w := rapid.SampledFrom(m.workers).Draw(t, "worker")
	m.taints[w] = rapid.SliceOfDistinct(rapid.SampledFrom([]string{"a", "b"}), rapid.ID).Draw(t, "taints")
	m.WakeAll()
}

func (m *queueMachine) Remove(t *rapid.T) {
	if len(m.waiting) == 0 {
		t.Skip("nobody waits")
	}
	i := rapid.SampledFrom(m.waiting).Draw(t, "item")
	if !m.Queue.Remove(i) {
		t.Fatalf("%+v does not wait", i)
	}
	m.forget(i)
}

// Replace gives the queue the same options anew: nothing else may change.
func (m *queueMachine) Replace(t *rapid.T) {
	before := m.Stats()
	q, err := m.Queue.Replace(m.o, func(*Item) {})
	if err != nil {
		t.Fatal(err)
	}
	m.Queue = q
	if after := m.Stats(); after != before {
		t.Fatalf("replaced: %+v, want %+v", after, before)
	}
}

// Next dispatches one request.
func (m *queueMachine) Next(t *rapid.T) {
	want := m.twinNext()
	if got := m.next(); got != want {
		t.Fatalf("dispatched %+v, want %+v", got, want)
	}
	if want != nil {
		m.forget(want)
	}
}

func (m *queueMachine) Check(t *rapid.T) {
	tokens := 0
	for _, i := range m.waiting {
		tokens += i.Tokens
	}
	if m.Len() != len(m.waiting) || m.Tokens() != tokens {
		t.Fatalf("%d wait with %d tokens, want %d, %d", m.Len(), m.Tokens(), len(m.waiting), tokens)
	}
	for at, l := range m.classes[0].awake {
		if l.awakeIndex != at || len(l.waiting) == 0 || m.lanes[l.key] != l {
			t.Fatalf("awake lane %d is %+v", at, l)
		}
	}
}

// TestQueueModel: whatever comes, goes, is busy and becomes free, the next
// request is the one that a search through a sorted list finds.
func TestQueueModel(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		m := &queueMachine{waitRoom: newWaitRoom(t, Options{}, queueWorkers...)}
		m.taints[queueWorkers[0]] = []string{"a"}
		rt.Repeat(map[string]func(*rapid.T){
			"push": m.Push, "toggle": m.Toggle, "relabel": m.Relabel, "remove": m.Remove, "replace": m.Replace, "next": m.Next, "": m.Check,
		})
		for _, w := range m.workers {
			m.free[w] = true
		}
		m.WakeAll()
		for len(m.waiting) > 0 {
			m.Next(rt)
		}
		if s := m.Stats(); s.Pending+s.Tokens+s.Lanes+len(m.lanesByAllowed)+len(m.lanesForAll)+len(m.classes[0].awake)+len(m.lanesByWorker)+m.ring.Len()+m.arrivals.Len() != 0 {
			rt.Fatalf("left over: %+v", s)
		}
	})
}

// BenchmarkQueue dispatches one of 10,000 waiting requests, each pinned to a
// worker of its own or all in one lane, and lets it wait again.
func BenchmarkQueue(b *testing.B) {
	for _, lanes := range []int{1, 10_000} {
		b.Run(fmt.Sprintf("%d lanes", lanes), func(b *testing.B) {
			fraction := 1.0
			q, err := New(Options{Class: Class{Threshold: &fraction}})
			if err != nil {
				b.Fatal(err)
			}
			busy := func(*Item) bool { return true }
			for n := range 10_000 {
				i := &Item{Arrival: float64(n)}
				if lanes > 1 {
					i.Pinned = pin(kv.Worker{ID: kv.WorkerID(n + 1)})
				}
				if err := q.Push(i); err != nil {
					b.Fatal(err)
				}
			}
			q.Next(busy)
			b.ReportAllocs()
			n := 0
			for b.Loop() {
				n++
				q.Released(kv.Worker{ID: kv.WorkerID(n%lanes + 1)}, nil)
				i := q.Next(func(*Item) bool { return false })
				if i == nil {
					b.Fatal("nobody may go")
				}
				q.Take(i)
				i.Arrival = float64(10_000 + n)
				if err := q.Push(i); err != nil {
					b.Fatal(err)
				}
				q.Next(busy)
			}
		})
	}
}
