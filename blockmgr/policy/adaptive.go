package policy

import (
	"math/bits"

	"github.com/blockyard-ai/blockyard/blockmgr/registry"
)

// Adaptive is a TinyLFU whose window and longest idle time follow the use of the blocks. Shadows, which have
// hashes of a sample of the blocks and no blocks, run beside it with the settings of shadowSettings. The
// tier's setting is that of the shadow with the most hits. So the tier is a LeafLRU while recent blocks are
// asked for again, and resists scans and cycles when these come. A call takes O(log n), except that the ageing of
// the counts is a pass over all of them, and that Victim may move up to 64 blocks first. The shadows
// have at most 2*sampleSlots entries each, whatever the size of the tier.
type Adaptive struct {
	TinyLFU
	anchors [][]uint64
	shadows []*shadow
	// chosen is the number of the present setting.
	chosen int
	// A block is in the sample if the last shift bits of its mixed hash are 0.
	shift int
	asked int
}

const (
	// sampleSlots is the least number of slots of a shadow, if the tier has as many.
	sampleSlots = 2048
	// roundPerSlot times the slots of a shadow are the sampled blocks between two looks at the hits.
	roundPerSlot = 2
	// better is by how much a shadow must have more hits than the one of the present window.
	better = 1.02
)

// setting is a window, and a longest idle time in multiples of the tier.
type setting struct{ window, maxIdle float64 }

// shadowSettings are those that are tried. A window of 1 is LeafLRU.
var shadowSettings = []setting{{1, 0}, {0.3, 2.5}, {0.05, 2.5}, {0.05, 10}}

// NewAdaptive returns an order without extents. It begins as a LeafLRU.
func NewAdaptive() *Adaptive { return &Adaptive{TinyLFU: *NewTinyLFU(shadowSettings[0].window)} }

// AddExtent implements Evictor.
func (a *Adaptive) AddExtent(extent, slots uint32) {
	a.TinyLFU.AddExtent(extent, slots)
	for uint32(len(a.anchors)) <= extent {
		a.anchors = append(a.anchors, nil)
	}
	a.anchors[extent] = make([]uint64, slots)
	a.restart()
}

// RemoveExtent implements Evictor.
func (a *Adaptive) RemoveExtent(extent uint32) {
	a.TinyLFU.RemoveExtent(extent)
	a.anchors[extent] = nil
	a.restart()
}

// restart makes empty shadows for the present number of slots, which keep their hits.
func (a *Adaptive) restart() {
	a.shift = max(0, bits.Len(uint(a.capacity/sampleSlots))-1)
	before := a.shadows
	a.shadows = nil
	for k, set := range shadowSettings {
		s := newShadow(max(1, a.capacity>>a.shift), set)
		if before != nil {
			s.hits = before[k].hits
		}
		a.shadows = append(a.shadows, s)
	}
}

// Enter implements Evictor.
func (a *Adaptive) Enter(ref, parent registry.Ref, hash uint64) {
	a.TinyLFU.Enter(ref, parent, hash)
	anchor := uint64(0)
	if parent != registry.NoRef {
		anchor = a.anchors[parent.Extent()][parent.Slot()]
	}
	a.anchors[ref.Extent()][ref.Slot()] = a.use(hash, anchor)
}

// Hit implements Evictor.
func (a *Adaptive) Hit(ref registry.Ref) {
	a.TinyLFU.Hit(ref)
	s := &a.extents[ref.Extent()][ref.Slot()]
	anchor := uint64(0)
	if p := s.parent; p != registry.NoRef && a.main.knows(p) {
		anchor = a.anchors[p.Extent()][p.Slot()]
	}
	// Growth changes the sample, and with it the anchor.
	a.anchors[ref.Extent()][ref.Slot()] = a.use(s.hash, anchor)
}

// use tells the shadows of a block that was asked for, if it is in the sample. anchor is its nearest
// ancestor in the sample. It returns the anchor of the block's children.
func (a *Adaptive) use(hash, anchor uint64) uint64 {
	if mixed(hash)&(1<<a.shift-1) != 0 {
		return anchor
	}
	for _, s := range a.shadows {
		s.use(hash, anchor)
	}
	if a.asked++; a.asked >= roundPerSlot*(a.capacity>>a.shift) {
		a.asked = 0
		a.choose()
	}
	return hash
}

// choose takes the setting of the shadow with the most hits, and forgets half of the hits.
func (a *Adaptive) choose() {
	best := a.chosen
	for k, s := range a.shadows {
		if s.hits > better*a.shadows[best].hits+1 {
			best = k
		}
	}
	if best != a.chosen {
		a.chosen = best
		a.SetWindow(shadowSettings[best].window)
		a.SetMaxIdle(shadowSettings[best].maxIdle)
	}
	for _, s := range a.shadows {
		s.hits /= 2
	}
}

// shadow is a tier without blocks.
type shadow struct {
	hits  float64
	order *TinyLFU
	at    map[uint64]uint32
	slots []shadowSlot
	tick  uint64
}

// shadowSlot is a block of a shadow. children counts those whose parent it is.
type shadowSlot struct {
	hash     uint64
	tick     uint64
	parent   registry.Ref
	children uint32
}

func newShadow(capacity int, set setting) *shadow {
	s := &shadow{order: NewTinyLFU(set.window), at: make(map[uint64]uint32, capacity)}
	s.order.SetMaxIdle(set.maxIdle)
	s.order.AddExtent(0, uint32(capacity))
	return s
}

// use counts a hit, or stores the block behind its parent. A block without its parent is not stored.
func (s *shadow) use(hash, parent uint64) {
	s.tick++
	if at, ok := s.at[hash]; ok {
		s.hits++
		s.slots[at].tick = s.tick
		s.order.Hit(registry.MakeRef(0, at))
		s.place(registry.MakeRef(0, at))
		return
	}
	up := registry.NoRef
	if parent != 0 {
		at, ok := s.at[parent]
		if !ok {
			return
		}
		up = registry.MakeRef(0, at)
		s.order.Remove(up) // it has a child, or will have one
	}
	at, ok := s.room(up)
	if !ok {
		if up != registry.NoRef {
			s.place(up)
		}
		return
	}
	ref := registry.MakeRef(0, at)
	s.slots[at] = shadowSlot{hash: hash, tick: s.tick, parent: up}
	s.at[hash] = at
	if up != registry.NoRef {
		s.slots[up.Slot()].children++
	}
	s.order.Enter(ref, up, hash)
	s.place(ref)
}

// place puts a block without children into the order.
func (s *shadow) place(ref registry.Ref) {
	if b := &s.slots[ref.Slot()]; b.children == 0 {
		s.order.Place(ref, 0, b.tick)
	}
}

// room returns a slot for a child of the block in slot up, which stays.
func (s *shadow) room(up registry.Ref) (at uint32, ok bool) {
	if len(s.slots) < s.order.capacity {
		s.slots = append(s.slots, shadowSlot{})
		return uint32(len(s.slots) - 1), true
	}
	victim, ok := s.order.Victim()
	if !ok {
		return 0, false
	}
	b := &s.slots[victim.Slot()]
	s.order.Remove(victim)
	s.order.Leave(victim)
	delete(s.at, b.hash)
	if p := b.parent; p != registry.NoRef {
		above := &s.slots[p.Slot()]
		above.tick = max(above.tick, b.tick)
		if above.children--; p != up {
			s.place(p)
		}
	}
	return victim.Slot(), true
}
