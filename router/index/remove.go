package index

import (
	"slices"

	"github.com/blockyard-ai/blockyard/internal/kv"
	"github.com/blockyard-ai/blockyard/internal/kvevent"
	"github.com/blockyard-ai/blockyard/router/index/runs"
)

// shortRow is the number of hashes in the order of a run, from last to first, below which
// remove treats an event as unordered.
const shortRow = 4

// fewWalks is the number of walks along runs that mostly find all blocks of an unordered event. Beyond it,
// looking for all other blocks at once is faster.
const fewWalks = 4

// remove applies a removed event: owner o no longer has the blocks with these hashes in tier
// t. Events usually name children before parents, so remove first looks for each block just
// before the previous one. Hashes in no such order go to removeUnordered.
func (x *Index) remove(o *owner, t kv.Tier, hashes []kv.SequenceHash) {
	next := o.removeHint // where the next block most likely is
	for len(hashes) > 0 {
		p := next.Place
		if next.hash != hashes[0] || !x.runs.HasHash(p, hashes[0]) {
			var ok bool
			if p, ok = x.lookup(o, hashes[0]); !ok && len(hashes) >= shortRow {
				// Another block of the event may be easier to find than the first.
				next = x.removeUnordered(o, t, hashes, next)
				break
			}
			x.listHint(next) // a later event may continue there after all
			if !ok {
				p, ok = x.find(o, hashes[0])
			}
			if !ok {
				x.countMissing(o, t, hashes[0])
				hashes, next = hashes[1:], hint{}
				continue
			}
		}
		run := x.arena.Hashes(x.runs.Head(p.Run).Storage())
		n := countBackwards(run[:p.Pos+1], hashes)
		if n < shortRow && n < len(hashes) { // the event names blocks in no order
			next = x.removeUnordered(o, t, hashes, next)
			break
		}
		lo := p.Pos + 1 - n
		x.takeFrom(o, t, p.Run, runs.Span(lo, p.Pos+1))
		if lo > 0 {
			next = hint{runs.At(p.Run, lo-1), kv.SequenceHash(run[lo-1])}
		} else {
			next = x.hintBefore(runs.At(p.Run, 0))
		}
		x.freeOrShrink(p.Run)
		hashes = hashes[n:]
	}
	o.removeHint = next
}

// applySparse applies a stored or removed event of another KV group than the primary one. Blocks
// without room count as lost.
func (x *Index) applySparse(o *owner, e *kvevent.RouterEvent) {
	before := o.sparse
	duplicate, unknown := x.sparse.Apply(e, uint32(o.id), &o.sparse, x.mayGrow)
	x.sparsePairs += int(o.sparse.HeldPairs - before.HeldPairs)
	x.lostPairs += int(o.sparse.LostPairs - before.LostPairs)
	x.counts.DuplicateStores += uint64(duplicate)
	x.counts.UnknownRemovals += uint64(unknown)
	if e.Kind == kvevent.Stored {
		x.counts.Lost += o.sparse.LostPairs - before.LostPairs
	}
}

// takeFrom removes a set of blocks of run r from owner o in tier t. It counts the blocks of
// the set that o does not hold. The caller then frees or shrinks the run.
func (x *Index) takeFrom(o *owner, t kv.Tier, r runs.ID, set runs.Mask) {
	x.changedBlocks += set.Count()
	gone := x.recordNotHeld(o, r, t, set)
	for left := set.Without(gone); !left.Empty(); {
		x.countMissing(o, t, x.hashAt(runs.At(r, left.Pop())))
	}
}

// freeOrShrink frees run r after a removal if no owner holds its blocks and no run follows
// it. Otherwise it queues the run for shrink, which cuts unused blocks off the end.
func (x *Index) freeOrShrink(r runs.ID) {
	if s := x.runs.WriterState(r); !s.Live {
		return
	} else if s.EntryCount == 0 && s.FirstChild == runs.None {
		x.freeIfUnused(r)
	} else {
		x.queueShrink(r)
	}
}

// scattered is the blocks of one run that an event removes.
type scattered struct {
	run runs.ID
	set runs.Mask
}

// removeUnordered removes blocks of owner o from tier t that an event names in no order. next is
// the block where the event most likely continues. The result is such a block for the next event.
func (x *Index) removeUnordered(o *owner, t kv.Tier, hashes []kv.SequenceHash, next hint) hint {
	for part := range slices.Chunk(hashes, runs.MaxNamed) {
		next = x.removeNamed(o, t, part, next)
	}
	return next
}

