package index

import (
	"github.com/blockyard-ai/blockyard/internal/kv"
	"github.com/blockyard-ai/blockyard/internal/kvevent"
	"github.com/blockyard-ai/blockyard/router/index/runs"
)

// store adds the blocks of stored event e to o. Blocks without room are counted
// as lost.
func (x *Index) store(o *owner, e *kvevent.RouterEvent) {
	blocks := e.Blocks
	if len(blocks) == 0 {
		return
	}
	p := runs.At(runs.Root, 0)
	if e.HasParent {
		var ok bool
		if p, ok = x.parent(o, e.Parent); !ok {
			x.counts.ParkedDropped += uint64(len(blocks))
			x.countLost(o, e.Tier, blocks)
			return
		}
	} else {
		x.enterHint(o.stored)
	}
	for len(blocks) > 0 {
		var n int
		p, n = x.storeInRun(o, e.Tier, p, blocks)
		if n == 0 {
			x.countLost(o, e.Tier, blocks)
			break
		}
		o.stored = hint{p, blocks[n-1].Hash}
		blocks = blocks[n:]
	}
	x.protected = runs.None
	x.prune(p.Run)
}

// parent returns the block with hash h, or the stand-in of an unknown block.
// ok is false when there is no room for a stand-in.
func (x *Index) parent(o *owner, h kv.SequenceHash) (runs.Place, bool) {
	if o.stored.hash == h && x.runs.HasHash(o.stored.Place, h) {
		return o.stored.Place, true
	}
	x.enterHint(o.stored)
	if len(x.orphans.byHash) > 0 {
		if r := x.orphans.awaited(h); r != runs.None {
			return runs.At(r, 0), true
		}
	}
	if p, ok := x.find(o, h); ok {
		return p, true
	}
	return x.standIn(h)
}

// storeInRun stores the leading blocks that belong into one run, after block p. It
// returns the place of the last stored block and the number of stored blocks. The number
// is 0 when there is no memory, or when another block follows p with the same local hash
// and is not provably wrong.
func (x *Index) storeInRun(o *owner, t kv.Tier, p runs.Place, blocks []kvevent.StoredBlock) (runs.Place, int) {
	s := x.runs.Head(p.Run).Storage()
	next := runs.At(p.Run, p.Pos+1)
	if s.Blocks() == 0 {
		next.Pos = 0
	}
	if next.Pos >= s.Blocks() || x.arena.Locals(s)[next.Pos] != blocks[0].Local {
		next = runs.At(x.runs.Child(p, blocks[0].Local), 0)
		if next.Run == runs.None {
			return x.extend(o, t, p, s, blocks)
		}
		s = x.runs.Head(next.Run).Storage()
	}
	n := equalPrefix(x.arena.Locals(s)[next.Pos:], x.arena.Hashes(s)[next.Pos:], blocks)
	if n == 0 {
		if x.resolveConflict(p, next, blocks[0]) {
			return x.extend(o, t, p, x.runs.Head(p.Run).Storage(), blocks)
		}
		return p, 0
	}
	x.applied += n
	x.counts.DuplicateStores += uint64(x.cover(o, next.Run, t, next.Pos, next.Pos+n))
	return runs.At(next.Run, next.Pos+n-1), n
}

// equalPrefix returns the number of leading blocks whose hashes equal locals and hashes.
func equalPrefix(locals, hashes []runs.Word, blocks []kvevent.StoredBlock) int {
	n := min(len(locals), len(blocks))
	locals, hashes, blocks = locals[:n], hashes[:n], blocks[:n]
	for i := range blocks {
		if locals[i] != blocks[i].Local || hashes[i] != runs.Word(blocks[i].Hash) {
			return i
		}
	}
	return n
}

// extend stores new blocks after p, in tier t of o, and returns what storeInRun returns. s
// is the storage of the run of p. The blocks join the run of p if the run ends with p
// and the event fits. Otherwise they get a run of their own, so that later events
// stay aligned with runs.
func (x *Index) extend(o *owner, t kv.Tier, p runs.Place, s runs.Storage, blocks []kvevent.StoredBlock) (runs.Place, int) {
	n := min(len(blocks), runs.MaxBlocks)
	if len(x.orphans.byHash) > 0 {
		n = x.untilAwaited(n, func(i int) kv.SequenceHash { return blocks[i].Hash })
	}
	old := s.Blocks()
	if old > 0 && p.Pos == old-1 && old+len(blocks) <= runs.MaxBlocks && x.growRun(p.Run, s, n) {
		s = x.runs.Head(p.Run).Storage()
		x.appendBlocks(p.Run, s, blocks[:n])
		x.cover(o, p.Run, t, old, old+n)
		p.Pos += n
		x.adopt(p, blocks[n-1].Hash)
		return p, n
	}
	x.protected = p.Run
	unit, class := x.takePiece(runs.ClassFor(n))
	if class == 0 {
		return p, 0
	}
	r := x.newRun()
	if r == runs.None {
		x.arena.Give(unit, class)
		return p, 0
	}
	n = min(n, class*runs.UnitBlocks)
	x.appendBlocks(r, runs.PackStorage(0, class, 0, unit), blocks[:n])
	x.cover(o, r, t, 0, n)
	x.runs.Attach(r, p)
	p = runs.At(r, n-1)
	x.adopt(p, blocks[n-1].Hash)
	return p, n
}

