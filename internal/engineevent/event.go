package engineevent

import (
	"github.com/blockyard-ai/blockyard/internal/kv"
	"github.com/blockyard-ai/blockyard/internal/kvevent"
)

// NoGroup is Event.Group for an event that names no KV cache group.
const NoGroup int32 = -1

// Event is one event of an engine, in vLLM's terms. Kind says which fields have a
// meaning.
type Event struct {
	Kind kvevent.Kind
	// BlockHashes are the engine's hashes of the blocks, in sequence order.
	BlockHashes []kv.EngineHash
	// Parent is the block before the first one. It is valid with HasParent, which
	// is false at the start of a sequence. Stored only.
	Parent    kv.EngineHash
	HasParent bool
	// Tokens are the tokens of all the blocks: BlockSize for each block, and one
	// more with Eagle. Empty in a placeholder. Stored only.
	Tokens    []uint32
	BlockSize uint32
	// Eagle says that tokens came as pairs and were flattened.
	Eagle bool
	// LoRAName is the adapter's name, empty for the base model. LoRAID is the
	// engine's own number of the adapter, 0 for none. Some engines send the number
	// alone, and then the blocks are not the base model's.
	LoRAName string
	LoRAID   int64
	// Salt is the cache salt, from its own key or from the extra keys of the first
	// block, or empty. Salt and LoRAName have at most kv.MaxNameBytes: see
	// kv.BoundedName.
	Salt string
	// Multimodal holds, for each block, the 64-bit hashes of its multimodal objects
	// and of its other inputs besides tokens, adapter and salt. It is nil when no
	// block of the event has any.
	Multimodal [][]uint64
	// Medium is where the blocks lie, in the engine's words: see kv.TierFromMedium.
	Medium string
	// Locality is "LOCAL", "REMOTE" or empty.
	Locality string
	// Ownership says who keeps the blocks if the engine does not.
	Ownership string
	// Group is the KV cache group, or NoGroup. SpecKind and SlidingWindow describe
	// the group.
	Group         int32
	SpecKind      string
	SlidingWindow uint32
}

// Batch is what an engine publishes in one message: the events of one scheduler
// step. A Batch is reused from one Decode to the next.
type Batch struct {
	// Timestamp is the engine's wall clock in seconds, for display.
	Timestamp float64
	// Rank is the data-parallel rank. It is valid with HasRank.
	Rank    kv.DPRank
	HasRank bool
	Events  []Event
	// Bad holds a *BadEvent for each event of the batch that could not be decoded.
	// Such events are not in Events.
	Bad []error
	// UnknownKeys counts the extra keys in Events of an unknown kind. Their blocks
	// are named by the keys' encoding.
	UnknownKeys int

	mem batchMemory // behind the slices in Events
}
