package kvevent

import "github.com/blockyard-ai/blockyard/internal/kv"

// StoredJSON is a stored event in the JSON of Dynamo's dump_events. A pool's event
// has the pool's id as worker_id, and owner_kind "pool" in addition. An event of another KV
// group than the primary one has its group in addition.
type StoredJSON struct {
	WorkerID  uint64          `json:"worker_id"`
	Tier      string          `json:"storage_tier"`
	Event     storedEventJSON `json:"event"`
	OwnerKind string          `json:"owner_kind,omitempty"`
}

type storedEventJSON struct {
	ID   uint64 `json:"event_id"`
	Data struct {
		Stored struct {
			Parent *uint64     `json:"parent_hash"`
			Start  *uint32     `json:"start_position"`
			Blocks []BlockJSON `json:"blocks"`
			Group  uint32      `json:"group,omitempty"`
		} `json:"stored"`
	} `json:"data"`
	Rank uint32 `json:"dp_rank"`
}

// BlockJSON is one block of a StoredJSON. Hash is the SequenceHash and Tokens the
// LocalHash.
type BlockJSON struct {
	Hash   uint64    `json:"block_hash"`
	Tokens uint64    `json:"tokens_hash"`
	Extra  *struct{} `json:"mm_extra_info"`
}

// Set replaces the contents of j with the stored event e. j shares no memory with e, and j's own
// memory is used again.
func (j *StoredJSON) Set(e *RouterEvent) {
	j.WorkerID, j.Tier, j.OwnerKind = e.Owner.ID, e.Tier.String(), ""
	j.Event.ID, j.Event.Rank = e.ID, uint32(e.Owner.Rank)
	if e.Owner.Kind == kv.OwnerPool {
		j.OwnerKind, j.Event.Rank = poolOwner, 0
	}
	s := &j.Event.Data.Stored
	s.Parent, s.Start, s.Group = nil, nil, e.Group
	if e.HasParent {
		s.Parent = new(uint64(e.Parent))
	}
	if e.HasStart {
		s.Start = new(e.StartPosition)
	}
	s.Blocks = s.Blocks[:0]
	for _, b := range e.Blocks {
		s.Blocks = append(s.Blocks, BlockJSON{Hash: uint64(b.Hash), Tokens: uint64(b.Local)})
	}
}

// Owner returns the worker or pool that holds the blocks.
func (j *StoredJSON) Owner() kv.Owner {
	if j.OwnerKind == poolOwner {
		return kv.PoolOwner(j.WorkerID)
	}
	return kv.WorkerOwner(kv.Worker{ID: kv.WorkerID(j.WorkerID), Rank: kv.DPRank(j.Event.Rank)})
}

// Blocks returns the blocks in the order of the prompt.
func (j *StoredJSON) Blocks() []BlockJSON { return j.Event.Data.Stored.Blocks }

// Group returns the KV group of the blocks, 0 for the primary one.
func (j *StoredJSON) Group() uint32 { return j.Event.Data.Stored.Group }