// growRun gives run r room for n more blocks and reports whether there is memory. s is the
// run's storage.
func (x *Index) growRun(r runs.ID, s runs.Storage, n int) bool {
	want := s.Blocks() + n
	if want <= s.Capacity() {
		return true
	}
	if n < runs.UnitBlocks {
		// Blocks that come one by one must not copy the run for each few blocks.
		want = min(runs.MaxBlocks, want+want/4)
	}
	return x.move(r, runs.ClassFor(want), s.Blocks(), s.Version())
}

// appendBlocks appends blocks to a run that has room for them. s is the run's storage.
// Readers see the blocks once all are written.
func (x *Index) appendBlocks(r runs.ID, s runs.Storage, blocks []kvevent.StoredBlock) {
	old := s.Blocks()
	grown := s + runs.Storage(len(blocks))
	locals, hashes := x.arena.Locals(grown)[old:], x.arena.Hashes(grown)[old:]
	locals, hashes = locals[:len(blocks)], hashes[:len(blocks)]
	for i := range blocks {
		locals[i], hashes[i] = blocks[i].Local, runs.Word(blocks[i].Hash)
	}
	h := x.runs.Head(r)
	h.Store.Store(uint64(grown))
	if h.Flags.Load()&runs.FlagSeen == 0 {
		h.Flags.Or(runs.FlagSeen)
	}
	x.applied += len(blocks)
	x.resident += len(blocks)
	x.enlist(r, old)
}

// countLost counts blocks that the index cannot store, so that the digest of o still
// covers every block that events gave the owner.
func (x *Index) countLost(o *owner, t kv.Tier, blocks []kvevent.StoredBlock) {
	for i := range blocks {
		o.lostDigest += kv.Digest(blocks[i].Hash, t)
	}
	o.lostPairs += uint64(len(blocks))
	x.lost += len(blocks)
	x.counts.Lost += uint64(len(blocks))
}

// orphans are the unknown parents that blocks wait for. Each has a run without blocks as
// its stand-in. Readers cannot reach the blocks behind a stand-in until the parent comes.
type orphans struct {
	byHash map[kv.SequenceHash]runs.ID
	hashOf map[runs.ID]kv.SequenceHash
	// filter has a bit for each parent, so that most new blocks need no lookup in byHash.
	filter [1 << 10]uint64
	// filtered counts the parents entered into filter since it was last cleared.
	filtered int
}

// dumpParked is the number of further unknown parents that a dump may have while it
// is applied.
const dumpParked = 1 << 20

// orphanBytes is the approximate memory of an unknown parent without its run, in bytes.
const orphanBytes = 96

func newOrphans() orphans {
	return orphans{byHash: make(map[kv.SequenceHash]runs.ID), hashOf: make(map[runs.ID]kv.SequenceHash)}
}

// bit returns the word and the bit of filter for block h.
func (o *orphans) bit(h kv.SequenceHash) (*uint64, uint64) {
	v := runs.Mix(h) >> 48
	return &o.filter[v>>6], 1 << (v & 63)
}

// awaited returns the stand-in of block h, or None.
func (o *orphans) awaited(h kv.SequenceHash) runs.ID {
	if w, bit := o.bit(h); *w&bit == 0 {
		return runs.None
	}
	return o.byHash[h]
}

// standIn returns the stand-in of the unknown block h. ok is false when there are
// too many unknown parents or no room.
func (x *Index) standIn(h kv.SequenceHash) (runs.Place, bool) {
	if r := x.orphans.awaited(h); r != runs.None {
		return runs.At(r, 0), true
	}
	// The blocks of a dump come in any order, so many may wait until its end.
	most := x.options.MaxParked
	if x.replacing {
		most += dumpParked
	}
	if len(x.orphans.byHash) >= most {
		return runs.Place{}, false
	}
	r := x.newRun()
	if r == runs.None {
		return runs.Place{}, false
	}
	x.runs.WriterState(r).StandIn = true
	x.orphans.byHash[h], x.orphans.hashOf[r] = r, h
	x.orphans.addToFilter(h)
	return runs.At(r, 0), true
}

// addToFilter enters parent h, which blocks wait for, into filter. Parents that have come stay
// in the filter, because parents share bits. When most of the entered parents have come or been
// dropped, addToFilter rebuilds the filter.
func (o *orphans) addToFilter(h kv.SequenceHash) {
	w, bit := o.bit(h)
	*w |= bit
	// A rebuild takes time for each awaited parent and each word of the filter. With this limit
	// about as many parents are entered between two rebuilds.
	if o.filtered++; o.filtered < 4*len(o.byHash)+len(o.filter) {
		return
	}
	o.filtered = len(o.byHash)
	clear(o.filter[:])
	for h := range o.byHash {
		w, bit := o.bit(h)
		*w |= bit
	}
}

