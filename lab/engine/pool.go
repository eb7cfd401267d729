package engine

import (
	"fmt"
	"slices"

	"github.com/blockyard-ai/blockyard/internal/engineevent"
	"github.com/blockyard-ai/blockyard/internal/kv"
	"github.com/blockyard-ai/blockyard/internal/kvevent"
	"github.com/blockyard-ai/blockyard/internal/kvgroup"
)

// eventMedium is vLLM's word for the device.
const eventMedium = "GPU"

// specKinds are vLLM's words for the kinds of groups that the engine simulates.
var specKinds = map[kvgroup.Kind]string{kvgroup.Full: "full_attention", kvgroup.Sliding: "sliding_window"}

// cacheKey names the content of a block: the engine's hash in a KV group.
type cacheKey struct {
	hash  kv.EngineHash
	group int32
}

// pool keeps the account of device blocks as vLLM's block pool does. A block is
// referenced or in the free list. A free block keeps its identity, and a prefix hit
// revives it, until the block is taken for other content; then its removal is
// announced. Two requests that compute the same content at the same time make two
// blocks with one hash. Each is announced once and removed once. The KV groups of a
// hybrid model share the blocks. A pool belongs to one goroutine.
type pool struct {
	blockSize int
	// groups are the model's KV groups: full attention, or a sliding window and full attention.
	groups kvgroup.Groups
	blocks []deviceBlock
	free   freeList
	// cached is one block of each key. deviceBlock.same links the others.
	cached map[cacheKey]int32
	events []engineevent.Event
}

// deviceBlock is the state of one block.
type deviceBlock struct {
	refs   int32
	same   int32 // the next block with the same key, or none
	cached bool  // id and group are valid and the block is in pool.cached
	group  int32
	id     identity
}

func (d *deviceBlock) key() cacheKey { return cacheKey{d.id.engine, d.group} }

// newPool returns a pool of free device blocks of blockSize tokens each.
func newPool(blocks, blockSize int, groups kvgroup.Groups) *pool {
	p := &pool{
		blockSize: blockSize,
		groups:    groups,
		blocks:    make([]deviceBlock, blocks),
		free:      newFreeList(blocks),
		cached:    make(map[cacheKey]int32, blocks),
	}
	for i := range p.blocks {
		p.blocks[i].same = none
	}
	return p
}

// match appends to dst the device blocks of full attention that hold the longest prefix of ids, a
// prompt's blocks, that all groups have cached. It takes no reference, so the blocks may go at the
// next take.
func (p *pool) match(dst []int32, ids []identity) []int32 {
	page := uint32(p.blockSize)
	tokens := p.groups.Fit(uint32(len(ids))*page, 0, page, func(group int, at uint32) bool {
		if int(at) >= len(ids) {
			return false
		}
		_, ok := p.cached[cacheKey{ids[at].engine, int32(group)}]
		return ok
	})
	return p.prefix(dst, ids[:tokens/page])
}

// prefix appends to dst the device blocks of the longest prefix of ids that full attention has.
func (p *pool) prefix(dst []int32, ids []identity) []int32 {
	for _, id := range ids {
		b, ok := p.cached[cacheKey{id.engine, p.full()}]
		if !ok {
			break
		}
		dst = append(dst, b)
	}
	return dst
}

// fits reports whether n blocks can be taken in addition to the cached blocks of hit. Those of
// hit that are free leave the free list too.
func (p *pool) fits(n int, hit []int32) bool {
	for _, b := range hit {
		if b != none && p.blocks[b].refs == 0 {
			n++
		}
	}
	return n <= p.free.n
}

// touch takes one reference on each block but none. A free block leaves the free list and keeps its
// content.
func (p *pool) touch(blocks []int32) {
	for _, b := range blocks {
		if b == none {
			continue
		}
		if p.blocks[b].refs == 0 {
			p.free.remove(b)
		}
		p.blocks[b].refs++
	}
}

// take appends n blocks to dst, the oldest free ones, with one reference each. They
// lose their content. The caller has asked fits.
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

// release drops one reference on each block but none. Blocks that become free queue up
// in reverse order, so that the end of a sequence is lost before its start.
func (p *pool) release(blocks []int32) {
	for _, b := range slices.Backward(blocks) {
		if b == none {
			continue
		}
		d := &p.blocks[b]
		if d.refs <= 0 {
			panic(fmt.Sprintf("BUG: device block %d released without a reference", b))
		}
		if d.refs--; d.refs == 0 {
			p.free.pushBack(b)
		}
	}
}

