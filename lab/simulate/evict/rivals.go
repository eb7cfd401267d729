package evict

import (
	"github.com/blockyard-ai/blockyard/blockmgr/policy"
	"github.com/blockyard-ai/blockyard/blockmgr/registry"
)

// The rules of other caches, each in the form that a tree of blocks needs: only leaves are in the
// order, and a leaf's ancestors follow it, because they have its time.

// sorted is an order by a rank of its own.
type sorted struct{ *policy.LeafLRU }

func newSorted() sorted { return sorted{policy.NewLeafLRU()} }

func (s sorted) put(ref registry.Ref, rank uint64) { s.LeafLRU.Place(ref, 0, rank) }

// rest are the methods that no rule here needs.
type rest struct{}

func (rest) RemoveExtent(uint32) {}
func (rest) SetLevel(uint64)     {}

// ghost remembers the hashes of the last blocks that left, up to a number.
type ghost struct {
	list  []uint64
	count map[uint64]int
	room  int
}

func newGhost(room int) *ghost { return &ghost{count: make(map[uint64]int), room: room} }

func (g *ghost) add(hash uint64) {
	g.list = append(g.list, hash)
	g.count[hash]++
	for len(g.count) > g.room && len(g.list) > 0 {
		g.forget(g.list[0])
		g.list = g.list[1:]
	}
}

func (g *ghost) forget(hash uint64) {
	if g.count[hash]--; g.count[hash] <= 0 {
		delete(g.count, hash)
	}
}

func (g *ghost) has(hash uint64) bool { return g.count[hash] > 0 }

// sieve passes over visited blocks once, in the order of arrival (Zhang et al., NSDI 24).
type sieve struct {
	rest
	sorted
	slots []sieveSlot
	round uint64
}

type sieveSlot struct {
	visited        bool
	round, arrived uint64
}

func (s *sieve) AddExtent(extent, slots uint32) {
	s.sorted = newSorted()
	s.sorted.AddExtent(extent, slots)
	s.slots = make([]sieveSlot, slots)
}
func (s *sieve) RemoveExtent(e uint32)     { s.rest.RemoveExtent(e) }
func (s *sieve) SetLevel(ticks uint64)     { s.rest.SetLevel(ticks) }
func (s *sieve) Hit(ref registry.Ref)      { s.slots[ref.Slot()].visited = true }
func (s *sieve) Leave(registry.Ref)        {}
func (s *sieve) rank(at *sieveSlot) uint64 { return at.round<<40 | at.arrived }

func (s *sieve) Enter(ref, _ registry.Ref, _ uint64) {
	s.slots[ref.Slot()] = sieveSlot{round: s.round}
}

func (s *sieve) Place(ref registry.Ref, _ uint32, tick uint64) {
	at := &s.slots[ref.Slot()]
	if at.arrived == 0 {
		at.arrived = tick
	}
	at.round = max(at.round, s.round)
	s.put(ref, s.rank(at))
}

func (s *sieve) Victim() (registry.Ref, bool) {
	for {
		ref, ok := s.sorted.Victim()
		if !ok {
			return ref, false
		}
		at := &s.slots[ref.Slot()]
		s.round = max(s.round, at.round)
		if !at.visited {
			return ref, true
		}
		at.visited = false
		at.round++
		s.put(ref, s.rank(at))
	}
}

// s3fifo is a small queue, a main one, and a ghost of the small one (Yang et al., SOSP 23).
type s3fifo struct {
	rest
	small, main sorted
	slots       []s3Slot
	ghost       *ghost
	smalls      int
	clock       uint64
}

type s3Slot struct {
	hash     uint64
	uses     uint8
	isMain   bool
	resident bool
	rank     uint64
}

func (s *s3fifo) AddExtent(extent, slots uint32) {
	s.small, s.main = newSorted(), newSorted()
	s.small.AddExtent(extent, slots)
	s.main.AddExtent(extent, slots)
	s.slots, s.ghost = make([]s3Slot, slots), newGhost(int(slots)*9/10)
}

func (s *s3fifo) Enter(ref, _ registry.Ref, hash uint64) {
	at := &s.slots[ref.Slot()]
	s.clock++
	*at = s3Slot{hash: hash, isMain: s.ghost.has(hash), resident: true}
	if !at.isMain {
		s.smalls++
	}
}

func (s *s3fifo) Leave(ref registry.Ref) {
	at := &s.slots[ref.Slot()]
	if at.resident && !at.isMain {
		s.smalls--
		s.ghost.add(at.hash)
	}
	at.resident = false
}

func (s *s3fifo) Hit(ref registry.Ref) {
	at := &s.slots[ref.Slot()]
	at.uses = min(at.uses+1, 3)
}

func (s *s3fifo) Place(ref registry.Ref, _ uint32, tick uint64) {
	at := &s.slots[ref.Slot()]
	if at.rank == 0 {
		at.rank = tick
	}
	s.clock = max(s.clock, tick)
	if at.isMain {
		s.main.put(ref, at.rank)
	} else {
		s.small.put(ref, at.rank)
	}
}

