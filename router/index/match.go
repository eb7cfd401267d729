package index

import (
	"slices"
	"sync/atomic"

	"github.com/blockyard-ai/blockyard/internal/kv"
	"github.com/blockyard-ai/blockyard/internal/kvgroup"
	"github.com/blockyard-ai/blockyard/router/index/groups"
	"github.com/blockyard-ai/blockyard/router/index/runs"
)

// Hits is the number of blocks of a prompt that one worker can reach, by tier.
type Hits [kv.NumTiers]uint32

// Total returns the number of blocks in all tiers.
func (h *Hits) Total() uint32 { return h[0] + h[1] + h[2] + h[3] }

// RaiseDevice makes the device hits at least n. It takes the added hits from the lower tiers, host first, so
// that no block counts twice.
func (h *Hits) RaiseDevice(n uint32) {
	more := n - min(n, h[kv.TierDevice])
	h[kv.TierDevice] += more
	for _, tier := range kv.Tiers {
		if tier != kv.TierDevice {
			covered := min(more, h[tier])
			h[tier] -= covered
			more -= covered
		}
	}
}

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

// Matches is the answer of Match with its memory. A Matches that is reused makes Match
// allocate nothing. A Matches is for one goroutine at a time. The zero value is ready.
type Matches struct {
	// Members is the list that Hits refers to.
	Members *Members
	// Hits has an entry for each member with a hit, ordered by Member. Hits is
	// valid until the next call.
	Hits []Hit
	// MaxTokens is the most tokens of the prompt that a worker with KV groups can reuse: one less
	// than the prompt has, because the last one is computed. 0 means all blocks of the prompt. The
	// caller sets it. It has no effect for workers without groups.
	MaxTokens int
	// PrimaryGroup counts the blocks of the primary KV group alone: what a worker with groups has
	// computed of the prompt, which can be more than its groups can serve. The caller sets it.
	PrimaryGroup bool
	// Quality is the feed.Quality of Hits from the index of another router, which sets it. It is empty
	// for an Index.
	Quality string

	// shard selects the reader counter that every call with this Matches uses; 0 before
	// the first call.
	shard    uint32
	coverage coverage
	// sequence is scratch memory of limitHybrids.
	sequence []kv.SequenceHash
}

// Match sets dst.Hits to the number of blocks of a prompt that each member, a worker, can
// reach, by tier. It sets dst.Members to the list of members. locals are the local hashes
// of the prompt's blocks, first block first. r says how blocks are counted. Below the
// device tier a member also reaches the blocks of its pool. A member with KV groups (see
// SetGroups) reaches the longest prefix that all groups can serve, from the worker's blocks alone or
// from the pool's alone.
//
// Match takes no lock and never waits. Changes during the call may or may not be in the
// answer. A dst that is reused makes Match allocate nothing, but for members with groups.
func (x *Index) Match(dst *Matches, locals []kv.LocalHash, r Reading) {
	if dst.shard == 0 {
		// Enter takes the shard modulo ReaderShards. The addend keeps dst.shard from being 0,
		// which means that no shard is chosen.
		dst.shard = runs.ReaderShards + x.readers.NextShard()
	}
	// While the reader is registered, the writer reuses no memory that the walk may reach.
	activeReaders := x.readers.Enter(dst.shard)
	v := x.view.Load()
	c := &dst.coverage
	// A run may lose blocks while the walk reads the run. Then the walk starts again. This
	// is rare.
	for c.begin(v, r); !x.walk(c, locals); c.begin(v, r) {
	}
	dst.Members = v.members
	dst.Hits = c.hits(dst.Hits[:0])
	if v.hybrids != nil && !dst.PrimaryGroup {
		x.limitHybrids(dst, v, locals)
	}
	activeReaders.Add(-1)
}

// visit is a run that a walk reads, with the storage that the walk first saw.
type visit struct {
	run  runs.ID
	head *runs.Head
	// overflow has the run's entries beyond those of head.
	overflow *atomic.Pointer[runs.Overflow]
	store    runs.Storage
	locals   []runs.Word
}

// begin makes v a visit of run r, with the blocks that the run has now.
func (v *visit) begin(x *Index, r runs.ID) {
	chunk, i := x.runs.Chunk(r)
	v.run, v.head, v.overflow = r, &chunk.Heads[i], &chunk.Overflow[i]
	v.store = v.head.Storage()
	v.locals = x.arena.Locals(v.store)
}

// changed reports whether blocks were cut off the run since the visit began.
func (v *visit) changed() bool { return v.head.Storage().Version() != v.store.Version() }

