package offload

import "fmt"

const (
	// MaxBlockSize is the largest Rules.BlockSize.
	MaxBlockSize = 4096
	// MaxTokens is how many tokens a request may have: a billion, so that no sum
	// of two counts can wrap.
	MaxTokens = 1 << 30
	// MaxBlocks is how many blocks a request may have.
	MaxBlocks = 1 << 20
)

// Rules are what the requests of an engine have in common.
type Rules struct {
	// BlockSize is the number of tokens in a block, 1 to 4096.
	BlockSize int
	// MinPriority ends the offload of a request at its first block of a lower
	// retention priority. 0 ends none.
	MinPriority uint32
}

// Validate checks every field's range; the error names the first bad one.
func (r Rules) Validate() error {
	if r.BlockSize < 1 || r.BlockSize > MaxBlockSize {
		return fmt.Errorf("offload block size %d: want 1 to %d", r.BlockSize, MaxBlockSize)
	}
	return nil
}
