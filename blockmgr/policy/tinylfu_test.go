package policy

import (
	"testing"

	"pgregory.net/rapid"

	"github.com/blockyard-ai/blockyard/blockmgr/registry"
)

// naiveTiny is a TinyLFU that counts and searches all slots each time. It shares the sketch, so that
// both see the same counts.
type naiveTiny struct {
	of     *TinyLFU
	share  float64
	slots  map[registry.Ref]int // slots of each extent, by its first slot
	blocks map[registry.Ref]*naiveBlock
	level  uint64
	// uses counts those of the present epoch. Blocks older than idle epochs go first; 0 none.
	uses, epoch, idle int
}

type naiveBlock struct {
	hash     uint64
	used     int
	parent   registry.Ref
	main     bool
	placed   bool
	priority uint32
	rank     uint64
}

func newNaiveTiny(of *TinyLFU, share float64) *naiveTiny {
	return &naiveTiny{of: of, share: share, slots: map[registry.Ref]int{}, blocks: map[registry.Ref]*naiveBlock{}}
}

func (n *naiveTiny) AddExtent(e, slots uint32) { n.slots[registry.MakeRef(e, 0)] = int(slots) }
func (n *naiveTiny) RemoveExtent(e uint32)     { delete(n.slots, registry.MakeRef(e, 0)) }
func (n *naiveTiny) SetLevel(ticks uint64)     { n.level = ticks }
func (n *naiveTiny) Hit(ref registry.Ref)      { n.use(n.blocks[ref]) }
func (n *naiveTiny) Leave(ref registry.Ref)    { delete(n.blocks, ref) }

func (n *naiveTiny) Enter(ref, parent registry.Ref, hash uint64) {
	n.blocks[ref] = &naiveBlock{hash: hash, parent: parent}
	n.use(n.blocks[ref])
}

func (n *naiveTiny) use(b *naiveBlock) {
	if n.uses++; n.uses >= n.capacity()/epochsPerTier {
		n.uses = 0
		n.epoch++
	}
	b.used = n.epoch
}

func (n *naiveTiny) capacity() (slots int) {
	for _, s := range n.slots {
		slots += s
	}
	return slots
}

func (n *naiveTiny) Place(ref registry.Ref, priority uint32, tick uint64) {
	b := n.blocks[ref]
	b.placed, b.priority, b.rank = true, priority, tick+uint64(priority)*n.level
}

func (n *naiveTiny) Remove(ref registry.Ref) {
	if b := n.blocks[ref]; b != nil {
		b.placed = false
	}
}

func (n *naiveTiny) Len() (placed int) {
	for _, b := range n.blocks {
		if b.placed {
			placed++
		}
	}
	return placed
}

// first returns the coldest placed block of a part, and counts the blocks of the part.
func (n *naiveTiny) first(main bool) (ref registry.Ref, b *naiveBlock, blocks int) {
	ref = registry.NoRef
	for r, other := range n.blocks {
		if other.main != main {
			continue
		}
		blocks++
		if other.placed && (b == nil || other.rank < b.rank || other.rank == b.rank && r < ref) {
			ref, b = r, other
		}
	}
	return ref, b, blocks
}

// move moves a block and those of its ancestors that are in the window to the main part.
func (n *naiveTiny) move(ref registry.Ref) {
	for b := n.blocks[ref]; b != nil && !b.main; b = n.blocks[b.parent] {
		b.main = true
	}
}

func (n *naiveTiny) Victim() (registry.Ref, bool) {
	capacity := n.capacity()
	target := max(1, int(n.share*float64(capacity)))
	for {
		w, inW, windowed := n.first(false)
		m, inM, mained := n.first(true)
		switch {
		case inW == nil:
			return m, inM != nil
		case target >= capacity:
			if inM != nil && (inM.rank < inW.rank || inM.rank == inW.rank && m < w) {
				return m, true
			}
			return w, true
		case inM != nil && mained > capacity-target:
			if inM.priority != inW.priority && (inW.rank < inM.rank || inW.rank == inM.rank && w < m) {
				return w, true
			}
			return m, true
		case inM != nil && n.idle > 0 && n.epoch-inM.used > n.idle && inM.priority == inW.priority:
			return m, true
		case windowed > target && mained < capacity-target-1:
			n.move(w)
			continue
		case inM == nil:
			return w, true
		}
		wins := n.of.sketch.estimate(inW.hash) > n.of.sketch.estimate(inM.hash)+aheadInCycle
		if inW.priority != inM.priority {
			wins = inM.rank < inW.rank || inM.rank == inW.rank && m < w
		}
		if !wins {
			return w, true
		}
		n.move(w)
		return m, true
	}
}

