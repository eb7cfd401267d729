package blockmgr

import (
	"github.com/blockyard-ai/blockyard/internal/kv"
)

// level indexes what a block has once per tier that a pool manages.
type level uint8

const (
	hostLevel level = 0
	diskLevel level = 1
	numLevels       = 2
)

// none is the slot or entry that does not exist.
const none = ^uint32(0)

// entry is what the registry knows of one key. An entry exists while its block
// has a slot in some tier, or while such a block names it as its parent.
type entry struct {
	key kv.StoredKey
	// parent is the entry of the block before it, none for the first block of a
	// sequence and for an entry without slots. It is set when the block is first
	// occupied, from what the block says of itself.
	parent uint32
	// slots are the block's slots, in whatever state, none where it has none.
	slots [numLevels]uint32
	// kids counts the entries with this parent that have a slot in the level: a
	// block leaves a tier after its children.
	kids [numLevels]uint32
	// refs counts the entries with this parent.
	refs uint32
}

func (e *entry) occupied() bool { return e.slots[hostLevel] != none || e.slots[diskLevel] != none }

// registry maps keys to entries. Neither the map nor the slab holds a pointer,
// so that the collector never walks it. Its pool's mutex guards it.
type registry struct {
	index   map[kv.StoredKey]uint32
	entries []entry
	free    []uint32
	blocks  int
}

func newRegistry() registry { return registry{index: map[kv.StoredKey]uint32{}} }

// find is the entry of key, none when there is none.
func (r *registry) find(key kv.StoredKey) uint32 {
	if id, ok := r.index[key]; ok {
		return id
	}
	return none
}

// at is entry id; valid until the next occupy.
func (r *registry) at(id uint32) *entry { return &r.entries[id] }

// ensure is the entry of key, made when there is none.
func (r *registry) ensure(key kv.StoredKey) uint32 {
	if id, ok := r.index[key]; ok {
		return id
	}
	var id uint32
	if n := len(r.free); n > 0 {
		id, r.free = r.free[n-1], r.free[:n-1]
	} else {
		id = uint32(len(r.entries))
		r.entries = append(r.entries, entry{})
	}
	r.entries[id] = entry{key: key, parent: none, slots: [numLevels]uint32{none, none}}
	r.index[key] = id
	return id
}

// occupy gives the block b a slot in a level where it has none, and returns its
// entry and that of its parent (none if it has no parent).
func (r *registry) occupy(b *Block, lv level, slot uint32) (id, parent uint32) {
	id = r.ensure(b.Key)
	if !r.at(id).occupied() {
		r.blocks++
		if b.Position > 0 {
			parent := r.ensure(b.Parent.InGroup(b.Key.Group()))
			r.at(parent).refs++
			r.at(id).parent = parent
		}
	}
	e := r.at(id)
	if e.slots[lv] != none {
		panic("BUG: block " + b.Key.String() + " has a slot in this tier already")
	}
	e.slots[lv] = slot
	if e.parent != none {
		r.at(e.parent).kids[lv]++
	}
	return id, e.parent
}

// vacate takes the entry's slot in a level away and returns the entry of its
// parent. The entry goes when nothing refers to it any more.
func (r *registry) vacate(id uint32, lv level) (parent uint32) {
	e := r.at(id)
	e.slots[lv] = none
	parent = e.parent
	if parent != none {
		r.at(parent).kids[lv]--
	}
	if e.occupied() {
		return parent
	}
	r.blocks--
	e.parent = none
	r.collect(id)
	if parent == none {
		return none
	}
	r.at(parent).refs--
	if r.collect(parent) {
		return none
	}
	return parent
}

// collect frees an entry that nothing refers to.
func (r *registry) collect(id uint32) bool {
	e := r.at(id)
	if e.occupied() || e.refs > 0 {
		return false
	}
	delete(r.index, e.key)
	r.free = append(r.free, id)
	return true
}
