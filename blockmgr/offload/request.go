package offload

import (
	"fmt"
	"math"
)

// Run is a run of a request's blocks to store; without blocks it is none.
type Run struct {
	// First is the index of the first block in the request.
	First int
	// Blocks are the engine's own numbers of the blocks, Priorities their
	// retention priorities. Both are lent until the request's next call.
	Blocks, Priorities []uint32
}

// Count is the number of blocks.
func (r Run) Count() int { return len(r.Blocks) }

// Request is what has been offered of one request. Make one with NewRequest.
type Request struct {
	rules  Rules
	blocks deviceBlocks

	known     int // tokens whose values are known
	position  int // tokens that are computed after the last step
	evaluated int // blocks that were offered, or are not to be
	end       int // the block at which offload ended for good
}

// NewRequest is a request whose prompt has so many tokens, 0 to MaxTokens.
func NewRequest(rules Rules, tokens int) (*Request, error) {
	if err := rules.Validate(); err != nil {
		return nil, err
	}
	r := &Request{rules: rules, end: math.MaxInt}
	if err := r.Extend(tokens); err != nil {
		return nil, err
	}
	return r, nil
}

// Extend says that so many more tokens are known, those that were decoded. An
// engine that never tells them has only blocks of the prompt offered. They may
// come steps after they were computed: their blocks are offered then.
func (r *Request) Extend(tokens int) error {
	if tokens < 0 || tokens > MaxTokens-r.known {
		return fmt.Errorf("offload tokens %d after %d: want 0 to %d", tokens, r.known, MaxTokens-r.known)
	}
	r.known += tokens
	return nil
}

// Scheduled says that the engine runs a step of the request: computed tokens are
// there before it, scheduled ones are computed by it, and newBlocks were added
// to the request's blocks. newBlocks may repeat blocks from the request's end,
// or all of them; it may not leave some out or name one in a second place.
// Priorities has one for each of newBlocks, or is nil, which is 0 for blocks
// that had none.
//
// It returns the blocks to store: they can be copied when the step has run.
func (r *Request) Scheduled(computed, scheduled int, newBlocks, priorities []uint32) (Run, error) {
	overlap, err := r.blocks.overlap(newBlocks, priorities)
	if err != nil {
		return Run{}, err
	}
	size := r.rules.BlockSize
	room := (len(r.blocks.ids) + len(newBlocks) - overlap) * size
	if computed < 0 || computed > room {
		return Run{}, fmt.Errorf("offload computed tokens %d: want 0 to %d, which the request's blocks hold", computed, room)
	}
	if scheduled < 0 || scheduled > room-computed {
		return Run{}, fmt.Errorf("offload scheduled tokens %d after %d: want 0 to %d, which the request's blocks hold", scheduled, computed, room-computed)
	}
	r.blocks.add(newBlocks, priorities, overlap)
	if computed > r.position {
		// The engine had these tokens without a step of this request.
		r.evaluated = max(r.evaluated, computed/size)
	}
	// The position may go back, by guesses that were rejected.
	r.position = computed + scheduled
	first, complete := r.evaluated, min(min(r.position, r.known)/size, r.end)
	if complete <= first {
		return Run{}, nil
	}
	r.evaluated = complete
	for i, p := range r.blocks.priorities[first:complete] {
		if p < r.rules.MinPriority {
			r.end = first + i
			complete = r.end
			break
		}
	}
	return Run{
		First:      first,
		Blocks:     r.blocks.ids[first:complete:complete],
		Priorities: r.blocks.priorities[first:complete:complete],
	}, nil
}

// Asks reports whether the engine's question what of the request can be loaded,
// asked with computed tokens in place, deserves a lookup. It does before the
// request's first step, and after a preemption, which shows by fewer computed
// tokens than there were: the request is then as after Preempted. A request that
// was only left out of a step keeps what it has, and is not looked up.
func (r *Request) Asks(computed int) bool {
	if computed < r.position {
		r.Preempted()
	}
	return r.position == 0
}

// Preempted says that the engine has taken the request's blocks away. It will
// name new ones, and what it computes again is offered again: it may have left
// the lower tiers since.
func (r *Request) Preempted() {
	r.blocks.reset()
	r.position, r.evaluated = 0, 0
}
