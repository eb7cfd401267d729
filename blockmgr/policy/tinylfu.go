package policy

import "github.com/blockyard-ai/blockyard/blockmgr/registry"

// TinyLFU is the Evictor that keeps what is asked for often, and a window of what came last. New blocks
// enter the window. When a slot is needed and the window is over its size, the window's least
// recent leaf competes with the least recent leaf of the main part: the one that was asked for
// more often stays, and the one in the main part if both are equal. So neither a scan nor a
// cycle that is larger than the tier replaces what is in the main part. A window of the whole tier
// makes it LeafLRU.
//
// A block that moves to the main part takes its ancestors along, because they are asked for
// whenever the block is. Counts are in a sketch that forgets half of each count in turn.
//
// With a longest idle time a block of the main part that nobody asks for any longer leaves whatever its
// count: the conversation has ended, and its count says how long it was.
//
// Each part is a LeafLRU, so that priorities count as there: blocks of different priority compete by
// their ranks. A change takes O(log n).
type TinyLFU struct {
	window, main *LeafLRU
	extents      [][]tinySlot
	sketch       sketch
	share        float64
	// maxIdle is the number of epochs after which an unused block of the main part is evicted first; 0
	// never. epoch counts epochs, and used the uses of blocks in the present one.
	maxIdle, epoch uint16
	used           int
	// capacity counts the slots: target for the window, mainSize for the main part. windowed and mained
	// are the blocks in each.
	capacity, windowed, target, mainSize, mained int
}

// tinySlot is a slot of a TinyLFU. hash, parent and lastUse, an epoch, are valid while part is not absent.
type tinySlot struct {
	hash     uint64
	parent   registry.Ref
	priority uint32
	lastUse  uint16
	part     part
}

// part says where the block of a slot belongs.
type part uint8

const (
	absent part = iota // the slot has no block
	inWindow
	inMain
)

const (
	// maxMoves bounds how many blocks one Victim moves to the main part while that has room, maxAncestors
	// how many ancestors move with a block.
	maxMoves, maxAncestors = 64, 4096
	// aheadInCycle is the tolerated lead of a new block's count over that of an equally frequent block, which
	// comes later in the cycle. Without it, blocks that are used in a cycle replace one another.
	aheadInCycle = 1
	// epochsPerTier is the number of epochs in which as many blocks are used as the tier has slots.
	epochsPerTier = 8
	// maxIdleTiers bounds the longest idle time, so that epochs can be compared after their overflow.
	maxIdleTiers = 1000
)

// NewTinyLFU returns an order without extents whose window has a share, 0..1, of the slots.
func NewTinyLFU(share float64) *TinyLFU {
	return &TinyLFU{window: NewLeafLRU(), main: NewLeafLRU(), share: share}
}

// SetWindow changes the window's share of the slots, 0..1.
func (t *TinyLFU) SetWindow(share float64) {
	t.share = share
	t.resize()
}

// SetMaxIdle sets how long a block of the main part may be unused before it is evicted first. Unit: uses of
// blocks, as a multiple of the tier's slots, at most 1,000. 0 is for ever.
func (t *TinyLFU) SetMaxIdle(tiers float64) {
	t.maxIdle = uint16(min(tiers, maxIdleTiers) * epochsPerTier)
}

// recordUse counts a use of a block, and epochs.
func (t *TinyLFU) recordUse(s *tinySlot) {
	if t.used++; t.used >= max(1, t.capacity/epochsPerTier) {
		t.used = 0
		t.epoch++
	}
	s.lastUse = t.epoch
	t.sketch.add(s.hash)
}

// resize follows a change of the share or of the slots.
func (t *TinyLFU) resize() {
	t.target = max(1, int(t.share*float64(t.capacity)))
	t.mainSize = max(0, t.capacity-t.target)
}

// AddExtent implements Evictor.
func (t *TinyLFU) AddExtent(extent, slots uint32) {
	t.window.AddExtent(extent, slots)
	t.main.AddExtent(extent, slots)
	for uint32(len(t.extents)) <= extent {
		t.extents = append(t.extents, nil)
	}
	t.extents[extent] = make([]tinySlot, slots)
	t.capacity += int(slots)
	t.resize()
	t.sketch.resize(t.capacity)
}

// RemoveExtent implements Evictor.
func (t *TinyLFU) RemoveExtent(extent uint32) {
	t.window.RemoveExtent(extent)
	t.main.RemoveExtent(extent)
	for i := range t.extents[extent] {
		t.leave(&t.extents[extent][i])
	}
	t.capacity -= len(t.extents[extent])
	t.extents[extent] = nil
	t.resize()
}

