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
	// sources is, per member, its own id and that of its pool.
	sources []source
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

// member is a known worker, as the writer keeps it.
type member struct {
	worker kv.Worker
	pool   uint64
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
	at, found := slices.BinarySearchFunc(x.members, w, func(m member, w kv.Worker) int { return m.worker.Compare(w) })
	var former *owner
	if found && x.members[at].pool != 0 {
		former = x.owners[x.ids[kv.PoolOwner(x.members[at].pool)]]
		former.members--
	}
	m := member{w, pool}
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

// publishView lets readers know the members as they are now.
func (x *Index) publishView() {
	v := &view{
		members: &Members{List: make([]Member, len(x.members))},
		sources: make([]source, len(x.members)),
		owners:  make([]ownerView, len(x.owners)),
	}
	for i, m := range x.members {
		v.members.List[i] = Member{m.worker, m.pool}
		own := x.ids[kv.WorkerOwner(m.worker)]
		v.owners[own] = ownerView{viewWorker, int32(i)}
		v.sources[i].own = own
		if m.pool != 0 {
			pool := x.ids[kv.PoolOwner(m.pool)]
			v.sources[i].pool = pool
			if v.owners[pool].kind == viewNobody {
				v.owners[pool] = ownerView{viewPool, int32(len(v.pools))}
				v.pools = append(v.pools, nil)
			}
			list := &v.pools[v.owners[pool].at]
			*list = append(*list, int32(i))
		}
	}
	x.view.Store(v)
}
