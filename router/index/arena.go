package index

import (
	"slices"
	"sync/atomic"

	"github.com/blockyard-ai/blockyard/internal/kv"
)

// word is what the arena is made of. It is the type of a LocalHash so that a
// query's hashes compare with the arena's as arrays, which is as fast as memory
// compares; the sequence hashes beside them are converted one by one.
type word = kv.LocalHash

const (
	// unitBlocks is how many blocks the smallest piece holds, and unitBytes what it
	// takes: a local and a sequence hash for each block.
	unitBlocks = 8
	unitBytes  = 16 * unitBlocks
	// classes is the number of piece sizes: class c is c units, 1..classes.
	classes = runBlocks / unitBlocks
)

// storage says where a run's blocks lie, packed so that one atomic word changes
// it: number of blocks, class of the piece, version, and first unit of the
// piece. The version changes when blocks are cut off, because their places may
// then be filled with others.
type storage uint64

func packStorage(n, class, version int, unit uint32) storage {
	return storage(n) | storage(class)<<8 | storage(uint16(version))<<16 | storage(unit)<<32
}

func (s storage) blocks() int   { return int(s & 0xff) }
func (s storage) class() int    { return int(s >> 8 & 0xff) }
func (s storage) version() int  { return int(s >> 16 & 0xffff) }
func (s storage) unit() uint32  { return uint32(s >> 32) }
func (s storage) capacity() int { return s.class() * unitBlocks }

// arena hands out pieces of memory for blocks. Chunks never move; readers find a
// piece without a lock. Everything but the words is the writer's.
type arena struct {
	chunks atomic.Pointer[[]chunk]
	// shift is log2 of the units in a chunk.
	shift uint
	// bump is the first unit that was never handed out, and end the first beyond
	// the last chunk.
	bump, end uint32
	// free has the free pieces by class, and some that are none any more: tags
	// tells. There are tags at the first and the last unit of each free piece; the
	// others are zero.
	free [classes + 1][]uint32
	tags []uint8
	// used and idle are the units handed out and those of free pieces.
	used, idle int
}

// chunk is memory for blocks. Local hashes lie apart from sequence hashes, because
// readers look at the former only.
type chunk struct{ locals, hashes []word }

func newArena(shift uint) *arena {
	a := &arena{shift: shift}
	a.chunks.Store(new([]chunk))
	return a
}

func (a *arena) bytes() int64 { return int64(a.end) * unitBytes }

// locals are the local hashes of the blocks of s.
func (a *arena) locals(s storage) []word {
	c := &(*a.chunks.Load())[s.unit()>>(a.shift&31)]
	at := int(s.unit()&(1<<(a.shift&31)-1)) * unitBlocks
	return c.locals[at : at+s.blocks()]
}

// hashes are the sequence hashes of the blocks of s.
func (a *arena) hashes(s storage) []word {
	c := &(*a.chunks.Load())[s.unit()>>(a.shift&31)]
	at := int(s.unit()&(1<<(a.shift&31)-1)) * unitBlocks
	return c.hashes[at : at+s.blocks()]
}

// Tags of a free piece: its class with headTag at the first unit, and with tailTag
// at the last one, if that is another.
const (
	headTag  = 0x80
	tailTag  = 0xc0
	tagClass = 0x1f
)

// take hands out a piece of the class asked for; false when there is none and
// memory may not grow.
func (a *arena) take(class int, mayGrow func(bytes int64) bool) (unit uint32, ok bool) {
	if unit, ok := a.pop(class); ok {
		return unit, true
	}
	// Where much is free, larger pieces are cut before the arena grows.
	thrifty := a.idle > a.used/4+1<<a.shift
	if thrifty {
		if unit, ok := a.cutLarger(class); ok {
			return unit, true
		}
	}
	if int(a.end-a.bump) < class && !a.grow(mayGrow) {
		if thrifty {
			return 0, false
		}
		return a.cutLarger(class)
	}
	unit = a.bump
	a.bump += uint32(class)
	a.used += class
	return unit, true
}

// pop takes a piece of exactly this class from the free ones.
func (a *arena) pop(class int) (uint32, bool) {
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

// cutLarger takes a piece out of a larger free one.
func (a *arena) cutLarger(class int) (uint32, bool) {
	for larger := class + 1; larger <= classes; larger++ {
		if unit, ok := a.pop(larger); ok {
			a.used -= larger - class
			a.put(unit+uint32(class), larger-class)
			return unit, true
		}
	}
	return 0, false
}

// give takes a piece back and joins it with free neighbours, so that pieces of
// all classes can be cut again from what many small ones leave. No reader may be
// able to reach it any more.
func (a *arena) give(unit uint32, class int) {
	a.used -= class
	first := unit &^ (1<<a.shift - 1) // of the chunk
	last := first + 1<<a.shift
	if end := unit + uint32(class); end < last && a.tags[end]&tailTag == headTag {
		if more := int(a.tags[end] & tagClass); more < classes {
			a.untag(end, more)
			a.idle -= more
			class += more
		}
	}
	if unit > first && (a.tags[unit-1]&tailTag == tailTag || a.tags[unit-1] == headTag|1) {
		if more := int(a.tags[unit-1] & tagClass); more < classes {
			unit -= uint32(more)
			a.untag(unit, more)
			a.idle -= more
			class += more
		}
	}
	for ; class > classes; class -= classes {
		a.put(unit, classes)
		unit += classes
	}
	a.put(unit, class)
}

// put makes units, which belong to no piece, a free one.
func (a *arena) put(unit uint32, class int) {
	a.tags[unit+uint32(class)-1] = tailTag | uint8(class)
	a.tags[unit] = headTag | uint8(class)
	a.idle += class
	list := a.free[class]
	if len(list) == cap(list) && len(list) > 64 {
		list = a.refresh(class)
	}
	a.free[class] = append(list, unit)
}

// refresh drops from a list of free pieces what is none any more.
func (a *arena) refresh(class int) []uint32 {
	slices.Sort(a.free[class])
	list := slices.Compact(a.free[class])
	return slices.DeleteFunc(list, func(unit uint32) bool { return a.tags[unit] != headTag|uint8(class) })
}

func (a *arena) untag(unit uint32, class int) {
	a.tags[unit], a.tags[unit+uint32(class)-1] = 0, 0
}

// grow adds a chunk. What the last one still had becomes free pieces.
func (a *arena) grow(mayGrow func(bytes int64) bool) bool {
	units := uint32(1) << a.shift
	if !mayGrow(int64(units)*fullUnitBytes) || a.end+units < a.end {
		return false
	}
	for a.bump < a.end {
		class := min(int(a.end-a.bump), classes)
		a.bump += uint32(class)
		a.used += class
		a.give(a.bump-uint32(class), class)
	}
	old := *a.chunks.Load()
	n := int(units) * unitBlocks
	list := append(old[:len(old):cap(old)], chunk{make([]word, n), make([]word, n)})
	a.chunks.Store(&list)
	a.tags = append(a.tags, make([]uint8, units)...)
	a.bump, a.end = a.end, a.end+units
	return true
}
