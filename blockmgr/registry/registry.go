package registry

import (
	"hash/maphash"
	"iter"
	"unsafe"

	"github.com/blockyard-ai/blockyard/internal/kv"
)

// Registry maps keys to entries. New makes one; see the package for what it
// guarantees and who guards it.
type Registry struct {
	seed    maphash.Seed
	index   index
	entries slab
	blocks  int
}

// New makes an empty registry; it takes about 150 KiB with its first block.
func New() *Registry {
	return &Registry{seed: maphash.MakeSeed(), index: newIndex(), entries: slab{free: None}}
}

// Blocks counts the entries that have a slot.
func (r *Registry) Blocks() int { return r.blocks }

// Bytes is the memory that the registry takes, in bytes.
func (r *Registry) Bytes() uint64 {
	const pointer = unsafe.Sizeof(uintptr(0))
	return uint64(unsafe.Sizeof(*r) +
		uintptr(len(r.entries.chunks))*unsafe.Sizeof([chunkEntries]Entry{}) +
		uintptr(len(r.index.chunks))*unsafe.Sizeof([chunkSegments]segment{}) +
		uintptr(cap(r.entries.chunks)+cap(r.index.chunks))*pointer +
		uintptr(cap(r.index.dir))*unsafe.Sizeof(r.index.dir[0]) +
		uintptr(cap(r.index.states))*unsafe.Sizeof(segmentState{}))
}

// At is entry id, which exists. The pointer is valid as long as it does.
func (r *Registry) At(id ID) *Entry { return r.entries.at(id) }

// Find is the entry of key, None when there is none.
func (r *Registry) Find(key *kv.StoredKey) ID {
	return r.index.find(r.fingerprint(key), key, &r.entries)
}

func (r *Registry) fingerprint(key *kv.StoredKey) uint32 {
	return uint32(maphash.Bytes(r.seed, key[:]))
}

// Expect makes room in an empty registry for so many blocks at once, which saves
// making it little by little. It may hold more later.
func (r *Registry) Expect(blocks int) {
	if r.entries.made == 0 {
		r.index.expect(blocks)
	}
}

// Occupy gives the block of key a slot in a level where it has none, and returns
// its entry and that of its parent, None if it has no parent. hasParent and
// parent are what the block says of itself; they are not looked at where the
// block has a slot already. It panics when the block has a slot in the level.
func (r *Registry) Occupy(key kv.StoredKey, hasParent bool, parent kv.StoredKey, lv Level, slot Ref) (id, parentID ID) {
	id, ok := r.TryOccupy(key, hasParent, parent, lv, slot)
	if !ok {
		panic("BUG: block " + key.String() + " has a slot in this tier already")
	}
	return id, r.At(id).Parent
}

// TryOccupy is Occupy for a block that may have a slot in the level: then ok is
// false and nothing happens.
func (r *Registry) TryOccupy(key kv.StoredKey, hasParent bool, parent kv.StoredKey, lv Level, slot Ref) (id ID, ok bool) {
	if slot == NoRef {
		panic("BUG: block " + key.String() + " is given no slot")
	}
	id = r.ensure(&key)
	e := r.At(id)
	if e.Slots[lv] != NoRef {
		return id, false
	}
	if !e.Occupied() {
		r.blocks++
		if hasParent {
			e.Parent = r.ensure(&parent)
			r.At(e.Parent).Refs++
		}
	}
	e.Slots[lv] = slot
	if e.Parent != None {
		r.At(e.Parent).Kids[lv]++
	}
	return id, true
}

// Vacate takes the slot of entry id in a level away and returns the entry of its
// parent, None if it has none or if that has gone with it. The entry goes when
// nothing refers to it any more. It panics when it has no slot in the level.
func (r *Registry) Vacate(id ID, lv Level) (parent ID) {
	e := r.At(id)
	if e.Slots[lv] == NoRef {
		panic("BUG: block " + e.Key.String() + " has no slot in this tier")
	}
	e.Slots[lv] = NoRef
	parent = e.Parent
	if parent != None {
		r.At(parent).Kids[lv]--
	}
	if e.Occupied() {
		return parent
	}
	r.blocks--
	e.Parent = None
	r.collect(id)
	if parent == None {
		return None
	}
	r.At(parent).Refs--
	if r.collect(parent) {
		return None
	}
	return parent
}

// All yields every entry that exists, ghosts included, by rising id. What the
// loop vacates is not yielded later; what it occupies may or may not be.
func (r *Registry) All(yield func(ID, *Entry) bool) { r.From(0)(yield) }

// From is All for the entries whose id is first or more. It lets a long walk be
// made in parts.
func (r *Registry) From(first ID) iter.Seq2[ID, *Entry] {
	return func(yield func(ID, *Entry) bool) {
		for id := first; id < r.entries.made; id++ {
			if e := r.At(id); e.exists() && !yield(id, e) {
				return
			}
		}
	}
}

// ensure is the entry of key, made when there is none.
func (r *Registry) ensure(key *kv.StoredKey) ID {
	fp := r.fingerprint(key)
	id := r.index.find(fp, key, &r.entries)
	if id == None {
		id = r.entries.take(*key)
		r.index.insert(fp, id)
	}
	return id
}

// collect frees an entry that nothing refers to.
func (r *Registry) collect(id ID) bool {
	e := r.At(id)
	if e.exists() {
		return false
	}
	r.index.remove(r.fingerprint(&e.Key), id)
	r.entries.put(id)
	return true
}