// follows reports whether the run follows block p and begins with local.
func (v *visit) follows(p runs.Place, local kv.LocalHash) bool {
	return v.head.Parent.Load() == p.Pack() && len(v.locals) > 0 && v.locals[0] == local
}

// walk finds the runs that hold the leading blocks of a prompt, and adds the entries of each
// run to c: which owners hold which blocks. A run is a row of up to 128 blocks, and a child
// of the block before its first. walk takes no lock. It returns false when a run lost blocks
// meanwhile: other blocks may have taken the positions that walk compared. Then c is
// worthless, and the caller begins again.
func (x *Index) walk(c *coverage, prompt []kv.LocalHash) bool {
	if len(prompt) == 0 {
		return true
	}
	// These loads overlap with the first look-up. Most prompts with a match have a match of this length.
	loaded := min(2*runs.MaxBlocks, len(prompt))
	runs.Prefetch(prompt[:loaded])
	first := x.runs.Child(runs.At(runs.Root, 0), prompt[0])
	if first == runs.None {
		return true
	}
	var visits [2]visit // used by turns
	current, next := &visits[0], &visits[1]
	current.begin(x, first)
	// matched counts the blocks of the prompt before the current run. loaded counts the
	// blocks of the prompt that are in the cache or on the way there.
	for matched := 0; ; current, next = next, current {
		next.run, next.locals = runs.None, nil
		ahead := loaded
		if matched > 0 {
			x.guessNext(current, next)
			ahead = max(loaded, min(matched+aheadBlocks, len(prompt)))
		}
		n := runs.CommonPrefix(current.locals, prompt[matched:], prompt[loaded:ahead], next.locals)
		loaded = ahead
		if n == 0 {
			return true
		}
		c.runFrom, c.runUpTo, c.firstBlockHeld = matched, matched+n, false
		c.addEntries(current.head, current.overflow)
		// Tell eviction that the run is in use. The load saves most readers a write.
		if current.head.Flags.Load()&runs.FlagSeen == 0 {
			current.head.Flags.Or(runs.FlagSeen)
		}
		matched += n
		// No owner has the run's first block: nobody has a prefix that reaches further.
		if !c.firstBlockHeld || matched == len(prompt) {
			return !current.changed()
		}
		last := runs.At(current.run, n-1)
		guessed := next.run != runs.None && n == current.store.Blocks() && next.follows(last, prompt[matched])
		if !guessed { // look the run up that guessNext did not guess
			next.run = x.runs.Child(last, prompt[matched])
			if next.run != runs.None {
				next.begin(x, next.run)
			}
		}
		if current.changed() {
			return false
		}
		if next.run == runs.None {
			return true
		}
	}
}

// guessNext guesses the run that follows current, and makes next a visit of that run. Without a guess it leaves next
// unchanged. It loads the head of the run after the guessed one into the CPU cache.
func (x *Index) guessNext(current, next *visit) {
	guess := runs.ID(current.head.NextGuess.Load())
	if guess == runs.None {
		return
	}
	next.begin(x, guess)
	if after := runs.ID(next.head.NextGuess.Load()); after != runs.None {
		runs.PrefetchHead(x.runs.Head(after))
	}
}

// aheadBlocks is the number of blocks of a prompt that are loaded into the cache before the walk compares them. More
// blocks hide more of the memory's latency. Fewer blocks waste less when the walk ends.
const aheadBlocks = 5 * runs.MaxBlocks

// addEntries adds the entries of the current run, which say who holds which of its blocks,
// to c. head has the first entries, and overflow the list of nodes with the others. Entries
// are in no order, and device blocks count only if they continue the owner's earlier blocks.
// So addEntries repeats the pass while an entry may continue what a later entry added.
func (c *coverage) addEntries(head *runs.Head, overflow *atomic.Pointer[runs.Overflow]) {
	if c.repeats(head) {
		return
	}
	c.addRepeated()
	c.previousBlocks, c.previousEnd, c.repeatable = c.runUpTo-c.runFrom, c.runUpTo, true
	for {
		c.passExtended, c.anotherPass = false, false
		for i := range head.Entries {
			e := entry(head.Entries[i].Load())
			c.previous[i] = e
			if e != 0 {
				c.add(e)
			}
		}
		if head.Flags.Load()&runs.FlagOverflow != 0 {
			c.repeatable = false // previous has the entries of head alone
			for node := overflow.Load(); node != nil; node = node.Next.Load() {
				for i := range node.Entries {
					if e := entry(node.Entries[i].Load()); e != 0 {
						c.add(e)
					}
				}
			}
		}
		if !c.passExtended || !c.anotherPass {
			return
		}
		c.repeatable = false // the next pass may read other entries than this one
	}
}

