package policy

import (
	"testing"

	"pgregory.net/rapid"

	"github.com/blockyard-ai/blockyard/blockmgr/registry"
)

// treeMachine drives an Evictor as a tier does: blocks have parents, only unused leaves are placed, and
// slots come and go with their extents.
type treeMachine struct {
	order  Evictor
	placed map[registry.Ref]bool
	// blocks has the parent of each slot with a block, children their number.
	blocks   map[registry.Ref]registry.Ref
	children map[registry.Ref]int
	tick     uint64
	hash     uint64
}

func newTreeMachine(order Evictor) *treeMachine {
	order.AddExtent(0, 20)
	order.AddExtent(1, 12)
	return &treeMachine{order: order, placed: map[registry.Ref]bool{}, blocks: map[registry.Ref]registry.Ref{}, children: map[registry.Ref]int{}}
}

// slot draws a slot.
func (m *treeMachine) slot(t *rapid.T) registry.Ref {
	e := rapid.Uint32Range(0, 1).Draw(t, "extent")
	return registry.MakeRef(e, rapid.Uint32Range(0, []uint32{19, 11}[e]).Draw(t, "slot"))
}

func (m *treeMachine) place(t *rapid.T, ref registry.Ref) {
	m.tick++
	m.order.Place(ref, uint32(rapid.IntRange(0, 1).Draw(t, "priority")), m.tick)
	m.placed[ref] = true
}

func (m *treeMachine) remove(ref registry.Ref) {
	m.order.Remove(ref)
	delete(m.placed, ref)
}

// drop takes a leaf's block away.
func (m *treeMachine) drop(t *rapid.T, ref registry.Ref) {
	m.remove(ref)
	m.order.Leave(ref)
	parent := m.blocks[ref]
	delete(m.blocks, ref)
	if _, ok := m.blocks[parent]; ok {
		if m.children[parent]--; m.children[parent] == 0 {
			m.place(t, parent)
		}
	}
}

func (m *treeMachine) actions() map[string]func(*rapid.T) {
	return map[string]func(*rapid.T){
		"store": func(t *rapid.T) {
			ref, parent := m.slot(t), m.slot(t)
			if _, taken := m.blocks[ref]; taken || ref == parent {
				t.Skip("the slot has a block")
			}
			if _, ok := m.blocks[parent]; !ok {
				parent = registry.NoRef
			}
			m.hash += uint64(rapid.IntRange(0, 3).Draw(t, "again"))
			m.blocks[ref] = parent
			m.order.Enter(ref, parent, m.hash%24)
			if parent != registry.NoRef {
				m.children[parent]++
				m.remove(parent)
			}
			m.place(t, ref)
		},
		"use": func(t *rapid.T) {
			ref := m.slot(t)
			if _, ok := m.blocks[ref]; !ok {
				t.Skip("no block")
			}
			m.order.Hit(ref)
			if m.placed[ref] {
				m.place(t, ref)
			}
		},
		"pin": func(t *rapid.T) { m.remove(m.slot(t)) },
		"unpin": func(t *rapid.T) {
			ref := m.slot(t)
			if _, ok := m.blocks[ref]; !ok || m.children[ref] > 0 {
				t.Skip("no leaf")
			}
			m.place(t, ref)
		},
		"evict": func(t *rapid.T) {
			ref, ok := m.order.Victim()
			if ok != (len(m.placed) > 0) || ok && !m.placed[ref] {
				t.Fatalf("victim %v, %v of %v", ref, ok, m.placed)
			}
			if ok {
				m.drop(t, ref)
			}
		},
		"extent": func(t *rapid.T) {
			for ref := range m.blocks {
				if ref.Extent() == 1 {
					t.Skip("the extent has blocks")
				}
			}
			m.order.RemoveExtent(1)
			m.order.AddExtent(1, 12)
		},
		"level": func(t *rapid.T) { m.order.SetLevel(uint64(rapid.IntRange(0, 40).Draw(t, "ticks"))) },
		"": func(t *rapid.T) {
			if n := m.order.Len(); n != len(m.placed) {
				t.Fatalf("%d in the order, want %d", n, len(m.placed))
			}
			if a, ok := m.order.(*Adaptive); ok {
				checkParts(t, &a.TinyLFU)
			}
			if tiny, ok := m.order.(*TinyLFU); ok {
				checkParts(t, tiny)
			}
		},
	}
}

