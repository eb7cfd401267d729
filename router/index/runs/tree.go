package runs

import (
	"math/bits"
	"sync/atomic"

	"github.com/blockyard-ai/blockyard/internal/kv"
)

// Tree holds runs with their blocks, and finds the run that follows a block. Make
// one with NewTree.
type Tree struct {
	Table
	Arena *Arena

	children atomic.Pointer[childTable]
	// live and graves count the slots of children in use and deleted.
	live, graves int
}

// NewTree returns an empty tree. arenaShift and tableShift are log2 of the units
// and of the runs in a chunk.
func NewTree(arenaShift, tableShift uint) *Tree {
	t := &Tree{Arena: NewArena(arenaShift)}
	t.Table.init(tableShift)
	t.children.Store(newChildTable(6))
	return t
}

// ChildBytes returns the memory of the table of children.
func (t *Tree) ChildBytes() int64 { return int64(len(t.children.Load().slots)) * 8 }

// Children returns the number of runs that are attached.
func (t *Tree) Children() int { return t.live }

// HasHash reports whether there is a block at p and its sequence hash is h. p may be out of
// date: a run that was freed or shortened has no block there.
func (t *Tree) HasHash(p Place, h kv.SequenceHash) bool {
	if p.Run == None || p.Run == Root {
		return false
	}
	s := t.Head(p.Run).Storage()
	return p.Pos < s.Blocks() && t.Arena.Hashes(s)[p.Pos] == Word(h)
}

// prefetchRun loads the head and the writer's part of run r into the cache without waiting for them.
func (t *Tree) prefetchRun(r ID) {
	c, i := t.Chunk(r)
	PrefetchHead(&c.Heads[i])
	prefetchState(&c.states[i])
}

// prefetchHashes loads the hashes at p into the cache without waiting for them.
func (t *Tree) prefetchHashes(p Place) {
	if s := t.Head(p.Run).Storage(); p.Pos < s.Blocks() {
		prefetchSlot((*uint64)(&t.Arena.Hashes(s)[p.Pos]))
		prefetchSlot((*uint64)(&t.Arena.Locals(s)[p.Pos]))
	}
}

// childTable finds the run that follows a block, by block and first local hash. It is a hash
// table with linear probing over slots of {fingerprint, run}; 0 is an empty slot, where a
// search ends. A deleted slot becomes a grave, which a search passes. A slot never moves
// within one table, so that readers need no lock. Growth makes a new table.
type childTable struct {
	slots []atomic.Uint64
	// shift brings a hash down to its home slot.
	shift uint
}

// graveSlot marks a slot whose entry was deleted. No child is the root run.
const graveSlot = uint64(Root)

// MaxChildBytes is the most that one run takes in the table of children, right
// after the table has grown.
const MaxChildBytes = 64

const childRunMask = 1<<idBits - 1

func newChildTable(logSlots uint) *childTable {
	return &childTable{slots: make([]atomic.Uint64, 1<<logSlots), shift: 64 - logSlots}
}

// childHash mixes a block and a first local hash. The top bits choose the home
// slot and are the fingerprint too.
func childHash(p Place, local kv.LocalHash) uint64 {
	hi, lo := bits.Mul64(uint64(local)^seed, (p.Pack()+0x632be59bd9b4e019)*0xd6e8feb86659fd93|1)
	return (hi ^ lo) * 0x9fb21c651e98df25
}

// Child returns the run that follows block p and begins with a block of this local hash, or
// None. Readers may call Child.
func (t *Tree) Child(p Place, local kv.LocalHash) ID {
	c := t.children.Load()
	hash := childHash(p, local)
	last := len(c.slots) - 1
	for i := int(hash >> c.shift); ; i = (i + 1) & last {
		v := c.slots[i].Load()
		if v == 0 {
			return None
		}
		// A slot has the fingerprint above the bits of the run. Skip other fingerprints.
		if v^hash&^childRunMask >= 1<<idBits {
			continue
		}
		if r := ID(v & childRunMask); t.isChild(r, p, local) {
			return r
		}
	}
}

// isChild reports whether run r follows block p and begins with local.
func (t *Tree) isChild(r ID, p Place, local kv.LocalHash) bool {
	h := t.Head(r)
	if h.Parent.Load() != p.Pack() {
		return false
	}
	s := h.Storage()
	return s.Blocks() > 0 && t.Arena.Locals(s)[0] == local
}

