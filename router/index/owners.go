package index

import (
	"fmt"
	"slices"
	"sync/atomic"

	"github.com/blockyard-ai/blockyard/internal/kv"
	"github.com/blockyard-ai/blockyard/router/index/groups"
	"github.com/blockyard-ai/blockyard/router/index/runs"
)

// ownerID is the number of an owner in entries. A cleared or replaced owner gets another
// id, so that its old entries no longer count from then on. noOwner is no owner.
type ownerID uint32

const noOwner ownerID = 0

// owner is what the writer keeps of a worker or pool.
type owner struct {
	id  ownerID
	who kv.Owner
	// isMember is true while a worker is a member. poolMembers counts the members of a pool.
	isMember    bool
	poolMembers int
	// heldDigest is the sum of kv.Digest over the held (block, tier) pairs, and heldPairs
	// is their number. The lost pairs are those that the index had no room for.
	heldDigest, heldPairs uint64
	lostDigest, lostPairs uint64
	// sparse has the same sums over the blocks of other KV groups than the primary one.
	sparse groups.Sums
	// totalPairs is heldPairs plus lostPairs after the last change, for readers without the lock.
	totalPairs atomic.Uint64
	// runs has every run in which the owner has an entry, and some old ones.
	// entryCount is the number of the owner's entries.
	runs       []runs.ID
	entryCount int
	// retired is true once the owner has another id or has left.
	retired bool
	// storeHint is the last block of the last stored event. removeHint is the block
	// before the last removed one. The next event most likely continues there.
	storeHint, removeHint hint
}

// hint is a block and its hash. The hash tells whether the block is still there.
type hint struct {
	runs.Place
	hash kv.SequenceHash
}

// publishTotal updates totalPairs.
func (o *owner) publishTotal() {
	if n := o.heldPairs + o.lostPairs; o.totalPairs.Load() != n {
		o.totalPairs.Store(n)
	}
}

func (o *owner) empty() bool { return o.heldPairs == 0 && o.lostPairs == 0 && o.sparse.Pairs() == 0 }

// knows reports whether the worker or pool who is an owner.
func (x *Index) knows(who kv.Owner) bool {
	if x.latestOwner != nil && x.latestOwner.who == who {
		return true
	}
	_, known := x.ids[who]
	return known
}

// open returns what the index keeps of the worker or pool who, and adds a missing owner. The
// error is ErrFull when that would be one owner too many.
func (x *Index) open(who kv.Owner) (*owner, error) {
	if x.latestOwner != nil && x.latestOwner.who == who { // an owner's events often come in a row
		return x.latestOwner, nil
	}
	if id, ok := x.ids[who]; ok {
		x.latestOwner = x.owners[id]
		return x.latestOwner, nil
	}
	if len(x.ids) >= x.options.MaxOwners {
		x.counts.Refused++
		return nil, fmt.Errorf("owner %s: %w", who, ErrFull)
	}
	o := x.newOwner(who)
	x.ids[who] = o.id
	return o, nil
}

// newOwner returns an owner without blocks for who, with an unused id. The caller enters the
// id into x.ids, so that events of who reach this owner.
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

// forgetIfUnused removes an owner that has no blocks, is no member, and is no member's pool.
// Every change calls it for the owners that it may have emptied.
func (x *Index) forgetIfUnused(o *owner) {
	if !o.empty() || o.isMember || o.poolMembers > 0 {
		return
	}
	delete(x.ids, o.who)
	x.retireOwner(o)
}

// retireOwner makes the blocks of an owner id stop counting. x.ids and the view no longer
// have the id. Its entries stay in the runs until no reader can look for them; then the
// sweep removes them in small steps.
func (x *Index) retireOwner(o *owner) {
	if x.latestOwner == o {
		x.latestOwner = nil
	}
	o.retired = true
	x.heldPairs -= int(o.heldPairs)
	x.lostPairs -= int(o.lostPairs + o.sparse.LostPairs)
	x.sparsePairs -= int(o.sparse.HeldPairs)
	x.retire(retiredOwner, uint32(o.id), 0)
}

