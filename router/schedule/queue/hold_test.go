package queue

import (
	"cmp"
	"slices"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/blockyard-ai/blockyard/internal/kv"
)

// held is a request of the twin: its item, and what the twin knows of it.
type held struct {
	item    *Item
	number  int // in the order of arrival
	cost    int
	class   int
	lane    heldLane
	arrived float64
}

// heldLane names a lane: no favourite, a favourite, or overdue.
type heldLane struct {
	class     int
	favourite kv.WorkerID
	overdue   bool
}

// share is a class of the twin.
type share struct {
	class, quantum, deficit int
	paid                    bool
}

// holdMachine drives a queue with classes, favourites and a longest wait, and a twin that searches lists
// and pays the shares of the classes round by round.
type holdMachine struct {
	*waitRoom
	now        float64
	overloaded bool
	waiting    []*held
	asleep     map[heldLane]bool
	ring       []*share
	quanta     []int
	pushed     int
}

// busyItem says of an overdue item that all workers are overloaded, of another that none is free.
func (m *holdMachine) busyItem(i *Item) bool {
	if i.Overdue {
		return m.overloaded
	}
	return m.busy(i)
}

func before(a, b *held) int {
	return cmp.Or(cmp.Compare(b.item.StrictPriority, a.item.StrictPriority), cmp.Compare(a.number, b.number))
}

// heads returns the first requests of the lanes of a class, in their order.
func (m *holdMachine) heads(class int) (out []*held) {
	for _, h := range slices.SortedFunc(slices.Values(m.waiting), before) {
		if h.class == class && !slices.ContainsFunc(out, func(o *held) bool { return o.lane == h.lane }) {
			out = append(out, h)
		}
	}
	return out
}

// twinNext is the request that goes next, and charges its class.
func (m *holdMachine) twinNext() *held {
	first := make(map[int]*held)
	for _, s := range m.ring {
		for _, h := range m.heads(s.class) {
			if m.asleep[h.lane] {
				continue
			}
			if !m.busyItem(h.item) {
				first[s.class] = h
				break
			}
			m.asleep[h.lane] = h.lane.favourite != 0 // another lane wakes as soon as its workers are free
		}
	}
	if len(first) == 0 {
		return nil
	}
	for {
		s := m.ring[0]
		if h := first[s.class]; h != nil {
			if !s.paid {
				s.deficit, s.paid = s.deficit+s.quantum, true
			}
			if h.cost <= s.deficit {
				s.deficit -= h.cost
				return h
			}
		}
		s.paid = false
		m.ring = append(m.ring[1:], s)
	}
}

func (m *holdMachine) share(class int) *share {
	return m.ring[slices.IndexFunc(m.ring, func(s *share) bool { return s.class == class })]
}

// forget takes a request out of the twin.
func (m *holdMachine) forget(h *held) {
	m.waiting = slices.DeleteFunc(m.waiting, func(o *held) bool { return o == h })
	m.forgetLane(h.lane)
	if !slices.ContainsFunc(m.waiting, func(o *held) bool { return o.class == h.class }) {
		m.ring = slices.DeleteFunc(m.ring, func(s *share) bool { return s.class == h.class })
	}
}

// forgetLane forgets that a lane sleeps if it has no request.
func (m *holdMachine) forgetLane(l heldLane) {
	if !slices.ContainsFunc(m.waiting, func(o *held) bool { return o.lane == l }) {
		delete(m.asleep, l)
	}
}

