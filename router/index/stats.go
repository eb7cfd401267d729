package index

import "github.com/blockyard-ai/blockyard/internal/kv"

// Stats is a snapshot of an index. A triple is an owner, a block and a tier. The metric
// names follow "blockyard_router_".
type Stats struct {
	Memberships int `metric:"index_memberships" help:"Triples of owner, block and tier in the index."`
	Blocks      int `metric:"index_blocks" help:"Distinct blocks in the index."`
	// Owners are workers and pools. Workers are those that Match may return.
	Owners  int `metric:"-"`
	Workers int `metric:"-"`
	Runs    int `metric:"index_runs" help:"Runs of blocks in the index."`
	Parked  int `metric:"index_parked" help:"Unknown parents that blocks in the index wait for."`
	// Bytes stays below Options.MaxBytes. Idle and Limbo are parts of it.
	Bytes   int64 `metric:"index_bytes" help:"Memory of the index, in bytes."`
	Idle    int64 `metric:"index_idle_bytes" help:"Part of the index's memory that is free for new blocks."`
	Limbo   int64 `metric:"index_limbo_bytes" help:"Part of the index's memory that waits for readers to finish."`
	LostNow int   `metric:"index_lost" help:"Triples that owners hold and that the index has no room for."`
	Dense   bool  `metric:"index_dense" help:"1 while the index finds every block by its hash."`
	Counts
}

// Counts are the counters of an index.
type Counts struct {
	DuplicateStores uint64 `metric:"index_duplicate_stores" help:"Stores of triples that the index already had."`
	UnknownRemovals uint64 `metric:"index_unknown_removals" help:"Removals of triples that the index did not have."`
	Refused         uint64 `metric:"index_refused" help:"Owners that did not fit into the index."`
	Evicted         uint64 `metric:"index_evicted" help:"Triples evicted from the index for lack of room."`
	Lost            uint64 `metric:"index_not_stored" help:"Triples that were never stored for lack of room."`
	// ParkedDropped is a part of Lost.
	ParkedDropped uint64 `metric:"index_parked_dropped" help:"Triples not stored because too many unknown parents were pending."`
	Conflicts     uint64 `metric:"index_conflicts" help:"Stores that give a known block another hash or parent."`
	Spliced       uint64 `metric:"index_spliced" help:"Runs of blocks that were stored before their parent."`
	Scans         uint64 `metric:"index_scans" help:"Searches for a block outside the run where it was expected."`
	ScannedBlocks uint64 `metric:"index_scanned_blocks" help:"Blocks compared in such searches."`
	// DenseSwitches grows when Scans make the directory dense, and when it is sparse again.
	DenseSwitches uint64 `metric:"index_dense_switches" help:"Changes between finding every block by its hash and only some."`
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
