package index

import (
	"sync/atomic"

	"github.com/blockyard-ai/blockyard/internal/kv"
)

// word is what the arena is made of. It is the type of a LocalHash so that a
// query's hashes compare with the arena's as arrays, which is as fast as memory
// compares; the sequence hashes beside them are converted one by one.
type word = kv.LocalHash

const (
	// unitBlocks is how many blocks the smallest piece holds, and unitWords its
	// words: a local and a sequence hash for each block.
	unitBlocks = 8
	unitWords  = 2 * unitBlocks
	unitBytes  = 8 * unitWords
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

// arena hands out pieces of memory for blocks. A piece is the local hashes of
// its blocks and then their sequence hashes. Chunks never move; readers find a
// piece without a lock. Everything but the words is the writer's.
type arena struct {
	chunks atomic.Pointer[[][]word]
	// shift is log2 of the units in a chunk.
	shift uint
	// bump is the first unit that was never handed out, and end the first beyond
	// the last chunk.
	bump, end uint32
	free      [classes + 1][]uint32
	// used and idle are the units handed out and those in free.
	used, idle int
}

func newArena(shift uint) *arena {
	a := &arena{shift: shift}
	a.chunks.Store(new([][]word))
	return a
}

func (a *arena) bytes() int64 { return int64(a.end) * unitBytes }

// piece is the words of s from its first local hash to the end of its piece.
func (a *arena) piece(s storage) []word {
	chunk := (*a.chunks.Load())[s.unit()>>(a.shift&31)]
	at := int(s.unit()&(1<<(a.shift&31)-1)) * unitWords
	return chunk[at : at+s.class()*unitWords]
}

// locals are the local hashes of the blocks of s.
func (a *arena) locals(s storage) []word {
	chunk := (*a.chunks.Load())[s.unit()>>(a.shift&31)]
	at := int(s.unit()&(1<<(a.shift&31)-1)) * unitWords
	return chunk[at : at+s.blocks()]
}

// hashes are the sequence hashes of the blocks of s.
func (a *arena) hashes(s storage) []word {
	chunk := (*a.chunks.Load())[s.unit()>>(a.shift&31)]
	at := int(s.unit()&(1<<(a.shift&31)-1))*unitWords + s.capacity()
	return chunk[at : at+s.blocks()]
}

// take hands out a piece of the class asked for, or of a smaller one when
// memory may not grow and nothing larger is left to cut; class 0 when nothing
// is left at all.
func (a *arena) take(class int, mayGrow func(bytes int64) bool) (unit uint32, got int) {
	if n := len(a.free[class]); n > 0 {
		return a.pop(class), class
	}
	if a.idle > a.used/4+1<<a.shift {
		if unit, ok := a.cut(class); ok {
			return unit, class
		}
	}
	if int(a.end-a.bump) < class && !a.grow(mayGrow) {
		if unit, ok := a.cut(class); ok {
			return unit, class
		}
		for class--; class > 0; class-- {
			if len(a.free[class]) > 0 {
				return a.pop(class), class
			}
		}
		return 0, 0
	}
	unit = a.bump
	a.bump += uint32(class)
	a.used += class
	return unit, class
}

func (a *arena) pop(class int) uint32 {
	list := a.free[class]
	unit := list[len(list)-1]
	a.free[class] = list[:len(list)-1]
	a.idle -= class
	a.used += class
	return unit
}

// cut takes a piece out of a larger free one.
func (a *arena) cut(class int) (uint32, bool) {
	for larger := class + 1; larger <= classes; larger++ {
		if len(a.free[larger]) == 0 {
			continue
		}
		unit := a.pop(larger)
		a.give(unit+uint32(class), larger-class)
		return unit, true
	}
	return 0, false
}

// give takes a piece back. No reader may be able to reach it any more.
func (a *arena) give(unit uint32, class int) {
	a.free[class] = append(a.free[class], unit)
	a.idle += class
	a.used -= class
}

// grow adds a chunk. What the last one still had becomes free pieces.
func (a *arena) grow(mayGrow func(bytes int64) bool) bool {
	units := uint32(1) << a.shift
	if !mayGrow(int64(units)*unitBytes) || a.end+units < a.end {
		return false
	}
	for a.bump < a.end {
		class := min(int(a.end-a.bump), classes)
		a.used += class
		a.give(a.bump, class)
		a.bump += uint32(class)
	}
	old := *a.chunks.Load()
	list := append(old[:len(old):cap(old)], make([]word, int(units)*unitWords))
	a.chunks.Store(&list)
	a.bump, a.end = a.end, a.end+units
	return true
}