// replaceOwner replaces all blocks of a worker or pool in one step for readers: fresh, with
// a new id and the new blocks, takes the place of old, whose id is retired. old and fresh
// have the same name who.
func (x *Index) replaceOwner(old, fresh *owner) {
	fresh.isMember, fresh.poolMembers = old.isMember, old.poolMembers
	old.isMember, old.poolMembers = false, 0
	x.ids[old.who] = fresh.id
	if fresh.isMember || fresh.poolMembers > 0 {
		x.renameInView(old, fresh)
	}
	x.retireOwner(old)
	x.forgetIfUnused(fresh)
}

// RemoveOwner removes all blocks of an owner. A worker that is a member stays
// a member without blocks. Later changes and Sweep free the memory.
func (x *Index) RemoveOwner(who kv.Owner) {
	x.mu.Lock()
	defer x.mu.Unlock()
	x.clear(who)
}

// clear is RemoveOwner. The caller has locked x.mu.
func (x *Index) clear(who kv.Owner) {
	if id, ok := x.ids[who]; ok && !x.owners[id].empty() {
		x.replaceOwner(x.owners[id], x.newOwner(who))
	}
}

// noteRun appends run r to o.runs, the runs in which owner o has an entry. Entries that go
// leave their run in the list. So before the list grows, noteRun removes stale runs, if they
// are most of the list. x.ownerRunsBytes counts the memory of all lists.
func (x *Index) noteRun(o *owner, r runs.ID) {
	if len(o.runs) == cap(o.runs) && len(o.runs) > 2*o.entryCount+16 {
		o.runs = slices.DeleteFunc(o.runs, func(r runs.ID) bool { return !x.hasEntry(o.id, r) })
		if len(o.runs) > 2*o.entryCount { // runs that the owner left and came back to
			slices.Sort(o.runs)
			o.runs = slices.Compact(o.runs)
		}
		if before := cap(o.runs); len(o.runs) < before/4 {
			o.runs = slices.Clone(o.runs)
			x.ownerRunsBytes -= int64(before-cap(o.runs)) * runIDBytes
		}
	}
	before := cap(o.runs)
	o.runs = append(o.runs, r)
	x.ownerRunsBytes += int64(cap(o.runs)-before) * runIDBytes
}

// runIDBytes is the memory of one element of owner.runs.
const runIDBytes = 4

// hasEntry reports whether an owner has an entry in run r.
func (x *Index) hasEntry(id ownerID, r runs.ID) bool {
	if !x.runs.WriterState(r).Live {
		return false
	}
	walk := x.runs.Slots(r)
	return walk.Find(ownerBits, uint64(key(id, 0))) != nil
}

