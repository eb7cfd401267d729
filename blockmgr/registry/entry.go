package registry

import "github.com/blockyard-ai/blockyard/internal/kv"

// Ref names one slot of one tier of a pool: the number of the slot's extent, and the
// slot's index in it.
type Ref uint32

const (
	// RefSlotBits is how many bits of a Ref are the index in the extent.
	RefSlotBits = 18
	// MaxExtents is how many extents can be named. The last number is left out, so that
	// no slot is NoRef.
	MaxExtents = 1<<(32-RefSlotBits) - 1
	// MaxExtentSlots is how many slots of an extent can be named.
	MaxExtentSlots = 1 << RefSlotBits
	// NoRef is no slot.
	NoRef = ^Ref(0)
)

// MakeRef names a slot of an extent. It panics unless extent < MaxExtents and slot <
// 1<<RefSlotBits: the name would be that of another slot.
func MakeRef(extent, slot uint32) Ref {
	if extent >= MaxExtents || slot >= 1<<RefSlotBits {
		panic("BUG: extent or slot is out of the range of a Ref")
	}
	return Ref(extent<<RefSlotBits | slot)
}

// Extent is the number of the extent.
func (r Ref) Extent() uint32 { return uint32(r) >> RefSlotBits }

// Slot is the index in the extent.
func (r Ref) Slot() uint32 { return uint32(r) & (1<<RefSlotBits - 1) }

// ID names an entry for as long as it exists; afterwards it may name another.
type ID uint32

// None is no entry.
const None = ^ID(0)

// Level indexes what a block has once per tier that a pool manages.
type Level uint8

const (
	// Host is the level of host memory.
	Host Level = 0
	// Disk is the level of the disk.
	Disk Level = 1
	// NumLevels is how many levels there are.
	NumLevels = 2
)

// Entry is what a registry knows of one key. It exists while its block has a
// slot in some tier, or as a ghost while a block that has one names it as its
// parent. Callers read it; Occupy and Vacate change it.
type Entry struct {
	// Key is the key of the block.
	Key kv.StoredKey
	// Parent is the entry of the block before it, None for the first block of a
	// sequence and for a ghost. It is set when the block gets its first slot, from
	// what the block says of itself, and stays until it has lost the last.
	Parent ID
	// Slots are the block's slots, in whatever state, NoRef where it has none.
	Slots [NumLevels]Ref
	// Kids counts the entries with this parent that have a slot in the level: a
	// block leaves a tier after its children.
	Kids [NumLevels]uint32
	// Refs counts the entries with this parent.
	Refs uint32
}

// Occupied reports whether the block has a slot.
func (e *Entry) Occupied() bool { return e.Slots[Host] != NoRef || e.Slots[Disk] != NoRef }

// exists tells an entry from a free one.
func (e *Entry) exists() bool { return e.Refs > 0 || e.Occupied() }

// chunkEntries is small enough that making a chunk takes microseconds, and
// divides into pages without a rest.
const chunkEntries = 2048

// slab holds entries where they never move. Free ones are linked through their
// Parent: a list on the side would take memory and grow by copying.
type slab struct {
	chunks []*[chunkEntries]Entry
	// made counts the ids that were ever given out: all below exist or are free.
	made ID
	// free is the entry freed last, None when there is none.
	free ID
}

func (s *slab) at(id ID) *Entry { return &s.chunks[id/chunkEntries][id%chunkEntries] }

// take makes an entry without slots.
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
