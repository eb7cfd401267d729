package runs

import (
	"iter"
	"maps"

	"github.com/blockyard-ai/blockyard/internal/kv"
)

// UnknownParents are the unknown parents that blocks wait for. Each has a run without blocks, its
// stand-in, and the waiting runs follow the stand-in. So readers cannot reach the waiting
// blocks until the parent comes. UnknownParents are for the writer. Make them with NewUnknownParents.
type UnknownParents struct {
	byHash map[kv.SequenceHash]ID
	hashOf map[ID]kv.SequenceHash
	// filter has a bit for each parent, so that most new blocks need no lookup in byHash.
	filter [1 << 10]uint64
	// filtered counts the parents entered into filter since it was last cleared.
	filtered int
}

// unknownParentBytes is the approximate memory of an unknown parent without its run, in bytes.
const unknownParentBytes = 96

// NewUnknownParents returns UnknownParents without a parent.
func NewUnknownParents() UnknownParents {
	return UnknownParents{byHash: make(map[kv.SequenceHash]ID), hashOf: make(map[ID]kv.SequenceHash)}
}

// Len returns the number of unknown parents.
func (u *UnknownParents) Len() int { return len(u.byHash) }

// Bytes returns the approximate memory of the parents without their runs.
func (u *UnknownParents) Bytes() int64 { return int64(len(u.byHash)) * unknownParentBytes }

// StandIns visits the stand-in of each parent. The caller may remove a visited one.
func (u *UnknownParents) StandIns() iter.Seq[ID] { return maps.Keys(u.hashOf) }

// HashOf returns the hash of the unknown parent that stand-in r takes the place of.
func (u *UnknownParents) HashOf(r ID) kv.SequenceHash { return u.hashOf[r] }

// bit returns the word of filter for block h, and the word's bit for h as a mask.
func (u *UnknownParents) bit(h kv.SequenceHash) (word *uint64, mask uint64) {
	v := Mix(h) >> 48
	return &u.filter[v>>6], 1 << (v & 63)
}

// StandIn returns the stand-in of block h, the run that blocks with the unknown parent h
// follow. It returns None when no block waits for h.
func (u *UnknownParents) StandIn(h kv.SequenceHash) ID {
	if word, mask := u.bit(h); *word&mask == 0 {
		return None
	}
	return u.byHash[h]
}

// Add makes run r, which has no blocks, the stand-in of the unknown parent h.
//
// Parents share bits of the filter, so the bits of removed parents stay. When most of the
// entered parents have been removed, Add rebuilds the filter.
func (u *UnknownParents) Add(h kv.SequenceHash, r ID) {
	u.byHash[h], u.hashOf[r] = r, h
	word, mask := u.bit(h)
	*word |= mask
	// A rebuild costs about as many steps as there are calls between two rebuilds.
	if u.filtered++; u.filtered < 4*len(u.byHash)+len(u.filter) {
		return
	}
	u.filtered = len(u.byHash)
	clear(u.filter[:])
	for h := range u.byHash {
		word, mask := u.bit(h)
		*word |= mask
	}
}

// Remove removes the parent of stand-in r: the parent has come, or no block waits for it.
func (u *UnknownParents) Remove(r ID) {
	delete(u.byHash, u.hashOf[r])
	delete(u.hashOf, r)
	if len(u.byHash) == 0 {
		clear(u.filter[:])
		u.filtered = 0
	}
}
