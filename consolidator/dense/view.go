package dense

import (
	"math/bits"
	"slices"
	"sync/atomic"
)

// View holds the entries of a table at one moment. Until Close, one goroutine may read a
// view without a lock while others change the table.
type View[V any] struct {
	chunks []*Chunk[V]
	used   uint32
	n      int
	open   *atomic.Int32
}

// View returns the table's entries as they are now. The caller must call Close: until
// then the table copies chunks before it changes them.
func (t *Table[V]) View() *View[V] {
	if t.views == nil {
		t.views = new(atomic.Int32)
	}
	t.views.Add(1)
	for i := range t.shared {
		t.shared[i] = true // until a change copies the chunk
	}
	return &View[V]{chunks: slices.Clone(t.chunks), used: t.used, n: t.n, open: t.views}
}

// unshareChunk replaces a chunk that an open view may read by a copy, which the caller may
// change.
func (t *Table[V]) unshareChunk(chunk uint32) {
	switch {
	case t.views.Load() == 0: // all views were closed
		t.views = nil
	case t.shared[chunk]:
		c := *t.chunks[chunk]
		t.chunks[chunk], t.shared[chunk] = &c, false
	}
}

// CopyChunk copies the chunk that begins at slot, a multiple of ChunkSize. It returns false
// when no slot from there on was ever taken.
func (t *Table[V]) CopyChunk(to *Chunk[V], slot uint32) bool {
	if slot >= t.used {
		return false
	}
	*to = *t.chunks[slot/ChunkSize]
	return true
}

// Close ends the view. It may be called once, by any goroutine.
func (v *View[V]) Close() { v.open.Add(-1) }

// Len returns the number of entries.
func (v *View[V]) Len() int { return v.n }

// Slots returns the number of slots that were ever taken.
func (v *View[V]) Slots() uint32 { return v.used }

func (v *View[V]) entry(slot uint32) *Entry[V] {
	return &v.chunks[slot/ChunkSize][slot%ChunkSize]
}

// At returns the value in a slot. It must not be changed.
func (v *View[V]) At(slot uint32) *V { return &v.entry(slot).Value }

// Key returns the key of the entry in a slot.
func (v *View[V]) Key(slot uint32) uint64 { return v.entry(slot).Key() }

// Key returns the key of the entry.
func (e *Entry[V]) Key() uint64 { return uint64(e.hi)<<32 | uint64(e.lo) }

// Index finds the slots of a view by their keys.
type Index[V any] struct {
	view *View[V]
	// words is a hash table with linear probing. A word is 0 when empty, else a slot's number
	// plus one.
	words []uint32
}

// NewIndex returns an index with room for every entry of a view.
func NewIndex[V any](v *View[V]) Index[V] {
	return Index[V]{view: v, words: make([]uint32, v.n+v.n/2+1)}
}

func (x *Index[V]) home(key uint64) int {
	hi, _ := bits.Mul64(mixKey(key), uint64(len(x.words)))
	return int(hi)
}

func (x *Index[V]) after(i int) int {
	if i++; i == len(x.words) {
		return 0
	}
	return i
}

// Add adds the entry in a slot. The slot must not be free.
func (x *Index[V]) Add(slot uint32) {
	i := x.home(x.view.Key(slot))
	for x.words[i] != 0 {
		i = x.after(i)
	}
	x.words[i] = slot + 1
}

// Find returns the slot of a key. False means that the key was not added.
func (x *Index[V]) Find(key uint64) (slot uint32, ok bool) {
	for i := x.home(key); x.words[i] != 0; i = x.after(i) {
		if slot = x.words[i] - 1; x.view.Key(slot) == key {
			return slot, true
		}
	}
	return 0, false
}