// removeNamed is removeUnordered of at most runs.MaxNamed hashes. It first collects the blocks by run in
// x.removalBatch, and then changes each run once.
func (x *Index) removeNamed(o *owner, t kv.Tier, hashes []kv.SequenceHash, next hint) hint {
	n := &x.named
	n.Fill(hashes, func(h kv.SequenceHash) { x.countMissing(o, t, h) })
	x.removalBatch = x.removalBatch[:0]
	if x.runs.HasHash(next.Place, next.hash) && n.Take(next.hash) {
		x.collectNamed(next.Place)
	} else {
		x.listHint(next) // a later event may continue there after all
	}
	// A sparse directory has few blocks, of which one leads to the others. So all hashes are looked
	// up before the first scan.
	looked, from := 0, 0 // x.guesses are of hashes[from:] once fewWalks hashes are looked up
	for i, h := range hashes {
		if !n.Open(i) {
			continue
		}
		var p runs.Place
		if looked == fewWalks { // the blocks lie in many places
			x.guesses, from = x.directory.Guess(x.runs, hashes[i:], x.guesses[:0]), i
		}
		if looked++; looked > fewWalks {
			p = x.guesses[i-from]
		}
		ok := x.runs.HasHash(p, h)
		if !ok {
			p, ok = x.lookup(o, h)
		} else if x.denseDirectory {
			x.countSavedScan(o, p, true)
		}
		if ok {
			n.Close(i)
			x.collectNamed(p)
		}
	}
	for i, h := range hashes {
		if n.Open(i) {
			if p, ok := x.find(o, h); ok {
				x.collectNamed(p)
			} else {
				x.countMissing(o, t, h)
			}
			n.Close(i)
		}
	}
	last := hint{}
	for _, b := range x.removalBatch {
		x.takeFrom(o, t, b.run, b.set)
		last = x.hintBefore(runs.At(b.run, b.set.First()))
	}
	// Only now, because pruning one run may free the parent run, which may be in the batch too.
	for _, b := range x.removalBatch {
		x.freeOrShrink(b.run)
	}
	return last
}

// collectNamed adds the block at p, which the caller has taken out of x.named, to x.removalBatch. It
// goes on with the blocks before and after p while they are in x.named.
func (x *Index) collectNamed(p runs.Place) {
	b := x.scatteredOf(p.Run)
	b.set.Set(p.Pos)
	hashes := x.arena.Hashes(x.runs.Head(p.Run).Storage())
	for after := p.Pos + 1; after < len(hashes) && x.named.Take(kv.SequenceHash(hashes[after])); after++ {
		b.set.Set(after)
	}
	for {
		for p.Pos > 0 && x.named.Take(kv.SequenceHash(hashes[p.Pos-1])) {
			p.Pos--
			b.set.Set(p.Pos)
		}
		if p.Pos > 0 {
			return
		}
		// The block before the first block of a run, a row of blocks, is in another run.
		p = runs.UnpackPlace(x.runs.Head(p.Run).Parent.Load())
		hashes = x.arena.Hashes(x.runs.Head(p.Run).Storage())
		if p.Pos >= len(hashes) || !x.named.Take(kv.SequenceHash(hashes[p.Pos])) { // the root has no block
			return
		}
		b = x.scatteredOf(p.Run)
		b.set.Set(p.Pos)
	}
}

// scatteredOf returns the element of x.removalBatch for run r, and appends a missing one. It is valid
// until the next call.
func (x *Index) scatteredOf(r runs.ID) *scattered {
	// BatchIndex is the run's index in the batch, or is left over from an earlier removal. The
	// comparison with the batch tells.
	s := x.runs.WriterState(r)
	if int(s.BatchIndex) >= len(x.removalBatch) || x.removalBatch[s.BatchIndex].run != r {
		s.BatchIndex = int32(len(x.removalBatch))
		x.removalBatch = append(x.removalBatch, scattered{run: r})
	}
	return &x.removalBatch[s.BatchIndex]
}

// countBackwards returns how many leading hashes are those of run in reverse order: hashes[0] the
// last one of run, hashes[1] the one before, and so on. Removed events usually name blocks in this
// order.
func countBackwards(run []runs.Word, hashes []kv.SequenceHash) int {
	hashes = hashes[:min(len(hashes), len(run))]
	last := len(run) - 1
	for i, h := range hashes {
		if run[last-i] != runs.Word(h) {
			return i
		}
	}
	return len(hashes)
}