// store makes blocks of a group, which the caller references and which hold the KV of
// tokens, findable under ids, and announces them in one event. It leaves out none. parent is the
// identity of the block before them, nil at the start of a sequence. It keeps
// tokens until takeEvents.
func (p *pool) store(group int32, blocks []int32, ids []identity, parent *identity, tokens []uint32) {
	if !slices.ContainsFunc(blocks, func(b int32) bool { return b != none }) {
		return
	}
	e := engineevent.Event{
		Kind:      kvevent.Stored,
		Tokens:    tokens,
		BlockSize: uint32(p.blockSize),
		Medium:    eventMedium,
		Group:     group,
		SpecKind:  specKinds[p.groups[group].Kind],

		SlidingWindow: p.groups[group].Window,
	}
	if parent != nil {
		e.Parent, e.HasParent = parent.engine, true
	}
	for i, b := range blocks {
		if b == none {
			continue
		}
		d := &p.blocks[b]
		if d.cached || d.refs == 0 {
			panic(fmt.Sprintf("BUG: device block %d stored with refs %d, cached %t", b, d.refs, d.cached))
		}
		d.id, d.group, d.cached = ids[i], group, true
		// A second block of one key joins the list of the first.
		if first, ok := p.cached[d.key()]; ok {
			d.same, p.blocks[first].same = p.blocks[first].same, b
		} else {
			p.cached[d.key()] = b
		}
		e.BlockHashes = append(e.BlockHashes, d.id.engine)
	}
	p.events = append(p.events, e)
}

// forget drops the cached content of block b, if any, and adds the removal to the events. Other
// blocks with the same hash stay findable.
func (p *pool) forget(b int32) {
	d := &p.blocks[b]
	if !d.cached {
		return
	}
	key := d.key()
	// Take b out of the list of blocks with this key.
	switch first := p.cached[key]; {
	case first != b:
		for p.blocks[first].same != b {
			first = p.blocks[first].same
		}
		p.blocks[first].same = d.same
	case d.same != none:
		p.cached[key] = d.same
	default:
		delete(p.cached, key)
	}
	*d = deviceBlock{refs: d.refs, same: none}
	p.events = append(p.events, engineevent.Event{
		Kind:        kvevent.Removed,
		BlockHashes: []kv.EngineHash{key.hash},
		Medium:      eventMedium,
		Group:       key.group,
	})
}

// reset drops everything that is cached and adds that to the events. It returns false, and drops
// nothing, while any block is referenced.
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

// takeEvents returns the events since the last call, in order.
func (p *pool) takeEvents() []engineevent.Event {
	e := p.events
	p.events = nil
	return e
}

// list returns the engine's hash of every block of full attention that is findable, once for each.
func (p *pool) list() []kv.EngineHash {
	hashes := make([]kv.EngineHash, 0, len(p.cached))
	for i := range p.blocks {
		if p.blocks[i].cached && p.blocks[i].group == p.full() {
			hashes = append(hashes, p.blocks[i].id.engine)
		}
	}
	return hashes
}

// resident lists the sequence hashes of all cached blocks of a group, each once, sorted.
func (p *pool) resident(group int32) []kv.SequenceHash {
	hashes := make([]kv.SequenceHash, 0, len(p.cached))
	for key, b := range p.cached {
		if key.group == group {
			hashes = append(hashes, p.blocks[b].id.seq)
		}
	}
	slices.Sort(hashes)
	return hashes
}

// none is the index of no block.
const none int32 = -1

// freeList is a queue of block indices, oldest first, from which any index can be
// removed in constant time. It has no pointers: prev and next are arrays over all
// blocks, and their last element is head and tail.
type freeList struct {
	prev, next []int32
	n          int
}

// newFreeList returns a list of the free blocks 0, 1 … blocks-1, the oldest first. It is a ring
// of links with one more element, the head, so that a block leaves from any place in constant
// time.
func newFreeList(blocks int) freeList {
	l := freeList{prev: make([]int32, blocks+1), next: make([]int32, blocks+1)}
	head := int32(blocks)
	l.prev[head], l.next[head] = head, head
	for i := range int32(blocks) {
		l.pushBack(i)
	}
	return l
}

func (l *freeList) head() int32 { return int32(len(l.next) - 1) }

// pushBack adds b, which is not in the list, as the youngest.
func (l *freeList) pushBack(b int32) {
	h := l.head()
	last := l.prev[h]
	l.prev[b], l.next[b] = last, h
	l.next[last], l.prev[h] = b, b
	l.n++
}

// remove takes b, which is in the list, out of it.
func (l *freeList) remove(b int32) {
	l.next[l.prev[b]], l.prev[l.next[b]] = l.next[b], l.prev[b]
	l.prev[b], l.next[b] = none, none
	l.n--
}

// popFront takes the oldest block out; none when the list is empty.
func (l *freeList) popFront() int32 {
	b := l.next[l.head()]
	if b == l.head() {
		return none
	}
	l.remove(b)
	return b
}
