package dynamo

import (
	"cmp"
	"maps"
	"slices"

	"github.com/blockyard-ai/blockyard/internal/kv"
	"github.com/blockyard-ai/blockyard/internal/kvevent"
)

// externalHash is the engine's own hash of a block. It names the block in Dynamo's events.
type externalHash uint64

// entry is a block of a rank under one external hash.
type entry struct {
	seq, parent kv.SequenceHash // parent is unused at position 0
	local       kv.LocalHash
	position    uint32
	tiers       kv.TierMask
}

// budget counts the entries that the tables of a Source may still add.
type budget struct{ free int }

// table holds the blocks of one rank. It translates changes from external hashes to
// SequenceHashes. A table is for one goroutine.
type table struct {
	budget  *budget
	entries map[externalHash]entry
	// nameCounts counts the external hashes of each block and tier. An engine may have several
	// for the same content.
	nameCounts map[kv.SequenceHash][kv.NumTiers]uint32
	// digest and pairs are Digest and Blocks of kvevent.Announcement.
	digest, pairs uint64
	// holes counts the stored blocks that the table could not add since it was last empty.
	holes    uint64
	counters *Counters
}

func newTable(b *budget, c *Counters) *table {
	return &table{
		budget: b, counters: c,
		entries:    make(map[externalHash]entry),
		nameCounts: make(map[kv.SequenceHash][kv.NumTiers]uint32),
	}
}

// apply applies event e, which names blocks by external hashes, to the table. It appends the
// resulting changes to out, as events with SequenceHashes and without owner and id.
func (t *table) apply(out []kvevent.RouterEvent, e *kvevent.RouterEvent) []kvevent.RouterEvent {
	switch e.Kind {
	case kvevent.Stored:
		return t.store(out, e)
	case kvevent.Removed:
		change := kvevent.RouterEvent{Kind: kvevent.Removed, Tier: e.Tier}
		for _, h := range e.Removed {
			t.remove(&change, externalHash(h))
		}
		if len(change.Removed) > 0 {
			out = append(out, change)
		}
	case kvevent.Cleared:
		return t.clear(out)
	}
	return out
}

// clear empties the table and appends a cleared event to out, unless the table was empty.
func (t *table) clear(out []kvevent.RouterEvent) []kvevent.RouterEvent {
	filled := len(t.entries) > 0
	t.release()
	if filled {
		out = append(out, kvevent.RouterEvent{Kind: kvevent.Cleared})
	}
	return out
}

// release empties the table without an event, and gives its entries back to the budget.
func (t *table) release() {
	t.budget.free += len(t.entries)
	clear(t.entries)
	clear(t.nameCounts)
	t.digest, t.pairs, t.holes = 0, 0, 0
}

// store adds the blocks of a stored event to the table; each block is the parent of the next. The
// event names blocks by external hashes, the engine's own. The table maps these to SequenceHashes.
// store appends stored events with the blocks that are new in their tier to out. Blocks with an
// unknown parent, and those beyond the budget, are only counted.
func (t *table) store(out []kvevent.RouterEvent, e *kvevent.RouterEvent) []kvevent.RouterEvent {
	var parent entry
	position := uint32(0)
	if e.HasParent {
		known, ok := t.entries[externalHash(e.Parent)]
		if !ok {
			return t.skipOrphans(out, len(e.Blocks))
		}
		parent, position = known, known.position+1
	} else if e.HasStart && e.StartPosition > 0 { // the event does not say which block is before it
		return t.skipOrphans(out, len(e.Blocks))
	}
	run := kvevent.RouterEvent{Kind: kvevent.Stored, Tier: e.Tier}
	for i, b := range e.Blocks {
		block := entry{seq: kv.SequenceHash(b.Local), local: b.Local, position: position}
		if position > 0 {
			block.seq, block.parent = kv.Chain(parent.seq, b.Local), parent.seq
		}
		name := externalHash(b.Hash)
		if old, ok := t.entries[name]; ok && old.seq != block.seq {
			// The engine reuses the name for another block.
			out = t.removeName(flush(out, &run), name)
			t.counters.Renamed++
		}
		added, ok := t.insert(name, block, e.Tier)
		if !ok {
			refused := len(e.Blocks) - i // the later blocks would lack their parent
			t.holes += uint64(refused)
			t.counters.Refused += uint64(refused)
			break
		}
		if added {
			if len(run.Blocks) == 0 { // the block begins a run
				run.Parent, run.HasParent = block.parent, position > 0
				run.StartPosition, run.HasStart = position, true
			}
			run.Blocks = append(run.Blocks, kvevent.StoredBlock{Hash: block.seq, Local: block.local})
		} else { // the router knows the block, which ends the run
			out = flush(out, &run)
		}
		parent, position = block, position+1
	}
	return flush(out, &run)
}

// flush appends run to out unless run is empty, and begins the next run.
func flush(out []kvevent.RouterEvent, run *kvevent.RouterEvent) []kvevent.RouterEvent {
	if len(run.Blocks) > 0 {
		out = append(out, *run)
		*run = kvevent.RouterEvent{Kind: kvevent.Stored, Tier: run.Tier}
	}
	return out
}

// skipOrphans counts n blocks with an unknown parent.
func (t *table) skipOrphans(out []kvevent.RouterEvent, n int) []kvevent.RouterEvent {
	t.holes += uint64(n)
	t.counters.Orphans += uint64(n)
	return out
}