// checkParts checks the number of blocks in each part.
func checkParts(t *rapid.T, tiny *TinyLFU) {
	var count [inMain + 1]int
	for _, slots := range tiny.extents {
		for i := range slots {
			count[slots[i].part]++
		}
	}
	if count[inWindow] != tiny.windowed || count[inMain] != tiny.mained || tiny.target+tiny.mainSize < tiny.capacity {
		t.Fatalf("blocks by part %v, counted %d and %d; %d + %d slots of %d", count, tiny.windowed, tiny.mained, tiny.target, tiny.mainSize, tiny.capacity)
	}
}

// TestEvictorsOfTrees: whatever comes and goes, an Evictor has what was placed, and names one of it.
func TestEvictorsOfTrees(t *testing.T) {
	for name, order := range map[string]func() Evictor{
		"lru": RuleLRU.New, "adaptive": RuleAdaptive.New,
		"a small window": func() Evictor { return NewTinyLFU(0.1) }, "half": func() Evictor { return NewTinyLFU(0.5) },
	} {
		t.Run(name, func(t *testing.T) {
			rapid.Check(t, func(t *rapid.T) { t.Repeat(newTreeMachine(order()).actions()) })
		})
	}
}

// TestAWindowOfAllIsLRU: the same victims as of LeafLRU.
func TestAWindowOfAllIsLRU(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		m := newTreeMachine(NewTinyLFU(1))
		lru := newTreeMachine(NewLeafLRU())
		m.order = &both{Evictor: m.order, other: lru.order}
		t.Repeat(m.actions())
	})
}

// both drives two Evictors and compares their victims.
type both struct {
	Evictor
	other Evictor
}

func (b *both) RemoveExtent(e uint32) { b.Evictor.RemoveExtent(e); b.other.RemoveExtent(e) }
func (b *both) AddExtent(e, n uint32) { b.Evictor.AddExtent(e, n); b.other.AddExtent(e, n) }
func (b *both) SetLevel(n uint64)     { b.Evictor.SetLevel(n); b.other.SetLevel(n) }
func (b *both) Leave(r registry.Ref)  { b.Evictor.Leave(r); b.other.Leave(r) }
func (b *both) Hit(r registry.Ref)    { b.Evictor.Hit(r); b.other.Hit(r) }
func (b *both) Remove(r registry.Ref) { b.Evictor.Remove(r); b.other.Remove(r) }
func (b *both) Place(r registry.Ref, p uint32, n uint64) {
	b.Evictor.Place(r, p, n)
	b.other.Place(r, p, n)
}

func (b *both) Enter(r, parent registry.Ref, hash uint64) {
	b.Evictor.Enter(r, parent, hash)
	b.other.Enter(r, parent, hash)
}

func (b *both) Victim() (registry.Ref, bool) {
	ref, ok := b.Evictor.Victim()
	if other, also := b.other.Victim(); ref != other || ok != also {
		panic("the victims differ")
	}
	return ref, ok
}

// TestSketch: a count is never below what was counted, up to 15, until counts are halved; and it is kept
// when the sketch grows.
func TestSketch(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		var s sketch
		s.resize(rapid.IntRange(1, 500).Draw(t, "slots"))
		s.limit = 1 << 30
		counts := make(map[uint64]uint64)
		for range rapid.IntRange(0, 300).Draw(t, "additions") {
			h := rapid.Uint64Range(0, 60).Draw(t, "hash")
			s.add(h)
			counts[h]++
		}
		s.resize(2000)
		for h, n := range counts {
			if got := s.estimate(h); got < min(n, maxCount) {
				t.Fatalf("hash %d counts %d, want at least %d", h, got, n)
			}
		}
		before := s.estimate(7)
		s.halve()
		if got := s.estimate(7); got != before/2 {
			t.Fatalf("half of %d is %d", before, got)
		}
	})
}
