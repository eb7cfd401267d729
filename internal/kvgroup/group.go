package kvgroup

import "fmt"

// Kind says which part of a prefix a group's layers read. The texts are those of the protocol.
type Kind string

const (
	// Full layers read the whole prefix.
	Full Kind = "full"
	// Sliding layers read the last Window tokens, the token being computed included.
	Sliding Kind = "sliding"
	// Chunked layers read the tokens since the last multiple of Window.
	Chunked Kind = "chunked"
	// State layers read one state, which the block that ends at the prefix's end has.
	State Kind = "state"
)

// Limits of a model's groups.
const (
	// MaxGroups bounds the groups of a model.
	MaxGroups = 64
	// MaxBlockSize bounds the tokens of a group's block, and the least common multiple of the
	// block sizes of all groups.
	MaxBlockSize = 1 << 20
	// MaxWindow bounds the tokens of a window and of a chunk.
	MaxWindow = 1 << 24
)

// Group is the geometry of one KV group.
type Group struct {
	Kind Kind `json:"kind"`
	// Window is the tokens of a window or of a chunk, 0 for the other kinds.
	Window uint32 `json:"window,omitempty"`
	// BlockSize is the tokens of a block.
	BlockSize uint32 `json:"block_size"`
	// Eagle groups also need the block above the prefix: a draft model computes it again from
	// the hidden states of the prefix. State groups ignore Eagle.
	Eagle bool `json:"eagle,omitempty"`
}

// Validate returns an error for the first field out of range. page is the tokens of a chain
// block.
func (g Group) Validate(page uint32) error {
	switch g.Kind {
	case Full, State:
		if g.Window != 0 {
			return fmt.Errorf("window: %d, want 0 for kind %q", g.Window, g.Kind)
		}
	case Sliding, Chunked:
		if g.Window < 1 || g.Window > MaxWindow {
			return fmt.Errorf("window: %d is not in 1..%d", g.Window, MaxWindow)
		}
	default:
		return fmt.Errorf("kind: %.64q, want %q, %q, %q or %q", g.Kind, Full, Sliding, Chunked, State)
	}
	if g.BlockSize < 1 || g.BlockSize > MaxBlockSize {
		return fmt.Errorf("block_size: %d is not in 1..%d", g.BlockSize, MaxBlockSize)
	}
	if page == 0 || g.BlockSize%page != 0 {
		return fmt.Errorf("block_size: %d is not a multiple of page_size %d", g.BlockSize, page)
	}
	return nil
}

// Needs returns the blocks that the group needs for a prefix, from first up to but without end.
// tokens must be a multiple of the block size. An empty prefix needs none.
func (g Group) Needs(tokens uint32) (first, end uint32) {
	if tokens == 0 {
		return 0, 0
	}
	end = tokens / g.BlockSize
	switch g.Kind {
	case Sliding:
		// vLLM finds no hit without a block, not even for a window of one token.
		n := (g.Window - 1 + g.BlockSize - 1) / g.BlockSize
		if !g.Eagle {
			n = max(n, 1)
		}
		first = end - min(n, end)
	case Chunked:
		first = tokens / g.Window * g.Window / g.BlockSize
	case State:
		return end - 1, end
	}
	if g.Eagle {
		end++
	}
	return first, end
}

// ChainBlock returns the position of the chain block at which the group's block ends. page is the
// tokens of a chain block.
func (g Group) ChainBlock(block, page uint32) uint32 {
	return (block+1)*(g.BlockSize/page) - 1
}
