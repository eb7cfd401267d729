package dynamo

import (
	"cmp"
	"maps"
	"slices"

	"github.com/blockyard-ai/blockyard/internal/kv"
	"github.com/blockyard-ai/blockyard/internal/kvevent"
)

// externalHash is a block's name in Dynamo's events: the engine's own hash.
type externalHash uint64

// entry is one named block of a rank.
type entry struct {
	seq, parent kv.SequenceHash // parent means nothing at position 0
	local       kv.LocalHash
	position    uint32
	tiers       kv.TierMask
}

// budget is how many more entries all tables of a Source may have.
type budget struct{ left int }

// table is what one rank holds. It translates changes from external hashes to
// SequenceHashes. It is for one goroutine.
type table struct {
	budget  *budget
	entries map[externalHash]entry
	// names counts the external hashes of each block and tier. An engine may have several
	// for the same content.
	names map[kv.SequenceHash][kv.NumTiers]uint32
	// digest and pairs are as in kvevent.Announcement.
	digest, pairs uint64
	// holes counts missing blocks since the table was last complete.
	holes    uint64
	counters *Counters
}

func newTable(b *budget, c *Counters) *table {
	return &table{
		budget: b, counters: c,
		entries: make(map[externalHash]entry),
		names:   make(map[kv.SequenceHash][kv.NumTiers]uint32),
	}
}

// apply applies e and appends the resulting changes to out.
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

// clear empties the table.
func (t *table) clear(out []kvevent.RouterEvent) []kvevent.RouterEvent {
	had := len(t.entries) > 0
	t.release()
	if had {
		out = append(out, kvevent.RouterEvent{Kind: kvevent.Cleared})
	}
	return out
}

// release empties the table and reports no changes.
func (t *table) release() {
	t.budget.left += len(t.entries)
	clear(t.entries)
	clear(t.names)
	t.digest, t.pairs, t.holes = 0, 0, 0
}

// store adds the blocks of a stored event, up to the first with an unknown parent.
func (t *table) store(out []kvevent.RouterEvent, e *kvevent.RouterEvent) []kvevent.RouterEvent {
	var above entry
	position := uint32(0)
	if e.HasParent {
		parent, ok := t.entries[externalHash(e.Parent)]
		if !ok {
			return t.orphans(out, len(e.Blocks))
		}
		above, position = parent, parent.position+1
	} else if e.HasStart && e.StartPosition > 0 {
		return t.orphans(out, len(e.Blocks))
	}
	run := kvevent.RouterEvent{Kind: kvevent.Stored, Tier: e.Tier}
	for i, b := range e.Blocks {
		n := entry{seq: kv.SequenceHash(b.Local), local: b.Local, position: position}
		if position > 0 {
			n.seq, n.parent = kv.Chain(above.seq, b.Local), above.seq
		}
		name := externalHash(b.Hash)
		if was, ok := t.entries[name]; ok && was.seq != n.seq {
			// The engine reuses the name for another block.
			out = t.forget(flush(out, &run), name)
			t.counters.Renamed++
		}
		fresh, ok := t.insert(name, n, e.Tier)
		if !ok {
			left := len(e.Blocks) - i
			t.holes += uint64(left)
			t.counters.Refused += uint64(left)
			break
		}
		if fresh {
			if len(run.Blocks) == 0 {
				run.Parent, run.HasParent = n.parent, position > 0
				run.StartPosition, run.HasStart = position, true
			}
			run.Blocks = append(run.Blocks, kvevent.StoredBlock{Hash: n.seq, Local: n.local})
		} else {
			out = flush(out, &run)
		}
		above, position = n, position+1
	}
	return flush(out, &run)
}

// flush appends a run that has blocks, and begins the next.
func flush(out []kvevent.RouterEvent, run *kvevent.RouterEvent) []kvevent.RouterEvent {
	if len(run.Blocks) > 0 {
		out = append(out, *run)
		*run = kvevent.RouterEvent{Kind: kvevent.Stored, Tier: run.Tier}
	}
	return out
}

func (t *table) orphans(out []kvevent.RouterEvent, n int) []kvevent.RouterEvent {
	t.holes += uint64(n)
	t.counters.Orphans += uint64(n)
	return out
}

// insert adds a tier to a named block. fresh reports whether the block is new in that tier,
// ok whether there was room.
func (t *table) insert(name externalHash, n entry, tier kv.Tier) (fresh, ok bool) {
	have, known := t.entries[name]
	if known && have.tiers.Has(tier) {
		return false, true
	}
	if !known {
		if t.budget.left == 0 {
			return false, false
		}
		t.budget.left--
		have = n
	}
	have.tiers = have.tiers.With(tier)
	t.entries[name] = have
	counts := t.names[n.seq]
	counts[tier]++
	t.names[n.seq] = counts
	if counts[tier] > 1 {
		return false, true
	}
	t.digest += kv.Digest(n.seq, tier)
	t.pairs++
	return true, true
}

// remove takes a named block out of the change's tier. When no other name keeps the block
// there, it joins the change.
func (t *table) remove(change *kvevent.RouterEvent, name externalHash) {
	have, ok := t.entries[name]
	tier := change.Tier
	if !ok || !have.tiers.Has(tier) {
		t.counters.UnknownRemovals++
		return
	}
	if have.tiers = have.tiers.Without(tier); have.tiers != 0 {
		t.entries[name] = have
	} else {
		delete(t.entries, name)
		t.budget.left++
	}
	counts := t.names[have.seq]
	if counts[tier]--; counts == ([kv.NumTiers]uint32{}) {
		delete(t.names, have.seq)
	} else {
		t.names[have.seq] = counts
	}
	if counts[tier] == 0 {
		t.digest -= kv.Digest(have.seq, tier)
		t.pairs--
		change.Removed = append(change.Removed, have.seq)
	}
}

// forget takes a named block out of every tier.
func (t *table) forget(out []kvevent.RouterEvent, name externalHash) []kvevent.RouterEvent {
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

// replace makes the table equal to a dump and appends the changes.
func (t *table) replace(out, dump []kvevent.RouterEvent) []kvevent.RouterEvent {
	old := maps.Clone(t.names)
	t.release()
	for i := range dump {
		t.apply(nil, &dump[i])
	}
	for _, tier := range kv.Tiers {
		change := kvevent.RouterEvent{Kind: kvevent.Removed, Tier: tier}
		for seq, counts := range old {
			if counts[tier] > 0 && t.names[seq][tier] == 0 {
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

func (t *table) dumpTier(out []kvevent.RouterEvent, tier kv.Tier, keep func(kv.SequenceHash, kv.Tier) bool) []kvevent.RouterEvent {
	left := make(map[kv.SequenceHash]entry)
	for _, e := range t.entries {
		if e.tiers.Has(tier) && (keep == nil || keep(e.seq, tier)) {
			left[e.seq] = e
		}
	}
	sorted := slices.SortedFunc(maps.Values(left), func(a, b entry) int {
		return cmp.Or(cmp.Compare(a.position, b.position), cmp.Compare(a.seq, b.seq))
	})
	// One child of each block continues its run; other children begin runs.
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
