package engine

import (
	"fmt"
	"iter"
	"math"

	"github.com/blockyard-ai/blockyard/agent/refusal"
	"github.com/blockyard-ai/blockyard/blockmgr"
	"github.com/blockyard-ai/blockyard/blockmgr/tier"
	"github.com/blockyard-ai/blockyard/consolidator/tokens"
	"github.com/blockyard-ai/blockyard/internal/kv"
	"github.com/blockyard-ai/blockyard/internal/kvgroup"
	"github.com/blockyard-ai/blockyard/internal/proto"
)

// requestName identifies a request of a session.
type requestName struct {
	id         uint64
	generation uint32
}

// String names the request in errors.
func (n requestName) String() string {
	return fmt.Sprintf("request %d generation %d", n.id, n.generation)
}

// request is an open request of a session, or an earlier generation of one that still holds
// grants. The goroutine that reads the scheduler's connection owns it. session.mu guards the
// fields at the end.
type request struct {
	requestName
	root blockmgr.Root
	// identity goes with the blocks' tokens to outputs that publish tokens.
	identity tokens.Identity
	// blocks are the complete chain blocks. It only grows, so that other goroutines may read a
	// slice of it. tail has the tokens after them, fewer than a block. tokens counts both.
	blocks []blockmgr.Block
	tail   []uint32
	tokens int
	// broken is the refusal of a piece of the tokens. It also answers every later frame about
	// the request.
	broken error

	// storableEnd is the first chain block that was offered below Config.MinPriority. Only blocks
	// that end before it are stored.
	storableEnd uint32

	// session.mu guards the fields below.
	closed bool
	pins   map[blockName]pin
	grants map[blockmgr.Slot]struct{}
	hits   requestHits
}

// blockName names a block of a request: its KV group, and its index in the group.
type blockName struct{ group, index uint32 }

// pin is a pinned slot and the tier where the lookup found its block.
type pin struct {
	slot   blockmgr.Slot
	source kv.Tier
	// damaged are slots that earlier lookups of the block reported and that were found damaged
	// since. They stay pinned with slot: a copy from them may be in flight.
	damaged []blockmgr.Slot
}

// dropPinsLocked removes the pins of blocks first … end-1 of a KV group and returns their slots. The
// caller holds session.mu.
func (r *request) dropPinsLocked(group uint32, first, end uint64) (slots []blockmgr.Slot) {
	for b := range r.pinnable(group, first, end) {
		if p, ok := r.pins[b]; ok {
			slots = append(append(slots, p.slot), p.damaged...)
			delete(r.pins, b)
		}
	}
	return slots
}

// dropAllPinsLocked removes all pins and returns their slots. The caller holds session.mu.
func (r *request) dropAllPinsLocked() (slots []blockmgr.Slot) {
	for _, p := range r.pins {
		slots = append(append(slots, p.slot), p.damaged...)
	}
	clear(r.pins)
	return slots
}

// pinnable yields names that include every pinned block of first … end-1 of a KV group. It walks
// the range or the pins, whichever is shorter: a request that releases its pins one by one costs
// one step each.
func (r *request) pinnable(group uint32, first, end uint64) iter.Seq[blockName] {
	end = min(end, math.MaxUint32+1)
	return func(yield func(blockName) bool) {
		if first < end && end-first < uint64(len(r.pins)) {
			for i := first; i < end && yield(blockName{group, uint32(i)}); i++ {
			}
			return
		}
		for b := range r.pins {
			if b.group == group && uint64(b.index) >= first && uint64(b.index) < end && !yield(b) {
				return
			}
		}
	}
}

// chain computes the identity of blocks as their tokens arrive. One goroutine uses it.
type chain struct {
	ns        kv.NamespaceID
	blockSize int
	groups    kvgroup.Groups // nil for a model without KV groups
	identify  *blockmgr.Identifier
	// tokens returns the sink of the blocks' tokens, nil for none.
	tokens func() tokens.Sink
	// owner returns the owner of blocks with a cache salt; see blockmgr.Manager.OwnerOf.
	owner func(salt string) uint64
}

func newChain(ns *kv.Namespace, tokens func() tokens.Sink, owner func(salt string) uint64) *chain {
	return &chain{ns: ns.ID(), blockSize: int(ns.BlockSize), groups: ns.KVGroups(), identify: blockmgr.NewIdentifier(), tokens: tokens, owner: owner}
}

// open returns the request that an OPEN describes, without its tokens. Every block of it may be
// stored.
func (c *chain) open(m *proto.Open) *request {
	root := c.identify.Root(c.ns, m.LoRA, m.LoRAName, m.Salt)
	root.Owner = c.owner(m.Salt)
	return &request{
		requestName: requestName{m.Request, m.Generation},
		root:        root,
		identity:    tokens.Identity{LoRAName: m.LoRAName, Salt: m.Salt, BlockSize: uint32(c.blockSize)},
		tail:        make([]uint32, 0, c.blockSize),
		storableEnd: math.MaxUint32,
		pins:        make(map[blockName]pin), grants: make(map[blockmgr.Slot]struct{}),
	}
}

// add appends tokens to r. Each full block of tokens becomes the next block of r.
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

// complete makes r's tail, which is full, the next block of r. The sink of tokens, if there is
// one, gets the block's tokens.
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

// checkGroup refuses a frame of type t about a KV group that the namespace does not have.
func (c *chain) checkGroup(t proto.Type, group uint32) error {
	if n := max(1, len(c.groups)); int(group) >= n {
		return refusal.New(proto.CodeRange, "%s group: %d is not in 0..%d", t, group, n-1)
	}
	return nil
}

// pages returns how many chain blocks a block of a group has.
func (c *chain) pages(group uint32) uint32 {
	if c.groups == nil {
		return 1
	}
	return c.groups[group].BlockSize / uint32(c.blockSize)
}

// primary reports whether a group is the one that has the whole prompt.
func (c *chain) primary(group uint32) bool {
	return c.groups == nil || int(group) == c.groups.Primary()
}

// completeBlocks returns the complete blocks of r among blocks first … first+count-1 of a group.
func (c *chain) completeBlocks(r *request, group, first, count uint32) []blockmgr.Block {
	n := uint64(len(r.blocks)) / uint64(c.pages(group))
	from, end := min(uint64(first), n), min(uint64(first)+uint64(count), n)
	if c.groups == nil {
		return r.blocks[from:end]
	}
	blocks := make([]blockmgr.Block, 0, end-from)
	for i := from; i < end; i++ {
		blocks = append(blocks, tier.GroupBlock(c.groups, uint32(c.blockSize), r.blocks, group, uint32(i)))
	}
	return blocks
}

// wholeRun is completeBlocks, with an error unless all of the blocks are complete.
func (c *chain) wholeRun(r *request, group, first, count uint32) ([]blockmgr.Block, error) {
	if b := c.completeBlocks(r, group, first, count); len(b) == int(count) {
		return b, nil
	}
	return nil, refusal.New(proto.CodeRange, "request %d blocks %d..%d: the request has %d complete blocks (%d tokens)",
		r.id, first, uint64(first)+uint64(count)-1, uint32(len(r.blocks))/c.pages(group), r.tokens)
}
