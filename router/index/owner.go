package index

import (
	"fmt"
	"slices"

	"github.com/blockyard-ai/blockyard/internal/kv"
	"github.com/blockyard-ai/blockyard/internal/kvevent"
)

// SetMember says whether a worker is to be reported by Match and the blocks of
// which pool count for it besides its own; pool 0 is none. An unknown worker's
// own blocks stay in the index until they are removed. The error is ErrFull.
func (x *Index) SetMember(w kv.Worker, pool uint64, known bool) error {
	x.writer.Lock()
	defer x.writer.Unlock()
	own, err := x.openOwner(kv.WorkerOwner(w))
	if err != nil {
		return err
	}
	poolID := noOwner
	if known && pool != 0 {
		if poolID, err = x.openOwner(kv.PoolOwner(pool)); err != nil {
			x.mu.Lock()
			x.releaseLocked(own)
			x.mu.Unlock()
			return err
		}
	}
	x.mu.Lock()
	defer x.mu.Unlock()
	at, found := x.findMemberLocked(w)
	former := noOwner
	if found {
		former = x.members[at].pool
		x.owners[former].members--
	}
	m := member{worker: w, own: own, pool: poolID}
	switch {
	case known && found:
		x.members[at] = m
	case known:
		x.members = slices.Insert(x.members, at, m)
	case found:
		x.members = slices.Delete(x.members, at, at+1)
	}
	x.owners[own].known = known
	if known {
		x.owners[poolID].members++
	}
	x.releaseLocked(own)
	x.releaseLocked(former)
	return nil
}

func (x *Index) findMemberLocked(w kv.Worker) (int, bool) {
	return slices.BinarySearchFunc(x.members, w, func(m member, w kv.Worker) int { return m.worker.Compare(w) })
}

// RemoveOwner drops every block of an owner. A worker that is known stays
// known, now without blocks.
func (x *Index) RemoveOwner(o kv.Owner) {
	x.writer.Lock()
	defer x.writer.Unlock()
	x.clear(o)
}

// clear takes the owner's blocks from the readers' sight at once and frees them
// in batches. The writer lock is held.
func (x *Index) clear(o kv.Owner) {
	x.mu.Lock()
	id, ok := x.ids[o]
	if !ok {
		x.mu.Unlock()
		return
	}
	if x.owners[id].first == noCell {
		x.mu.Unlock()
		return
	}
	fresh := x.newOwnerLocked(o)
	x.swapLocked(o, id, fresh)
	x.releaseLocked(fresh)
	x.mu.Unlock()
	x.drop(id)
}

// Replace makes events, all of them stores of owner, everything that owner
// holds. Readers see the change at once or, after an error, not at all. The
// error is ErrFull or names what is not valid.
func (x *Index) Replace(owner kv.Owner, events []kvevent.RouterEvent) error {
	for i := range events {
		if err := check(&events[i]); err != nil {
			return err
		}
		if events[i].Owner != owner || events[i].Kind != kvevent.Stored {
			return fmt.Errorf("dump of %s: event %d is %s of %s", owner, i, events[i].Kind, events[i].Owner)
		}
	}
	x.writer.Lock()
	defer x.writer.Unlock()
	old, err := x.openOwner(owner)
	if err != nil {
		return err
	}
	// The new blocks gather under an id that no reader can reach yet.
	x.mu.Lock()
	fresh := x.newOwnerLocked(owner)
	x.mu.Unlock()
	for i := range events {
		if err := x.change(fresh, &events[i]); err != nil {
			x.drop(fresh)
			x.mu.Lock()
			x.releaseLocked(old)
			x.mu.Unlock()
			return err
		}
	}
	x.mu.Lock()
	x.swapLocked(owner, old, fresh)
	x.releaseLocked(fresh)
	x.mu.Unlock()
	x.drop(old)
	return nil
}

// openOwner is the id of o, made when there is none.
func (x *Index) openOwner(o kv.Owner) (ownerID, error) {
	x.mu.Lock()
	defer x.mu.Unlock()
	if id, ok := x.ids[o]; ok {
		return id, nil
	}
	if len(x.ids) >= x.maxOwners {
		x.stats.Refused++
		return noOwner, fmt.Errorf("owner %s: %w", o, ErrFull)
	}
	id := x.newOwnerLocked(o)
	x.ids[o] = id
	return id, nil
}

// newOwnerLocked makes an id for o that ids does not know yet.
func (x *Index) newOwnerLocked(o kv.Owner) ownerID {
	if n := len(x.freeIDs); n > 0 {
		id := x.freeIDs[n-1]
		x.freeIDs = x.freeIDs[:n-1]
		x.owners[id] = ownerState{owner: o}
		return id
	}
	x.owners = append(x.owners, ownerState{owner: o})
	return ownerID(len(x.owners) - 1)
}

// swapLocked lets id fresh stand for o instead of old.
func (x *Index) swapLocked(o kv.Owner, old, fresh ownerID) {
	x.owners[fresh].known = x.owners[old].known
	x.owners[fresh].members = x.owners[old].members
	x.owners[old].known, x.owners[old].members = false, 0
	x.ids[o] = fresh
	for i := range x.members {
		if x.members[i].own == old {
			x.members[i].own = fresh
		}
		if x.members[i].pool == old {
			x.members[i].pool = fresh
		}
	}
}

// drop frees the cells of an id that no reader can reach, and then the id.
func (x *Index) drop(id ownerID) {
	for done := false; !done; {
		x.mu.Lock()
		o := &x.owners[id]
		for n := 0; n < writeBatch && o.first != noCell; n++ {
			o.first = x.table.remove(o.first, o.first)
		}
		if done = o.first == noCell; done {
			x.freeIDLocked(id)
		}
		x.mu.Unlock()
	}
}

// releaseLocked forgets an owner that holds nothing and that nobody names.
func (x *Index) releaseLocked(id ownerID) {
	o := &x.owners[id]
	if id == noOwner || o.first != noCell || o.known || o.members > 0 {
		return
	}
	delete(x.ids, o.owner)
	x.freeIDLocked(id)
}

func (x *Index) freeIDLocked(id ownerID) {
	x.owners[id] = ownerState{}
	x.freeIDs = append(x.freeIDs, id)
}
