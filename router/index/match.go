package index

import (
	"sync/atomic"

	"github.com/blockyard-ai/blockyard/internal/kv"
	"github.com/blockyard-ai/blockyard/router/index/runs"
)

// Hits is the number of blocks of a prompt that one worker can reach, by tier.
type Hits [kv.NumTiers]uint32

// Total returns the number of blocks in all tiers.
func (h *Hits) Total() uint32 { return h[0] + h[1] + h[2] + h[3] }

// Hit is what one member has of a prompt: at least one block.
type Hit struct {
	// Member is the number of the worker in Matches.Members.
	Member int32
	Hits   Hits
}

// Reading says how the blocks of a prompt are counted.
type Reading uint8

const (
	// Continuation counts the consecutive blocks on the worker's own device, then
	// from their end the blocks in host memory, then on disk, then external. The
	// count never returns to a faster tier.
	Continuation Reading = iota
	// Union counts each leading block that the worker can reach in any tier, once,
	// in the fastest tier that has the block.
	Union
)

// Matches is the answer of Match with its memory. A Matches that is reused makes
// Match allocate nothing. A Matches is for one goroutine at a time. The zero value
// is ready.
type Matches struct {
	// Members is the list that Hits refers to.
	Members *Members
	// Hits has an entry for each member with a hit, ordered by Member. Hits is
	// valid until the next call.
	Hits []Hit

	// shard selects the reader counter that every call with this Matches uses; 0 before
	// the first call.
	shard    uint32
	coverage coverage
}

// Match fills dst with what each member has of the prompt whose blocks are locals.
// Below the device tier the blocks of a member's pool count as the member's own.
// The answer for a member is made of what the member held at moments of the call.
// Match never waits.
func (x *Index) Match(dst *Matches, locals []kv.LocalHash, r Reading) {
	if dst.shard == 0 {
		// enter takes the shard modulo readerShards. The addend keeps it from being 0.
		dst.shard = readerShards + x.readers.shard()
	}
	reading := x.readers.enter(dst.shard)
	v := x.view.Load()
	c := &dst.coverage
	for c.begin(v, r); !x.walk(c, locals); c.begin(v, r) {
		// A run has changed during the walk. This is rare, and the walk starts
		// again.
	}
	dst.Members = v.members
	dst.Hits = c.hits(dst.Hits[:0])
	reading.Add(-1)
}

// visit is a run on the way of a walk, as the walk first saw it.
type visit struct {
	run    runs.ID
	head   *runs.Head
	more   *atomic.Pointer[runs.Overflow]
	store  runs.Storage
	locals []runs.Word
}

// to makes v a visit of run r.
func (v *visit) to(x *Index, r runs.ID) {
	chunk, i := x.runs.Chunk(r)
	v.run, v.head, v.more = r, &chunk.Heads[i], &chunk.Over[i]
	v.store = v.head.Storage()
	v.locals = x.arena.Locals(v.store)
}

// changed reports whether blocks were cut off the run since the visit began.
func (v *visit) changed() bool { return v.head.Storage().Version() != v.store.Version() }

// follows reports whether the run follows block p and begins with local.
func (v *visit) follows(p runs.Place, local kv.LocalHash) bool {
	return v.head.Place.Load() == p.Pack() && len(v.locals) > 0 && v.locals[0] == local
}

// walk follows the prompt from run to run and adds the entries of each run to c.
// walk returns false when other blocks may have replaced those of a run meanwhile.
func (x *Index) walk(c *coverage, prompt []kv.LocalHash) bool {
	if len(prompt) == 0 {
		return true
	}
	first := x.runs.Child(runs.At(runs.Root, 0), prompt[0])
	if first == runs.None {
		return true
	}
	var here, there visit
	at, next := &here, &there
	at.to(x, first)
	for base, near := 0, 0; ; at, next = next, at {
		next.run = runs.None
		if base > 0 {
			x.lookAhead(at, next)
			near = ahead(prompt, base, near)
		}
		n := common(at.locals, prompt[base:])
		if n == 0 {
			return true
		}
		c.from, c.upTo, c.firstHeld = base, base+n, false
		c.note(at.head, at.more)
		if at.head.Flags.Load()&runs.FlagSeen == 0 {
			at.head.Flags.Or(runs.FlagSeen)
		}
		if base += n; !c.firstHeld || base == len(prompt) {
			return !at.changed()
		}
		p := runs.At(at.run, n-1)
		if next.run == runs.None || n < at.store.Blocks() || !next.follows(p, prompt[base]) {
			next.run = x.runs.Child(p, prompt[base])
			if next.run != runs.None {
				next.to(x, next.run)
			}
		}
		if at.changed() {
			return false
		}
		if next.run == runs.None {
			return true
		}
	}
}

// lookAhead visits the run that most likely comes next. It loads that run and the
// head after it into the cache while the walk still compares.
func (x *Index) lookAhead(at, next *visit) {
	guess := runs.ID(at.head.Next.Load())
	if guess == runs.None {
		return
	}
	next.to(x, guess)
	runs.Prefetch(next.locals)
	if after := runs.ID(next.head.Next.Load()); after != runs.None {
		runs.PrefetchHead(x.runs.Head(after))
	}
}

// lookAheadBlocks is how far ahead a prompt is loaded into the cache: far enough
// for the latency of memory, near enough to lose little when the walk ends.
const lookAheadBlocks = 5 * runs.MaxBlocks

// ahead loads the next lookAheadBlocks of the prompt after base into the cache. The
// blocks before near are loaded already.
func ahead(prompt []runs.Word, base, near int) int {
	upTo := min(base+lookAheadBlocks, len(prompt))
	from := max(near, base+runs.MaxBlocks)
	if from < upTo {
		runs.Prefetch(prompt[from:upTo])
	}
	return upTo
}

// common returns the length of the common prefix of a and b.
func common(a, b []runs.Word) int {
	n := min(len(a), len(b))
	i := 0
	if n == runs.MaxBlocks && *(*[runs.MaxBlocks]runs.Word)(a) == *(*[runs.MaxBlocks]runs.Word)(b) {
		return n
	}
	for ; i+16 <= n; i += 16 {
		if *(*[16]runs.Word)(a[i:]) != *(*[16]runs.Word)(b[i:]) {
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

// note adds the entries of a run.
func (c *coverage) note(h *runs.Head, more *atomic.Pointer[runs.Overflow]) {
	for {
		c.moved, c.pending = false, false
		for i := range h.Entries {
			if e := entry(h.Entries[i].Load()); e != 0 {
				c.add(e)
			}
		}
		if h.Flags.Load()&runs.FlagMore != 0 {
			for o := more.Load(); o != nil; o = o.Next.Load() {
				for i := range o.Entries {
					if e := entry(o.Entries[i].Load()); e != 0 {
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
