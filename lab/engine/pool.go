package engine

import (
	"encoding/binary"
	"fmt"
	"math/bits"
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

// pool keeps the account of device blocks as vLLM's block pool does. A block is
// referenced or in the free list. A free block keeps its identity, and a prefix hit
// revives it, until the block is taken for other content; then its removal is
// announced. Two requests that compute the same content at the same time make two
// blocks with one hash. Each is announced once and removed once. A pool belongs to one
// goroutine.
type pool struct {
	blockSize int
	blocks    []deviceBlock
	free      freeList
	// cached is one block of each hash. deviceBlock.same links the others.
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

// newPool returns a pool of free device blocks of blockSize tokens each.
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

// match appends to dst the device blocks that hold the longest cached prefix of ids, a prompt's
// blocks. It takes no reference, so the blocks may go at the next take.
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

// fits reports whether n blocks can be taken in addition to the cached blocks of hit. Those of
// hit that are free leave the free list too.
func (p *pool) fits(n int, hit []int32) bool {
	for _, b := range hit {
		if p.blocks[b].refs == 0 {
			n++
		}
	}
	return n <= p.free.n
}

// touch takes one reference on each block. A free block leaves the free list and keeps its content.
func (p *pool) touch(blocks []int32) {
	for _, b := range blocks {
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
		// A second block of one hash joins the list of the first.
		if first, ok := p.cached[d.id.engine]; ok {
			d.same, p.blocks[first].same = p.blocks[first].same, b
		} else {
			p.cached[d.id.engine] = b
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
	hash := d.id.engine
	// Take b out of the list of blocks with this hash.
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

// list returns the engine's hash of every block that is findable, once for each.
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

// device is the engine's device memory: equal blocks side by side. A block's first
// holder writes it before it becomes findable. Every holder of a reference may read it.
type device struct {
	mem        []byte
	blockBytes int
}

func newDevice(blocks, blockBytes int) device {
	return device{mem: make([]byte, blocks*blockBytes), blockBytes: blockBytes}
}

// bytes returns the memory of block b.
func (d device) bytes(b int32) []byte {
	at := int(b) * d.blockBytes
	return d.mem[at : at+d.blockBytes : at+d.blockBytes]
}

// compute writes the KV that a forward pass would leave in block b.
func (d device) compute(b int32, key kv.BlockKey) { fillBlock(d.bytes(b), key) }

// fillBlock writes over the whole of dst the bytes that the simulated engine computes for the
// block key. Equal keys give equal bytes, so that wrongBytes can verify any copy.
func fillBlock(dst []byte, key kv.BlockKey) {
	lo, hi := binary.LittleEndian.Uint64(key[:8]), binary.LittleEndian.Uint64(key[8:])
	for len(dst) >= 8 {
		lo += weyl
		binary.LittleEndian.PutUint64(dst, payloadWord(lo, hi))
		dst = dst[8:]
	}
	if len(dst) > 0 {
		var last [8]byte
		binary.LittleEndian.PutUint64(last[:], payloadWord(lo+weyl, hi))
		copy(dst, last[:])
	}
}

// wrongBytes returns the number of bytes of b that differ from what fillBlock
// writes for key.
func wrongBytes(b []byte, key kv.BlockKey) int {
	lo, hi := binary.LittleEndian.Uint64(key[:8]), binary.LittleEndian.Uint64(key[8:])
	wrong := 0
	for len(b) >= 8 {
		lo += weyl
		if d := binary.LittleEndian.Uint64(b) ^ payloadWord(lo, hi); d != 0 {
			wrong += nonzeroBytes(d)
		}
		b = b[8:]
	}
	if len(b) > 0 {
		var last [8]byte
		binary.LittleEndian.PutUint64(last[:], payloadWord(lo+weyl, hi))
		for i := range b {
			if b[i] != last[i] {
				wrong++
			}
		}
	}
	return wrong
}

// weyl is the step of the counter under the generator: 2^64 over the golden
// ratio, odd, so that it runs through every word before it repeats.
const weyl = 0x9e3779b97f4a7c15

// payloadWord returns one word of a keyed generator: two multiply-shift rounds over
// the counter, with the key's other half mixed in between.
func payloadWord(counter, hi uint64) uint64 {
	x := (counter ^ counter>>30) * 0xbf58476d1ce4e5b9
	x ^= hi
	x = (x ^ x>>27) * 0x94d049bb133111eb
	return x ^ x>>31
}

// nonzeroBytes counts the bytes of d that are not zero: it folds each byte's
// bits into its lowest one.
func nonzeroBytes(d uint64) int {
	d |= d >> 4
	d |= d >> 2
	d |= d >> 1
	return bits.OnesCount64(d & 0x0101010101010101)
}
