package index

import "github.com/blockyard-ai/blockyard/internal/kv"

// ownerID is a small number that stands for an owner inside the table.
// noOwner stands for none.
type ownerID uint32

const noOwner ownerID = 0

// maxOwners is what the owner bits of a cell can tell apart.
const maxOwners = 1 << (32 - tierBits)

// tierBits is how many low bits of cell.packed hold the tier mask.
const tierBits = kv.NumTiers

// cellRef is the place of a cell in the table. noCell ends a list.
type cellRef uint32

const noCell cellRef = 0

// cell is one membership: an owner holds a block, in the tiers of its mask. It
// is in two lists at once: that of its hash, which lookups read, and that of
// its owner, which makes dropping an owner cost only what the owner holds.
type cell struct {
	hash kv.SequenceHash
	// next continues the list of the hash, or the free list.
	next cellRef
	// prevOwned and nextOwned link the owner's cells.
	prevOwned, nextOwned cellRef
	// packed is the owner above the tier mask.
	packed uint32
}

func pack(o ownerID, m kv.TierMask) uint32 { return uint32(o)<<tierBits | uint32(m) }

func (c *cell) owner() ownerID     { return ownerID(c.packed >> tierBits) }
func (c *cell) tiers() kv.TierMask { return kv.TierMask(c.packed & (1<<tierBits - 1)) }

// chunkBits is log2 of the number of cells allocated at once. Chunks never
// move, so growing the table copies nothing.
const chunkBits = 14

// table is the cells and the way to find them by hash. It knows nothing of what
// an owner is.
type table struct {
	heads  map[kv.SequenceHash]cellRef
	chunks [][]cell
	// unused is the first cell that was never handed out; free lists those that
	// were and came back.
	unused cellRef
	free   cellRef
	live   int
	limit  int
}

func newTable(limit int) table {
	return table{heads: make(map[kv.SequenceHash]cellRef), unused: noCell + 1, limit: limit}
}

func (t *table) at(r cellRef) *cell { return &t.chunks[r>>chunkBits][r&(1<<chunkBits-1)] }

// find is the cell of owner o for block h.
func (t *table) find(h kv.SequenceHash, o ownerID) cellRef {
	for r := t.heads[h]; r != noCell; {
		c := t.at(r)
		if c.owner() == o {
			return r
		}
		r = c.next
	}
	return noCell
}

// insert makes a cell for owner o and block h, which must not have one, and
// puts it before first in the owner's list. The result is the new head of that
// list, or noCell when the table is full.
func (t *table) insert(h kv.SequenceHash, o ownerID, m kv.TierMask, first cellRef) cellRef {
	if t.live >= t.limit {
		return noCell
	}
	r := t.take()
	*t.at(r) = cell{hash: h, next: t.heads[h], nextOwned: first, packed: pack(o, m)}
	if first != noCell {
		t.at(first).prevOwned = r
	}
	t.heads[h] = r
	t.live++
	return r
}

func (t *table) take() cellRef {
	if r := t.free; r != noCell {
		t.free = t.at(r).next
		return r
	}
	if int(t.unused>>chunkBits) == len(t.chunks) {
		t.chunks = append(t.chunks, make([]cell, 1<<chunkBits))
	}
	t.unused++
	return t.unused - 1
}

// remove unlinks cell r from both lists and frees it. first is the head of the
// owner's list; the result is the new head.
func (t *table) remove(r, first cellRef) cellRef {
	c := t.at(r)
	if head := t.heads[c.hash]; head != r {
		for t.at(head).next != r {
			head = t.at(head).next
		}
		t.at(head).next = c.next
	} else if c.next != noCell {
		t.heads[c.hash] = c.next
	} else {
		delete(t.heads, c.hash)
	}
	if c.nextOwned != noCell {
		t.at(c.nextOwned).prevOwned = c.prevOwned
	}
	if c.prevOwned != noCell {
		t.at(c.prevOwned).nextOwned = c.nextOwned
	} else {
		first = c.nextOwned
	}
	*c = cell{next: t.free}
	t.free = r
	t.live--
	return first
}
