package index

import (
	"sync/atomic"

	"github.com/blockyard-ai/blockyard/internal/kv"
)

// Hits counts the blocks of a prompt that one worker can reach, by tier.
type Hits [kv.NumTiers]uint32

// Total is the number of blocks over all tiers.
func (h *Hits) Total() uint32 { return h[0] + h[1] + h[2] + h[3] }

// Hit is what one member has of a prompt: at least one block.
type Hit struct {
	// Member is the number of the worker in Matches.Members.
	Member int32
	Hits   Hits
}

// Reading is how the blocks of a prompt are counted.
type Reading uint8

const (
	// Continuation counts the consecutive blocks on the worker's own device; from
	// where that ended, those in host memory; then those on disk; then external
	// ones. Hits of a lower tier are extensions: the walk never returns to a faster
	// tier.
	Continuation Reading = iota
	// Union counts each of the leading blocks that the worker can reach in any
	// tier once, in the fastest tier that has it.
	Union
)

// Matches is the answer to Match and the memory that it needs; reused, it
// allocates nothing. It is for one goroutine at a time. The zero value is ready.
type Matches struct {
	// Members is the list that Hits refers to.
	Members *Members
	// Hits has an entry for each member with a hit, ordered by Member. It is valid
	// until the next call.
	Hits []Hit

	shard    uint32
	coverage coverage
}

// Match fills dst with what each member has of the prompt whose blocks are
// locals. Below the device the blocks of a member's pool count as its own. The
// answer for a member is made of what it held at some moments of the call.
// Match never waits.
func (x *Index) Match(dst *Matches, locals []kv.LocalHash, r Reading) {
	if dst.shard == 0 {
		dst.shard = readerShards + x.readers.shard()
	}
	count := x.readers.enter(dst.shard)
	v := x.view.Load()
	c := &dst.coverage
	for c.begin(v, r); !x.walk(c, locals); c.begin(v, r) {
		// A run has changed under the walk, which is rare: once more.
	}
	dst.Members = v.members
	dst.Hits = c.hits(dst.Hits[:0])
	count.Add(-1)
}

// visit is a run on the way of a walk, as it was when the walk first looked.
type visit struct {
	run    runID
	head   *head
	more   *atomic.Pointer[overflow]
	store  storage
	locals []word
}

// to makes v a visit to run r.
func (v *visit) to(x *Index, r runID) {
	chunk, i := x.runs.chunk(r)
	v.run, v.head, v.more = r, &chunk.heads[i], &chunk.over[i]
	v.store = v.head.storage()
	v.locals = x.arena.locals(v.store)
}

// changed reports whether blocks were cut off the run since the walk came by.
func (v *visit) changed() bool { return v.head.storage().version() != v.store.version() }

// follows reports whether the run follows block p with that first local hash.
func (v *visit) follows(p place, local kv.LocalHash) bool {
	return v.head.place.Load() == packPlace(p) && len(v.locals) > 0 && v.locals[0] == local
}

// walk follows the prompt from run to run and notes who covers it. It returns
// false when blocks of a run may have been replaced by others on the way.
func (x *Index) walk(c *coverage, prompt []kv.LocalHash) bool {
	if len(prompt) == 0 {
		return true
	}
	first := x.child(place{rootRun, 0}, prompt[0])
	if first == noRun {
		return true
	}
	var here, there visit
	at, next := &here, &there
	at.to(x, first)
	for base, near := 0, 0; ; at, next = next, at {
		next.run = noRun
		if base > 0 {
			x.lookAhead(at, next)
			near = ahead(prompt, base, near)
		}
		n := common(at.locals, prompt[base:])
		if n == 0 {
			return true
		}
		c.from, c.upTo, c.goesOn = base, base+n, false
		c.note(at.head, at.more)
		if at.head.flags.Load()&flagSeen == 0 {
			at.head.flags.Or(flagSeen)
		}
		if base += n; !c.goesOn || base == len(prompt) {
			return !at.changed()
		}
		p := place{at.run, n - 1}
		if next.run == noRun || n < at.store.blocks() || !next.follows(p, prompt[base]) {
			next.run = x.child(p, prompt[base])
			if next.run != noRun {
				next.to(x, next.run)
			}
		}
		if at.changed() {
			return false
		}
		if next.run == noRun {
			return true
		}
	}
}

// lookAhead visits the run that most likely comes next, and has what the walk
// needs of it and of the one after it brought near while it is still comparing.
func (x *Index) lookAhead(at, next *visit) {
	guess := runID(at.head.next.Load())
	if guess == noRun {
		return
	}
	next.to(x, guess)
	prefetch(next.locals)
	if after := runID(next.head.next.Load()); after != noRun {
		prefetchHead(x.runs.head(after))
	}
}

// lookAheadBlocks is how far ahead a prompt is brought near: far enough for
// memory, near enough to lose little when the walk ends.
const lookAheadBlocks = 5 * runBlocks

// ahead has the part of the prompt brought near that comes before lookAheadBlocks
// from base on; it is near up to the given block already.
func ahead(prompt []word, base, near int) int {
	upTo := min(base+lookAheadBlocks, len(prompt))
	from := max(near, base+runBlocks)
	if from < upTo {
		prefetch(prompt[from:upTo])
	}
	return upTo
}

// common is the length of the common prefix of a and b.
func common(a, b []word) int {
	n := min(len(a), len(b))
	i := 0
	if n == runBlocks && *(*[runBlocks]word)(a) == *(*[runBlocks]word)(b) {
		return n
	}
	for ; i+16 <= n; i += 16 {
		if *(*[16]word)(a[i:]) != *(*[16]word)(b[i:]) {
			break
		}
	}
	for ; i < n; i++ {
		if a[i] != b[i] {
			return i
		}
	}
	return n
}

// note takes the entries of a run into account.
func (c *coverage) note(h *head, more *atomic.Pointer[overflow]) {
	for {
		c.moved, c.pending = false, false
		for i := range h.entries {
			if e := entry(h.entries[i].Load()); e != 0 {
				c.add(e)
			}
		}
		if h.flags.Load()&flagMore != 0 {
			for o := more.Load(); o != nil; o = o.next.Load() {
				for i := range o.entries {
					if e := entry(o.entries[i].Load()); e != 0 {
						c.add(e)
					}
				}
			}
		}
		if !c.moved || !c.pending {
			return
		}
	}
}