// SetGroups sets the KV groups of a worker by their numbers in events, and the tokens of a block. It
// takes effect with the next SetMember of the worker, and ends when the worker is no member any more.
// Without groups the worker reaches every block that it or its pool holds. The groups must be valid
// for the block size.
func (x *Index) SetGroups(w kv.Worker, gs kvgroup.Groups, blockSize uint32) {
	x.mu.Lock()
	defer x.mu.Unlock()
	if len(gs) == 0 {
		delete(x.hybrids, w)
		return
	}
	x.hybrids[w] = &groups.Model{Groups: gs, Page: blockSize}
}

// hybridMembers returns the groups of each member, nil without any.
func (x *Index) hybridMembers() (list []*groups.Model) {
	for i, m := range x.members {
		if g := x.hybrids[m.Worker]; g != nil {
			if list == nil {
				list = make([]*groups.Model, len(x.members))
			}
			list[i] = g
		}
	}
	return list
}

// limitHybrids replaces the hits of members with KV groups by the blocks that the member can use.
// dst.Hits are those of the primary group. A member left without a block leaves dst.Hits.
func (x *Index) limitHybrids(dst *Matches, v *view, locals []kv.LocalHash) {
	dst.sequence = dst.sequence[:0]
	kept := dst.Hits[:0]
	for _, h := range dst.Hits {
		if g := v.hybrids[h.Member]; g != nil {
			if len(dst.sequence) == 0 {
				dst.sequence = kv.AppendSequence(dst.sequence, locals)
			}
			h.Hits = x.hybridHits(dst, g, v.sources[h.Member])
		}
		if h.Hits != (Hits{}) {
			kept = append(kept, h)
		}
	}
	dst.Hits = kept
}

// hybridHits returns the blocks of a prompt that a member with the KV groups g can use. An engine
// uses the prefix that its own groups serve, or loads the longer one that its pool's groups serve.
// It puts no prefix together from both: FIT asks the agent alone. s has the owner ids of the worker
// and of its pool.
func (x *Index) hybridHits(dst *Matches, g *groups.Model, s source) Hits {
	own, pool := source{own: s.own}, source{pool: s.pool}
	hits := dst.coverage.memberHits(own)
	ownBlocks := x.sparse.Fit(g, dst.sequence, hits.Total(), dst.MaxTokens, uint32(s.own))
	hits = dst.coverage.shorten(hits, own, ownBlocks)
	stored := dst.coverage.union(pool, 0, ^uint32(0))
	poolBlocks := x.sparse.Fit(g, dst.sequence, stored.Total(), dst.MaxTokens, uint32(s.pool))
	if poolBlocks > ownBlocks {
		for t, n := range dst.coverage.union(pool, ownBlocks, poolBlocks) {
			hits[t] += n
		}
	}
	return hits
}

// Member is a known worker and the pool whose blocks count for the worker too. Pool
// 0 is none. The worker's position in Members.List is its number.
type Member struct {
	Worker kv.Worker
	Pool   uint64
}

// Members is an immutable snapshot of the known workers, ordered by worker. Each
// change makes a new one, so that equal snapshots have equal pointers.
type Members struct{ List []Member }

// Find returns the number of w. ok is false when w is unknown.
func (m *Members) Find(w kv.Worker) (int, bool) {
	return slices.BinarySearchFunc(m.List, w, func(m Member, w kv.Worker) int { return m.Worker.Compare(w) })
}

// Members returns the current snapshot.
func (x *Index) Members() *Members { return x.view.Load().members }

// view says whose entries count for which members. It is immutable and for readers.
type view struct {
	members *Members
	// sources has, for each member, the ids of the worker and of its pool. memberOwners
	// has, for each member, the worker's owner. Readers use only its totalPairs.
	sources      []source
	memberOwners []*owner
	// owners is indexed by ownerID. Ids beyond the end count for no member.
	owners []ownerView
	// pools has, for each pool, the numbers of its members.
	pools [][]int32
	// hybrids has, for each member, its KV groups, nil for a member without groups. It is nil when
	// no member has groups.
	hybrids []*groups.Model
}

// source has the owners whose blocks a member can reach: the worker itself and its pool,
// noOwner without one.
type source struct{ own, pool ownerID }

// ownerView says for which members the entries of an owner count. With viewWorker number
// is a member number. With viewPool number is an index into view.pools. With viewNobody
// the entries count for no member.
type ownerView struct {
	kind   viewKind
	number int32
}

type viewKind uint8

const (
	viewNobody viewKind = iota
	viewWorker
	viewPool
)

// member is a known worker with the current ids of the worker and its pool, for the writer.
type member struct {
	Member
	source
}
