package runs

import (
	"slices"
	"sync/atomic"

	"github.com/blockyard-ai/blockyard/internal/kv"
)

// Word is the unit of the arena's memory. Word is a LocalHash, so that the hashes of
// a prompt compare with those of a run as arrays, at the speed of memory. Sequence
// hashes are converted one by one.
type Word = kv.LocalHash

const (
	// UnitBlocks is the number of blocks in the smallest piece of memory. UnitBytes
	// is its size: a local and a sequence hash for each block.
	UnitBlocks = 8
	UnitBytes  = 16 * UnitBlocks
	// Classes is the number of piece sizes. Class c is c units, 1..Classes.
	Classes = MaxBlocks / UnitBlocks
)

// Storage says where the blocks of a run lie: number of blocks, class of the piece,
// version, and first unit of the piece. One word holds all of it, so that one
// atomic store changes it. The version changes when blocks are cut off, because
// other blocks may then take their places.
type Storage uint64

// PackStorage returns the storage of n blocks.
func PackStorage(n, class, version int, unit uint32) Storage {
	return Storage(n) | Storage(class)<<8 | Storage(uint16(version))<<16 | Storage(unit)<<32
}

// Blocks returns the number of blocks.
func (s Storage) Blocks() int { return int(s & 0xff) }

// Class returns the class of the piece.
func (s Storage) Class() int { return int(s >> 8 & 0xff) }

// Version returns the version.
func (s Storage) Version() int { return int(s >> 16 & 0xffff) }

// Unit returns the first unit of the piece.
func (s Storage) Unit() uint32 { return uint32(s >> 32) }

// Capacity returns the number of blocks that the piece has room for.
func (s Storage) Capacity() int { return s.Class() * UnitBlocks }

// Arena hands out pieces of memory for blocks. A piece is 1..Classes consecutive units of
// UnitBlocks blocks; its class is the number of units. Memory comes from chunks, which never
// move, so that readers find a piece without a lock. Readers use Locals and Hashes only.
type Arena struct {
	chunks atomic.Pointer[[]chunk]
	// shift is log2 of the number of units in a chunk.
	shift uint
	// bump is the first unit that was never handed out. end is the first unit beyond
	// the last chunk.
	bump, end uint32
	// free has the first units of the free pieces, by class. A list may also have stale
	// elements: pieces that are no longer free, or no longer of this class. tags, with an
	// element per unit, is the truth. Each free piece has a tag at its first and its last
	// unit. All other tags are zero.
	free [Classes + 1][]uint32
	tags []uint8
	// used counts the units that are handed out, idle the units of free pieces.
	used, idle int
}

// chunk is memory for blocks. Local hashes lie apart from sequence hashes, because
// readers need local hashes only.
type chunk struct{ locals, hashes []Word }

// NewArena returns an empty arena. shift is log2 of the number of units in a chunk.
func NewArena(shift uint) *Arena {
	a := &Arena{shift: shift}
	a.chunks.Store(new([]chunk))
	return a
}

// Bytes returns the memory of the arena.
func (a *Arena) Bytes() int64 { return int64(a.end) * UnitBytes }

// Units returns the number of units that the arena has memory for.
func (a *Arena) Units() int { return int(a.end) }

// ChunkUnits returns the number of units in a chunk.
func (a *Arena) ChunkUnits() int64 { return 1 << a.shift }

// InUse returns the number of units that are handed out.
func (a *Arena) InUse() int { return a.used }

// Idle returns the number of units that can be handed out without growth.
func (a *Arena) Idle() int { return a.idle + int(a.end-a.bump) }

// Locals returns the local hashes of the blocks of s.
func (a *Arena) Locals(s Storage) []Word {
	c := &(*a.chunks.Load())[s.Unit()>>(a.shift&31)]
	at := int(s.Unit()&(1<<(a.shift&31)-1)) * UnitBlocks
	return c.locals[at : at+s.Blocks()]
}

// Hashes returns the sequence hashes of the blocks of s.
func (a *Arena) Hashes(s Storage) []Word {
	c := &(*a.chunks.Load())[s.Unit()>>(a.shift&31)]
	at := int(s.Unit()&(1<<(a.shift&31)-1)) * UnitBlocks
	return c.hashes[at : at+s.Blocks()]
}

// Tags of a free piece: the class with headTag at the first unit, and with tailTag
// at the last unit of a piece of several units.
const (
	headTag  = 0x80
	tailTag  = 0xc0
	tagClass = 0x1f
)

// Take hands out a piece of class units and returns its first unit. ok is false when no
// piece is free and mayGrow refuses the memory for another chunk.
func (a *Arena) Take(class int, mayGrow func(bytes int64) bool) (unit uint32, ok bool) {
	if unit, ok := a.pop(class); ok {
		return unit, true
	}
	// Cutting a larger piece fragments memory. So the arena grows first, unless much is free.
	cutFirst := a.idle > a.used/4+1<<a.shift
	if cutFirst {
		if unit, ok := a.cutLarger(class); ok {
			return unit, true
		}
	}
	// bump is the first unit that was never handed out.
	if int(a.end-a.bump) < class && !a.grow(mayGrow) {
		if cutFirst {
			return 0, false // there is no larger piece
		}
		return a.cutLarger(class)
	}
	unit = a.bump
	a.bump += uint32(class)
	a.used += class
	return unit, true
}

