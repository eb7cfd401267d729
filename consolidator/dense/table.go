package dense

import (
	"math/bits"
	"math/rand/v2"
	"slices"
	"sync/atomic"
)

const (
	// shards divides the index, so that growing takes little time in a large table.
	shards = 256
	// An index word holds an entry's distance from its home, 6 bits, and its slot plus
	// one; 0 is an empty word.
	slotBits    = 26
	slotMask    = 1<<slotBits - 1
	maxDistance = 1<<(32-slotBits) - 1
	// MaxEntries is the capacity of a table.
	MaxEntries = slotMask
	// ChunkSize is the number of entries that are allocated at once.
	ChunkSize      = 512
	minWords       = 24
	maxLoadPercent = 90
)

// seed is random, so that clients cannot choose keys that collide.
var seed = rand.Uint64()

// Entry is a key and its value. The key is in halves, for 4-byte alignment. In a free
// slot lo is the next free slot plus one.
type Entry[V any] struct {
	lo, hi uint32
	Value  V
}

// Chunk is ChunkSize entries.
type Chunk[V any] [ChunkSize]Entry[V]

// Table is a hash table from 64-bit keys to values without pointers. The zero value is
// an empty table. An entry keeps its slot until Remove. The value of a free slot is zero.
//
// The index is open addressing by distance from home (Robin Hood). Search, insertion
// and deletion read no entry with another home. Deletion shifts the following words
// back and leaves no mark.
type Table[V any] struct {
	shards [shards]shard
	chunks []*Chunk[V]
	used   uint32 // number of slots ever taken
	free   uint32 // slot plus one at the head of the list of free slots; 0: no free slot
	n      int    // number of entries
	// views counts the open views; nil: none. shared[i] is true when an open view may read
	// chunk i; without views shared has no meaning.
	views  *atomic.Int32
	shared []bool
}

type shard struct {
	words []uint32
	n     int
}

func mixKey(key uint64) uint64 {
	h := (key ^ seed) * 0x9e3779b97f4a7c15
	h ^= h >> 32
	h *= 0xd6e8feb86659fd93
	return h ^ h>>32
}

// homeOf returns the home of hash h among the n words of its shard.
func homeOf(h uint64, n int) int {
	hi, _ := bits.Mul64(h<<8, uint64(n))
	return int(hi)
}

// Len returns the number of entries.
func (t *Table[V]) Len() int { return t.n }

// Slots returns the number of slots that were ever taken. The slot of every entry is lower.
func (t *Table[V]) Slots() uint32 { return t.used }

func (t *Table[V]) entry(slot uint32) *Entry[V] {
	return &t.chunks[slot/ChunkSize][slot%ChunkSize]
}

// At returns a pointer to the value in a slot, valid until Remove or Unshare of a slot in
// the same chunk. The caller may change the value after Insert or Unshare of the slot.
func (t *Table[V]) At(slot uint32) *V { return &t.entry(slot).Value }

// Unshare prepares the entry in a slot for a change. It copies the entry's chunk if an open
// view may read that chunk, so that the view does not see the change.
func (t *Table[V]) Unshare(slot uint32) {
	if t.views != nil {
		t.unshareChunk(slot / ChunkSize)
	}
}

// Key returns the key of the entry in a slot.
func (t *Table[V]) Key(slot uint32) uint64 {
	return t.entry(slot).Key()
}

// Find returns the slot of a key. ok is false when the table does not have the key. The index is
// searched from the key's home, the place that its hash asks for.
func (t *Table[V]) Find(key uint64) (slot uint32, ok bool) {
	h := mixKey(key)
	words := t.shards[h>>56].words // the top byte chooses the shard
	if len(words) == 0 {
		return 0, false
	}
	i := homeOf(h, len(words))
	for distance := uint32(0); ; distance++ {
		word := words[i]
		wordDistance := word >> slotBits // from the home of the word's own entry
		// An insertion of key would have displaced a word that is nearer to its home.
		if word == 0 || wordDistance < distance {
			return 0, false
		}
		if wordDistance == distance { // the same home: it may be the key
			slot = word&slotMask - 1 // a word has the slot plus one
			if e := t.entry(slot); e.lo == uint32(key) && e.hi == uint32(key>>32) {
				return slot, true
			}
		}
		if i++; i == len(words) {
			i = 0
		}
	}
}

