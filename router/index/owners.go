package index

import (
	"fmt"
	"slices"
	"sync/atomic"

	"github.com/blockyard-ai/blockyard/internal/kv"
	"github.com/blockyard-ai/blockyard/router/index/runs"
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
	runs    []runs.ID
	entries int
	// gone is set when another stands for who.
	gone bool
	// stored is the block that the last stored event ended with, and removed the
	// one before the last removed: where the next event most likely goes on.
	stored, removed hint
}

// hint is a block and its hash, by which to tell whether it is still there.
type hint struct {
	runs.Place
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
func (x *Index) remember(o *owner, r runs.ID) {
	if len(o.runs) == cap(o.runs) && len(o.runs) > 2*o.entries+16 {
		o.runs = slices.DeleteFunc(o.runs, func(r runs.ID) bool { return !x.hasEntry(o.id, r) })
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

func (x *Index) hasEntry(id ownerID, r runs.ID) bool {
	if !x.runs.Side(r).Live {
		return false
	}
	for walk := x.runs.Slots(r); ; {
		slot := walk.Next()
		if slot == nil {
			return false
		}
		if entry(slot.Load()).owner() == id {
			return true
		}
	}
}

// Member is a known worker, and the pool whose blocks count for it besides its
// own; 0 is none. Its place in Members.List is its number.
type Member struct {
	Worker kv.Worker
	Pool   uint64
}

// Members is an immutable snapshot of the known workers, ordered by worker. Each
// change makes a new one, so that two are the same when their pointers are.
type Members struct{ List []Member }

// Find is the number of w; false when w is not known.
func (m *Members) Find(w kv.Worker) (int, bool) {
	return slices.BinarySearchFunc(m.List, w, func(m Member, w kv.Worker) int { return m.Worker.Compare(w) })
}

// Members is the current snapshot.
func (x *Index) Members() *Members { return x.view.Load().members }

// view is what readers know of owners: whose entries count for which members. It
// is immutable.
type view struct {
	members *Members
	// sources is, per member, its own id and that of its pool, and holders what its
	// own id stands for, of which readers use held alone.
	sources []source
	holders []*owner
	// owners is indexed by ownerID. Ids beyond its end count for nobody.
	owners []ownerView
	// pools are the members of each pool.
	pools [][]int32
}

type source struct{ own, pool ownerID }

// ownerView is for whom the entries of an owner count: a member, by its number,
// or those of a pool, by its place in view.pools.
type ownerView struct {
	kind viewKind
	at   int32
}

type viewKind uint8

const (
	viewNobody viewKind = iota
	viewWorker
	viewPool
)

// member is a known worker, as the writer keeps it: with the ids that stand for
// it and its pool now.
type member struct {
	Member
	source
}

// SetMember says whether a worker is to be reported by Match, and the blocks of
// which pool count for it besides its own; pool 0 is none. The own blocks of a
// worker that is no longer known stay in the index until they are removed. The
// error is ErrFull.
func (x *Index) SetMember(w kv.Worker, pool uint64, known bool) error {
	x.mu.Lock()
	defer x.mu.Unlock()
	own, err := x.open(kv.WorkerOwner(w))
	if err != nil {
		return err
	}
	var shared *owner
	if known && pool != 0 {
		if shared, err = x.open(kv.PoolOwner(pool)); err != nil {
			x.release(own)
			return err
		}
		shared.members++
	}
	at, found := slices.BinarySearchFunc(x.members, w, func(m member, w kv.Worker) int { return m.Worker.Compare(w) })
	var former *owner
	if found && x.members[at].pool != noOwner {
		former = x.owners[x.members[at].pool]
		former.members--
	}
	m := member{Member{w, pool}, source{own: own.id}}
	if shared != nil {
		m.pool = shared.id
	}
	switch {
	case known && found:
		x.members[at] = m
	case known:
		x.members = slices.Insert(x.members, at, m)
	case found:
		x.members = slices.Delete(x.members, at, at+1)
	}
	own.known = known
	x.publishView()
	x.release(own)
	if former != nil {
		x.release(former)
	}
	x.tidy()
	return nil
}

// rename lets readers know the members by the id that stands for an owner now.
// Nothing else changes, so most of the view is shared with the one before.
func (x *Index) rename(old, fresh *owner) {
	v := *x.view.Load()
	v.sources = slices.Clone(v.sources)
	owners := make([]ownerView, max(len(v.owners), int(fresh.id)+1))
	copy(owners, v.owners)
	v.owners = owners
	seen := owners[old.id]
	owners[old.id], owners[fresh.id] = ownerView{}, seen
	if seen.kind == viewWorker {
		v.holders = slices.Clone(v.holders)
		v.holders[seen.at] = fresh
		v.sources[seen.at].own = fresh.id
		x.members[seen.at].own = fresh.id
	} else {
		for _, m := range v.pools[seen.at] {
			v.sources[m].pool = fresh.id
			x.members[m].pool = fresh.id
		}
	}
	x.view.Store(&v)
}

// publishView lets readers know the members as they are now.
func (x *Index) publishView() {
	v := &view{
		members: &Members{List: make([]Member, len(x.members))},
		sources: make([]source, len(x.members)),
		holders: make([]*owner, len(x.members)),
		owners:  make([]ownerView, len(x.owners)),
	}
	pooled := make([]int32, len(x.members))
	for i, m := range x.members {
		v.members.List[i], v.sources[i], v.holders[i] = m.Member, m.source, x.owners[m.own]
		v.owners[m.own] = ownerView{viewWorker, int32(i)}
		if m.pool == noOwner {
			continue
		}
		if v.owners[m.pool].kind == viewNobody {
			v.owners[m.pool] = ownerView{viewPool, int32(len(v.pools))}
			n := x.owners[m.pool].members
			v.pools = append(v.pools, pooled[:0:n])
			pooled = pooled[n:]
		}
		list := &v.pools[v.owners[m.pool].at]
		*list = append(*list, int32(i))
	}
	x.view.Store(v)
}
