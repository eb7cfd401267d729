package engine

import (
	"sort"

	"github.com/blockyard-ai/blockyard/internal/kvevent"
)

// Chain is the full blocks of a text from its start. Blocks of all texts of a run have numbers from 0,
// without large gaps, and equal blocks have equal numbers. Nobody changes a chain.
type Chain struct {
	Blocks  []kvevent.StoredBlock
	Numbers []uint32
}

// first returns the first n blocks.
func (c Chain) first(n int) Chain { return Chain{c.Blocks[:n], c.Numbers[:n]} }

// slots has the slot of each block of a cache, by the block's number. A simulation looks up hundreds of
// millions, most of them in the order of a text. A cache of many has few of the blocks of a run, so that
// numbers without a block near them take a pointer each pageSize. The zero value is empty.
type slots struct {
	pages []*page
	n     int
}

// page has slots plus 1, 0 for an unknown block.
type page [pageSize]uint32

const pageSize = 256

// get returns the slot of a block; ok is false for an unknown block.
func (t *slots) get(number uint32) (slot uint32, ok bool) {
	if at := number / pageSize; int(at) < len(t.pages) && t.pages[at] != nil {
		slot = t.pages[at][number%pageSize]
	}
	return slot - 1, slot != 0
}

// put sets the slot of a block.
func (t *slots) put(number, slot uint32) {
	at := int(number / pageSize)
	if at >= len(t.pages) {
		t.pages = append(t.pages, make([]*page, at+1-len(t.pages))...)
	}
	if t.pages[at] == nil {
		t.pages[at] = new(page)
	}
	if t.pages[at][number%pageSize] == 0 {
		t.n++
	}
	t.pages[at][number%pageSize] = slot + 1
}

// remove forgets a block.
func (t *slots) remove(number uint32) {
	if _, ok := t.get(number); ok {
		t.pages[number/pageSize][number%pageSize] = 0
		t.n--
	}
}

// prefix returns how many leading blocks of a text have a slot. Both kinds of cache evict children
// before their parents, so that no block is there without the blocks before it.
func (t *slots) prefix(numbers []uint32) int {
	return sort.Search(len(numbers), func(i int) bool { _, ok := t.get(numbers[i]); return !ok })
}