func (s *s3fifo) Remove(ref registry.Ref) {
	s.small.Remove(ref)
	s.main.Remove(ref)
}

func (s *s3fifo) Len() int { return s.small.Len() + s.main.Len() }

func (s *s3fifo) Victim() (registry.Ref, bool) {
	for {
		ref, ok := s.small.Victim()
		if ok && (s.smalls*10 >= len(s.slots) || s.main.Len() == 0) {
			at := &s.slots[ref.Slot()]
			if at.uses <= 1 {
				return ref, true
			}
			s.small.Remove(ref)
			s.smalls--
			at.isMain, at.uses, at.rank = true, 0, s.clock
			s.main.put(ref, at.rank)
			continue
		}
		if ref, ok = s.main.Victim(); !ok {
			return s.small.Victim()
		}
		at := &s.slots[ref.Slot()]
		if at.uses == 0 {
			return ref, true
		}
		at.uses--
		s.clock++
		at.rank = s.clock
		s.main.put(ref, at.rank)
	}
}

// arc divides its room between blocks that came once and blocks that came again. Hits of its ghosts
// move the border (Megiddo and Modha, FAST 03).
type arc struct {
	rest
	once, again           sorted
	slots                 []arcSlot
	onceGhost, againGhost *ghost
	onces                 int
	target                float64
}

type arcSlot struct {
	hash            uint64
	again, resident bool
}

func (a *arc) AddExtent(extent, slots uint32) {
	a.once, a.again = newSorted(), newSorted()
	a.once.AddExtent(extent, slots)
	a.again.AddExtent(extent, slots)
	a.slots, a.onceGhost, a.againGhost = make([]arcSlot, slots), newGhost(int(slots)), newGhost(int(slots))
}

func (a *arc) Enter(ref, _ registry.Ref, hash uint64) {
	at := arcSlot{hash: hash, resident: true}
	one, two := float64(max(1, len(a.onceGhost.count))), float64(max(1, len(a.againGhost.count)))
	switch {
	case a.onceGhost.has(hash):
		a.target = min(float64(len(a.slots)), a.target+max(1, two/one))
		a.onceGhost.forget(hash)
		at.again = true
	case a.againGhost.has(hash):
		a.target = max(0, a.target-max(1, one/two))
		a.againGhost.forget(hash)
		at.again = true
	default:
		a.onces++
	}
	a.slots[ref.Slot()] = at
}

func (a *arc) Leave(ref registry.Ref) {
	at := &a.slots[ref.Slot()]
	if at.again {
		a.againGhost.add(at.hash)
	} else {
		a.onces--
		a.onceGhost.add(at.hash)
	}
	at.resident = false
}

func (a *arc) Hit(ref registry.Ref) {
	if at := &a.slots[ref.Slot()]; !at.again {
		at.again = true
		a.onces--
		a.once.Remove(ref)
	}
}

func (a *arc) Place(ref registry.Ref, _ uint32, tick uint64) {
	if a.slots[ref.Slot()].again {
		a.again.put(ref, tick)
	} else {
		a.once.put(ref, tick)
	}
}

func (a *arc) Remove(ref registry.Ref) {
	a.once.Remove(ref)
	a.again.Remove(ref)
}

func (a *arc) Len() int { return a.once.Len() + a.again.Len() }

func (a *arc) Victim() (registry.Ref, bool) {
	if ref, ok := a.once.Victim(); ok && (float64(a.onces) > a.target || a.again.Len() == 0) {
		return ref, true
	}
	if ref, ok := a.again.Victim(); ok {
		return ref, true
	}
	return a.once.Victim()
}

// gdsf is a price: uses times what computing the block again takes, from the rank of the last victim
// (GreedyDual-Size-Frequency). The blocks have one size.
type gdsf struct {
	rest
	sorted
	slots []gdsfSlot
	floor uint64
}

type gdsfSlot struct{ uses, depth, rank uint64 }

func (g *gdsf) AddExtent(extent, slots uint32) {
	g.sorted = newSorted()
	g.sorted.AddExtent(extent, slots)
	g.slots = make([]gdsfSlot, slots)
}
func (g *gdsf) RemoveExtent(e uint32) { g.rest.RemoveExtent(e) }
func (g *gdsf) SetLevel(ticks uint64) { g.rest.SetLevel(ticks) }

func (g *gdsf) Enter(ref, parent registry.Ref, _ uint64) {
	depth := uint64(0)
	if parent != registry.NoRef {
		depth = g.slots[parent.Slot()].depth + 1
	}
	g.slots[ref.Slot()] = gdsfSlot{depth: depth}
	g.Hit(ref)
}

// Hit counts a use. A block 64,000 tokens deep takes twice as long to compute as the first one.
func (g *gdsf) Hit(ref registry.Ref) {
	s := &g.slots[ref.Slot()]
	s.uses++
	s.rank = g.floor + s.uses*(1000+s.depth)
}

func (g *gdsf) Leave(ref registry.Ref) { g.floor = max(g.floor, g.slots[ref.Slot()].rank) }

func (g *gdsf) Place(ref registry.Ref, _ uint32, _ uint64) { g.put(ref, g.slots[ref.Slot()].rank) }
