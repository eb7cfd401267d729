package decide

import (
	"fmt"
	"math"
	"time"

	"github.com/blockyard-ai/blockyard/internal/kv"
	"github.com/blockyard-ai/blockyard/router/config"
	"github.com/blockyard-ai/blockyard/router/schedule"
)

// Query is a prompt that needs a worker, or a question about a prompt.
type Query struct {
	// ID names the request in later calls. ID may be empty without UpdateStates.
	ID string
	// Model names the model, for callers with several Routers. A Router ignores it.
	Model  string
	Tokens []uint32
	// Hashed replaces the hashes of Tokens for callers that have them. It may be nil. Then
	// only a shared cache is asked by Tokens, which may be empty.
	Hashed *Hashed
	// BlockMMInfos are the multimodal objects of each block, nil for a block of
	// text. Blocks beyond the end of the list are text.
	BlockMMInfos []*BlockExtraInfo
	// Override replaces parts of the configuration. It may be nil.
	Override *config.Override
	// UpdateStates books the request on the chosen worker until Free.
	UpdateStates bool
	// Explain fills Match.Candidates.
	Explain bool
	// Misses fills Match.Prompt.
	Misses bool
	// LoRA is the adapter's name and Salt the cache namespace. Both are part of the blocks'
	// hashes.
	LoRA, Salt string
	// PriorityJump, in seconds, and StrictPriority order waiting requests.
	PriorityJump   float64
	StrictPriority uint32
	// PolicyClass and Deadline are as in schedule.Request.
	PolicyClass string
	Deadline    time.Duration
	// ExpectedOutput is the expected number of generated tokens, 0 when unknown.
	ExpectedOutput int
	// HandedOver is as in schedule.Request.
	HandedOver bool
	// Pinned is the only worker that may serve the request. Allowed limits the
	// choice; nil allows all.
	Pinned  *kv.Worker
	Allowed map[kv.WorkerID]struct{}
	// RequiredTaints and PreferredTaints are as in schedule.Request.
	RequiredTaints  []string
	PreferredTaints []schedule.TaintPreference
	// PrimaryGroup makes Overlaps count the blocks of the primary KV group alone: see
	// index.Matches. A decision ignores it.
	PrimaryGroup bool
	// Provisional and Waits are as in schedule.Request.
	Provisional bool
	Waits       func()
}

// Hashed is a prompt by its hashes.
type Hashed struct {
	// Tokens is the length of the prompt.
	Tokens int
	// Locals are the full blocks to look up. They have the adapter, the salt and the
	// multimodal objects in them.
	Locals []kv.LocalHash
	// Sequence are the blocks that count as active while the request runs. Nil takes the
	// SequenceHashes of Locals.
	Sequence []kv.SequenceHash
}

// Len returns the number of tokens of the prompt.
func (q *Query) Len() int {
	if q.Hashed != nil {
		return q.Hashed.Tokens
	}
	return len(q.Tokens)
}

// BlockExtraInfo is the content of a block besides its tokens.
type BlockExtraInfo struct {
	MMObjects []MMObject `json:"mm_objects"`
}

// MMObject is an image, audio or video object in a block.
type MMObject struct {
	// Hash names the object and is part of the block's identity.
	Hash uint64 `json:"mm_hash"`
	// Offsets are the half-open ranges of the object's tokens in the block. They
	// are not part of the identity.
	Offsets [][2]uint64 `json:"offsets"`
}

// QueryError says which field of a Query is invalid.
type QueryError struct{ Err error }

// Error names the field, its value and the accepted values.
func (e *QueryError) Error() string { return e.Err.Error() }

// Unwrap returns the cause.
func (e *QueryError) Unwrap() error { return e.Err }

// maxMMObjects bounds the objects of one block.
const maxMMObjects = 4096

// Validate reports the first invalid field of a query, for a block size in tokens.
func (q *Query) Validate(blockSize int) error {
	if h := q.Hashed; h != nil {
		if h.Tokens < 0 || h.Tokens > math.MaxInt32 {
			return fmt.Errorf("hashed prompt: %d tokens are not in 0..%d", h.Tokens, math.MaxInt32)
		}
		// Callers divide a length by the block size and may count a partial block.
		if most := h.Tokens/blockSize + 1; len(h.Locals) > most || len(h.Sequence) > most {
			return fmt.Errorf("hashed prompt: %d and %d blocks are more than %d of a prompt of %d tokens",
				len(h.Locals), len(h.Sequence), most, h.Tokens)
		}
	}
	if most := (q.Len() + blockSize - 1) / blockSize; len(q.BlockMMInfos) > most {
		return fmt.Errorf("block_mm_infos: %d entries for %d blocks", len(q.BlockMMInfos), most)
	}
	for i, info := range q.BlockMMInfos {
		if info != nil && len(info.MMObjects) > maxMMObjects {
			return fmt.Errorf("block_mm_infos[%d]: %d objects are more than %d", i, len(info.MMObjects), maxMMObjects)
		}
	}
	if q.Override != nil {
		return q.Override.Validate()
	}
	return nil
}

// HasObjects reports whether any block has multimodal objects.
func (q *Query) HasObjects() bool {
	for _, info := range q.BlockMMInfos {
		if info != nil && len(info.MMObjects) > 0 {
			return true
		}
	}
	return false
}

// Locals returns the hashes of the full blocks of Tokens, with their adapter, salt and
// multimodal objects. pairs is as in kv.BlockTokens.
func (q *Query) Locals(blockSize int, pairs bool) []kv.LocalHash {
	var b blocks
	b.hash(q, blockSize, pairs)
	return b.locals
}

// blocks hashes prompts and reuses its memory.
type blocks struct {
	hasher kv.Hasher
	mm     []uint64
	locals []kv.LocalHash
}

// hash fills b.locals with the local hashes of the prompt's full blocks, of blockSize tokens
// each. pairs says that the engines hash pairs of tokens, as with Eagle speculation: a block
// then needs the token after it too.
func (b *blocks) hash(q *Query, blockSize int, pairs bool) {
	if b.locals == nil {
		// An empty prompt must not have nil locals: config would hash its tokens again.
		b.locals = make([]kv.LocalHash, 0, 64)
	}
	b.locals = b.locals[:0]
	if q.Hashed != nil {
		b.locals = append(b.locals, q.Hashed.Locals...)
		return
	}
	seed := kv.LocalSeed(q.LoRA, q.Salt)
	if !pairs && !q.HasObjects() { // the usual case, with a faster function
		b.locals = b.hasher.AppendLocals(b.locals, q.Tokens, blockSize, seed)
		return
	}
	full := len(q.Tokens) / blockSize
	if pairs {
		// The last pair of a block ends with the first token of the next block.
		full = max(0, len(q.Tokens)-1) / blockSize
	}
	for i := range full {
		b.mm = b.mm[:0]
		if i < len(q.BlockMMInfos) && q.BlockMMInfos[i] != nil {
			for _, o := range q.BlockMMInfos[i].MMObjects {
				b.mm = append(b.mm, o.Hash)
			}
		}
		b.locals = append(b.locals, b.hasher.Local(kv.BlockTokens(q.Tokens, i, blockSize, pairs), seed, b.mm))
	}
}