// hintBefore returns the block before p and its hash: the block that the owner's next
// removed event most likely names. The hint is zero when p is the first block of its
// sequence, or when the block before p is unknown and has a stand-in.
func (x *Index) hintBefore(p runs.Place) hint {
	if p.Pos > 0 {
		p.Pos--
	} else if p = runs.UnpackPlace(x.runs.Head(p.Run).Parent.Load()); p.Run == runs.Root || x.runs.WriterState(p.Run).StandIn {
		return hint{}
	}
	return hint{p, x.hashAt(p)}
}

// countMissing counts the removal of a block that the index does not have for owner o. Lost
// pairs are blocks that the index evicted or could not store. While o has lost pairs, the
// block is taken for one of them. Otherwise the removal counts as unknown.
func (x *Index) countMissing(o *owner, t kv.Tier, h kv.SequenceHash) {
	if o.lostPairs == 0 {
		x.counts.UnknownRemovals++
		return
	}
	o.lostDigest -= kv.Digest(h, t)
	o.lostPairs--
	x.lostPairs--
}

// resolveConflict decides between an existing block, which follows block p, and new block b.
// Both have the same local hash and parent, but different sequence hashes, so one is wrong.
// resolveConflict returns true when the existing block is wrong and has been evicted with
// its descendants: the caller may store b. Blocks are verified only here, because verifying
// every block would cost more than storing it.
func (x *Index) resolveConflict(p, existing runs.Place, b kvevent.StoredBlock) bool {
	x.counts.Conflicts++
	// A sequence hash chains the parent's sequence hash and the block's local hash.
	right := kv.SequenceHash(b.Local) // of a prompt's first block
	if p.Run != runs.Root {
		right = kv.Chain(x.hashAt(p), b.Local)
	}
	if b.Hash != right {
		return false
	}
	x.protectedRun = p.Run // the caller stores b there, and then lifts the protection
	r := existing.Run
	for c := x.childFrom(r, existing.Pos); c != runs.None; c = x.childFrom(r, existing.Pos) {
		x.evictTree(c)
	}
	if existing.Pos == 0 {
		if x.runs.WriterState(r).Live { // evicted with its last child if no owner held it
			x.evictRun(r)
		}
		return true
	}
	return x.truncate(r, existing.Pos)
}

// childFrom returns a child of run r that follows a block at position pos or later, or None.
func (x *Index) childFrom(r runs.ID, pos int) runs.ID {
	c := x.runs.WriterState(r).FirstChild
	for c != runs.None && runs.UnpackPlace(x.runs.Head(c).Parent.Load()).Pos < pos {
		c = x.runs.WriterState(c).NextSibling
	}
	return c
}

// evictTree evicts run r and all runs that follow it, leaves first. Their owners then count
// the blocks as lost.
func (x *Index) evictTree(r runs.ID) {
	for x.runs.WriterState(r).Live {
		leaf := r
		for c := x.runs.WriterState(r).FirstChild; c != runs.None; c = x.runs.WriterState(c).FirstChild {
			leaf = c
		}
		x.evictRun(leaf)
	}
}

// truncate evicts the blocks of run r, a row of blocks, from position pos on: their owners
// count them as lost. No run follows these blocks. The remaining blocks move to new memory,
// because readers may still read the old. truncate returns false when there is no memory;
// then the evicted blocks stay in the run without an owner.
func (x *Index) truncate(r runs.ID, pos int) bool {
	walk := x.runs.Slots(r)
	for slot := walk.Next(); slot != nil; slot = walk.Next() {
		e := entry(slot.Load())
		if e == 0 || e.hi() <= pos {
			continue
		}
		o := x.owners[e.owner()]
		if !o.retired { // the pairs of a retired owner no longer count
			x.evictEntry(o, r, e.tier(), max(e.lo(), pos), e.hi())
		}
		x.reduceEntry(o, r, slot, walk, e, e.mask().And(runs.Span(0, pos)))
	}
	units := runs.UnitsFor(pos)
	firstUnit, got := x.takePiece(units)
	if got == units {
		// Readers that began with the old version walk again.
		x.moveTo(r, firstUnit, units, pos, x.runs.Head(r).Storage().Version()+1)
		return true
	}
	if got > 0 { // a piece too small for the remaining blocks
		x.arena.Give(firstUnit, got)
	}
	return false
}