// SetLevel implements Evictor.
func (t *TinyLFU) SetLevel(ticks uint64) {
	t.window.SetLevel(ticks)
	t.main.SetLevel(ticks)
}

// Enter implements Evictor.
func (t *TinyLFU) Enter(ref, parent registry.Ref, hash uint64) {
	s := &t.extents[ref.Extent()][ref.Slot()]
	t.leave(s)
	*s = tinySlot{hash: hash, parent: parent, part: inWindow}
	t.windowed++
	t.recordUse(s)
}

// Leave implements Evictor.
func (t *TinyLFU) Leave(ref registry.Ref) { t.leave(&t.extents[ref.Extent()][ref.Slot()]) }

func (t *TinyLFU) leave(s *tinySlot) {
	switch s.part {
	case inWindow:
		t.windowed--
	case inMain:
		t.mained--
	}
	s.part = absent
}

// Hit implements Evictor.
func (t *TinyLFU) Hit(ref registry.Ref) {
	t.recordUse(&t.extents[ref.Extent()][ref.Slot()])
}

// Place implements Evictor.
func (t *TinyLFU) Place(ref registry.Ref, priority uint32, tick uint64) {
	s := &t.extents[ref.Extent()][ref.Slot()]
	s.priority = priority
	if s.part == inWindow {
		t.window.Place(ref, priority, tick)
	} else {
		t.main.Place(ref, priority, tick)
	}
}

// Remove implements Evictor.
func (t *TinyLFU) Remove(ref registry.Ref) {
	t.window.Remove(ref)
	t.main.Remove(ref)
}

// Len implements Evictor.
func (t *TinyLFU) Len() int { return t.window.Len() + t.main.Len() }

// Victim implements Evictor. It may move blocks from the window to the main part.
func (t *TinyLFU) Victim() (ref registry.Ref, ok bool) {
	for range maxMoves {
		w, anyW := t.window.first()
		m, anyM := t.main.first()
		switch {
		case !anyW && !anyM:
			return registry.NoRef, false
		case !anyW:
			return m.ref, true
		case t.target >= t.capacity: // all of it is window
			if anyM && m.before(&w) {
				return m.ref, true
			}
			return w.ref, true
		case anyM && t.mained > t.mainSize:
			if t.differ(w, m) && w.before(&m) {
				return w.ref, true
			}
			return m.ref, true
		case anyM && t.idle(m) && !t.differ(w, m):
			return m.ref, true
		case t.windowed > t.target && t.mained < t.mainSize-1:
			// The main part lacks blocks: the tier has just been filled, or the window was larger. The
			// last of its slots is the one that every new block takes from the loser below.
			t.toMain(w)
			continue
		case !anyM || !t.outlives(w, m):
			return w.ref, true
		}
		t.toMain(w)
		return m.ref, true
	}
	if w, ok := t.window.first(); ok {
		return w.ref, true
	}
	m, ok := t.main.first() // the moves have emptied the window
	return m.ref, ok
}

// idle reports whether a leaf of the main part was not used for longer than the longest idle time.
func (t *TinyLFU) idle(m leaf) bool {
	return t.maxIdle > 0 && t.epoch-t.slot(m.ref).lastUse > t.maxIdle
}

// differ reports whether two leaves have different priorities.
func (t *TinyLFU) differ(w, m leaf) bool { return t.slot(w.ref).priority != t.slot(m.ref).priority }

func (t *TinyLFU) slot(ref registry.Ref) *tinySlot { return &t.extents[ref.Extent()][ref.Slot()] }

// outlives reports whether the window's leaf w is worth more than m of the main part.
func (t *TinyLFU) outlives(w, m leaf) bool {
	if t.differ(w, m) {
		return m.before(&w)
	}
	return t.sketch.estimate(t.slot(w.ref).hash) > t.sketch.estimate(t.slot(m.ref).hash)+aheadInCycle
}

// toMain moves a leaf of the window and its ancestors to the main part.
func (t *TinyLFU) toMain(w leaf) {
	t.window.Remove(w.ref)
	t.main.place(w)
	ref := w.ref
	for range maxAncestors {
		s := &t.extents[ref.Extent()][ref.Slot()]
		if s.part != inWindow {
			break
		}
		s.part = inMain
		t.windowed--
		t.mained++
		if ref = s.parent; ref == registry.NoRef || !t.main.knows(ref) {
			break
		}
		if other, ok := t.window.leafOf(ref); ok { // a child that was just moved need not be known yet
			t.window.Remove(ref)
			t.main.place(other)
		}
	}
}
