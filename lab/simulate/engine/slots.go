package engine

import "github.com/blockyard-ai/blockyard/internal/kv"

// slots has the slot of each block. It is a hash table with linear probing that takes the hash of a
// block as it is: SequenceHashes are spread over all bits. A simulation looks up hundreds of millions.
type slots struct {
	cells []slotCell
	n     int
}

// slotCell is a block with its slot, which is stored plus 1. A cell with 0 is empty.
type slotCell struct {
	hash kv.SequenceHash
	slot uint32
}

// newSlots returns a table for n blocks, which grows beyond.
func newSlots(n int) slots {
	size := 16
	for size < 2*n {
		size *= 2
	}
	return slots{cells: make([]slotCell, size)}
}

func (t *slots) home(h kv.SequenceHash) int { return int(uint64(h) & uint64(len(t.cells)-1)) }

// find returns the cell of a block, or the empty cell where the block belongs.
func (t *slots) find(h kv.SequenceHash) int {
	i := t.home(h)
	for t.cells[i].slot != 0 && t.cells[i].hash != h {
		i = (i + 1) & (len(t.cells) - 1)
	}
	return i
}

// get returns the slot of a block; ok is false for an unknown block.
func (t *slots) get(h kv.SequenceHash) (slot uint32, ok bool) {
	c := &t.cells[t.find(h)]
	return c.slot - 1, c.slot != 0
}

// put sets the slot of a block.
func (t *slots) put(h kv.SequenceHash, slot uint32) {
	if 2*t.n >= len(t.cells) {
		old := t.cells
		t.cells = make([]slotCell, 2*len(old))
		for _, c := range old {
			if c.slot != 0 {
				t.cells[t.find(c.hash)] = c
			}
		}
	}
	c := &t.cells[t.find(h)]
	if c.slot == 0 {
		t.n++
	}
	*c = slotCell{h, slot + 1}
}

// remove forgets a block. The cells behind move up, so that every block is found from its home.
func (t *slots) remove(h kv.SequenceHash) {
	gap := t.find(h)
	if t.cells[gap].slot == 0 {
		return
	}
	t.n--
	mask := len(t.cells) - 1
	for i := (gap + 1) & mask; t.cells[i].slot != 0; i = (i + 1) & mask {
		// The block of cell i may move to the gap if its home is not between them.
		if (i-t.home(t.cells[i].hash))&mask >= (i-gap)&mask {
			t.cells[gap] = t.cells[i]
			gap = i
		}
	}
	t.cells[gap] = slotCell{}
}
