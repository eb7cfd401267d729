package engine

import (
	"fmt"
	"iter"
	"math"

	"github.com/blockyard-ai/blockyard/agent/refusal"
	"github.com/blockyard-ai/blockyard/blockmgr"
	"github.com/blockyard-ai/blockyard/consolidator/tokens"
	"github.com/blockyard-ai/blockyard/internal/kv"
	"github.com/blockyard-ai/blockyard/internal/proto"
)

// requestName tells the requests of a session apart.
type requestName struct {
	id         uint64
	generation uint32
}

// String is how errors call the request.
func (n requestName) String() string {
	return fmt.Sprintf("request %d generation %d", n.id, n.generation)
}

// request is one open request of a session, or an earlier generation of one that
// still holds grants. The goroutine that reads the
// session's scheduler owns it, but for what the session's lock guards.
type request struct {
	requestName
	root blockmgr.Root
	// says is what a format that carries tokens has to say of the request's blocks.
	identity tokens.Identity
	// blocks are the request's complete blocks; it only grows, so that a slice of
	// it may be read by others. tail holds the tokens after them, fewer than one
	// block. tokens counts all of them.
	blocks []blockmgr.Block
	tail   []uint32
	tokens int
	// broken is why the request's tokens are not known any more: a piece was lost
	// or was not allowed. Every later frame about it is refused with this.
	broken error

	// storable is where the blocks end that may be stored: the first that was offered
	// with too low a priority.
	storable uint32

	// Guarded by session.mu.
	closed bool
	pins   map[uint32]pin // by block index
	grants map[blockmgr.Slot]struct{}
	hits   requestHits
}

// pin is a pinned slot and the tier that its block was found in.
type pin struct {
	slot   blockmgr.Slot
	source kv.Tier
	// lost are slots that an earlier lookup of the block reported and whose bytes
	// were found damaged since; they stay pinned as long.
	lost []blockmgr.Slot
}

// dropPinsLocked takes the pins of blocks first … end-1 out of the request. The
// session's mutex guards them.
func (r *request) dropPinsLocked(first, end uint64) (slots []blockmgr.Slot) {
	for i := range r.pinnable(first, end) {
		if p, ok := r.pins[i]; ok {
			slots = append(append(slots, p.slot), p.lost...)
			delete(r.pins, i)
		}
	}
	return slots
}

// pinnable are block indices that include all pinned ones of first … end-1: either
// these or the pinned ones among them, whichever are fewer to look at. A request that
// gives its pins back one by one costs one step for each.
func (r *request) pinnable(first, end uint64) iter.Seq[uint32] {
	end = min(end, math.MaxUint32+1)
	return func(yield func(uint32) bool) {
		if first < end && end-first < uint64(len(r.pins)) {
			for i := first; i < end && yield(uint32(i)); i++ {
			}
			return
		}
		for i := range r.pins {
			if uint64(i) >= first && uint64(i) < end && !yield(i) {
				return
			}
		}
	}
}

// chain computes the identity of blocks as their tokens arrive. One goroutine
// uses it.
type chain struct {
	ns        kv.NamespaceID
	blockSize int
	identify  *blockmgr.Identifier
	// tokens is told the tokens of every block, if there is one to tell.
	tokens func() tokens.Sink
}

// nobodysTokens are tokens that nobody is told.
func nobodysTokens() tokens.Sink { return nil }

func newChain(ns *kv.Namespace, tokens func() tokens.Sink) *chain {
	return &chain{ns: ns.ID(), blockSize: int(ns.BlockSize), identify: blockmgr.NewIdentifier(), tokens: tokens}
}

// open begins a request without tokens.
func (c *chain) open(m *proto.Open) *request {
	return &request{
		requestName: requestName{m.Request, m.Generation},
		root:        c.identify.Root(c.ns, m.LoRA, m.LoRAName, m.Salt),
		identity:    tokens.Identity{LoRAName: m.LoRAName, Salt: m.Salt, BlockSize: uint32(c.blockSize)},
		tail:        make([]uint32, 0, c.blockSize),
		storable:    math.MaxUint32,
		pins:        make(map[uint32]pin), grants: make(map[blockmgr.Slot]struct{}),
	}
}

// add appends tokens to r.
func (c *chain) add(r *request, tokens []uint32) {
	r.tokens += len(tokens)
	for len(tokens) > 0 {
		n := min(c.blockSize-len(r.tail), len(tokens))
		r.tail = append(r.tail, tokens[:n]...)
		tokens = tokens[n:]
		if len(r.tail) == c.blockSize {
			c.complete(r)
		}
	}
}

// complete turns r's tail into its next block.
func (c *chain) complete(r *request) {
	if n := len(r.blocks); n == 0 {
		r.blocks = append(r.blocks, c.identify.First(r.root, r.tail))
	} else {
		r.blocks = append(r.blocks, c.identify.Next(&r.blocks[n-1], r.tail))
	}
	if sink := c.tokens(); sink != nil {
		sink.BlockTokens(r.blocks[len(r.blocks)-1].Seq, r.tail, r.identity)
	}
	r.tail = r.tail[:0]
}

// completeBlocks are the blocks first … first+count-1 as far as they are
// complete.
func (r *request) completeBlocks(first, count uint32) []blockmgr.Block {
	n := uint64(len(r.blocks))
	return r.blocks[min(uint64(first), n):min(uint64(first)+uint64(count), n)]
}

// wholeRun is completeBlocks where every block must be complete.
func (r *request) wholeRun(first, count uint32) ([]blockmgr.Block, error) {
	if b := r.completeBlocks(first, count); len(b) == int(count) {
		return b, nil
	}
	return nil, refusal.New(proto.CodeRange, "request %d blocks %d..%d: the request has %d complete blocks (%d tokens)",
		r.id, first, uint64(first)+uint64(count)-1, len(r.blocks), r.tokens)
}
