package index

import (
	"github.com/blockyard-ai/blockyard/internal/kv"
	"github.com/blockyard-ai/blockyard/internal/kvevent"
	"github.com/blockyard-ai/blockyard/router/index/runs"
)

// store applies a stored event: owner o has the event's blocks in the event's tier. The
// blocks follow each other, and the first follows the event's parent. Blocks without room
// count as lost.
func (x *Index) store(o *owner, e *kvevent.RouterEvent) {
	blocks := e.Blocks
	if len(blocks) == 0 {
		return
	}
	if e.Group != 0 {
		x.applySparse(o, e)
		return
	}
	p := runs.At(runs.Root, 0) // the block that the next stored block follows
	if e.HasParent {
		var ok bool
		if p, ok = x.parent(o, e.Parent); !ok {
			x.counts.ParkedDropped += uint64(len(blocks))
			x.countLost(o, e.Tier, blocks)
			return
		}
	} else {
		x.listHint(o.storeHint) // the loop replaces the hint, and events must still find its block
	}
	for len(blocks) > 0 {
		var n int
		p, n = x.storeInRun(o, e.Tier, p, blocks)
		if n == 0 {
			x.countLost(o, e.Tier, blocks)
			break
		}
		o.storeHint = hint{p, blocks[n-1].Hash}
		blocks = blocks[n:]
	}
	x.protectedRun = runs.None // extend has set it
	x.freeIfUnused(p.Run)      // a stand-in that no block follows
}

// parent returns the block with hash h, which new blocks of owner o follow. An unknown block
// gets a stand-in: an empty run that holds its place until it comes. ok is false when there is
// no room for the stand-in.
func (x *Index) parent(o *owner, h kv.SequenceHash) (p runs.Place, ok bool) {
	if o.storeHint.hash == h && x.runs.HasHash(o.storeHint.Place, h) {
		return o.storeHint.Place, true
	}
	x.listHint(o.storeHint)
	if x.unknownParents.Len() > 0 {
		if r := x.unknownParents.StandIn(h); r != runs.None {
			return runs.At(r, 0), true
		}
	}
	if p, ok = x.find(o, h); ok {
		return p, true
	}
	return x.standIn(h)
}

// storeInRun stores the leading blocks after block p for owner o in tier t, as many as go
// into one run. A run is a row of up to 128 blocks. It returns the place of the last stored
// block and the number of stored blocks; the caller goes on from there. The number is 0 when
// there is no memory, or when the index has another block at that place, with the same local
// hash and another sequence hash, that is not provably wrong.
func (x *Index) storeInRun(o *owner, t kv.Tier, p runs.Place, blocks []kvevent.StoredBlock) (runs.Place, int) {
	s := x.runs.Head(p.Run).Storage()
	next := runs.At(p.Run, p.Pos+1)
	if s.Blocks() == 0 { // p is the root or a stand-in, which have no blocks
		next.Pos = 0
	}
	if next.Pos >= s.Blocks() || x.arena.Locals(s)[next.Pos] != blocks[0].Local {
		// The first block is not the next block of this run, so look for a run that follows p.
		next = runs.At(runs.None, 0)
		if x.runs.WriterState(p.Run).FirstChild != runs.None {
			next.Run = x.runs.Child(p, blocks[0].Local)
		}
		if next.Run == runs.None {
			return x.extend(o, t, p, s, blocks)
		}
		s = x.runs.Head(next.Run).Storage()
	}
	// The index has a block with this content here. Owner o may be new to it.
	n := equalPrefix(x.arena.Locals(s)[next.Pos:], x.arena.Hashes(s)[next.Pos:], blocks)
	if n == 0 {
		if x.resolveConflict(p, next, blocks[0]) {
			return x.extend(o, t, p, x.runs.Head(p.Run).Storage(), blocks)
		}
		return p, 0
	}
	x.changedBlocks += n // decides how dense the directory is
	x.counts.DuplicateStores += uint64(x.recordHeld(o, next.Run, t, next.Pos, next.Pos+n))
	return runs.At(next.Run, next.Pos+n-1), n
}

// equalPrefix returns the number of leading blocks that have the local hashes of locals and
// the sequence hashes of hashes, position by position.
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