// TestTinyLFUIsItsNaiveTwin: whatever is stored, used, evicted, pinned, dropped and added, with windows
// that change.
func TestTinyLFUIsItsNaiveTwin(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		share := rapid.SampledFrom([]float64{0.05, 0.3, 0.6, 1}).Draw(t, "share")
		tiny := NewTinyLFU(share)
		naive := newNaiveTiny(tiny, share)
		m := newTreeMachine(&both{Evictor: tiny, other: naive})
		actions := m.actions()
		actions["window"] = func(t *rapid.T) {
			naive.share = rapid.SampledFrom([]float64{0.05, 0.3, 0.6, 1}).Draw(t, "share")
			tiny.SetWindow(naive.share)
		}
		actions["idle"] = func(t *rapid.T) {
			tiers := rapid.SampledFrom([]float64{0, 0.5, 1, 3}).Draw(t, "tiers")
			naive.idle = int(tiers * epochsPerTier)
			tiny.SetMaxIdle(tiers)
		}
		actions["drop"] = func(t *rapid.T) { // not by eviction: a reset, or bytes that do not match
			ref := m.slot(t)
			if _, ok := m.blocks[ref]; !ok || m.children[ref] > 0 {
				t.Skip("no leaf")
			}
			m.drop(t, ref)
		}
		check := actions[""]
		actions[""] = func(t *rapid.T) {
			check(t)
			checkParts(t, tiny)
		}
		t.Repeat(actions)
	})
}

// TestAGrownWindowEvictsTheLowPriorityFirst: a main part above its size does not give a block of high
// priority for one of low priority in the window.
func TestAGrownWindowEvictsTheLowPriorityFirst(t *testing.T) {
	const slots, low = 10, 9
	order := NewTinyLFU(0.1)
	order.AddExtent(0, slots)
	order.SetLevel(1 << 40)
	for i := range uint32(slots) {
		order.Enter(registry.MakeRef(0, i), registry.NoRef, uint64(i))
		priority := uint32(5)
		if i == low {
			priority = 0
		} else {
			order.extents[0][i].part = inMain
			order.windowed--
			order.mained++
		}
		order.Place(registry.MakeRef(0, i), priority, uint64(i))
	}
	order.SetWindow(0.8)
	if ref, ok := order.Victim(); !ok || ref.Slot() != low {
		t.Errorf("the victim is slot %d, want slot %d of low priority", ref.Slot(), low)
	}
}

// TestAnEmptiedTierResistsScansAgain: a tier that loses all of its blocks other than by eviction, as in
// a reset, fills its main part again, and a scan does not replace what was asked for often.
func TestAnEmptiedTierResistsScansAgain(t *testing.T) {
	const slots, hot = 100, 60
	order := NewTinyLFU(0.1)
	order.AddExtent(0, slots)
	tick := uint64(0)
	for round := range 3 {
		hash := func(i int) uint64 { return uint64(round*10_000 + i) }
		for i := range uint32(slots) {
			tick++
			order.Enter(registry.MakeRef(0, i), registry.NoRef, hash(int(i)))
			order.Place(registry.MakeRef(0, i), 0, tick)
		}
		for range 4 {
			for i := range uint32(hot) {
				order.Hit(registry.MakeRef(0, i))
			}
		}
		stays := make(map[registry.Ref]bool)
		for i := range uint32(hot) {
			stays[registry.MakeRef(0, i)] = true
		}
		for i := range 5 * slots { // the scan
			ref, ok := order.Victim()
			if !ok {
				t.Fatal("a full tier has no victim")
			}
			delete(stays, ref)
			order.Remove(ref)
			order.Leave(ref)
			tick++
			order.Enter(ref, registry.NoRef, hash(1000+i))
			order.Place(ref, 0, tick)
		}
		if len(stays) < hot*9/10 {
			t.Fatalf("round %d: %d of %d blocks outlive the scan", round, len(stays), hot)
		}
		for i := range uint32(slots) { // the reset
			order.Remove(registry.MakeRef(0, i))
			order.Leave(registry.MakeRef(0, i))
		}
	}
}
