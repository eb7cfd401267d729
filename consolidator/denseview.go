package consolidator

import (
	"math/bits"
	"slices"
	"sync/atomic"
)

// denseView is what a table held when the view was taken. It may be read by one
// goroutine while others change the table, until close.
type denseView[V any] struct {
	chunks []*denseBlock[V]
	used   uint32
	n      int
	open   *atomic.Int32
}

// view returns the table's entries as they are now. close must be called, so that the
// table stops copying what it changes.
func (t *dense[V]) view() *denseView[V] {
	if t.views == nil {
		t.views = new(atomic.Int32)
	}
	t.views.Add(1)
	for i := range t.shared {
		t.shared[i] = true
	}
	return &denseView[V]{chunks: slices.Clone(t.chunks), used: t.used, n: t.n, open: t.views}
}

// unshare makes a chunk the table's alone.
func (t *dense[V]) unshare(chunk uint32) {
	switch {
	case t.views.Load() == 0:
		t.views = nil
	case t.shared[chunk]:
		c := *t.chunks[chunk]
		t.chunks[chunk], t.shared[chunk] = &c, false
	}
}

// copyChunk copies the entries of the chunk that slot, a multiple of denseChunk, begins.
// False: there are none.
func (t *dense[V]) copyChunk(to *denseBlock[V], slot uint32) bool {
	if slot >= t.used {
		return false
	}
	*to = *t.chunks[slot/denseChunk]
	return true
}

// close ends the view. It may be called once, by any goroutine.
func (v *denseView[V]) close() { v.open.Add(-1) }

func (v *denseView[V]) entry(slot uint32) *denseEntry[V] {
	return &v.chunks[slot/denseChunk][slot%denseChunk]
}

func (v *denseView[V]) at(slot uint32) *V { return &v.entry(slot).value }

func (v *denseView[V]) key(slot uint32) uint64 { return v.entry(slot).key() }

func (e *denseEntry[V]) key() uint64 { return uint64(e.hi)<<32 | uint64(e.lo) }

// viewIndex finds the slots of a view by their keys.
type viewIndex[V any] struct {
	view  *denseView[V]
	words []uint32 // slots plus one, each at or behind the home of its key; 0: none
}

// newViewIndex returns an index with room for every entry of a view.
func newViewIndex[V any](v *denseView[V]) viewIndex[V] {
	return viewIndex[V]{view: v, words: make([]uint32, v.n+v.n/2+1)}
}

func (x *viewIndex[V]) home(key uint64) int {
	hi, _ := bits.Mul64(mixKey(key), uint64(len(x.words)))
	return int(hi)
}

func (x *viewIndex[V]) after(i int) int {
	if i++; i == len(x.words) {
		return 0
	}
	return i
}

// add adds the entry in a slot, which must not be free.
func (x *viewIndex[V]) add(slot uint32) {
	i := x.home(x.view.key(slot))
	for x.words[i] != 0 {
		i = x.after(i)
	}
	x.words[i] = slot + 1
}

// find returns the slot of a key.
func (x *viewIndex[V]) find(key uint64) (slot uint32, ok bool) {
	for i := x.home(key); x.words[i] != 0; i = x.after(i) {
		if slot = x.words[i] - 1; x.view.key(slot) == key {
			return slot, true
		}
	}
	return 0, false
}