// insert records that tier has the block that the engine calls name, its external hash. Several
// names may stand for one block. added is true when the tier did not have the block under any
// name. ok is false when the budget of blocks, which all ranks share, has no room for a name.
func (t *table) insert(name externalHash, block entry, tier kv.Tier) (added, ok bool) {
	named, known := t.entries[name]
	if known && named.tiers.Has(tier) {
		return false, true
	}
	if !known {
		if t.budget.free == 0 {
			return false, false
		}
		t.budget.free--
		named = block
	}
	named.tiers = named.tiers.With(tier)
	t.entries[name] = named
	counts := t.nameCounts[block.seq]
	counts[tier]++
	t.nameCounts[block.seq] = counts
	if counts[tier] > 1 {
		return false, true
	}
	t.digest += kv.Digest(block.seq, tier)
	t.pairs++
	return true, true
}

// remove removes the block that the engine calls name, its external hash, from the tier of change.
// Several names may stand for one block (one SequenceHash); t.nameCounts counts them by tier. When
// the tier has the block under no other name, the block is appended to change.Removed.
func (t *table) remove(change *kvevent.RouterEvent, name externalHash) {
	named, ok := t.entries[name]
	tier := change.Tier
	if !ok || !named.tiers.Has(tier) {
		t.counters.UnknownRemovals++
		return
	}
	if named.tiers = named.tiers.Without(tier); named.tiers != 0 {
		t.entries[name] = named
	} else {
		delete(t.entries, name)
		t.budget.free++
	}
	counts := t.nameCounts[named.seq]
	if counts[tier]--; counts == ([kv.NumTiers]uint32{}) {
		delete(t.nameCounts, named.seq)
	} else {
		t.nameCounts[named.seq] = counts
	}
	if counts[tier] == 0 {
		t.digest -= kv.Digest(named.seq, tier)
		t.pairs--
		change.Removed = append(change.Removed, named.seq)
	}
}

// removeName removes an external hash from every tier, and appends removed events with the blocks
// that have no other hash there to out.
func (t *table) removeName(out []kvevent.RouterEvent, name externalHash) []kvevent.RouterEvent {
	tiers := t.entries[name].tiers
	for _, tier := range kv.Tiers {
		if !tiers.Has(tier) {
			continue
		}
		change := kvevent.RouterEvent{Kind: kvevent.Removed, Tier: tier}
		t.remove(&change, name)
		if len(change.Removed) > 0 {
			out = append(out, change)
		}
	}
	return out
}

// replace makes the table equal to a dump. It appends only the differences to out, as removed and
// stored events, so that the router's index keeps the blocks that stay.
func (t *table) replace(out, dump []kvevent.RouterEvent) []kvevent.RouterEvent {
	old := maps.Clone(t.nameCounts) // its keys with a count are the blocks of each tier
	t.release()
	for i := range dump {
		t.apply(nil, &dump[i]) // fills the table; its changes are not those of old
	}
	for _, tier := range kv.Tiers {
		change := kvevent.RouterEvent{Kind: kvevent.Removed, Tier: tier}
		for seq, counts := range old {
			if counts[tier] > 0 && t.nameCounts[seq][tier] == 0 {
				change.Removed = append(change.Removed, seq)
			}
		}
		if len(change.Removed) > 0 {
			out = append(out, change)
		}
	}
	return t.dump(out, func(seq kv.SequenceHash, tier kv.Tier) bool { return old[seq][tier] == 0 })
}

// dump appends the table as stored events, parents before children. keep selects pairs of
// block and tier; nil selects all.
func (t *table) dump(out []kvevent.RouterEvent, keep func(kv.SequenceHash, kv.Tier) bool) []kvevent.RouterEvent {
	for _, tier := range kv.Tiers {
		out = t.dumpTier(out, tier, keep)
	}
	return out
}

// dumpTier appends the blocks of one tier for which keep is true (nil: all) to out, as stored
// events, parents before children. A run, each block the child of the one before, is one event.
func (t *table) dumpTier(out []kvevent.RouterEvent, tier kv.Tier, keep func(kv.SequenceHash, kv.Tier) bool) []kvevent.RouterEvent {
	left := make(map[kv.SequenceHash]entry) // selected and not in out
	for _, e := range t.entries {
		if e.tiers.Has(tier) && (keep == nil || keep(e.seq, tier)) {
			left[e.seq] = e
		}
	}
	sorted := slices.SortedFunc(maps.Values(left), func(a, b entry) int {
		return cmp.Or(cmp.Compare(a.position, b.position), cmp.Compare(a.seq, b.seq))
	})
	// One child of each block continues the block's run. Other children begin runs.
	next := make(map[kv.SequenceHash]entry, len(sorted))
	for _, e := range sorted {
		if e.position > 0 {
			next[e.parent] = e
		}
	}
	for _, e := range sorted {
		if _, ok := left[e.seq]; !ok {
			continue
		}
		run := kvevent.RouterEvent{
			Kind: kvevent.Stored, Tier: tier, Parent: e.parent, HasParent: e.position > 0,
			StartPosition: e.position, HasStart: true,
		}
		for ok := true; ok && len(run.Blocks) < kvevent.MaxBlocksPerMessage; {
			run.Blocks = append(run.Blocks, kvevent.StoredBlock{Hash: e.seq, Local: e.local})
			delete(left, e.seq)
			if e, ok = next[e.seq]; ok {
				_, ok = left[e.seq]
			}
		}
		out = append(out, run)
	}
	return out
}