// extend stores leading blocks of an event, which the index does not have yet, after block p
// for owner o in tier t. A run is a row of up to 128 blocks. The blocks join the run of p, of
// which s is the memory, if that run ends with p and has room for all blocks. Otherwise they
// begin a run of their own: later events about the same blocks then change one run, not two.
// It returns the place of the last stored block and the number of stored blocks. The caller
// calls again for the rest. The number is 0 when there is no memory, even after eviction.
func (x *Index) extend(o *owner, t kv.Tier, p runs.Place, s runs.Storage, blocks []kvevent.StoredBlock) (runs.Place, int) {
	n := min(len(blocks), runs.MaxBlocks)
	if x.unknownParents.Len() > 0 {
		// Earlier events may have named one of these blocks as their unknown parent. Stop
		// behind this block: attachWaiting attaches their blocks to the end of a run only.
		n = x.upToAwaited(n, func(i int) kv.SequenceHash { return blocks[i].Hash })
	}
	old := s.Blocks()
	endsWithP := old > 0 && p.Pos == old-1
	if endsWithP && old+len(blocks) <= runs.MaxBlocks && x.growRun(p.Run, s, n) {
		s = x.runs.Head(p.Run).Storage()
		x.appendBlocks(p.Run, s, blocks[:n])
		x.recordNew(o, p.Run, t, old, old+n)
		p.Pos += n
		x.attachWaiting(p, blocks[n-1].Hash)
		return p, n
	}
	x.protectedRun = p.Run                            // takePiece and newRun may evict; store lifts the protection
	firstUnit, units := x.takePiece(runs.UnitsFor(n)) // memory, units of UnitBlocks blocks
	if units == 0 {
		return p, 0
	}
	r := x.newRun()
	if r == runs.None {
		x.arena.Give(firstUnit, units)
		return p, 0
	}
	n = min(n, units*runs.UnitBlocks) // takePiece may return less than asked for
	x.appendBlocks(r, runs.PackStorage(0, units, 0, firstUnit), blocks[:n])
	x.recordHeld(o, r, t, 0, n)
	x.runs.Attach(r, p)
	p = runs.At(r, n-1)
	x.attachWaiting(p, blocks[n-1].Hash)
	return p, n
}

// growRun makes sure that run r, a row of blocks, has memory for n more blocks. It may move
// the run's blocks to a larger piece of memory, and then changes the run's Storage. s is the
// Storage before the call. growRun returns false when there is no memory without eviction.
func (x *Index) growRun(r runs.ID, s runs.Storage, n int) bool {
	want := s.Blocks() + n
	if want <= s.Capacity() {
		return true
	}
	if n < runs.UnitBlocks {
		// More may follow one by one. A reserve saves a copy of the run for each few blocks.
		want = min(runs.MaxBlocks, want+want/4)
	}
	return x.move(r, runs.UnitsFor(want), s.Blocks(), s.Version())
}

// appendBlocks writes new blocks behind the blocks of run r, whose memory has room for them.
// s is the run's Storage word, of which the lowest bits are the number of blocks. Readers see
// the new blocks at once, when the grown word replaces s. No owner holds the blocks yet.
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
	if h.Flags.Load()&runs.FlagSeen == 0 { // eviction spares new blocks for a round
		h.Flags.Or(runs.FlagSeen)
	}
	x.changedBlocks += len(blocks)
	x.blocksInRuns += len(blocks)
	x.listNewBlocks(r, old) // in the directory
}

// countLost counts blocks of owner o in tier t that the index cannot store. The owner's
// digest, a checksum of its blocks, then still covers every block that events gave the owner.
func (x *Index) countLost(o *owner, t kv.Tier, blocks []kvevent.StoredBlock) {
	for i := range blocks {
		o.lostDigest += kv.Digest(blocks[i].Hash, t)
	}
	o.lostPairs += uint64(len(blocks))
	x.lostPairs += len(blocks)
	x.counts.Lost += uint64(len(blocks))
}

// dumpParked is the number of further unknown parents that a dump may have while it
// is applied.
const dumpParked = 1 << 20

// standIn returns the stand-in of the unknown block h: an empty run that h's children follow
// until h comes. It makes the stand-in if there is none. ok is false when there are too many
// unknown parents or no room.
func (x *Index) standIn(h kv.SequenceHash) (p runs.Place, ok bool) {
	if r := x.unknownParents.StandIn(h); r != runs.None {
		return runs.At(r, 0), true
	}
	// The blocks of a dump come in any order, so many may wait until its end.
	most := x.options.MaxParked
	if x.replacing {
		most += dumpParked
	}
	if x.unknownParents.Len() >= most {
		return runs.Place{}, false
	}
	r := x.newRun()
	if r == runs.None {
		return runs.Place{}, false
	}
	x.runs.WriterState(r).StandIn = true
	x.unknownParents.Add(h, r)
	return runs.At(r, 0), true
}

// dropStandIn removes stand-in r of an unknown parent. No run follows r: either the parent
// has come, or no block waits for it any more.
func (x *Index) dropStandIn(r runs.ID) {
	x.unknownParents.Remove(r)
	x.retireRun(r)
}

