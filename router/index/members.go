package index

import (
	"slices"

	"github.com/blockyard-ai/blockyard/internal/kv"
)

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
