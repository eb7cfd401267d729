package runs

import (
	"math/bits"
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
	// MaxPieceUnits is the size of the largest piece, in units.
	MaxPieceUnits = MaxBlocks / UnitBlocks
)

// Storage says where the blocks of a run lie: number of blocks, units of the piece,
// version, and first unit of the piece. One word holds all of it, so that one
// atomic store changes it. The version changes when blocks are cut off, because
// other blocks may then take their places.
type Storage uint64

// PackStorage returns the Storage of n blocks in the piece of that many units from firstUnit
// on. n is 0 for a new piece.
func PackStorage(n, units, version int, firstUnit uint32) Storage {
	return Storage(n) | Storage(units)<<8 | Storage(uint16(version))<<16 | Storage(firstUnit)<<32
}

// Blocks returns the number of blocks.
func (s Storage) Blocks() int { return int(s & 0xff) }

// Units returns the size of the piece in units.
func (s Storage) Units() int { return int(s >> 8 & 0xff) }

// Version returns the version.
func (s Storage) Version() int { return int(s >> 16 & 0xffff) }

// FirstUnit returns the first unit of the piece.
func (s Storage) FirstUnit() uint32 { return uint32(s >> 32) }

// Capacity returns the number of blocks that the piece has room for.
func (s Storage) Capacity() int { return s.Units() * UnitBlocks }

// Arena hands out pieces of memory for blocks. A piece is 1..MaxPieceUnits consecutive units of
// UnitBlocks blocks. Memory comes from chunks, which never
// move, so that readers find a piece without a lock. Readers use Locals and Hashes only.
type Arena struct {
	chunks atomic.Pointer[[]chunk]
	// shift is log2 of the number of units in a chunk.
	shift uint
	// nextFresh is the first unit that was never handed out. end is the first unit beyond
	// the last chunk.
	nextFresh, end uint32
	// free has the first units of the free pieces, by their number of units. A list may also have stale
	// elements: pieces that are no longer free, or no longer of this size. tags, with an
	// element per unit, is the truth. Each free piece has a tag at its first and its last
	// unit. All other tags are zero.
	free [MaxPieceUnits + 1][]uint32
	tags []uint8
	// used counts the units that are handed out, idle the units of free pieces.
	used, idle int
}

// chunk is memory for blocks. Local hashes lie apart from sequence hashes, because
// readers need local hashes only.
type chunk struct{ locals, hashes []Word }

// maxChunkShift is log2 of the most units or runs in a chunk.
const maxChunkShift = 11

// ChunkShift returns log2 of the number of elements in a chunk of memory, for NewTree. A
// chunk has about 256 KiB, and at most 1/32 of the budget. Both arguments are in bytes.
func ChunkShift(budget int64, elementBytes int) uint {
	elements := min(budget/32, 256<<10) / int64(elementBytes)
	return min(uint(bits.Len64(uint64(max(elements, 1)))-1), maxChunkShift)
}

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

// Idle returns the number of units that can be handed out without growth.
func (a *Arena) Idle() int { return a.idle + int(a.end-a.nextFresh) }

// Locals returns the local hashes of the blocks of s.
func (a *Arena) Locals(s Storage) []Word {
	c := &(*a.chunks.Load())[s.FirstUnit()>>(a.shift&31)]
	at := int(s.FirstUnit()&(1<<(a.shift&31)-1)) * UnitBlocks
	return c.locals[at : at+s.Blocks()]
}

// Hashes returns the sequence hashes of the blocks of s.
func (a *Arena) Hashes(s Storage) []Word {
	c := &(*a.chunks.Load())[s.FirstUnit()>>(a.shift&31)]
	at := int(s.FirstUnit()&(1<<(a.shift&31)-1)) * UnitBlocks
	return c.hashes[at : at+s.Blocks()]
}

// Tags of a free piece: its number of units, with headTag at the first unit and with tailTag
// at the last unit of a piece of several units.
const (
	headTag  = 0x80
	tailTag  = 0xc0
	tagUnits = 0x1f
)

// Take hands out a piece of that many units and returns its first unit. ok is false when no
// piece is free and mayGrow refuses the memory for another chunk.
func (a *Arena) Take(units int, mayGrow func(bytes int64) bool) (firstUnit uint32, ok bool) {
	if firstUnit, ok := a.pop(units); ok {
		return firstUnit, true
	}
	// Cutting a larger piece fragments memory. So the arena grows first, unless more is free
	// than a quarter of the units in use and a chunk.
	cutFirst := a.idle > a.used/4+1<<a.shift
	if cutFirst {
		if firstUnit, ok := a.cutLarger(units); ok {
			return firstUnit, true
		}
	}
	// The units nextFresh..end-1 were never handed out.
	if int(a.end-a.nextFresh) < units && !a.grow(mayGrow) {
		if cutFirst {
			return 0, false // there is no larger piece
		}
		return a.cutLarger(units)
	}
	firstUnit = a.nextFresh
	a.nextFresh += uint32(units)
	a.used += units
	return firstUnit, true
}