// upToAwaited returns how many of n new blocks extend may store at once: up to and including
// the first block that other blocks wait for. attachWaiting attaches waiting blocks behind the last
// stored block only. hash returns the hash of new block i.
func (x *Index) upToAwaited(n int, hash func(i int) kv.SequenceHash) int {
	for i := range n {
		if x.unknownParents.StandIn(hash(i)) != runs.None {
			return i + 1
		}
	}
	return n
}

// attachWaiting attaches the runs that waited for block p, which has hash h: earlier events
// named h as a parent before the index had p. Until now these runs followed a stand-in, an
// empty run that no reader reaches. p is the last block of its run.
func (x *Index) attachWaiting(p runs.Place, h kv.SequenceHash) {
	if x.unknownParents.Len() == 0 {
		return
	}
	standIn := x.unknownParents.StandIn(h)
	if standIn == runs.None || x.treeRoot(p.Run) == standIn {
		return // nobody waits, or the block would be its own ancestor
	}
	for c := x.runs.WriterState(standIn).FirstChild; c != runs.None; c = x.runs.WriterState(standIn).FirstChild {
		x.runs.Detach(c)
		if !x.absorb(p, c) { // a short run joins the run of p
			x.runs.Attach(c, p)
		}
		x.counts.Spliced++
	}
	x.dropStandIn(standIn)
}

// absorbBlocks is the most blocks that are moved when their parent comes. Whole
// runs would be moved again and again by blocks that come backwards.
const absorbBlocks = 32

// absorb moves the blocks of run c, with their owners and child runs, behind block p, the
// last block of its run, and frees c. The caller has detached c, which no reader has ever
// reached. absorb makes long runs of blocks that come one by one, last block first. It returns
// false and changes nothing when the blocks are too many or do not fit, or p is not the last.
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
	x.blocksInRuns += from.Blocks()
	// The directory must find the listed blocks at their new places. It must also find the
	// last block: the hint of an owner may name this block at its old place.
	listed := x.runs.WriterState(c).ListedInSparse
	listed.Set(from.Blocks() - 1)
	x.unlist(c, 0)
	x.listNewBlocks(p.Run, old)
	for !listed.Empty() {
		at := runs.At(p.Run, old+listed.Pop())
		x.listBlock(at, x.hashAt(at))
	}
	walk := x.runs.Slots(c)
	for slot := walk.Next(); slot != nil; slot = walk.Next() {
		if e := entry(slot.Load()); e != 0 {
			x.transferEntry(e, c, p.Run, old)
			slot.Store(0)
		}
	}
	for child := x.runs.WriterState(c).FirstChild; child != runs.None; child = x.runs.WriterState(c).FirstChild {
		parent := x.runs.Detach(child)
		x.runs.Attach(child, runs.At(p.Run, old+parent.Pos))
	}
	x.retireRunWithMemory(c)
	return true
}

// transferEntry moves entry e, which says that an owner holds a span of run c, to run r. Run
// r has a copy of the blocks of c from position offset on. The caller clears the old slot.
func (x *Index) transferEntry(e entry, c, r runs.ID, offset int) {
	x.runs.WriterState(c).EntryCount--
	o := x.owners[e.owner()]
	if o.retired { // the entries of a retired owner need not move
		return
	}
	// recordHeld below adds the blocks to these sums again.
	n := e.hi() - e.lo()
	o.entryCount--
	o.heldDigest -= x.digest(c, e.tier(), e.lo(), e.hi())
	o.heldPairs -= uint64(n)
	x.heldPairs -= n
	x.recordHeld(o, r, e.tier(), offset+e.lo(), offset+e.hi())
}

// dropParked evicts blocks that wait for unknown parents, until there are at most
// Options.MaxParked such parents. While a dump is applied there may be more.
func (x *Index) dropParked() {
	for r := range x.unknownParents.StandIns() {
		if x.unknownParents.Len() <= x.options.MaxParked {
			return
		}
		// The blocks that wait follow the stand-in r. It goes with the last of them.
		for x.runs.WriterState(r).Live && x.runs.WriterState(r).FirstChild != runs.None {
			x.evictTree(x.runs.WriterState(r).FirstChild)
		}
	}
}

// treeRoot returns the first ancestor of run r: the root, or the stand-in of an unknown
// parent for which the whole tree waits.
func (x *Index) treeRoot(r runs.ID) runs.ID {
	for r != runs.Root && !x.runs.WriterState(r).StandIn {
		r = runs.UnpackPlace(x.runs.Head(r).Parent.Load()).Run
	}
	return r
}