func (m *holdMachine) Push(t *rapid.T) {
	h := &held{item: &Item{Class: rapid.IntRange(0, len(m.quanta)-1).Draw(t, "class"), Arrival: m.now,
		StrictPriority: rapid.Uint32Range(0, 1).Draw(t, "strict"), Tokens: rapid.IntRange(1, 90).Draw(t, "tokens")}, arrived: m.now}
	m.pushed++
	h.number, h.cost, h.class, h.lane = m.pushed, h.item.Tokens, h.item.Class, heldLane{class: h.item.Class}
	if rapid.Bool().Draw(t, "held") {
		w := rapid.SampledFrom(m.workers).Draw(t, "favourite")
		h.item.SetFavourite(w)
		h.lane.favourite = w.ID
		if !slices.ContainsFunc(m.waiting, func(o *held) bool { return o.lane == h.lane }) {
			m.asleep[h.lane] = true
		}
	}
	if err := m.Queue.Push(h.item); err != nil {
		t.Fatal(err)
	}
	if !slices.ContainsFunc(m.ring, func(s *share) bool { return s.class == h.class }) {
		m.ring = append(m.ring, &share{class: h.class, quantum: m.quanta[h.class]})
	}
	m.waiting = append(m.waiting, h)
}

// Toggle makes a worker busy or free.
func (m *holdMachine) Toggle(t *rapid.T) {
	w := rapid.SampledFrom(m.workers).Draw(t, "worker")
	if m.free[w] = !m.free[w]; m.free[w] {
		m.Released(w, nil)
		for class := range m.quanta {
			delete(m.asleep, heldLane{class: class, favourite: w.ID})
		}
	}
}

func (m *holdMachine) Wake(t *rapid.T) {
	m.overloaded = rapid.Bool().Draw(t, "overloaded")
	m.WakeAll()
	clear(m.asleep)
}

func (m *holdMachine) Next(t *rapid.T) {
	want, got := m.twinNext(), m.Queue.Next(m.busyItem)
	if want == nil || got != want.item {
		if want != nil || got != nil {
			t.Fatalf("next is %+v, want %+v", got, want)
		}
		return
	}
	if got.Overdue || rapid.Bool().Draw(t, "goes") {
		m.Take(got)
		m.forget(want)
		return
	}
	w := rapid.SampledFrom(m.workers).Draw(t, "favourite")
	m.Hold(got, w)
	m.share(want.class).deficit += want.cost
	old := want.lane
	want.lane.favourite = w.ID
	m.forgetLane(old)
	m.asleep[want.lane] = true
}

func (m *holdMachine) Leave(t *rapid.T) {
	if len(m.waiting) == 0 {
		t.Skip("nobody waits")
	}
	h := rapid.SampledFrom(m.waiting).Draw(t, "item")
	if !m.Queue.Remove(h.item) {
		t.Fatalf("%+v does not wait", h)
	}
	m.forget(h)
}

// Pass lets time pass. Requests become overdue.
func (m *holdMachine) Pass(t *rapid.T) {
	m.now += float64(rapid.IntRange(0, 3).Draw(t, "seconds"))
	m.Expire(m.now)
	for _, h := range m.waiting {
		if old := h.lane; m.now-h.arrived >= 5 && !old.overdue {
			h.lane = heldLane{class: h.class, overdue: true}
			m.forgetLane(old)
		}
	}
}

// Claims compares the claims of waiting requests with a search through all of them.
func (m *holdMachine) Claims(t *rapid.T) {
	i := &Item{Class: rapid.IntRange(0, len(m.quanta)-1).Draw(t, "class"), Arrival: m.now, StrictPriority: rapid.Uint32Range(0, 1).Draw(t, "strict")}
	want, got := make(map[kv.WorkerID]int), make(map[kv.WorkerID]int)
	for _, h := range m.waiting {
		head := h
		for _, o := range m.waiting {
			if o.lane == h.lane && before(o, head) < 0 {
				head = o
			}
		}
		if h.lane.favourite != 0 && (h.class != i.Class || head.item.StrictPriority >= i.StrictPriority) {
			want[h.lane.favourite] += h.cost
		}
	}
	m.Queue.Claims(i, func(w kv.Worker, tokens int) { got[w.ID] += tokens })
	if len(got) != len(want) || len(want) > 0 && !m.Held() {
		t.Fatalf("claims %v, want %v", got, want)
	}
	for w, n := range want {
		if got[w] != n {
			t.Fatalf("claims %v, want %v", got, want)
		}
	}
}

