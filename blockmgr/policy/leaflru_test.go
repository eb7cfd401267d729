package policy

import (
	"cmp"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"

	"pgregory.net/rapid"

	"github.com/blockyard-ai/blockyard/blockmgr/registry"
)

// sortedTwin is an Evictor that sorts everything at each question.
type sortedTwin struct {
	leaves map[registry.Ref]leaf
}

func (s *sortedTwin) order() []registry.Ref {
	var all []leaf
	for _, l := range s.leaves {
		all = append(all, l)
	}
	slices.SortFunc(all, func(a, b leaf) int {
		return cmp.Or(cmp.Compare(a.rank, b.rank), cmp.Compare(a.ref, b.ref))
	})
	refs := make([]registry.Ref, len(all))
	for i, l := range all {
		refs[i] = l.ref
	}
	return refs
}

// drain takes the victims out until none is left.
func drain(e Evictor) []registry.Ref {
	var refs []registry.Ref
	for {
		ref, ok := e.Victim()
		if !ok {
			return refs
		}
		e.Remove(ref)
		refs = append(refs, ref)
	}
}

// checkHeap fails when a position is wrong or a child goes before its parent.
func checkHeap(t rapid.TB, l *LeafLRU) {
	t.Helper()
	for i := uint32(heapRoot); i < l.end; i++ {
		n := l.heap.at(i)
		if at := l.extents[n.ref.Extent()].position[n.ref.Slot()]; at != i {
			t.Fatalf("element %d: position of its slot is %d", i, at)
		}
		if i > heapRoot && n.before(l.heap.at(parentOf(i))) {
			t.Fatalf("element %d goes before its parent", i)
		}
	}
}

// lruModel drives a LeafLRU and its twin with parts that come and go.
type lruModel struct {
	lru   *LeafLRU
	twin  sortedTwin
	parts map[uint32]uint32 // slots by part
}

func (m *lruModel) ref(t *rapid.T) (registry.Ref, bool) {
	if len(m.parts) == 0 {
		return 0, false
	}
	var numbers []uint32
	for part := range m.parts {
		numbers = append(numbers, part)
	}
	slices.Sort(numbers)
	part := rapid.SampledFrom(numbers).Draw(t, "part")
	return registry.MakeRef(part, rapid.Uint32Range(0, m.parts[part]-1).Draw(t, "slot")), true
}

func (m *lruModel) place(t *rapid.T) {
	if ref, ok := m.ref(t); ok {
		tick, priority := rapid.Uint64Range(0, 20).Draw(t, "tick"), rapid.Uint32Range(0, 3).Draw(t, "priority")
		level := rapid.Uint64Range(0, 10).Draw(t, "level")
		n := leaf{rank: tick + uint64(priority)*level, ref: ref}
		m.lru.SetLevel(level)
		m.lru.Place(ref, priority, tick)
		m.twin.leaves[ref] = n
	}
}

func (m *lruModel) remove(t *rapid.T) {
	if ref, ok := m.ref(t); ok {
		m.lru.Remove(ref)
		delete(m.twin.leaves, ref)
	}
}

func (m *lruModel) togglePart(t *rapid.T) {
	part := rapid.Uint32Range(0, 5).Draw(t, "toggled part")
	slots, there := m.parts[part]
	if !there {
		m.parts[part] = rapid.Uint32Range(1, 40).Draw(t, "slots")
		m.lru.AddExtent(part, m.parts[part])
		return
	}
	for slot := range slots {
		m.lru.Remove(registry.MakeRef(part, slot))
		delete(m.twin.leaves, registry.MakeRef(part, slot))
	}
	m.lru.RemoveExtent(part)
	delete(m.parts, part)
	m.lru.Remove(registry.MakeRef(part, 0))
}

func (m *lruModel) check(t *rapid.T) {
	checkHeap(t, m.lru)
	if m.lru.Len() != len(m.twin.leaves) {
		t.Fatalf("%d slots are in, want %d", m.lru.Len(), len(m.twin.leaves))
	}
	want := m.twin.order()
	got, ok := m.lru.Victim()
	if ok != (len(want) > 0) || ok && got != want[0] {
		t.Fatalf("victim %v, %v of %v", got, ok, want)
	}
}

