package index

import (
	"fmt"
	"slices"
	"sync/atomic"

	"github.com/blockyard-ai/blockyard/internal/kv"
)

// ownerID is a small number that stands for an owner in the entries of runs. An
// owner that is cleared or replaced gets another. noOwner stands for none.
type ownerID uint32

const noOwner ownerID = 0

// owner is what the writer keeps of a worker or pool.
type owner struct {
	id  ownerID
	who kv.Owner
	// known is set while a worker is a member, members counts those of a pool.
	known   bool
	members int
	// digest is the sum of kv.Digest over the pairs (block, tier) held, and pairs
	// their number; the lost ones were told to the index but had no room.
	digest, pairs         uint64
	lostDigest, lostPairs uint64
	// held is pairs and lostPairs for readers, as they were after the last change.
	held atomic.Uint64
	// runs has every run in which the owner has an entry, and some in which it no
	// longer has; entries counts those it has.
	runs    []runID
	entries int
	// gone is set when another stands for who.
	gone bool
	// stored is the block that the last stored event ended with, and removed the
	// one before the last removed: where the next event most likely goes on.
	stored, removed hint
}

// hint is a block and its hash, by which to tell whether it is still there.
type hint struct {
	place
	hash kv.SequenceHash
}

// publishHeld lets readers know how much is held.
func (o *owner) publishHeld() {
	if n := o.pairs + o.lostPairs; o.held.Load() != n {
		o.held.Store(n)
	}
}

func (o *owner) empty() bool { return o.pairs == 0 && o.lostPairs == 0 }

// open is the owner that stands for who, made when there is none.
func (x *Index) open(who kv.Owner) (*owner, error) {
	if x.latest != nil && x.latest.who == who {
		return x.latest, nil
	}
	if id, ok := x.ids[who]; ok {
		x.latest = x.owners[id]
		return x.latest, nil
	}
	if len(x.ids) >= x.options.MaxOwners {
		x.counts.Refused++
		return nil, fmt.Errorf("owner %s: %w", who, ErrFull)
	}
	o := x.newOwner(who)
	x.ids[who] = o.id
	return o, nil
}

// newOwner makes an id for who that ids does not know yet.
func (x *Index) newOwner(who kv.Owner) *owner {
	id := ownerID(len(x.owners))
	if n := len(x.freeOwners); n > 0 {
		id = x.freeOwners[n-1]
		x.freeOwners = x.freeOwners[:n-1]
	} else {
		x.owners = append(x.owners, nil)
	}
	o := &owner{id: id, who: who}
	x.owners[id] = o
	return o
}

// release forgets an owner that holds nothing and that nobody names.
func (x *Index) release(o *owner) {
	if !o.empty() || o.known || o.members > 0 {
		return
	}
	delete(x.ids, o.who)
	x.abandon(o)
}

// abandon gives up an id that ids no longer knows. Its entries are swept when
// no reader can take them for somebody's.
func (x *Index) abandon(o *owner) {
	if x.latest == o {
		x.latest = nil
	}
	o.gone = true
	x.pairs -= int(o.pairs)
	x.lost -= int(o.lostPairs)
	x.retire(retiredOwner, uint32(o.id), 0)
}

// supplant lets a fresh id stand for an owner, and gives up the old one.
func (x *Index) supplant(old, fresh *owner) {
	fresh.known, fresh.members = old.known, old.members
	old.known, old.members = false, 0
	x.ids[old.who] = fresh.id
	if fresh.known || fresh.members > 0 {
		x.rename(old, fresh)
	}
	x.abandon(old)
	x.release(fresh)
}

// RemoveOwner drops everything that an owner holds, and answers no longer count
// it. A worker that is a member stays one, now without blocks. The memory is
// freed bit by bit, by the changes to come and by Sweep.
func (x *Index) RemoveOwner(who kv.Owner) {
	x.mu.Lock()
	defer x.mu.Unlock()
	x.clear(who)
}

func (x *Index) clear(who kv.Owner) {
	if id, ok := x.ids[who]; ok && !x.owners[id].empty() {
		x.supplant(x.owners[id], x.newOwner(who))
	}
}

// remember notes that o has an entry in r. When most of what is noted is of no
// use any more, it is put in order.
func (x *Index) remember(o *owner, r runID) {
	if len(o.runs) == cap(o.runs) && len(o.runs) > 2*o.entries+16 {
		o.runs = slices.DeleteFunc(o.runs, func(r runID) bool { return !x.hasEntry(o.id, r) })
		if len(o.runs) > 2*o.entries {
			slices.Sort(o.runs)
			o.runs = slices.Compact(o.runs)
		}
		if before := cap(o.runs); len(o.runs) < before/4 {
			o.runs = slices.Clone(o.runs)
			x.listBytes -= int64(before-cap(o.runs)) * 4
		}
	}
	before := cap(o.runs)
	o.runs = append(o.runs, r)
	x.listBytes += int64(cap(o.runs)-before) * 4
}

func (x *Index) hasEntry(id ownerID, r runID) bool {
	if !x.runs.side(r).live {
		return false
	}
	for walk := x.slots(r); ; {
		slot := walk.next()
		if slot == nil {
			return false
		}
		if entry(slot.Load()).owner() == id {
			return true
		}
	}
}
