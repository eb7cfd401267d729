package index

import (
	"cmp"
	"math/bits"
	"slices"

	"github.com/blockyard-ai/blockyard/internal/kv"
)

// coverage gathers which owners hold which blocks of a prompt.
type coverage struct {
	view    *view
	reading Reading

	// from and upTo bound the blocks of the prompt that the current run has: from..upTo-1.
	from, upTo int
	// firstBlockHeld is true when an owner has the block from. extended is true when the
	// current pass over the run's entries extended an owner's device blocks. pending is
	// true when another pass may extend them.
	firstBlockHeld, extended, pending bool

	// owners is indexed by ownerID. An entry with another stamp belongs to an earlier prompt.
	owners  []ownerCoverage
	stamp   uint32
	touched []ownerID
	spans   []span
	// members is a set of member numbers, in words lowest to highest.
	members         []uint64
	lowest, highest int
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

// begin prepares c for a prompt that is counted as r says.
func (c *coverage) begin(v *view, r Reading) {
	c.view, c.reading = v, r
	if n := len(v.owners) - len(c.owners); n > 0 {
		c.owners = append(c.owners, make([]ownerCoverage, n)...)
	}
	if c.stamp++; c.stamp == 0 {
		clear(c.owners)
		c.stamp = 1
	}
	c.touched, c.spans = c.touched[:0], c.spans[:0]
}

// add adds one entry of the current run.
func (c *coverage) add(e entry) {
	lo, hi := c.from+e.lo(), min(c.from+e.hi(), c.upTo)
	id := e.owner()
	if lo >= hi || int(id) >= len(c.view.owners) {
		return
	}
	kind := c.view.owners[id].kind
	t := e.tier()
	// A pool has no device. An entry for a pool's device would be wrong.
	if kind == viewNobody || kind == viewPool && t == kv.TierDevice {
		return
	}
	c.firstBlockHeld = c.firstBlockHeld || lo == c.from
	o := &c.owners[id]
	if o.stamp != c.stamp {
		*o = ownerCoverage{stamp: c.stamp}
		c.touched = append(c.touched, id)
	}
	if t != kv.TierDevice || c.reading != Continuation {
		c.addSpan(o, id, t, uint32(lo), uint32(hi))
		return
	}
	switch deviceEnd := int(o.device); {
	case lo > deviceEnd:
		// A later entry may close the hole, but only if the hole is in this run.
		c.pending = c.pending || deviceEnd >= c.from
	case hi > deviceEnd:
		o.device = uint32(hi)
		c.extended = true
	}
}

// addSpan records that owner id, whose coverage is o, has blocks lo..hi-1 in tier t.
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

// hits appends to dst the hits of every member that has a block of the prompt, ordered by
// member number. It clears c.members for the next prompt.
func (c *coverage) hits(dst []Hit) []Hit {
	c.gather()
	// With Continuation, add keeps device blocks in ownerCoverage.device. So without spans only
	// devices have blocks, and nothing needs sorting.
	if len(c.spans) == 0 && c.reading == Continuation {
		return c.deviceHits(dst)
	}
	c.sort()
	for w := c.lowest; w <= c.highest; w++ {
		for left := c.members[w]; left != 0; left &= left - 1 {
			m := w<<6 + bits.TrailingZeros64(left)
			if h := c.memberHits(c.view.sources[m]); h != (Hits{}) {
				dst = append(dst, Hit{int32(m), h})
			}
		}
		c.members[w] = 0
	}
	return dst
}

// deviceHits does what hits does, for a prompt that no tier below the device has.
func (c *coverage) deviceHits(dst []Hit) []Hit {
	for w := c.lowest; w <= c.highest; w++ {
		for left := c.members[w]; left != 0; left &= left - 1 {
			m := w<<6 + bits.TrailingZeros64(left)
			if n := c.owners[c.view.sources[m].own].device; n > 0 {
				dst = append(dst, Hit{Member: int32(m)})
				dst[len(dst)-1].Hits[kv.TierDevice] = n
			}
		}
		c.members[w] = 0
	}
	return dst
}

// gather sets c.members to the members that may have a block of the prompt: the touched
// workers and the members of the touched pools.
func (c *coverage) gather() {
	if n := (len(c.view.sources)+63)/64 - len(c.members); n > 0 {
		c.members = append(c.members, make([]uint64, n)...)
	}
	c.lowest, c.highest = len(c.members), -1
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
	c.lowest, c.highest = min(c.lowest, w), max(c.highest, w)
}

// sort brings the spans of each owner and tier together, in the order of the prompt.
func (c *coverage) sort() {
	if len(c.spans) == 0 {
		return
	}
	slices.SortFunc(c.spans, func(a, b span) int {
		return cmp.Or(cmp.Compare(a.owner, b.owner), cmp.Compare(a.tier, b.tier), cmp.Compare(a.lo, b.lo))
	})
	for i := len(c.spans) - 1; i >= 0; i-- {
		c.owners[c.spans[i].owner].spans[c.spans[i].tier] = int32(i)
	}
}

// memberHits returns the blocks of the prompt that a member can reach, by tier.
func (c *coverage) memberHits(s source) Hits {
	if c.reading == Union {
		return c.union(s)
	}
	var h Hits
	if o := &c.owners[s.own]; o.stamp == c.stamp {
		h[kv.TierDevice] = o.device
	}
	if len(c.spans) == 0 {
		return h
	}
	end := h[kv.TierDevice] // of the blocks that are counted
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

// ownerSpans returns the spans of an owner in a tier.
func (c *coverage) ownerSpans(id ownerID, t kv.Tier) []span {
	if id == noOwner || c.owners[id].stamp != c.stamp {
		return nil
	}
	first := int(c.owners[id].spans[t])
	last := first
	for last < len(c.spans) && c.spans[last].owner == id && c.spans[last].tier == t {
		last++
	}
	return c.spans[first:last]
}

// extendTo extends a row of blocks that ends before block end by the spans that continue
// the row. extendTo returns the unused spans and the new end.
func extendTo(spans []span, end uint32) ([]span, uint32) {
	for len(spans) > 0 && spans[0].lo <= end {
		end = max(end, spans[0].hi)
		spans = spans[1:]
	}
	return spans, end
}

// union returns the leading blocks of the prompt that a member can reach in any tier. Each
// block counts once, in the fastest tier that has the block.
func (c *coverage) union(s source) Hits {
	var lists [2 * kv.NumTiers][]span
	for t := range kv.Tier(kv.NumTiers) {
		lists[2*t], lists[2*t+1] = c.ownerSpans(s.own, t), c.ownerSpans(s.pool, t)
	}
	var h Hits
	for block := uint32(0); ; {
		upTo := ^uint32(0) // the first block that a faster tier has, or the end of the best span
		best := -1         // the fastest list that has the block
		for i := 0; i < len(lists) && best < 0; i++ {
			for len(lists[i]) > 0 && lists[i][0].hi <= block {
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
}
