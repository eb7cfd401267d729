package engine

import (
	"fmt"
	"slices"

	"github.com/blockyard-ai/blockyard/internal/engineevent"
	"github.com/blockyard-ai/blockyard/internal/kv"
	"github.com/blockyard-ai/blockyard/internal/kvevent"
)

// Words of vLLM's events for a model with full attention in one cache group.
const (
	eventMedium   = "GPU"
	eventGroup    = 0
	eventSpecKind = "full_attention"
)

// pool is the bookkeeping of device blocks, as vLLM's block pool does it. A
// block is either referenced or in the free list. A free block keeps its
// identity, and can be revived by a prefix hit, until it is taken for something
// else; then its removal is announced. Two requests that compute the same
// content at the same time make two blocks with one hash; each is announced
// once and removed once. A pool belongs to one goroutine.
type pool struct {
	blockSize int
	blocks    []deviceBlock
	free      freeList
	// cached leads from a hash to one block that has it; the others follow by
	// deviceBlock.same.
	cached map[kv.EngineHash]int32
	events []engineevent.Event
}

// deviceBlock is the state of one block.
type deviceBlock struct {
	refs   int32
	same   int32 // the next block with the same hash, or none
	cached bool  // id is valid and the block is in pool.cached
	id     identity
}

func newPool(blocks, blockSize int) *pool {
	p := &pool{
		blockSize: blockSize,
		blocks:    make([]deviceBlock, blocks),
		free:      newFreeList(blocks),
		cached:    make(map[kv.EngineHash]int32, blocks),
	}
	for i := range p.blocks {
		p.blocks[i].same = none
	}
	return p
}

// match appends the blocks that hold the longest cached prefix of ids to dst.
// It takes no reference.
func (p *pool) match(dst []int32, ids []identity) []int32 {
	for _, id := range ids {
		b, ok := p.cached[id.engine]
		if !ok {
			break
		}
		dst = append(dst, b)
	}
	return dst
}

// fits reports whether n blocks can be taken once the blocks of hit have been
// referenced.
func (p *pool) fits(n int, hit []int32) bool {
	for _, b := range hit {
		if p.blocks[b].refs == 0 {
			n++
		}
	}
	return n <= p.free.n
}

// touch takes one reference on each block and revives those that are free.
func (p *pool) touch(blocks []int32) {
	for _, b := range blocks {
		if p.blocks[b].refs == 0 {
			p.free.remove(b)
		}
		p.blocks[b].refs++
	}
}

// take appends n blocks with one reference each to dst; the oldest free ones,
// which lose what they held. The caller has asked fits.
func (p *pool) take(dst []int32, n int) []int32 {
	for range n {
		b := p.free.popFront()
		if b == none {
			panic("BUG: block taken from an empty pool")
		}
		p.forget(b)
		p.blocks[b].refs = 1
		dst = append(dst, b)
	}
	return dst
}

// release drops one reference on each block. Blocks that become free queue up
// in reverse order, so that the end of a sequence is lost before its start.
func (p *pool) release(blocks []int32) {
	for _, b := range slices.Backward(blocks) {
		d := &p.blocks[b]
		if d.refs <= 0 {
			panic(fmt.Sprintf("BUG: device block %d released without a reference", b))
		}
		if d.refs--; d.refs == 0 {
			p.free.pushBack(b)
		}
	}
}

// store makes blocks, which the caller references and which hold the KV of
// tokens, findable under ids, and announces them in one event. parent is the
// identity of the block before them, nil at the start of a sequence. It keeps
// tokens until takeEvents.
func (p *pool) store(blocks []int32, ids []identity, parent *identity, tokens []uint32) {
	if len(blocks) == 0 {
		return
	}
	e := engineevent.Event{
		Kind:      kvevent.Stored,
		Tokens:    tokens,
		BlockSize: uint32(p.blockSize),
		Medium:    eventMedium,
		Group:     eventGroup,
		SpecKind:  eventSpecKind,
	}
	if parent != nil {
		e.Parent, e.HasParent = parent.engine, true
	}
	for i, b := range blocks {
		d := &p.blocks[b]
		if d.cached || d.refs == 0 {
			panic(fmt.Sprintf("BUG: device block %d stored with refs %d, cached %t", b, d.refs, d.cached))
		}
		d.id, d.cached = ids[i], true
		if first, ok := p.cached[d.id.engine]; ok {
			d.same, p.blocks[first].same = p.blocks[first].same, b
		} else {
			p.cached[d.id.engine] = b
		}
		e.BlockHashes = append(e.BlockHashes, d.id.engine)
	}
	p.events = append(p.events, e)
}

// forget drops what b holds, if anything, and announces its removal.
func (p *pool) forget(b int32) {
	d := &p.blocks[b]
	if !d.cached {
		return
	}
	hash := d.id.engine
	switch first := p.cached[hash]; {
	case first != b:
		for p.blocks[first].same != b {
			first = p.blocks[first].same
		}
		p.blocks[first].same = d.same
	case d.same != none:
		p.cached[hash] = d.same
	default:
		delete(p.cached, hash)
	}
	*d = deviceBlock{refs: d.refs, same: none}
	p.events = append(p.events, engineevent.Event{
		Kind:        kvevent.Removed,
		BlockHashes: []kv.EngineHash{hash},
		Medium:      eventMedium,
		Group:       eventGroup,
	})
}

// reset drops everything that is cached and announces it. It refuses, and
// returns false, while any block is referenced.
func (p *pool) reset() bool {
	if p.free.n != len(p.blocks) {
		return false
	}
	clear(p.cached)
	for i := range p.blocks {
		p.blocks[i] = deviceBlock{same: none}
	}
	p.events = append(p.events, engineevent.Event{Kind: kvevent.Cleared, Group: engineevent.NoGroup})
	return true
}

// takeEvents returns what happened since the last call, in order.
func (p *pool) takeEvents() []engineevent.Event {
	e := p.events
	p.events = nil
	return e
}

// list is the engine's hash of every block that is findable, once for each.
func (p *pool) list() []kv.EngineHash {
	hashes := make([]kv.EngineHash, 0, len(p.cached))
	for i := range p.blocks {
		if p.blocks[i].cached {
			hashes = append(hashes, p.blocks[i].id.engine)
		}
	}
	return hashes
}

// resident lists the sequence hashes of all cached blocks, each once, sorted.
func (p *pool) resident() []kv.SequenceHash {
	hashes := make([]kv.SequenceHash, 0, len(p.cached))
	for _, b := range p.cached {
		hashes = append(hashes, p.blocks[b].id.seq)
	}
	slices.Sort(hashes)
	return hashes
}