// pop hands out a free piece of exactly that many units and returns its first unit. ok is
// false when none is free. The list of free pieces may have stale elements, without the tag of a
// free piece of this size: pop drops them on the way.
func (a *Arena) pop(units int) (firstUnit uint32, ok bool) {
	list := a.free[units]
	for n := len(list) - 1; n >= 0; n-- {
		firstUnit := list[n]
		if a.tags[firstUnit] == headTag|uint8(units) {
			a.free[units] = list[:n]
			a.untag(firstUnit, units)
			a.idle -= units
			a.used += units
			return firstUnit, true
		}
	}
	a.free[units] = list[:0]
	return 0, false
}

// cutLarger hands out the beginning of a larger free piece, and frees the rest. It returns
// the first unit of the handed out units. ok is false when no larger piece is free.
func (a *Arena) cutLarger(units int) (firstUnit uint32, ok bool) {
	for larger := units + 1; larger <= MaxPieceUnits; larger++ {
		if firstUnit, ok := a.pop(larger); ok {
			a.used -= larger - units
			a.put(firstUnit+uint32(units), larger-units)
			return firstUnit, true
		}
	}
	return 0, false
}

// Give takes back the piece of that many units that begins at firstUnit. It joins the piece
// with free neighbours in the same chunk, so that many small pieces become large ones again.
// a.tags finds them: a free piece has a tag at its head and at its tail. No reader may be able
// to reach the piece.
func (a *Arena) Give(firstUnit uint32, units int) {
	a.used -= units
	chunkStart := firstUnit &^ (1<<a.shift - 1)
	chunkEnd := chunkStart + 1<<a.shift
	// The unit after the piece may be the head of a free piece. Pieces of the largest size
	// cannot grow, so they stay as they are.
	if end := firstUnit + uint32(units); end < chunkEnd && a.tags[end]&tailTag == headTag {
		if more := int(a.tags[end] & tagUnits); more < MaxPieceUnits {
			a.untag(end, more)
			a.idle -= more
			units += more
		}
	}
	// The unit before the piece may be the tail of a free piece, or a free piece of one unit,
	// whose tag is a head.
	if firstUnit > chunkStart && (a.tags[firstUnit-1]&tailTag == tailTag || a.tags[firstUnit-1] == headTag|1) {
		if more := int(a.tags[firstUnit-1] & tagUnits); more < MaxPieceUnits {
			firstUnit -= uint32(more)
			a.untag(firstUnit, more)
			a.idle -= more
			units += more
		}
	}
	for ; units > MaxPieceUnits; units -= MaxPieceUnits { // the joined piece may be too large
		a.put(firstUnit, MaxPieceUnits)
		firstUnit += MaxPieceUnits
	}
	a.put(firstUnit, units)
}

// put makes that many units from firstUnit on a free piece, which pop then hands out. Before
// the call they belong to no piece. The tags at both ends let Give find a free neighbour.
func (a *Arena) put(firstUnit uint32, units int) {
	a.tags[firstUnit+uint32(units)-1] = tailTag | uint8(units)
	a.tags[firstUnit] = headTag | uint8(units)
	a.idle += units
	list := a.free[units]
	if len(list) == cap(list) && len(list) > 64 { // drop stale elements before the list grows
		list = a.refresh(units)
	}
	a.free[units] = append(list, firstUnit)
}

// refresh returns the first units of the free pieces of a size, without the stale and
// repeated elements of a.free.
func (a *Arena) refresh(units int) []uint32 {
	slices.Sort(a.free[units])
	list := slices.Compact(a.free[units])
	return slices.DeleteFunc(list, func(firstUnit uint32) bool { return a.tags[firstUnit] != headTag|uint8(units) })
}

func (a *Arena) untag(firstUnit uint32, units int) {
	a.tags[firstUnit], a.tags[firstUnit+uint32(units)-1] = 0, 0
}

// grow adds a chunk of memory. It returns false when mayGrow refuses the bytes, or when unit
// numbers run out. The unused rest of the last chunk becomes free pieces.
func (a *Arena) grow(mayGrow func(bytes int64) bool) bool {
	chunkUnits := uint32(1) << a.shift
	if !mayGrow(int64(chunkUnits)*FullUnitBytes) || a.end+chunkUnits < a.end {
		return false
	}
	for a.nextFresh < a.end {
		units := min(int(a.end-a.nextFresh), MaxPieceUnits)
		a.nextFresh += uint32(units)
		a.used += units // Give subtracts them
		a.Give(a.nextFresh-uint32(units), units)
	}
	// Readers may hold the old list. Appending behind its end does not change it.
	old := *a.chunks.Load()
	n := int(chunkUnits) * UnitBlocks
	list := append(old[:len(old):cap(old)], chunk{make([]Word, n), make([]Word, n)})
	a.chunks.Store(&list)
	a.tags = append(a.tags, make([]uint8, chunkUnits)...)
	a.nextFresh, a.end = a.end, a.end+chunkUnits
	return true
}

// FullUnitBytes is the size of a unit with its blocks in a dense directory.
const FullUnitBytes = UnitBytes + UnitBlocks*DirectoryBytes

// UnitsFor returns the smallest number of units with room for n blocks.
func UnitsFor(n int) int { return (n + UnitBlocks - 1) / UnitBlocks }
