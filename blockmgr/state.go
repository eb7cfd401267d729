package blockmgr

import (
	"errors"
	"fmt"
)

// BlockState is how far a MutableBlock has come:
//
//	Reset ─InitSequence─► Partial ─Commit─► Complete ─Register─► Registered
//	  │                                        ▲
//	  └───────────ApplyTokenBlock──────────────┘
//
// Reset leads back from Partial and Complete.
type BlockState uint8

const (
	// BlockReset: the block has a slot and no identity.
	BlockReset BlockState = iota
	// BlockPartial: the block belongs to a sequence and collects its tokens.
	BlockPartial
	// BlockComplete: the block's tokens are complete and its identity is known.
	BlockComplete
	// BlockRegistered: the block is in the pool; its ImmutableBlock has its slot.
	BlockRegistered

	numBlockStates = iota
)

// String is the state's name in errors.
func (s BlockState) String() string {
	names := [numBlockStates]string{"reset", "partial", "complete", "registered"}
	if s >= numBlockStates {
		return fmt.Sprintf("block state %d", uint8(s))
	}
	return names[s]
}

// Errors of the block lifecycle that callers tell apart with errors.Is.
var (
	// ErrBlockState: the operation does not go with the block's state; the text
	// names the state that it is in and those that it should be in.
	ErrBlockState = errors.New("block is in the wrong state")
	// ErrTokens: there are more or fewer tokens than the operation takes; the text
	// says how many.
	ErrTokens = errors.New("wrong number of tokens")
	// ErrNotEnoughBlocks: fewer slots can be had than were asked for; the text says
	// how many.
	ErrNotEnoughBlocks = errors.New("not enough blocks")
	// ErrNoBlocks: a call that needs at least one block was given none.
	ErrNoBlocks = errors.New("no blocks given")
	// ErrFilling: somebody else is about to bring in a block of the same key, by
	// Grant or from disk. Once that is done, was aborted, or has taken a granted slot for
	// longer than 5 s, another try succeeds.
	ErrFilling = errors.New("block is being filled by somebody else")
	// ErrPins: the session would have more pins than Config.MaxPinsPerSession.
	ErrPins = errors.New("too many pins")
)

// TokenBlock is a block whose identity is known already. That the identity is
// that of the tokens is the caller's to vouch for; see Identifier.
type TokenBlock struct {
	Block Block
	// Tokens are as many as the namespace's block size.
	Tokens []uint32
}