// addChild enters run r, whose head is complete, into the table of children. From then on
// readers find r by block p and by local, the first local hash of r.
func (t *Tree) addChild(r ID, p Place, local kv.LocalHash) {
	c := t.children.Load()
	if 2*(t.live+t.graves+1) > len(c.slots) { // at most half full, so that searches are short
		c = t.rebuild(c)
	}
	if c.put(childHash(p, local)&^childRunMask | uint64(r)) {
		t.graves--
	}
	t.live++
}

// put writes v, a fingerprint with a run, into the first slot from the home of v on that is
// empty or a grave, a deleted slot. It reports whether the slot was a grave.
func (c *childTable) put(v uint64) (wasGrave bool) {
	last := len(c.slots) - 1
	for i := int(v >> c.shift); ; i = (i + 1) & last {
		if old := c.slots[i].Load(); old == 0 || old == graveSlot {
			c.slots[i].Store(v)
			return old == graveSlot
		}
	}
}

// rebuild replaces the table of children c by one with the same runs, without the graves of
// deleted slots and with room to grow. It returns the new table.
func (t *Tree) rebuild(c *childTable) *childTable {
	log := uint(bits.Len(uint(4*t.live + 16)))
	fresh := newChildTable(min(log, 64-idBits))
	for i := range c.slots {
		if v := c.slots[i].Load(); v != 0 && v != graveSlot {
			fresh.put(v)
		}
	}
	t.graves = 0
	t.children.Store(fresh)
	return fresh
}

// removeChild removes run r from the table of children, so that readers no longer find r by
// block p, which r follows, and by local, its first local hash. r is in the table. Slots must
// not move, because readers search without a lock. So a slot becomes a grave, which searches
// pass.
func (t *Tree) removeChild(r ID, p Place, local kv.LocalHash) {
	c := t.children.Load()
	v := childHash(p, local)&^childRunMask | uint64(r)
	last := len(c.slots) - 1
	i := int(v >> c.shift)
	for c.slots[i].Load() != v {
		i = (i + 1) & last
	}
	t.live--
	if c.slots[(i+1)&last].Load() != 0 {
		c.slots[i].Store(graveSlot)
		t.graves++
		return
	}
	// No search passes an empty slot, so the graves before one can be emptied too.
	c.slots[i].Store(0)
	for i = (i - 1) & last; c.slots[i].Load() == graveSlot; i = (i - 1) & last {
		c.slots[i].Store(0)
		t.graves--
	}
}

// Attach makes run r, which has blocks, a child of block p. Readers find r from then on. If p
// is the last block of its run, r may become the run's NextGuess.
func (t *Tree) Attach(r ID, p Place) {
	h, s := t.Head(r), t.WriterState(r)
	h.Parent.Store(p.Pack())
	parent := t.WriterState(p.Run)
	s.PrevSibling, s.NextSibling = None, parent.FirstChild
	if parent.FirstChild != None {
		t.WriterState(parent.FirstChild).PrevSibling = r
	}
	parent.FirstChild = r
	t.addChild(r, p, t.Arena.Locals(h.Storage())[0])
	// Readers try NextGuess before they search the table of children. A guess from before the
	// run grew follows another block, and is wrong.
	if ph := t.Head(p.Run); p.Pos == ph.Storage().Blocks()-1 && !t.isChildOf(ID(ph.NextGuess.Load()), p) {
		ph.NextGuess.Store(uint32(r))
	}
}

// isChildOf reports whether run r follows block p now. r may be None or no longer in use.
func (t *Tree) isChildOf(r ID, p Place) bool {
	return r != None && t.WriterState(r).Live && t.Head(r).Parent.Load() == p.Pack()
}

// Detach makes readers no longer find run r, and returns the block that r followed. r keeps
// its blocks, entries and children. The caller attaches r again or frees it.
func (t *Tree) Detach(r ID) Place {
	h, s := t.Head(r), t.WriterState(r)
	p := UnpackPlace(h.Parent.Load())
	t.removeChild(r, p, t.Arena.Locals(h.Storage())[0])
	if s.PrevSibling != None {
		t.WriterState(s.PrevSibling).NextSibling = s.NextSibling
	} else {
		t.WriterState(p.Run).FirstChild = s.NextSibling
	}
	if s.NextSibling != None {
		t.WriterState(s.NextSibling).PrevSibling = s.PrevSibling
	}
	// Readers would try a detached run in vain.
	if ph := t.Head(p.Run); ph.NextGuess.Load() == uint32(r) {
		ph.NextGuess.Store(uint32(None))
	}
	return p
}