func TestLeafLRUOrdersAsASortDoes(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		m := &lruModel{lru: NewLeafLRU(), twin: sortedTwin{make(map[registry.Ref]leaf)}, parts: make(map[uint32]uint32)}
		m.togglePart(t)
		t.Repeat(map[string]func(*rapid.T){
			"place":       m.place,
			"place more":  m.place,
			"remove":      m.remove,
			"toggle part": m.togglePart,
			"":            m.check,
		})
		want := m.twin.order()
		if got := drain(m.lru); !slices.Equal(got, want) {
			t.Fatalf("order %v, want %v", got, want)
		}
	})
}

func TestLeafLRUOrdersAcrossChunks(t *testing.T) {
	const parts, slots = 3, 2*chunkLen + 7
	l, ticks := NewLeafLRU(), rand.New(rand.NewPCG(1, 2)).Perm(parts*slots)
	for part := range uint32(parts) {
		l.AddExtent(part, slots)
		for slot := range uint32(slots) {
			l.Place(registry.MakeRef(part, slot), 0, uint64(ticks[part*slots+slot]))
		}
	}
	checkHeap(t, l)
	for want := range uint64(parts * slots) {
		ref, ok := l.Victim()
		if !ok || uint64(ticks[ref.Extent()*slots+ref.Slot()]) != want {
			t.Fatalf("victim %d is slot %d of part %d", want, ref.Slot(), ref.Extent())
		}
		l.Remove(ref)
	}
}

func TestLeafLRULetsMemoryGoWithItsParts(t *testing.T) {
	l := NewLeafLRU()
	for part := range uint32(4) {
		l.AddExtent(part, chunkLen)
		for slot := range uint32(chunkLen) {
			l.Place(registry.MakeRef(part, slot), 0, uint64(slot))
		}
	}
	drain(l)
	for part := range uint32(3) {
		l.RemoveExtent(part)
	}
	if n := len(l.heap.chunks); n > 2 {
		t.Errorf("%d chunks for %d slots", n, chunkLen)
	}
}

func TestLeafLRUMistakesOfTheCallerPanic(t *testing.T) {
	for _, tc := range []struct {
		name, want string
		mistake    func(*LeafLRU)
	}{
		{"part added twice", "added twice", func(l *LeafLRU) { l.AddExtent(1, 4) }},
		{"slot of no part", "was not added", func(l *LeafLRU) { l.Place(registry.MakeRef(0, 0), 0, 0) }},
		{"slot beyond its part", "was not added", func(l *LeafLRU) { l.Place(registry.MakeRef(1, 4), 0, 0) }},
		{"no slot at all", "was not added", func(l *LeafLRU) { l.Place(registry.NoRef, 0, 0) }},
		{"part with placed slots removed", "with 1 slots in the order", func(l *LeafLRU) {
			l.Place(registry.MakeRef(1, 3), 0, 0)
			l.RemoveExtent(1)
		}},
	} {
		t.Run(tc.name, func(t *testing.T) {
			defer func() {
				if got, _ := recover().(string); !strings.HasPrefix(got, "BUG: policy: ") || !strings.Contains(got, tc.want) {
					t.Errorf("panic %q, want one with %q", got, tc.want)
				}
			}()
			l := NewLeafLRU()
			l.AddExtent(1, 4)
			tc.mistake(l)
		})
	}
}

func TestLeafLRUDoesNotAllocateOnceItHasItsSize(t *testing.T) {
	const slots = 3 * chunkLen
	l := NewLeafLRU()
	l.AddExtent(0, slots)
	for slot := range uint32(slots) {
		l.Place(registry.MakeRef(0, slot), 0, uint64(slot))
	}
	tick := uint64(slots)
	if n := testing.AllocsPerRun(1000, func() {
		ref, _ := l.Victim()
		l.Remove(ref)
		tick++
		l.Place(ref, 0, tick)
	}); n != 0 {
		t.Errorf("%v allocations for an eviction", n)
	}
}
