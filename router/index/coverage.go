package index

import (
	"cmp"
	"math/bits"
	"slices"

	"github.com/blockyard-ai/blockyard/internal/kv"
	"github.com/blockyard-ai/blockyard/router/index/runs"
)

// coverage gathers which owners hold which blocks of one prompt. Match calls begin, then add
// for each entry of each run that the prompt follows, then hits. A coverage belongs to one
// Matches and keeps its memory from prompt to prompt.
type coverage struct {
	view    *view
	reading Reading

	// The current run has the blocks runFrom..runUpTo-1 of the prompt.
	runFrom, runUpTo int
	// firstBlockHeld is true when an owner has the block runFrom. passExtended is true when
	// the current pass over the run's entries extended an owner's device blocks. anotherPass
	// is true when another pass may extend them.
	firstBlockHeld, passExtended, anotherPass bool

	// Many runs of a long prompt have the same entries. previous has the entries of the last run that was not counted
	// in repeated. The prompt has previousBlocks blocks of that run, up to block previousEnd.
	// repeatable is true when it has no other entries. repeated is the number of blocks of later runs with the same
	// entries, which addRepeated adds to the owners.
	previous                    [runs.InlineEntries]entry
	previousBlocks, previousEnd int
	repeatable                  bool
	repeated                    int

	// owners is indexed by ownerID. An element with another stamp belongs to an earlier
	// prompt. So no prompt clears the slice. touched are the owners with this stamp.
	owners  []ownerCoverage
	stamp   uint32
	touched []ownerID
	spans   []span
	// members is a set of member numbers, in words lowestWord to highestWord. It is empty between
	// prompts.
	members                 []uint64
	lowestWord, highestWord int
}

// ownerCoverage is what one owner has of the prompt.
type ownerCoverage struct {
	stamp uint32
	// device is the number of leading blocks of the prompt on the owner's device.
	device uint32
	// spans has one index into coverage.spans for each tier. Before sort the element is
	// the index of the owner's latest span plus 1, and 0 means that there is none. After
	// sort the element is the index of the owner's first span.
	spans [kv.NumTiers]int32
}

// span is the blocks lo..hi-1 of the prompt that one owner holds in one tier.
type span struct {
	owner  ownerID
	tier   kv.Tier
	lo, hi uint32
}

// begin prepares c for a new prompt. v is the reader's snapshot of members and owners. r
// says how the blocks of the prompt are counted.
func (c *coverage) begin(v *view, r Reading) {
	c.view, c.reading = v, r
	if n := len(v.owners) - len(c.owners); n > 0 {
		c.owners = append(c.owners, make([]ownerCoverage, n)...)
	}
	if c.stamp++; c.stamp == 0 { // the counter wrapped, so old stamps could look current
		clear(c.owners)
		c.stamp = 1
	}
	c.touched, c.spans = c.touched[:0], c.spans[:0]
	c.repeatable, c.repeated = false, 0
}

// repeats reports whether the current run has the entries of the run before and as many blocks of the
// prompt. Then it counts the blocks in c.repeated, and the caller need not add the entries.
func (c *coverage) repeats(head *runs.Head) bool {
	n := c.runUpTo - c.runFrom
	if !c.repeatable || n != c.previousBlocks || head.Flags.Load()&runs.FlagOverflow != 0 {
		return false
	}
	for i := range head.Entries {
		if entry(head.Entries[i].Load()) != c.previous[i] {
			return false
		}
	}
	c.repeated += n
	c.firstBlockHeld = true // as in the run before, or the walk would have ended there
	return true
}

// addRepeated adds the blocks of c.repeated to the owners that have all blocks of the prompt before them. The
// same entries extend the same owners: one that did not reach the end of a run has no later block either.
func (c *coverage) addRepeated() {
	if c.repeated == 0 {
		return
	}
	for _, e := range c.previous {
		if e == 0 || int(e.owner()) >= len(c.view.owners) {
			continue
		}
		if o := &c.owners[e.owner()]; o.stamp == c.stamp && int(o.device) == c.previousEnd {
			o.device += uint32(c.repeated)
		}
	}
	c.repeated = 0
}

