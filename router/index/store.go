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
	p := runs.At(runs.Root, 0) // the block that the next stored block follows
	if e.HasParent {
		var ok bool
		if p, ok = x.parent(o, e.Parent); !ok {
			x.counts.ParkedDropped += uint64(len(blocks))
			x.countLost(o, e.Tier, blocks)
			return
		}
	} else {
		x.enterHint(o.stored) // o.stored changes below
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
	x.prune(p.Run) // a stand-in that got no block
}

// parent returns the block with hash h, which new blocks of owner o follow. An unknown block
// gets a stand-in: an empty run in its place. ok is false when there is no room for it.
func (x *Index) parent(o *owner, h kv.SequenceHash) (p runs.Place, ok bool) {
	if o.stored.hash == h && x.runs.HasHash(o.stored.Place, h) {
		return o.stored.Place, true
	}
	x.enterHint(o.stored)
	if x.orphans.Len() > 0 {
		if r := x.orphans.StandIn(h); r != runs.None {
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
		next = runs.At(x.runs.Child(p, blocks[0].Local), 0)
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
	x.applied += n
	x.counts.DuplicateStores += uint64(x.cover(o, next.Run, t, next.Pos, next.Pos+n))
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

// extend stores blocks that the index does not have yet, after block p, for owner o in tier
// t. It returns the place of the last stored block and the number of stored blocks, 0
// without memory. s says where the blocks of the run of p lie. The new blocks join that run
// if it ends with p and the whole event fits. Otherwise they get a run of their own: a run
// that begins with an event's first block stays aligned with later events.
func (x *Index) extend(o *owner, t kv.Tier, p runs.Place, s runs.Storage, blocks []kvevent.StoredBlock) (runs.Place, int) {
	n := min(len(blocks), runs.MaxBlocks)
	if x.orphans.Len() > 0 { // other blocks may wait for one of these
		n = x.untilAwaited(n, func(i int) kv.SequenceHash { return blocks[i].Hash })
	}
	old := s.Blocks()
	endsWithP := old > 0 && p.Pos == old-1
	if endsWithP && old+len(blocks) <= runs.MaxBlocks && x.growRun(p.Run, s, n) {
		s = x.runs.Head(p.Run).Storage()
		x.appendBlocks(p.Run, s, blocks[:n])
		x.cover(o, p.Run, t, old, old+n)
		p.Pos += n
		x.adopt(p, blocks[n-1].Hash)
		return p, n
	}
	x.protected = p.Run // takePiece and newRun may evict
	unit, class := x.takePiece(runs.ClassFor(n))
	if class == 0 {
		return p, 0
	}
	r := x.newRun()
	if r == runs.None {
		x.arena.Give(unit, class)
		return p, 0
	}
	n = min(n, class*runs.UnitBlocks) // takePiece may return less than asked for
	x.appendBlocks(r, runs.PackStorage(0, class, 0, unit), blocks[:n])
	x.cover(o, r, t, 0, n)
	x.runs.Attach(r, p)
	p = runs.At(r, n-1)
	x.adopt(p, blocks[n-1].Hash)
	return p, n
}

// growRun makes sure that run r, a row of blocks, has memory for n more blocks. It returns
// false when there is no memory. It may move the run's blocks to a larger piece of memory. s
// says where they lie before the call.
func (x *Index) growRun(r runs.ID, s runs.Storage, n int) bool {
	want := s.Blocks() + n
	if want <= s.Capacity() {
		return true
	}
	if n < runs.UnitBlocks {
		// More may follow one by one. A reserve saves a copy of the run for each few blocks.
		want = min(runs.MaxBlocks, want+want/4)
	}
	return x.move(r, runs.ClassFor(want), s.Blocks(), s.Version())
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
	x.applied += len(blocks)
	x.resident += len(blocks)
	x.enlist(r, old)
}

// countLost counts blocks of owner o in tier t that the index cannot store. The owner's
// digest, a checksum of its blocks, then still covers every block that events gave the owner.
func (x *Index) countLost(o *owner, t kv.Tier, blocks []kvevent.StoredBlock) {
	for i := range blocks {
		o.lostDigest += kv.Digest(blocks[i].Hash, t)
	}
	o.lostPairs += uint64(len(blocks))
	x.lost += len(blocks)
	x.counts.Lost += uint64(len(blocks))
}

// dumpParked is the number of further unknown parents that a dump may have while it
// is applied.
const dumpParked = 1 << 20

// standIn returns the stand-in of the unknown block h: an empty run that h's children follow
// until h comes. It makes the stand-in if there is none. ok is false when there are too many
// unknown parents or no room.
func (x *Index) standIn(h kv.SequenceHash) (p runs.Place, ok bool) {
	if r := x.orphans.StandIn(h); r != runs.None {
		return runs.At(r, 0), true
	}
	// The blocks of a dump come in any order, so many may wait until its end.
	most := x.options.MaxParked
	if x.replacing {
		most += dumpParked
	}
	if x.orphans.Len() >= most {
		return runs.Place{}, false
	}
	r := x.newRun()
	if r == runs.None {
		return runs.Place{}, false
	}
	x.runs.WriterState(r).StandIn = true
	x.orphans.Add(h, r)
	return runs.At(r, 0), true
}

// dropStandIn removes stand-in r of an unknown parent. No run follows r: either the parent
// has come, or no block waits for it any more.
func (x *Index) dropStandIn(r runs.ID) {
	x.orphans.Remove(r)
	x.giveRun(r)
}

// untilAwaited returns how many of n new blocks extend may store at once: up to and including
// the first block that other blocks wait for. adopt attaches waiting blocks behind the last
// stored block only. hash returns the hash of new block i.
func (x *Index) untilAwaited(n int, hash func(i int) kv.SequenceHash) int {
	for i := range n {
		if x.orphans.StandIn(hash(i)) != runs.None {
			return i + 1
		}
	}
	return n
}

// adopt attaches the runs that waited for the new block p, which has hash h. Readers can
// reach their blocks from then on. p is the last block of its run.
func (x *Index) adopt(p runs.Place, h kv.SequenceHash) {
	if x.orphans.Len() == 0 {
		return
	}
	standIn := x.orphans.StandIn(h)
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
// last block of its run. Run c is detached and then freed. No reader has ever reached c. So
// blocks that come one by one and backwards end up in long runs. absorb returns false and
// changes nothing when the blocks are too many, do not fit, or p is not the last block.
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
	// The directory must find the same blocks, and the last one, to which owners may have a
	// hint, at their new places.
	marks := x.runs.WriterState(c).Marks
	marks.Set(from.Blocks() - 1)
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

// transferEntry moves entry e, which says that an owner holds a span of run c, to run r. Run
// r has a copy of the blocks of c from position offset on. The caller clears the old slot.
func (x *Index) transferEntry(e entry, c, r runs.ID, offset int) {
	x.runs.WriterState(c).EntryCount--
	o := x.owners[e.owner()]
	if o.gone { // the entries of a retired owner need not move
		return
	}
	// cover adds the blocks to these sums again.
	n := e.hi() - e.lo()
	o.entries--
	o.digest -= x.digest(c, e.tier(), e.lo(), e.hi())
	o.pairs -= uint64(n)
	x.pairs -= n
	x.cover(o, r, e.tier(), offset+e.lo(), offset+e.hi())
}

// dropParked evicts blocks that wait for unknown parents, until there are at most
// Options.MaxParked such parents. While a dump is applied there may be more.
func (x *Index) dropParked() {
	for r := range x.orphans.StandIns() {
		if x.orphans.Len() <= x.options.MaxParked {
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