// pop hands out a free piece of exactly class units and returns its first unit. ok is false
// when none is free. The list of free pieces may have stale elements, and tags tells them
// apart: pop drops them on the way.
func (a *Arena) pop(class int) (unit uint32, ok bool) {
	list := a.free[class]
	for n := len(list) - 1; n >= 0; n-- {
		unit := list[n]
		if a.tags[unit] == headTag|uint8(class) {
			a.free[class] = list[:n]
			a.untag(unit, class)
			a.idle -= class
			a.used += class
			return unit, true
		}
	}
	a.free[class] = list[:0]
	return 0, false
}

// cutLarger hands out the beginning of a larger free piece, and frees the rest. It returns
// the first unit of the piece of class units. ok is false when no larger piece is free.
func (a *Arena) cutLarger(class int) (unit uint32, ok bool) {
	for larger := class + 1; larger <= Classes; larger++ {
		if unit, ok := a.pop(larger); ok {
			a.used -= larger - class
			a.put(unit+uint32(class), larger-class)
			return unit, true
		}
	}
	return 0, false
}

// Give takes back the piece of class units that begins at unit. It joins the piece with free
// neighbours in the same chunk, so that many small pieces become large ones again. No reader
// may be able to reach the piece.
func (a *Arena) Give(unit uint32, class int) {
	a.used -= class
	first := unit &^ (1<<a.shift - 1) // of the chunk
	next := first + 1<<a.shift        // the first unit of the next chunk
	// The unit after the piece may be the head of a free piece. Pieces of the largest class
	// cannot grow, so they stay as they are.
	if end := unit + uint32(class); end < next && a.tags[end]&tailTag == headTag {
		if more := int(a.tags[end] & tagClass); more < Classes {
			a.untag(end, more)
			a.idle -= more
			class += more
		}
	}
	// The unit before the piece may be the tail of a free piece, or a free piece of one unit,
	// whose tag is a head.
	if unit > first && (a.tags[unit-1]&tailTag == tailTag || a.tags[unit-1] == headTag|1) {
		if more := int(a.tags[unit-1] & tagClass); more < Classes {
			unit -= uint32(more)
			a.untag(unit, more)
			a.idle -= more
			class += more
		}
	}
	for ; class > Classes; class -= Classes { // the joined piece may be too large
		a.put(unit, Classes)
		unit += Classes
	}
	a.put(unit, class)
}

// put makes the class units from unit on a free piece, which pop then hands out. The units
// belong to no piece now.
func (a *Arena) put(unit uint32, class int) {
	a.tags[unit+uint32(class)-1] = tailTag | uint8(class)
	a.tags[unit] = headTag | uint8(class)
	a.idle += class
	list := a.free[class]
	if len(list) == cap(list) && len(list) > 64 { // drop stale elements before the list grows
		list = a.refresh(class)
	}
	a.free[class] = append(list, unit)
}

// refresh returns the first units of the free pieces of a class, without the stale and
// repeated elements of a.free.
func (a *Arena) refresh(class int) []uint32 {
	slices.Sort(a.free[class])
	list := slices.Compact(a.free[class])
	return slices.DeleteFunc(list, func(unit uint32) bool { return a.tags[unit] != headTag|uint8(class) })
}

func (a *Arena) untag(unit uint32, class int) {
	a.tags[unit], a.tags[unit+uint32(class)-1] = 0, 0
}

// grow adds a chunk of memory. It returns false when mayGrow refuses the bytes, or when unit
// numbers run out. The unused rest of the last chunk becomes free pieces.
func (a *Arena) grow(mayGrow func(bytes int64) bool) bool {
	units := uint32(1) << a.shift
	if !mayGrow(int64(units)*FullUnitBytes) || a.end+units < a.end {
		return false
	}
	for a.bump < a.end {
		class := min(int(a.end-a.bump), Classes)
		a.bump += uint32(class)
		a.used += class // Give subtracts them
		a.Give(a.bump-uint32(class), class)
	}
	// Readers may hold the old list. Appending behind its end does not change it.
	old := *a.chunks.Load()
	n := int(units) * UnitBlocks
	list := append(old[:len(old):cap(old)], chunk{make([]Word, n), make([]Word, n)})
	a.chunks.Store(&list)
	a.tags = append(a.tags, make([]uint8, units)...)
	a.bump, a.end = a.end, a.end+units
	return true
}

// FullUnitBytes is the size of a unit with its blocks in a dense directory.
const FullUnitBytes = UnitBytes + UnitBlocks*DirectoryBytes

// ClassFor returns the smallest class with room for n blocks.
func ClassFor(n int) int { return (n + UnitBlocks - 1) / UnitBlocks }