// add records one entry of the current run: an owner holds blocks lo..hi-1 of the run in one
// tier. c.runFrom and c.runUpTo are the blocks of the prompt that the run has. With Continuation
// an owner's device blocks must follow each other without a hole, so add counts them in
// ownerCoverage.device. All other blocks become spans.
func (c *coverage) add(e entry) {
	lo, hi := c.runFrom+e.lo(), min(c.runFrom+e.hi(), c.runUpTo)
	id := e.owner()
	// The entry has no block of the prompt, or its owner is newer than the view.
	if lo >= hi || int(id) >= len(c.view.owners) {
		return
	}
	kind := c.view.owners[id].kind
	t := e.tier()
	// viewNobody is an owner whose blocks no member can reach. A pool has no device, so an
	// entry for a pool's device would be wrong.
	if kind == viewNobody || kind == viewPool && t == kv.TierDevice {
		return
	}
	c.firstBlockHeld = c.firstBlockHeld || lo == c.runFrom
	o := &c.owners[id]
	if o.stamp != c.stamp {
		*o = ownerCoverage{stamp: c.stamp}
		c.touched = append(c.touched, id)
	}
	if t != kv.TierDevice || c.reading != Continuation {
		c.repeatable = false
		c.addSpan(o, id, t, uint32(lo), uint32(hi))
		return
	}
	switch deviceEnd := int(o.device); {
	case lo > deviceEnd:
		// A later entry may close the hole, but only if the hole is in this run.
		c.anotherPass = c.anotherPass || deviceEnd >= c.runFrom
	case hi > deviceEnd:
		o.device = uint32(hi)
		c.passExtended = true
	}
}

// addSpan records that owner id holds blocks lo..hi-1 of the prompt in tier t. o is the
// owner's element of c.owners. Blocks that touch or overlap the owner's latest span in that
// tier extend this span.
func (c *coverage) addSpan(o *ownerCoverage, id ownerID, t kv.Tier, lo, hi uint32) {
	if n := o.spans[t]; n > 0 {
		if last := &c.spans[n-1]; last.lo <= lo && lo <= last.hi {
			last.hi = max(last.hi, hi)
			return
		}
	}
	c.spans = append(c.spans, span{id, t, lo, hi})
	o.spans[t] = int32(len(c.spans))
}

// hits appends to dst the blocks by tier of every member that has a block of the prompt,
// ordered by member number. A member has its own blocks and those of its pool. hits ends
// the prompt: it empties c.members for the next one.
func (c *coverage) hits(dst []Hit) []Hit {
	c.addRepeated()
	c.gather()
	// With Continuation, add keeps device blocks in ownerCoverage.device. So without spans only
	// devices have blocks, and nothing needs sorting.
	if len(c.spans) == 0 && c.reading == Continuation {
		return c.deviceHits(dst)
	}
	c.sort()
	for w := c.lowestWord; w <= c.highestWord; w++ {
		for left := c.members[w]; left != 0; left &= left - 1 { // clears the lowest bit
			m := w<<6 + bits.TrailingZeros64(left)
			if h := c.memberHits(c.view.sources[m]); h != (Hits{}) {
				dst = append(dst, Hit{int32(m), h})
			}
		}
		c.members[w] = 0
	}
	return dst
}

// deviceHits is a faster hits for a prompt of which no owner has blocks below the device
// tier. c.members has the members that may have a block.
func (c *coverage) deviceHits(dst []Hit) []Hit {
	for w := c.lowestWord; w <= c.highestWord; w++ {
		for left := c.members[w]; left != 0; left &= left - 1 { // clears the lowest bit
			m := w<<6 + bits.TrailingZeros64(left)
			// Every such member is a touched worker, so its device count is of this prompt.
			if n := c.owners[c.view.sources[m].own].device; n > 0 {
				dst = append(dst, Hit{Member: int32(m)})
				dst[len(dst)-1].Hits[kv.TierDevice] = n
			}
		}
		c.members[w] = 0
	}
	return dst
}

// gather fills the bit set c.members with the members that may have a block of the prompt:
// workers with an entry on the way, and the members of pools with an entry.
func (c *coverage) gather() {
	if n := (len(c.view.sources)+63)/64 - len(c.members); n > 0 {
		c.members = append(c.members, make([]uint64, n)...)
	}
	c.lowestWord, c.highestWord = len(c.members), -1
	for _, id := range c.touched {
		if o := c.view.owners[id]; o.kind == viewWorker {
			c.addMember(o.number)
		} else {
			for _, m := range c.view.pools[o.number] {
				c.addMember(m)
			}
		}
	}
}

func (c *coverage) addMember(m int32) {
	w := int(m >> 6)
	c.members[w] |= 1 << (m & 63)
	c.lowestWord, c.highestWord = min(c.lowestWord, w), max(c.highestWord, w)
}