// SetMember makes a worker a member, which Match reports, or no member if known is false.
// The blocks of the pool, a store that several workers share, count for the worker too; pool
// 0 is none. A former member's own blocks stay until they are removed. The error is ErrFull.
func (x *Index) SetMember(w kv.Worker, pool uint64, known bool) error {
	x.mu.Lock()
	defer x.mu.Unlock()
	own, err := x.open(kv.WorkerOwner(w))
	if err != nil {
		return err
	}
	var shared *owner // the new pool
	if known && pool != 0 {
		if shared, err = x.open(kv.PoolOwner(pool)); err != nil {
			x.forgetIfUnused(own)
			return err
		}
		shared.poolMembers++
	}
	at, found := slices.BinarySearchFunc(x.members, w, func(m member, w kv.Worker) int { return m.Worker.Compare(w) })
	var old *owner // the worker's pool until now
	if found && x.members[at].pool != noOwner {
		old = x.owners[x.members[at].pool]
		old.poolMembers--
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
	own.isMember = known
	if !known {
		delete(x.hybrids, w)
	}
	x.publishView()
	x.forgetIfUnused(own)
	if old != nil {
		x.forgetIfUnused(old)
	}
	x.maintain()
	return nil
}

// renameInView makes readers count the entries of fresh.id in place of those of old.id, in
// one step. Both are ids of one worker or pool. A view is immutable, so renameInView
// publishes a new one, which shares its unchanged parts with the current view.
func (x *Index) renameInView(old, fresh *owner) {
	v := *x.view.Load()
	v.sources = slices.Clone(v.sources)
	owners := make([]ownerView, max(len(v.owners), int(fresh.id)+1))
	copy(owners, v.owners)
	v.owners = owners
	previous := owners[old.id]
	owners[old.id], owners[fresh.id] = ownerView{}, previous
	if previous.kind == viewWorker {
		v.memberOwners = slices.Clone(v.memberOwners)
		v.memberOwners[previous.number] = fresh
		v.sources[previous.number].own = fresh.id
		x.members[previous.number].own = fresh.id
	} else {
		for _, m := range v.pools[previous.number] {
			v.sources[m].pool = fresh.id
			x.members[m].pool = fresh.id
		}
	}
	x.view.Store(&v)
}

// publishView publishes x.members to readers as a new immutable view: the list of members,
// and for each owner id the members that can reach the owner's blocks. SetMember calls it
// after each change of the members.
func (x *Index) publishView() {
	v := &view{
		members:      &Members{List: make([]Member, len(x.members))},
		sources:      make([]source, len(x.members)),
		memberOwners: make([]*owner, len(x.members)),
		owners:       make([]ownerView, len(x.owners)),
	}
	pooled := make([]int32, len(x.members)) // memory for the lists of all pools
	for i, m := range x.members {
		v.members.List[i], v.sources[i], v.memberOwners[i] = m.Member, m.source, x.owners[m.own]
		v.owners[m.own] = ownerView{viewWorker, int32(i)}
		if m.pool == noOwner {
			continue
		}
		if v.owners[m.pool].kind == viewNobody {
			v.owners[m.pool] = ownerView{viewPool, int32(len(v.pools))}
			n := x.owners[m.pool].poolMembers
			v.pools = append(v.pools, pooled[:0:n]) // grows to n members below
			pooled = pooled[n:]
		}
		list := &v.pools[v.owners[m.pool].number]
		*list = append(*list, int32(i))
	}
	v.hybrids = x.hybridMembers()
	x.view.Store(v)
}

// Lost returns the number of (block, tier) pairs that events gave an owner and that the
// index does not have. The index evicted or refused the pair, or the block conflicts with
// another block. While Lost is not 0, Match may report fewer blocks than the owner has.
// Lost returns 0 for an unknown owner.
func (x *Index) Lost(who kv.Owner) uint64 {
	x.mu.Lock()
	defer x.mu.Unlock()
	if id, ok := x.ids[who]; ok {
		return x.owners[id].lostPairs + x.owners[id].sparse.LostPairs
	}
	return 0
}

// Digest returns the sum of kv.Digest over the (block, tier) pairs of the primary KV group that
// events gave an owner, and the number of these pairs. A feed compares them with the owner's own, which
// shows missed events. Lost pairs are included. Both results are 0 for an unknown owner.
func (x *Index) Digest(who kv.Owner) (sum, pairs uint64) {
	x.mu.Lock()
	defer x.mu.Unlock()
	if id, ok := x.ids[who]; ok {
		o := x.owners[id]
		return o.heldDigest + o.lostDigest, o.heldPairs + o.lostPairs
	}
	return 0, 0
}

// GroupDigest is Digest over the pairs of all KV groups but the primary one. A block counts as
// kv.InGroup names it.
func (x *Index) GroupDigest(who kv.Owner) (sum, pairs uint64) {
	x.mu.Lock()
	defer x.mu.Unlock()
	if id, ok := x.ids[who]; ok {
		s := &x.owners[id].sparse
		return s.HeldDigest + s.LostDigest, s.Pairs()
	}
	return 0, 0
}

// Held returns the number of (block, tier) pairs of member number n of list m. It counts the
// worker's own pairs according to its events, lost ones included, and no pair of its pool. m
// may be a list of another index. Held returns 0 for a worker that is no member here. Held
// takes no lock.
func (x *Index) Held(m *Members, n int) uint64 {
	v, worker := x.view.Load(), m.List[n].Worker
	// m may be another list than the current one, with other numbers.
	if n >= len(v.memberOwners) || v.members.List[n].Worker != worker {
		var known bool
		if n, known = v.members.Find(worker); !known {
			return 0
		}
	}
	return v.memberOwners[n].totalPairs.Load()
}
