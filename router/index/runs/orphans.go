package runs

import (
	"iter"
	"maps"

	"github.com/blockyard-ai/blockyard/internal/kv"
)

// Orphans are the unknown parents that blocks wait for. Each has a run without blocks, its
// stand-in, and the waiting runs follow the stand-in. So readers cannot reach the waiting
// blocks until the parent comes. Orphans are for the writer. Make them with NewOrphans.
type Orphans struct {
	byHash map[kv.SequenceHash]ID
	hashOf map[ID]kv.SequenceHash
	// filter has a bit for each parent, so that most new blocks need no lookup in byHash.
	filter [1 << 10]uint64
	// filtered counts the parents entered into filter since it was last cleared.
	filtered int
}

// orphanBytes is the approximate memory of an unknown parent without its run, in bytes.
const orphanBytes = 96

// NewOrphans returns Orphans without a parent.
func NewOrphans() Orphans {
	return Orphans{byHash: make(map[kv.SequenceHash]ID), hashOf: make(map[ID]kv.SequenceHash)}
}

// Len returns the number of unknown parents.
func (o *Orphans) Len() int { return len(o.byHash) }

// Bytes returns the approximate memory of the parents without their runs.
func (o *Orphans) Bytes() int64 { return int64(len(o.byHash)) * orphanBytes }

// StandIns visits the stand-in of each parent. The caller may remove a visited one.
func (o *Orphans) StandIns() iter.Seq[ID] { return maps.Keys(o.hashOf) }

// HashOf returns the hash of the unknown parent that stand-in r takes the place of.
func (o *Orphans) HashOf(r ID) kv.SequenceHash { return o.hashOf[r] }

// bit returns the word of filter for block h, and the word's bit for h as a mask.
func (o *Orphans) bit(h kv.SequenceHash) (word *uint64, mask uint64) {
	v := Mix(h) >> 48
	return &o.filter[v>>6], 1 << (v & 63)
}

// StandIn returns the stand-in of block h, the run that blocks with the unknown parent h
// follow. It returns None when no block waits for h.
func (o *Orphans) StandIn(h kv.SequenceHash) ID {
	if word, mask := o.bit(h); *word&mask == 0 {
		return None
	}
	return o.byHash[h]
}

// Add makes run r, which has no blocks, the stand-in of the unknown parent h.
//
// Parents share bits of the filter, so the bits of removed parents stay. When most of the
// entered parents have been removed, Add rebuilds the filter.
func (o *Orphans) Add(h kv.SequenceHash, r ID) {
	o.byHash[h], o.hashOf[r] = r, h
	word, mask := o.bit(h)
	*word |= mask
	// A rebuild costs about as many steps as there are calls between two rebuilds.
	if o.filtered++; o.filtered < 4*len(o.byHash)+len(o.filter) {
		return
	}
	o.filtered = len(o.byHash)
	clear(o.filter[:])
	for h := range o.byHash {
		word, mask := o.bit(h)
		*word |= mask
	}
}

// Remove removes the parent of stand-in r: the parent has come, or no block waits for it.
func (o *Orphans) Remove(r ID) {
	delete(o.byHash, o.hashOf[r])
	delete(o.hashOf, r)
	if len(o.byHash) == 0 {
		clear(o.filter[:])
		o.filtered = 0
	}
}
