package router

import "github.com/blockyard-ai/blockyard/router/index"

// collectIndex sends the gauges and counters of the index.
func collectIndex(s *index.Stats, gauge func(name, help string, v int), counter func(name, help string, v uint64)) {
	dense := 0
	if s.Dense {
		dense = 1
	}
	gauge("index_blocks", "Distinct blocks in the index.", s.Blocks)
	gauge("index_memberships", "Triples of owner, block and tier in the index.", s.Memberships)
	gauge("index_runs", "Runs of blocks in the index.", s.Runs)
	gauge("index_bytes", "Memory of the index, in bytes.", int(s.Bytes))
	gauge("index_idle_bytes", "Part of the index's memory that is kept for blocks to come.", int(s.Idle))
	gauge("index_limbo_bytes", "Part of the index's memory that waits for readers to be done.", int(s.Limbo))
	gauge("index_parked", "Unknown parents that blocks in the index wait for.", s.Parked)
	gauge("index_lost", "Triples that owners hold and the index has no room for.", s.LostNow)
	gauge("index_dense", "1 while the index finds every block by its hash.", dense)
	counter("index_duplicate_stores", "Stores of what the index had already.", s.DuplicateStores)
	counter("index_unknown_removals", "Removals of what the index did not have.", s.UnknownRemovals)
	counter("index_refused", "Owners that did not fit into the index.", s.Refused)
	counter("index_evicted", "Triples that left the index for lack of room.", s.Evicted)
	counter("index_not_stored", "Triples that never came into the index.", s.Lost)
	counter("index_parked_dropped", "Triples that did not, because too many unknown parents were waited for.", s.ParkedDropped)
	counter("index_conflicts", "Stores that name a block otherwise than it is known.", s.Conflicts)
	counter("index_spliced", "Runs of blocks whose parent came after them.", s.Spliced)
	counter("index_scans", "Searches for a block that was not where it was expected.", s.Scans)
	counter("index_scanned_blocks", "Blocks looked at in such searches.", s.ScannedBlocks)
	counter("index_dense_switches", "Changes between finding every block by its hash and only some.", s.DenseSwitches)
}
