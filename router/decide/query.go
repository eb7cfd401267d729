package decide

import (
	"fmt"

	"github.com/blockyard-ai/blockyard/internal/kv"
	"github.com/blockyard-ai/blockyard/router/config"
	"github.com/blockyard-ai/blockyard/router/schedule"
)

// Query is a prompt to find a worker for, or to ask about.
type Query struct {
	// ID is the request's context id: it names the request in later calls. It may be
	// empty unless UpdateStates.
	ID string
	// Model names the model, for a caller that keeps a Router for each of several
	// models. A Router does not look at it.
	Model  string
	Tokens []uint32
	// BlockMMInfos are the multimodal objects of each block, nil for a block of
	// text; blocks beyond the end of the list are text.
	BlockMMInfos []*BlockExtraInfo
	// Override replaces parts of the configuration; nil replaces nothing.
	Override *config.Override
	// UpdateStates books the request on the chosen worker until Free.
	UpdateStates bool
	// LoRA and Salt are the adapter's name and the cache namespace; both change what
	// is a hit.
	LoRA, Salt string
	// PriorityJump, in seconds, and StrictPriority order requests that wait.
	PriorityJump   float64
	StrictPriority uint32
	// ExpectedOutput is the expected number of tokens to be generated, 0 when
	// unknown.
	ExpectedOutput int
	// Pinned is the only worker that will do, and Allowed limits the choice; nil is
	// no limit.
	Pinned  *kv.Worker
	Allowed map[kv.WorkerID]struct{}
	// RequiredTaints and PreferredTaints are as in schedule.Request.
	RequiredTaints  []string
	PreferredTaints []schedule.TaintPreference
	// Provisional and Waits are as in schedule.Request.
	Provisional bool
	Waits       func()
}

// BlockExtraInfo is what besides its tokens makes up a block.
type BlockExtraInfo struct {
	MMObjects []MMObject `json:"mm_objects"`
}

// MMObject is an image, audio or video object that touches a block.
type MMObject struct {
	// Hash names the object. It becomes part of the block's identity.
	Hash uint64 `json:"mm_hash"`
	// Offsets are the half-open ranges of its tokens in the block. They do not
	// change the identity.
	Offsets [][2]uint64 `json:"offsets"`
}

// QueryError says what is not right about a Query.
type QueryError struct{ Err error }

// Error names the field, its value and what is allowed.
func (e *QueryError) Error() string { return e.Err.Error() }

// Unwrap is what was wrong.
func (e *QueryError) Unwrap() error { return e.Err }

// maxMMObjects bounds the objects of one block.
const maxMMObjects = 4096

// Validate reports what is not right about a query whose blocks have so many tokens.
func (q *Query) Validate(blockSize int) error {
	if most := (len(q.Tokens) + blockSize - 1) / blockSize; len(q.BlockMMInfos) > most {
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

// hasObjects reports whether any block has multimodal objects.
func (q *Query) hasObjects() bool {
	for _, info := range q.BlockMMInfos {
		if info != nil && len(info.MMObjects) > 0 {
			return true
		}
	}
	return false
}

// blocks hashes prompts. It keeps its memory from one to the next.
type blocks struct {
	hasher kv.Hasher
	mm     []uint64
	locals []kv.LocalHash
}

// hash fills b.locals with the blocks of a query.
func (b *blocks) hash(q *Query, blockSize int, pairs bool) {
	if b.locals == nil {
		// Nil would be no answer.
		b.locals = make([]kv.LocalHash, 0, 64)
	}
	b.locals = b.locals[:0]
	seed := kv.LocalSeed(q.LoRA, q.Salt)
	if !pairs && !q.hasObjects() {
		b.locals = b.hasher.AppendLocals(b.locals, q.Tokens, blockSize, seed)
		return
	}
	full := len(q.Tokens) / blockSize
	if pairs {
		// The last token of the last pair is the first of the next block.
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
