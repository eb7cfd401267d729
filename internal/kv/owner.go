package kv

import (
	"cmp"
	"fmt"
)

// WorkerID names one engine instance in the cluster. Zero is not a worker.
type WorkerID uint64

// DPRank is the data-parallel rank of an engine; zero without data parallelism.
type DPRank uint32

// Worker is one data-parallel rank of one engine. Requests are sent to workers.
type Worker struct {
	ID   WorkerID
	Rank DPRank
}

// String returns "id/rank".
func (w Worker) String() string { return fmt.Sprintf("%d/%d", uint64(w.ID), uint32(w.Rank)) }

// Compare orders workers by id and then by rank.
func (w Worker) Compare(o Worker) int {
	return cmp.Or(cmp.Compare(w.ID, o.ID), cmp.Compare(w.Rank, o.Rank))
}

// OwnerKind says what kind of owner holds a block.
type OwnerKind uint8

const (
	// OwnerWorker is a worker rank, which owns device blocks.
	OwnerWorker OwnerKind = 0
	// OwnerPool is the host and disk pool of one node and namespace. Its blocks
	// count for every worker that is a member of the pool.
	OwnerPool OwnerKind = 1
)

// String returns "worker" or "pool".
func (k OwnerKind) String() string {
	switch k {
	case OwnerWorker:
		return "worker"
	case OwnerPool:
		return "pool"
	}
	return fmt.Sprintf("owner(%d)", uint8(k))
}

// Owner is the holder of a block: a worker rank, or a pool (whose Rank is 0). An
// Owner is comparable and serves as a map key. Each owner has one publisher and one
// sequence of event ids.
type Owner struct {
	Kind OwnerKind
	ID   uint64
	Rank DPRank
}

// WorkerOwner returns the owner of w's device blocks.
func WorkerOwner(w Worker) Owner { return Owner{Kind: OwnerWorker, ID: uint64(w.ID), Rank: w.Rank} }

// PoolOwner returns the owner of the blocks of pool id.
func PoolOwner(id uint64) Owner { return Owner{Kind: OwnerPool, ID: id} }

// Compare orders owners: workers before pools, then by id and by rank.
func (o Owner) Compare(p Owner) int {
	return cmp.Or(cmp.Compare(o.Kind, p.Kind), cmp.Compare(o.ID, p.ID), cmp.Compare(o.Rank, p.Rank))
}

// Worker returns the worker of an OwnerWorker.
func (o Owner) Worker() Worker { return Worker{ID: WorkerID(o.ID), Rank: o.Rank} }

// String returns "worker 7/0" or "pool 7".
func (o Owner) String() string {
	if o.Kind == OwnerPool {
		return fmt.Sprintf("pool %d", o.ID)
	}
	return fmt.Sprintf("%s %d/%d", o.Kind, o.ID, uint32(o.Rank))
}
