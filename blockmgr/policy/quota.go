package policy

import "math/bits"

// Holder describes a pool in one tier to Giver.
type Holder struct {
	// Bytes is the size of the pool's extents in the tier. It is 0 for a pool that cannot
	// give an extent now, because every extent has a slot in use.
	Bytes uint64
	// Extent is the largest size of a new extent of the pool, in bytes. Only the taker's is
	// read. A taker with Extent 0 gets nothing from pools in use.
	Extent uint64
	// Weight is the pool's share of the tier, relative to other pools.
	Weight uint64
	// InUse is true for a pool with sessions, watchers or operations.
	InUse bool
	// Since is the broker's turn at the last use of the pool.
	Since uint64
	// Empty is true for a pool without blocks.
	Empty bool
	// Last is true when the pool has a single extent in the tier.
	Last bool
}

// Giver chooses the pool that makes room for an extent of holders[taker]; ok is false when
// no pool should. first: the taker has no extent. budget is the tier's size in bytes.
//
// Unused pools come first: the empty ones before the others, and then the one unused
// longest. The only extent of an unused pool goes only to a taker that has none.
//
// Then comes the pool in use that is most over its share. A share is the budget times the
// pool's weight, divided by the weights of the pools in use and the taker. The pool gives only
// if the taker, with the new extent, is less over its share than the giver is now. It never
// gives its only extent. So pools in use do not take from each other for ever.
//
// A caller that needs several extents for one calls Giver again with the remaining bytes of
// the givers, before it takes any. It takes none if they do not suffice, else it would take in
// vain each time. A pool that asks must count as in use when other pools ask.
func Giver(holders []Holder, taker int, budget uint64, first bool) (giver int, ok bool) {
	if giver, ok = coldest(holders, taker, first); ok {
		return giver, true
	}
	asker := holders[taker]
	if asker.Extent == 0 {
		return 0, false
	}
	weights := totalWeight(holders, taker)
	// A giver must be more over its share than this.
	most := max(0, over(asker.Bytes+asker.Extent, asker.Weight, weights, budget))
	for i, h := range holders {
		if i == taker || !h.InUse || h.Bytes == 0 || h.Last {
			continue
		}
		by := over(h.Bytes, h.Weight, weights, budget)
		if by > most || ok && by == most && h.Since < holders[giver].Since {
			giver, ok, most = i, true, by
		}
	}
	return giver, ok
}

// coldest returns the index of the unused pool that gives first: an empty one, then the one unused
// longest. A pool's last extent goes only to a taker without extents (first). ok is false when no
// unused pool may give.
func coldest(holders []Holder, taker int, first bool) (giver int, ok bool) {
	for i, h := range holders {
		if i == taker || h.InUse || h.Bytes == 0 || h.Last && !first {
			continue
		}
		if !ok || h.colder(&holders[giver]) {
			giver, ok = i, true
		}
	}
	return giver, ok
}

// colder reports whether an unused pool gives before another one.
func (h *Holder) colder(other *Holder) bool {
	if h.Empty != other.Empty {
		return h.Empty
	}
	return h.Since < other.Since
}

// totalWeight returns the weight of the pools in use and the taker, at most 2^64-1.
func totalWeight(holders []Holder, taker int) uint64 {
	var sum uint64
	for i, h := range holders {
		if !h.InUse && i != taker {
			continue
		}
		s, carry := bits.Add64(sum, h.Weight, 0)
		if carry != 0 {
			return ^uint64(0)
		}
		sum = s
	}
	return sum
}

// over returns how many bytes a pool with held bytes is above its share, negative when below.
// Pools without weight have a share of 0.
func over(held, weight, weights, budget uint64) int64 {
	if weights == 0 {
		return int64(held)
	}
	hi, lo := bits.Mul64(budget, weight)
	share, _ := bits.Div64(hi, lo, weights)
	return int64(held) - int64(share)
}
