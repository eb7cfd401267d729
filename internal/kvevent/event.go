package kvevent

import "github.com/blockyard-ai/blockyard/internal/kv"

// Kind says what happened to some blocks.
type Kind uint8

const (
	// Stored: blocks became resident.
	Stored Kind = 1
	// Removed: blocks are no longer resident.
	Removed Kind = 2
	// Cleared: from an engine, its whole device cache was dropped. In a
	// RouterEvent, everything that the owner holds in any tier was dropped.
	Cleared Kind = 3
)

// String returns the kind's name in logs and metrics.
func (k Kind) String() string {
	switch k {
	case Stored:
		return "stored"
	case Removed:
		return "removed"
	case Cleared:
		return "cleared"
	}
	return "unknown"
}

// StoredBlock is one block of a stored RouterEvent.
type StoredBlock struct {
	Hash  kv.SequenceHash
	Local kv.LocalHash
}

// RouterEvent is one change of residency: some blocks of one owner in one tier. IDs
// run from 1 without holes per publisher. A publisher speaks for one owner.
type RouterEvent struct {
	Owner kv.Owner
	Tier  kv.Tier
	ID    uint64
	Kind  Kind
	// Parent is the block before Blocks[0]. It is valid with HasParent.
	Parent    kv.SequenceHash
	HasParent bool
	// StartPosition is the position of Blocks[0] in its sequence, in blocks. It is
	// valid with HasStart.
	StartPosition uint32
	HasStart      bool
	// Group is the KV group of the blocks, an index of ModelCard.Groups. Group 0 is the
	// primary group, and the only one of most models. A block of another group has the name
	// of the primary group's block at which it ends. Such an event has neither Parent nor
	// StartPosition, and its blocks have no Local and come in any order.
	Group uint32
	// Blocks are the stored blocks. Each is the child of the previous one.
	Blocks []StoredBlock
	// Removed are the removed blocks, in any order.
	Removed []kv.SequenceHash
}

// NumBlocks returns the number of blocks that the event names.
func (e *RouterEvent) NumBlocks() int { return len(e.Blocks) + len(e.Removed) }

// Topic is the topic of every Envelope of KV events.
const Topic = "kv-events"

// Limits of one published message; larger sets of events are split.
const (
	MaxEventsPerMessage = 128
	MaxBlocksPerMessage = 8192
)

// Envelope is one message of a publisher.
type Envelope struct {
	// PublisherID is random, below 2^53, and new at every start of a publisher. It
	// is the epoch of the event ids.
	PublisherID uint64
	// Sequence counts the publisher's messages from 0.
	Sequence uint64
	// PublishedAt is in Unix milliseconds on the publisher's clock, for display.
	PublishedAt uint64
	Topic       string
	Events      []RouterEvent

	mem routerMemory // behind the slices in Events
}

// Health says how far a publisher's stream can be trusted.
type Health string

const (
	// HealthExact: the stream equals the truth up to LastEventID.
	HealthExact Health = "exact"
	// HealthDegraded: something was lost upstream and is not repaired yet.
	HealthDegraded Health = "degraded"
	// HealthGone: the owner has ended. Consumers forget everything that it held.
	HealthGone Health = "gone"
)

// Status is the stream of one owner at one moment.
type Status struct {
	// LastEventID is the id of the last event made; 0 before the first.
	LastEventID uint64
	// Digest is the sum of kv.Digest over all resident (block, tier) pairs of the primary
	// group, and Blocks the number of these pairs.
	Digest uint64
	Blocks uint64
	// GroupDigest and GroupBlocks are sum and number of the pairs of all other groups. Such a
	// block counts as kv.InGroup names it.
	GroupDigest uint64
	GroupBlocks uint64
	Health      Health
}

// Sum returns the digest over the pairs of all groups.
func (s *Status) Sum() uint64 { return s.Digest + s.GroupDigest }

// Announcement is a publisher's heartbeat. A publisher sends one when it starts,
// when anything but the counters changes, and every few seconds. See AgentStatus for the time between.
type Announcement struct {
	PublisherID uint64
	Owner       kv.Owner
	// Pool is the id of the pool whose blocks count for this worker too. It is 0
	// for a pool and for a worker without one.
	Pool uint64
	// Namespace, Model and BlockSize (in tokens) say what the hashes are about.
	Namespace kv.NamespaceID
	Model     string
	BlockSize uint32
	// LastEventID is the id of the last event made, published or not. Digest is the
	// sum of kv.Digest over everything that the owner holds in the primary group after that
	// event. Blocks is the number of (block, tier) pairs in the sum.
	LastEventID uint64
	Digest      uint64
	Blocks      uint64
	// GroupDigest and GroupBlocks are those of Status.
	GroupDigest uint64
	GroupBlocks uint64
	Health      Health
	// Card describes the server. The zero value says nothing.
	Card ModelCard
}

// QueryRequest asks a publisher for the events from StartID on. Without HasStart it
// asks for a dump of everything that the owner holds.
type QueryRequest struct {
	StartID  uint64
	HasStart bool
	EndID    uint64
	HasEnd   bool
	// MaxChunks is how many chunks the asker takes now; 0 is the whole answer.
	// Further requests ask for the rest of a dump, with the DumpID of the first
	// chunks and the FirstChunk wanted.
	MaxChunks  uint32
	DumpID     uint64
	FirstChunk uint32
}

// QueryKind is the kind of answer to a QueryRequest.
type QueryKind string

const (
	// QueryEvents: the events asked for, with their own ids.
	QueryEvents QueryKind = "events"
	// QueryTreeDump: everything that the owner holds after LastEventID, as stored
	// events with synthetic ids, parents before children. The dump replaces what
	// the asker had.
	QueryTreeDump QueryKind = "tree_dump"
	// QueryTooNew: StartID has not happened yet.
	QueryTooNew QueryKind = "too_new"
	// QueryInvalidRange: EndID lies before StartID.
	QueryInvalidRange QueryKind = "invalid_range"
	// QueryError: the request could not be served. Message says why.
	QueryError QueryKind = "error"
)

// QueryReply is one chunk of an answer. Chunks are numbered from 0, and the last
// one is Final. A missing chunk makes the whole answer void.
type QueryReply struct {
	PublisherID uint64
	// DumpID names a dump that is sent in parts, from 1. It is 0 in any other
	// answer.
	DumpID      uint64
	Kind        QueryKind
	LastEventID uint64
	Chunk       uint32
	Final       bool
	Message     string
	Events      []RouterEvent
}

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
