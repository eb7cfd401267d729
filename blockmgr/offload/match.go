package offload

import "github.com/blockyard-ai/blockyard/internal/kv"

// Reserve is what an engine must compute itself of a prompt that could be loaded
// as a whole: it needs the last token's output to go on.
type Reserve uint8

const (
	// ReserveNothing takes a whole prompt, for engines that see to it themselves.
	ReserveNothing Reserve = iota
	// ReserveToken takes all blocks, and has the last token computed again in the
	// last of them.
	ReserveToken
	// ReserveBlock does without the last block, as KVBM does.
	ReserveBlock
)

// Query is an engine's question how much of a prompt can be loaded.
type Query struct {
	// Tokens is the length of the prompt, Computed how many tokens of it are in
	// the engine's own cache.
	Tokens, Computed int
	// BlockSize is the number of tokens in a block.
	BlockSize int
	// Reserve says what is left to the engine.
	Reserve Reserve
}

// Wanted is the run of blocks that is worth a lookup: the complete ones behind
// those that are computed. There is none when the computed tokens end inside a
// block, since what is loaded would overwrite the others of it, or when the
// numbers make no sense.
func (q Query) Wanted() (first, count int) {
	if q.BlockSize < 1 || q.Computed < 0 || q.Computed > q.Tokens || q.Computed%q.BlockSize != 0 {
		return 0, 0
	}
	first = q.Computed / q.BlockSize
	return first, q.Tokens/q.BlockSize - first
}

// Loadable is how many blocks and tokens behind the computed ones can be loaded,
// when found has, for each of the wanted blocks from the first on, the tiers
// that hold it. It may be shorter: blocks that it leaves out were not found. It
// ends at the first block that is in no tier.
//
// The answer is for these computed tokens. When they change before the load,
// the engine's cache has grown or shrunk meanwhile, and the question must be put
// again: the blocks of the old answer lie elsewhere.
func (q Query) Loadable(found []kv.TierMask) (blocks, tokens int) {
	_, count := q.Wanted()
	for blocks < min(count, len(found)) && found[blocks] != 0 {
		blocks++
	}
	tokens = blocks * q.BlockSize
	if blocks == 0 || q.Computed+tokens < q.Tokens {
		return blocks, tokens
	}
	switch q.Reserve {
	case ReserveToken:
		tokens--
		blocks = (tokens + q.BlockSize - 1) / q.BlockSize // one less if a block is a token
	case ReserveBlock:
		blocks, tokens = blocks-1, tokens-q.BlockSize
	case ReserveNothing:
	}
	return blocks, tokens
}