func (m *holdMachine) Check(t *rapid.T) {
	if m.Len() != len(m.waiting) || m.Queue.ring.Len() != len(m.ring) {
		t.Fatalf("%d wait in %d classes, want %d in %d", m.Len(), m.Queue.ring.Len(), len(m.waiting), len(m.ring))
	}
	for s := range m.Queue.ring.Members() {
		if want := m.share(s.Value.number); s.Deficit() != want.deficit {
			t.Fatalf("class %d keeps %d, want %d", want.class, s.Deficit(), want.deficit)
		}
	}
}

// TestHeldRequestsModel: whatever is held, overdue or leaves, the next request and the deficits of the
// classes are those of the twin. A request that is held costs its class nothing.
func TestHeldRequestsModel(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		p := matrix()
		m := &holdMachine{asleep: make(map[heldLane]bool)}
		for k := range p.Classes {
			p.Classes[k].Quantum = rapid.IntRange(1, 200).Draw(rt, "quantum")
			m.quanta = append(m.quanta, p.Classes[k].Quantum)
		}
		m.waitRoom = newWaitRoom(t, Options{Profile: p, MaxWait: 5 * time.Second}, kv.Worker{ID: 1}, kv.Worker{ID: 2}, kv.Worker{ID: 3})
		rt.Repeat(map[string]func(*rapid.T){
			"push": m.Push, "toggle": m.Toggle, "wake": m.Wake, "next": m.Next, "leave": m.Leave, "pass": m.Pass, "claims": m.Claims, "": m.Check,
		})
		m.overloaded = false
		m.now += 5
		m.Expire(m.now)
		m.WakeAll()
		for i := m.Queue.Next(m.busyItem); i != nil; i = m.Queue.Next(m.busyItem) {
			m.Take(i)
		}
		if s := m.Stats(); s.Pending+s.Lanes+len(m.Queue.held)+len(m.lanesForAll)+m.Queue.ring.Len()+m.arrivals.Len() != 0 {
			rt.Fatalf("left over: %+v", s)
		}
	})
}

// TestHoldingKeepsTheShares: requests of two classes are held any number of times before they go. Those
// of the class with four times the quantum get four times the tokens.
func TestHoldingKeepsTheShares(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		p := matrix() // quanta of 512 and 128
		r := newWaitRoom(t, Options{Profile: p}, queueWorkers...)
		for n := range 2000 {
			if err := r.Push(&Item{Tokens: 64, Class: n % 2, Arrival: float64(n)}); err != nil {
				rt.Fatal(err)
			}
		}
		often := [2]int{rapid.IntRange(0, 9).Draw(rt, "often"), rapid.IntRange(0, 9).Draw(rt, "often too")}
		r.free[queueWorkers[0]] = true
		served, holds := [2]int{}, [2]int{}
		for served[0]+served[1] < 500 {
			i := r.Next(r.busy)
			if i == nil {
				r.WakeAll()
				continue
			}
			if holds[i.Class]++; holds[i.Class]%(often[i.Class]+1) != 0 {
				r.Hold(i, queueWorkers[1])
				r.WakeAll() // a tick
				continue
			}
			r.Take(i)
			served[i.Class]++
		}
		if served[0] < 392 || served[0] > 408 {
			rt.Fatalf("served %v of 500, want 400 and 100", served)
		}
	})
}

// TestHoldTakesNoTimeForTheOthers: a request that is held again does not look at those behind it.
func TestHoldTakesNoTimeForTheOthers(t *testing.T) {
	r := newWaitRoom(t, Options{MaxWait: time.Minute}, queueWorkers...)
	first := r.wait("first", Item{})
	for range 100 {
		r.wait("later", Item{})
	}
	at := first.arrival
	r.free[queueWorkers[0]] = true
	if i := r.Next(r.busy); i != first {
		t.Fatalf("%+v goes first", i)
	}
	r.Hold(first, queueWorkers[1])
	if first.arrival != at || r.arrivals.Front() != at || r.Stats().Dispatched != 0 {
		t.Error("a held request has lost its place among the arrivals")
	}
}
