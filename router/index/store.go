package index

import (
	"github.com/blockyard-ai/blockyard/internal/kv"
	"github.com/blockyard-ai/blockyard/internal/kvevent"
)

// store lets o hold the blocks of a stored event.
func (x *Index) store(o *owner, e *kvevent.RouterEvent) {
	blocks := e.Blocks
	if len(blocks) == 0 {
		return
	}
	p := place{rootRun, 0}
	if e.HasParent {
		var ok bool
		if p, ok = x.parent(o, e.Parent); !ok {
			x.counts.ParkedDropped += uint64(len(blocks))
			x.lose(o, e.Tier, blocks)
			return
		}
	} else {
		x.spill(o.stored)
	}
	for len(blocks) > 0 {
		var n int
		p, n = x.step(o, e.Tier, p, blocks)
		if n == 0 {
			x.lose(o, e.Tier, blocks)
			break
		}
		o.stored = hint{p, blocks[n-1].Hash}
		blocks = blocks[n:]
	}
	x.pinned = noRun
	x.prune(p.run)
}

// parent is the block with hash h, or its stand-in when it is not known; false
// when there is no room for one.
func (x *Index) parent(o *owner, h kv.SequenceHash) (place, bool) {
	if o.stored.hash == h && x.holds(o.stored.place, h) {
		return o.stored.place, true
	}
	x.spill(o.stored)
	if len(x.orphans.byHash) > 0 {
		if r := x.orphans.awaited(h); r != noRun {
			return place{r, 0}, true
		}
	}
	if p, ok := x.find(o, h); ok {
		return p, true
	}
	return x.standIn(h)
}

// step puts some of the blocks, whose parent is p, where they belong, and
// returns the last one's place and how many they were; 0 when there is no room,
// or when the place is taken by a block with the same local and another sequence
// hash that cannot be shown to be wrong.
func (x *Index) step(o *owner, t kv.Tier, p place, blocks []kvevent.StoredBlock) (place, int) {
	s := x.runs.head(p.run).storage()
	next := place{p.run, p.pos + 1}
	if s.blocks() == 0 {
		next.pos = 0
	}
	if next.pos >= s.blocks() || x.arena.locals(s)[next.pos] != blocks[0].Local {
		next = place{x.child(p, blocks[0].Local), 0}
		if next.run == noRun {
			return x.extend(o, t, p, s, blocks)
		}
		s = x.runs.head(next.run).storage()
	}
	n := same(x.arena.locals(s)[next.pos:], x.arena.hashes(s)[next.pos:], blocks)
	if n == 0 {
		if x.uproot(p, next, blocks[0]) {
			return x.extend(o, t, p, x.runs.head(p.run).storage(), blocks)
		}
		return p, 0
	}
	x.applied += n
	x.counts.DuplicateStores += uint64(x.cover(o, next.run, t, next.pos, next.pos+n))
	return place{next.run, next.pos + n - 1}, n
}

// same is how many of the blocks are those of a run, one after the other.
func same(locals, hashes []word, blocks []kvevent.StoredBlock) int {
	n := min(len(locals), len(blocks))
	locals, hashes, blocks = locals[:n], hashes[:n], blocks[:n]
	for i := range blocks {
		if locals[i] != blocks[i].Local || hashes[i] != word(blocks[i].Hash) {
			return i
		}
	}
	return n
}

// extend puts new blocks behind p: into its run if it ends with p and the event
// fits, else into a run of their own, which keeps the events that follow aligned
// with runs.
func (x *Index) extend(o *owner, t kv.Tier, p place, s storage, blocks []kvevent.StoredBlock) (place, int) {
	n := min(len(blocks), runBlocks)
	if len(x.orphans.byHash) > 0 {
		n = x.untilAwaited(n, func(i int) kv.SequenceHash { return blocks[i].Hash })
	}
	old := s.blocks()
	if old > 0 && p.pos == old-1 && old+len(blocks) <= runBlocks && x.room(p.run, s, n) {
		s = x.runs.head(p.run).storage()
		x.write(p.run, s, blocks[:n])
		x.cover(o, p.run, t, old, old+n)
		p.pos += n
		x.adopt(p, blocks[n-1].Hash)
		return p, n
	}
	x.pinned = p.run
	unit, class := x.piece(classFor(n))
	if class == 0 {
		return p, 0
	}
	r := x.newRun()
	if r == noRun {
		x.arena.give(unit, class)
		return p, 0
	}
	n = min(n, class*unitBlocks)
	x.write(r, packStorage(0, class, 0, unit), blocks[:n])
	x.cover(o, r, t, 0, n)
	x.attach(r, p)
	p = place{r, n - 1}
	x.adopt(p, blocks[n-1].Hash)
	return p, n
}

// room makes room for n more blocks in a run.
func (x *Index) room(r runID, s storage, n int) bool {
	want := s.blocks() + n
	if want <= s.capacity() {
		return true
	}
	if n < unitBlocks {
		// Blocks that come one by one must not have the run copied for each few.
		want = min(runBlocks, want+want/4)
	}
	return x.move(r, classFor(want), s.blocks(), s.version())
}

// write appends blocks to a run that has room for them; s is its storage. Readers
// see them when all are there.
func (x *Index) write(r runID, s storage, blocks []kvevent.StoredBlock) {
	old := s.blocks()
	grown := s + storage(len(blocks))
	locals, hashes := x.arena.locals(grown)[old:], x.arena.hashes(grown)[old:]
	locals, hashes = locals[:len(blocks)], hashes[:len(blocks)]
	for i := range blocks {
		locals[i], hashes[i] = blocks[i].Local, word(blocks[i].Hash)
	}
	h := x.runs.head(r)
	h.store.Store(uint64(grown))
	if h.flags.Load()&flagSeen == 0 {
		h.flags.Or(flagSeen)
	}
	x.applied += len(blocks)
	x.resident += len(blocks)
	x.enlist(r, old)
}

// lose counts blocks as held although there is no place for them, so that the
// digest stays that of what the owner was told to hold.
func (x *Index) lose(o *owner, t kv.Tier, blocks []kvevent.StoredBlock) {
	for i := range blocks {
		o.lostDigest += kv.Digest(blocks[i].Hash, t)
	}
	o.lostPairs += uint64(len(blocks))
	x.lost += len(blocks)
	x.counts.Lost += uint64(len(blocks))
}