// dropStandIn forgets a stand-in without children.
func (x *Index) dropStandIn(r runs.ID) {
	delete(x.orphans.byHash, x.orphans.hashOf[r])
	delete(x.orphans.hashOf, r)
	if len(x.orphans.byHash) == 0 {
		clear(x.orphans.filter[:])
		x.orphans.filtered = 0
	}
	x.giveRun(r)
}

// untilAwaited returns the number of new blocks up to and including the first block that
// other blocks wait for, at most n. hash returns the hash of new block i.
func (x *Index) untilAwaited(n int, hash func(i int) kv.SequenceHash) int {
	if len(x.orphans.byHash) == 0 {
		return n
	}
	for i := range n {
		if x.orphans.awaited(hash(i)) != runs.None {
			return i + 1
		}
	}
	return n
}

// adopt attaches the runs that waited for the new block p.
func (x *Index) adopt(p runs.Place, h kv.SequenceHash) {
	if len(x.orphans.byHash) == 0 {
		return
	}
	standIn := x.orphans.awaited(h)
	if standIn == runs.None || x.treeRoot(p.Run) == standIn {
		return // nobody waits, or the block would be its own ancestor
	}
	for c := x.runs.WriterState(standIn).FirstChild; c != runs.None; c = x.runs.WriterState(standIn).FirstChild {
		x.runs.Detach(c)
		if !x.absorb(p, c) {
			x.runs.Attach(c, p)
		}
		x.counts.Spliced++
	}
	x.dropStandIn(standIn)
}

// absorbBlocks is the most blocks that are moved when their parent comes. Whole
// runs would be moved again and again by blocks that come backwards.
const absorbBlocks = 32

// absorb moves the blocks of run c to the end of the run that ends with block p. Run c is
// detached, and no reader has ever reached run c. With absorb, blocks that come one by one
// and backwards end up in long runs. absorb returns false and changes nothing when the
// blocks are too many or do not fit.
func (x *Index) absorb(p runs.Place, c runs.ID) bool {
	from := x.runs.Head(c).Storage()
	s := x.runs.Head(p.Run).Storage()
	old := s.Blocks()
	if from.Blocks() > absorbBlocks || p.Pos != old-1 || old+from.Blocks() > runs.MaxBlocks || !x.growRun(p.Run, s, from.Blocks()) {
		return false
	}
	// growRun may have moved the run.
	s = x.runs.Head(p.Run).Storage() + runs.Storage(from.Blocks())
	copy(x.arena.Locals(s)[old:], x.arena.Locals(from))
	copy(x.arena.Hashes(s)[old:], x.arena.Hashes(from))
	x.runs.Head(p.Run).Store.Store(uint64(s))
	x.resident += from.Blocks()
	marks := x.runs.WriterState(c).Marks
	marks.Set(from.Blocks() - 1) // owners may have a hint to this block
	x.unmark(c, 0)
	x.enlist(p.Run, old)
	for !marks.Empty() {
		at := runs.At(p.Run, old+marks.Pop())
		x.mark(at, x.hashAt(at))
	}
	walk := x.runs.Slots(c)
	for slot := walk.Next(); slot != nil; slot = walk.Next() {
		if e := entry(slot.Load()); e != 0 {
			x.transferEntry(e, c, p.Run, old)
			slot.Store(0)
		}
	}
	for g := x.runs.WriterState(c).FirstChild; g != runs.None; g = x.runs.WriterState(c).FirstChild {
		at := x.runs.Detach(g)
		x.runs.Attach(g, runs.At(p.Run, old+at.Pos))
	}
	x.discard(c)
	return true
}

// transferEntry moves entry e of run c to run r, which has a copy of the blocks,
// where these blocks begin at position offset.
func (x *Index) transferEntry(e entry, c, r runs.ID, offset int) {
	x.runs.WriterState(c).EntryCount--
	o := x.owners[e.owner()]
	if o.gone {
		return
	}
	n := e.hi() - e.lo()
	o.entries--
	o.digest -= x.digest(c, e.tier(), e.lo(), e.hi())
	o.pairs -= uint64(n)
	x.pairs -= n
	x.cover(o, r, e.tier(), offset+e.lo(), offset+e.hi())
}

// dropParked evicts blocks that wait for unknown parents, until there are at most
// Options.MaxParked such parents.
func (x *Index) dropParked() {
	for r := range x.orphans.hashOf {
		if len(x.orphans.byHash) <= x.options.MaxParked {
			return
		}
		for x.runs.WriterState(r).Live && x.runs.WriterState(r).FirstChild != runs.None {
			x.evictTree(x.runs.WriterState(r).FirstChild)
		}
	}
}

// treeRoot returns the root, or the stand-in that is the first ancestor of run r.
func (x *Index) treeRoot(r runs.ID) runs.ID {
	for r != runs.Root && !x.runs.WriterState(r).StandIn {
		r = runs.UnpackPlace(x.runs.Head(r).Parent.Load()).Run
	}
	return r
}
