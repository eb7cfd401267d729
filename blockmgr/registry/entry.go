package registry

import "github.com/blockyard-ai/blockyard/internal/kv"

// Ref names one slot of one tier of a pool: the number of the slot's extent, and the
// slot's index in it.
type Ref uint32

const (
	// RefSlotBits is the number of bits of a Ref for the index in the extent.
	RefSlotBits = 18
	// MaxExtents is the number of extents that a Ref can name. The last number is unused, so
	// that no slot is NoRef.
	MaxExtents = 1<<(32-RefSlotBits) - 1
	// MaxExtentSlots is the number of slots of an extent that a Ref can name.
	MaxExtentSlots = 1 << RefSlotBits
	// NoRef is no slot.
	NoRef = ^Ref(0)
)

// MakeRef returns the name of a slot of an extent. It panics unless extent < MaxExtents and
// slot < MaxExtentSlots, because another slot would have the name.
func MakeRef(extent, slot uint32) Ref {
	if extent >= MaxExtents || slot >= 1<<RefSlotBits {
		panic("BUG: extent or slot is out of the range of a Ref")
	}
	return Ref(extent<<RefSlotBits | slot)
}

// Extent returns the number of the extent.
func (r Ref) Extent() uint32 { return uint32(r) >> RefSlotBits }

// Slot returns the index in the extent.
func (r Ref) Slot() uint32 { return uint32(r) & (1<<RefSlotBits - 1) }

// ID names an entry while the entry exists. Later it may name another entry.
type ID uint32

// None is no entry.
const None = ^ID(0)

// Level numbers the tiers that a pool manages.
type Level uint8

const (
	// Host is the level of host memory.
	Host Level = 0
	// Disk is the level of the disk.
	Disk Level = 1
	// NumLevels is the number of levels.
	NumLevels = 2
)

// Entry has the slots and the parent of one block. It exists while its block has a slot in a
// tier. A ghost is an entry without slots: it exists while a block with a slot names it as its
// parent. Callers read entries; Occupy and Vacate change them.
type Entry struct {
	// Key is the key of the block.
	Key kv.StoredKey
	// Parent is the entry of the previous block, None for the first block of a sequence and
	// for a ghost. It is set when the block gets its first slot, and stays until the block
	// has lost its last slot.
	Parent ID
	// Slots are the block's slots in any state, NoRef for a tier without one.
	Slots [NumLevels]Ref
	// Children counts the entries with this parent that have a slot in the level. A block is
	// evicted from a tier after its children.
	Children [NumLevels]uint32
	// Refs counts the entries with this parent.
	Refs uint32
}

// Occupied reports whether the block has a slot.
func (e *Entry) Occupied() bool { return e.Slots[Host] != NoRef || e.Slots[Disk] != NoRef }

// exists reports whether the entry is in use, not free.
func (e *Entry) exists() bool { return e.Refs > 0 || e.Occupied() }

// chunkEntries is the number of entries of a chunk. It takes microseconds to make a chunk, and a
// chunk has a whole number of pages.
const chunkEntries = 2048

// slab holds entries, which never move. Parent links the free entries, so that the list of
// free entries takes no memory.
type slab struct {
	chunks []*[chunkEntries]Entry
	// made counts the ids that were ever taken. Lower ids exist or are free.
	made ID
	// free is the entry freed last, None when there is none.
	free ID
}

func (s *slab) at(id ID) *Entry { return &s.chunks[id/chunkEntries][id%chunkEntries] }

// take makes an entry without slots, in a freed entry if there is one, and returns its id.
func (s *slab) take(key kv.StoredKey) ID {
	id := s.free
	if id != None {
		s.free = s.at(id).Parent
	} else {
		id = s.made
		if id == None {
			panic("BUG: more blocks than ids")
		}
		if id%chunkEntries == 0 {
			s.chunks = append(s.chunks, new([chunkEntries]Entry))
		}
		s.made++
	}
	*s.at(id) = Entry{Key: key, Parent: None, Slots: [NumLevels]Ref{NoRef, NoRef}}
	return id
}

// put frees an entry that has no slot and no children.
func (s *slab) put(id ID) {
	s.at(id).Parent = s.free
	s.free = id
}