// Insert adds a key with the zero value and returns the key's slot. The table must not have
// the key. ok is false when the table has MaxEntries entries.
func (t *Table[V]) Insert(key uint64) (slot uint32, ok bool) {
	if slot, ok = t.takeSlot(); !ok {
		return 0, false
	}
	t.Unshare(slot) // open views do not see the new entry
	e := t.entry(slot)
	e.lo, e.hi = uint32(key), uint32(key>>32)
	h := mixKey(key)
	s := &t.shards[h>>56] // the top byte chooses the shard of the index
	s.n++
	t.n++
	if 100*s.n > maxLoadPercent*len(s.words) {
		t.grow(h>>56, slot+1)
		return slot, true
	}
	// putWord displaces other words. The last of them may find no place near its home.
	if homeless, ok := putWord(s.words, h, slot+1); !ok {
		t.grow(h>>56, homeless)
	}
	return slot, true
}

// Remove deletes the entry in a slot, and frees the slot. The slot must not be free.
//
// The index has a word for each entry: in the high bits the distance from the entry's home, the
// place that its hash asks for, and in the low bits the slot plus one. 0 is an empty word.
func (t *Table[V]) Remove(slot uint32) {
	h := mixKey(t.Key(slot))
	s := &t.shards[h>>56] // the top byte chooses the shard
	words := s.words
	i := homeOf(h, len(words))
	next := func(i int) int {
		if i++; i == len(words) {
			return 0
		}
		return i
	}
	for words[i]&slotMask != slot+1 {
		i = next(i)
	}
	// The words behind move back, each nearer to its home, up to a word that is at home or empty.
	// So a search may still stop at the first word that is nearer to its home than the key.
	for j := next(i); words[j]>>slotBits > 0; i, j = j, next(j) {
		words[i] = words[j] - 1<<slotBits
	}
	words[i] = 0
	s.n--
	t.n--
	t.Unshare(slot)                       // open views keep the old entry
	*t.entry(slot) = Entry[V]{lo: t.free} // the list of free slots runs through the free entries
	t.free = slot + 1
}

// Clear removes every entry and frees the memory.
func (t *Table[V]) Clear() { *t = Table[V]{} }

// takeSlot returns a free slot, or one that was never taken. It returns false when the table
// has MaxEntries entries. The caller fills the slot's entry.
func (t *Table[V]) takeSlot() (slot uint32, ok bool) {
	if t.free != 0 { // the head of the list of free slots, plus one; lo links to the next
		slot = t.free - 1
		t.free = t.entry(slot).lo
		return slot, true
	}
	if t.used == MaxEntries {
		return 0, false
	}
	if int(t.used) == len(t.chunks)*ChunkSize {
		t.chunks, t.shared = append(t.chunks, new(Chunk[V])), append(t.shared, false)
	}
	t.used++
	return t.used - 1, true
}

// grow enlarges the index of a shard by a quarter, or by more until each word lies near its home,
// and adds extra to the index. extra is a slot plus one; 0 adds nothing.
func (t *Table[V]) grow(shard uint64, extra uint32) {
	s := &t.shards[shard]
	old := s.words
	// Shards begin with minWords to 5/4 of it, so that they do not all grow at the same time.
	n := minWords * (4*shards + int(shard)) / (4 * shards)
	for {
		if len(old) > 0 {
			n = max(n, len(old)) * 5 / 4
		}
		words := slices.Grow([]uint32(nil), n) // rounded up by the allocator: use all of it
		words = words[:cap(words)]
		if t.fill(words, old, extra) { // else a word lies too far from home: take more words
			s.words = words
			return
		}
	}
}

// fill puts the entries of old, an index, and extra, a slot plus one or 0, into words, a larger
// index. It returns false when an entry would lie more than maxDistance from its home; then
// words are useless.
func (t *Table[V]) fill(words, old []uint32, extra uint32) bool {
	put := func(w uint32) bool {
		if w == 0 {
			return true
		}
		_, ok := putWord(words, mixKey(t.Key(w-1)), w)
		return ok
	}
	for _, w := range old {
		if !put(w & slotMask) { // without the distance in the old index
			return false
		}
	}
	return put(extra)
}

// putWord adds w, a slot plus one, whose key has hash h, to the words of a shard. A word's home
// is the place that its hash asks for. A word that is nearer to its home gives way and moves on
// (Robin Hood). ok is false when one word is left, w or a displaced one: it would lie more than
// maxDistance from its home, and the caller enlarges the index.
func putWord(words []uint32, h uint64, w uint32) (left uint32, ok bool) {
	i := homeOf(h, len(words))
	for distance := uint32(0); distance <= maxDistance; distance++ {
		there := words[i]
		if there == 0 {
			words[i] = w | distance<<slotBits
			return 0, true
		}
		if d := there >> slotBits; d < distance {
			words[i] = w | distance<<slotBits
			w, distance = there&slotMask, d
		}
		if i++; i == len(words) {
			i = 0
		}
	}
	return w, false
}
