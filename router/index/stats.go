package index

import "github.com/blockyard-ai/blockyard/internal/kv"

// Stats are the gauges and counters of an index.
type Stats struct {
	// Memberships is the number of (owner, block, tier) triples, Blocks that of
	// distinct blocks that somebody holds, Owners that of workers and pools, and
	// Workers that of known workers.
	Memberships, Blocks, Owners, Workers int
	// Runs is the number of runs of blocks, and Parked that of unknown parents that
	// blocks wait for.
	Runs, Parked int
	// Bytes is the memory of the index, kept to Options.MaxBytes. Idle is the part
	// of it that is kept for blocks to come, and Limbo the part that waits for
	// readers to be gone.
	Bytes, Idle, Limbo int64
	// LostNow is the number of (owner, block, tier) triples that owners were told
	// to hold and for which there was no room.
	LostNow int
	// Dense is set while every block is in the directory.
	Dense bool
	Counts
}

// Counts are the counters of an index. They only grow.
type Counts struct {
	// DuplicateStores counts stores of what was there already, UnknownRemovals
	// removals of what was not there, and Refused owners that did not fit.
	DuplicateStores, UnknownRemovals, Refused uint64
	// Evicted counts triples that left for lack of room, Lost those that never came
	// in: ParkedDropped is the part whose parent was unknown while too many others
	// waited. Conflicts counts stored events that name a block otherwise than it is
	// known.
	Evicted, Lost, ParkedDropped, Conflicts uint64
	// Spliced counts runs whose parent came after them.
	Spliced uint64
	// Scans counts searches for a block that is where nobody expected it,
	// ScannedBlocks what they looked at, and DenseSwitches how often the directory
	// became dense or sparse because of them.
	Scans, ScannedBlocks, DenseSwitches uint64
}

// Stats is a snapshot. Blocks is counted while the index may change.
func (x *Index) Stats() Stats {
	x.mu.Lock()
	s := Stats{
		Memberships: x.pairs, Owners: len(x.ids), Workers: len(x.members),
		Runs: x.runs.live - 1 - len(x.orphans.byHash), Parked: len(x.orphans.byHash),
		Bytes: x.bytes(), Idle: x.idleBytes(), Limbo: int64(x.limbo.units) * unitBytes,
		LostNow: x.lost, Dense: x.dense, Counts: x.counts,
	}
	gone := make([]bool, len(x.owners))
	for i, o := range x.owners {
		gone[i] = o == nil || o.gone
	}
	x.mu.Unlock()
	s.Blocks = x.countBlocks(gone)
	return s
}

// countBlocks counts the blocks that somebody holds, as a reader.
func (x *Index) countBlocks(gone []bool) int {
	count := x.readers.enter(x.readers.shard())
	defer count.Add(-1)
	n := 0
	for _, c := range *x.runs.chunks.Load() {
		for i := range c.heads {
			var held mask
			note := func(e entry) {
				if e != 0 && (int(e.owner()) >= len(gone) || !gone[e.owner()]) {
					held = held.or(e.mask())
				}
			}
			h := &c.heads[i]
			for j := range h.entries {
				note(entry(h.entries[j].Load()))
			}
			if h.flags.Load()&flagMore != 0 {
				for o := c.over[i].Load(); o != nil; o = o.next.Load() {
					for j := range o.entries {
						note(entry(o.entries[j].Load()))
					}
				}
			}
			n += held.count()
		}
	}
	return n
}

// Lost is how many (block, tier) pairs an owner was told to hold and no longer
// has, or never had, a place here: evicted, refused, or named otherwise than they
// are known. While it is not 0, answers may leave out what the owner holds.
func (x *Index) Lost(who kv.Owner) uint64 {
	x.mu.Lock()
	defer x.mu.Unlock()
	if id, ok := x.ids[who]; ok {
		return x.owners[id].lostPairs
	}
	return 0
}

// Digest is the sum of kv.Digest over everything that owner was told to hold,
// what had no room included, and the number of (block, tier) pairs in that sum.
// Both are 0 for an unknown owner.
func (x *Index) Digest(who kv.Owner) (sum, pairs uint64) {
	x.mu.Lock()
	defer x.mu.Unlock()
	if id, ok := x.ids[who]; ok {
		o := x.owners[id]
		return o.digest + o.lostDigest, o.pairs + o.lostPairs
	}
	return 0, 0
}
