package registry

import (
	"hash/maphash"
	"iter"

	"github.com/blockyard-ai/blockyard/internal/kv"
)

// Registry maps keys to entries. New makes one. The package comment has the guarantees and the
// locking.
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

// At returns entry id, which must exist. The pointer is valid while the entry exists.
func (r *Registry) At(id ID) *Entry { return r.entries.at(id) }

// Find returns the entry of key, None when there is none.
func (r *Registry) Find(key *kv.StoredKey) ID {
	return r.index.find(r.fingerprint(key), key, &r.entries)
}

// fingerprint returns the hash of a key by which the index finds it.
func (r *Registry) fingerprint(key *kv.StoredKey) uint32 {
	return uint32(maphash.Bytes(r.seed, key[:]))
}

// Expect makes room in an empty registry for a number of blocks at once. It may hold more later.
func (r *Registry) Expect(blocks int) {
	if r.entries.made == 0 {
		r.index.expect(blocks)
	}
}

// Occupy gives the block of key a slot in a level. It returns the block's entry and its
// parent's entry, None without a parent. hasParent and parent are read only if the block has no
// slot in any level. Occupy panics when the block has a slot in the level.
func (r *Registry) Occupy(key kv.StoredKey, hasParent bool, parent kv.StoredKey, lv Level, slot Ref) (id, parentID ID) {
	id, ok := r.TryOccupy(key, hasParent, parent, lv, slot)
	if !ok {
		panic("BUG: block " + key.String() + " has a slot in this tier already")
	}
	return id, r.At(id).Parent
}

// TryOccupy gives the block of key a slot in a level, and returns the block's entry. ok is false,
// and nothing changes, when the block has a slot in the level already. parent is the key of the
// previous block, if hasParent; both are read only if the block has no slot in any level.
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
		r.At(e.Parent).Children[lv]++
	}
	return id, true
}

// Vacate removes the slot of entry id in a level. It returns the parent's entry, None without a
// parent or when that entry is freed too. Vacate frees an entry without slots and children. It
// panics when the entry has no slot in the level.
func (r *Registry) Vacate(id ID, lv Level) (parent ID) {
	e := r.At(id)
	if e.Slots[lv] == NoRef {
		panic("BUG: block " + e.Key.String() + " has no slot in this tier")
	}
	e.Slots[lv] = NoRef
	parent = e.Parent
	if parent != None {
		r.At(parent).Children[lv]--
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

// All yields every entry, also entries without slots, by ascending id. An entry that the loop
// frees is not yielded later; a new entry may be.
func (r *Registry) All(yield func(ID, *Entry) bool) { r.From(0)(yield) }

// From yields every entry whose id is first or higher, also entries without slots, by ascending id. It
// lets a caller walk a large registry in parts and release its lock between them.
func (r *Registry) From(first ID) iter.Seq2[ID, *Entry] {
	return func(yield func(ID, *Entry) bool) {
		for id := first; id < r.entries.made; id++ {
			if e := r.At(id); e.exists() && !yield(id, e) {
				return
			}
		}
	}
}

// ensure returns the entry of key. It makes a missing entry.
func (r *Registry) ensure(key *kv.StoredKey) ID {
	fp := r.fingerprint(key)
	id := r.index.find(fp, key, &r.entries)
	if id == None {
		id = r.entries.take(*key)
		r.index.insert(fp, id)
	}
	return id
}

// collect frees an entry without slots and children, and reports whether it did.
func (r *Registry) collect(id ID) bool {
	e := r.At(id)
	if e.exists() {
		return false
	}
	r.index.remove(r.fingerprint(&e.Key), id)
	r.entries.put(id)
	return true
}