// sort orders c.spans by owner, tier and first block. Then it sets ownerCoverage.spans to
// the first span of each owner and tier, for ownerSpans. It runs after the last addSpan.
func (c *coverage) sort() {
	if len(c.spans) == 0 {
		return
	}
	slices.SortFunc(c.spans, func(a, b span) int {
		return cmp.Or(cmp.Compare(a.owner, b.owner), cmp.Compare(a.tier, b.tier), cmp.Compare(a.lo, b.lo))
	})
	for i := len(c.spans) - 1; i >= 0; i-- { // backwards, so that the first span stays
		c.owners[c.spans[i].owner].spans[c.spans[i].tier] = int32(i)
	}
}

// memberHits returns the number of blocks of the prompt that a member can reach, by tier. s
// has the owner ids of the worker and of its pool. With Continuation each tier continues
// where the faster tier ends. c.spans is sorted.
func (c *coverage) memberHits(s source) Hits {
	if c.reading == Union {
		return c.union(s, 0, ^uint32(0))
	}
	var h Hits
	if o := &c.owners[s.own]; o.stamp == c.stamp {
		h[kv.TierDevice] = o.device
	}
	if len(c.spans) == 0 {
		return h
	}
	end := h[kv.TierDevice] // the first block that is not counted yet
	for t := kv.TierHost; t < kv.NumTiers; t++ {
		own, pool := c.ownerSpans(s.own, t), c.ownerSpans(s.pool, t)
		start := end
		// The worker and its pool may hold parts of one tier by turns.
		for extended := true; extended; {
			before := end
			own, end = extendTo(own, end)
			pool, end = extendTo(pool, end)
			extended = end > before
		}
		h[t] = end - start
	}
	return h
}

// ownerSpans returns the blocks of the prompt that an owner holds in a tier, as spans
// ordered by first block. The result is empty for noOwner and for an owner without a block.
// c.spans is sorted. The caller must not change the result.
func (c *coverage) ownerSpans(id ownerID, t kv.Tier) []span {
	if id == noOwner || c.owners[id].stamp != c.stamp {
		return nil
	}
	// first is 0 for an owner without spans in this tier, and then the loop ends at once.
	first := int(c.owners[id].spans[t])
	end := first
	for end < len(c.spans) && c.spans[end].owner == id && c.spans[end].tier == t {
		end++
	}
	return c.spans[first:end]
}

// extendTo moves end, the end of the counted blocks, over the leading spans that continue
// there without a hole. spans are ordered by first block. extendTo returns the spans behind
// the hole and the new end.
func extendTo(spans []span, end uint32) ([]span, uint32) {
	for len(spans) > 0 && spans[0].lo <= end {
		end = max(end, spans[0].hi)
		spans = spans[1:]
	}
	return spans, end
}

// union returns the number of blocks of the prompt, without a hole from block from on and before
// block limit, that a member can reach in any tier. Each block counts once, in the fastest tier that
// has it. With Continuation the worker's device has none. s has the owner ids of the worker and of its
// pool. c.spans is sorted.
func (c *coverage) union(s source, from, limit uint32) Hits {
	// Elements 2*t and 2*t+1 are the worker's and the pool's spans in tier t, fastest first.
	var lists [2 * kv.NumTiers][]span
	for t := range kv.Tier(kv.NumTiers) {
		lists[2*t], lists[2*t+1] = c.ownerSpans(s.own, t), c.ownerSpans(s.pool, t)
	}
	var h Hits
	// Each round counts the blocks from block to the next place where a list begins or ends.
	for block := from; block < limit; {
		best := -1    // the fastest list that has block
		upTo := limit // where the span of best ends, or earlier a faster list begins
		for i := 0; i < len(lists) && best < 0; i++ {
			for len(lists[i]) > 0 && lists[i][0].hi <= block { // spans before block
				lists[i] = lists[i][1:]
			}
			if len(lists[i]) == 0 {
				continue
			}
			if lists[i][0].lo <= block {
				best = i
				upTo = min(upTo, lists[i][0].hi)
			} else {
				upTo = min(upTo, lists[i][0].lo)
			}
		}
		if best < 0 {
			return h
		}
		h[best/2] += upTo - block
		block = upTo
	}
	return h
}

// shorten returns the hits of a member up to a number of blocks, fewer than h has. s has the owner
// ids of the worker and of its pool.
func (c *coverage) shorten(h Hits, s source, blocks uint32) Hits {
	if c.reading == Union { // a slow tier may have blocks before those of a fast one
		return c.union(s, 0, blocks)
	}
	for t := range h {
		h[t] = min(h[t], blocks)
		blocks -= h[t]
	}
	return h
}
