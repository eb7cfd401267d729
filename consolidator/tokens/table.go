package tokens

import (
	"math"
	"sync"

	"github.com/blockyard-ai/blockyard/internal/engineevent"
	"github.com/blockyard-ai/blockyard/internal/kv"
)

// Identity has the inputs of a block's hash besides its tokens and its prefix. A format that
// carries tokens carries it too.
type Identity struct {
	LoRAName, Salt string
	// BlockSize is the engine's block size in tokens. A block of an engine that caches
	// overlapping pairs has one token more.
	BlockSize uint32
	// Objects are the hashes of the multimodal objects in the block, lent. Nil for text.
	Objects []uint64
}

// Sink receives the tokens of blocks. BlockTokens is called before the event that stores
// the block, under the lock of the stream or session that makes the event. It must not
// block.
type Sink interface {
	// BlockTokens says that block h consists of tokens. They are lent.
	BlockTokens(h kv.SequenceHash, tokens []uint32, id Identity)
}

const (
	// defaultTokenBytes is the limit of a Table without one.
	defaultTokenBytes = 256 << 20
	// maxBlockWords bounds the tokens and objects of one block.
	maxBlockWords = 1 << 16
	// cellWords is the number of tokens in one cell: the usual block size.
	cellWords = 16
	// cellBytes and entryBytes are the costs of a cell and a block, with their share of
	// the index. nameBytes is the cost of a name besides its text.
	cellBytes  = 4 * (cellWords + 1)
	entryBytes = 40 + 24
	nameBytes  = 128
	// maxBareBlocks bounds the blocks that are retained without tokens.
	maxBareBlocks = 4 << 20
	// none is the index of nothing.
	none = math.MaxUint32
)

// Table remembers the tokens of blocks. A retained block stays. Without room the block
// that was released longest ago goes first. Blocks that are retained before their tokens
// come take no room from others; they have a bound of their own.
//
// It is safe for concurrent use. Its lock is a leaf: nothing is called under it. Every
// method takes constant time, plus the tokens of one block.
type Table struct {
	maxBytes int

	mu      sync.Mutex
	index   map[kv.SequenceHash]uint32
	entries slab[entry]
	cells   slab[cell]
	names   nameTable
	// bytes is the cost of the blocks with tokens. withoutTokens counts the other blocks,
	// ignoredRetains the retains beyond maxWithoutTokens.
	bytes, withoutTokens, maxWithoutTokens, ignoredRetains int
	// oldest and youngest are the ends of the list of blocks without references: the blocks to
	// evict, oldest first.
	oldest, youngest uint32
	stats            Stats
}

// entry is a block of the table, without pointers.
type entry struct {
	hash kv.SequenceHash
	// first is the number of the first cell with the block's words: its tokens, then its
	// objects, each as two words, high word first. It is none without tokens.
	first           uint32
	tokens, objects uint16
	name            uint32
	refs            uint32
	// older and younger are the neighbours in the list of blocks without references.
	older, younger uint32
}

// cell holds some of a block's words.
type cell struct {
	words [cellWords]uint32
	next  uint32
}

// Stats are a Table's counters since it was made, and its present contents.
type Stats struct {
	// Stored are blocks whose tokens came in. Evicted are blocks that made room.
	Stored  uint64 `json:"stored"`
	Evicted uint64 `json:"evicted"`
	// Refused are blocks whose tokens were not kept, because all others are retained or
	// the block is too large. Retains of blocks without tokens beyond 4 Mi count too:
	// tokens of such blocks may go early.
	Refused uint64 `json:"refused"`
	// Misses are calls of Describe for blocks without tokens.
	Misses uint64 `json:"misses"`
	// Blocks is the number of blocks, Retained those with references. Bytes is the cost of
	// the blocks with tokens.
	Blocks   uint64 `json:"blocks" metric:",gauge"`
	Retained uint64 `json:"retained" metric:",gauge"`
	Bytes    uint64 `json:"bytes" metric:",gauge"`
}

// New returns an empty table for at most maxBytes. 0 or less means 256 MiB.
func New(maxBytes int) *Table {
	if maxBytes <= 0 {
		maxBytes = defaultTokenBytes
	}
	return &Table{
		maxBytes: maxBytes, maxWithoutTokens: maxBareBlocks, index: make(map[kv.SequenceHash]uint32),
		names: nameTable{index: make(map[name]uint32)}, oldest: none, youngest: none,
	}
}

// BlockTokens remembers the tokens of block h and id, the other inputs of its hash; it implements
// Sink. Tokens that are known already stay: h covers them. The blocks that were released longest
// ago make room. Without room, and for a block that is too large, nothing is remembered, and
// Stats.Refused counts the block.
func (t *Table) BlockTokens(h kv.SequenceHash, tokens []uint32, id Identity) {
	t.mu.Lock()
	defer t.mu.Unlock()
	i, known := t.index[h]
	if known && t.entries.at(i).first != none { // the block has its tokens
		t.usedLocked(i)
		return
	}
	words := len(tokens) + 2*len(id.Objects) // of 32 bits; the hash of an object has two
	if words == 0 || words >= maxBlockWords {
		t.stats.Refused++
		return
	}
	// Hold the name before making room: the name's last block may be evicted.
	name, grown := t.names.hold(name{id.LoRAName, id.Salt, id.BlockSize})
	t.bytes += grown
	if !t.shrinkLocked(entryBytes + cellsFor(words)*cellBytes) {
		t.bytes -= t.names.leave(name)
		t.stats.Refused++
		return
	}
	if !known { // nobody retains the block: it may be evicted
		i = t.addEntryLocked(h)
		t.linkLocked(i)
	}
	t.fillLocked(t.entries.at(i), name, tokens, id.Objects)
	t.stats.Stored++
}

// Retain keeps the tokens of block h from eviction, whether they are known or come later, until
// as many calls of Release. Blocks without tokens have a bound; beyond it Retain is ignored and
// Stats.Refused counts the block.
func (t *Table) Retain(h kv.SequenceHash) {
	t.mu.Lock()
	defer t.mu.Unlock()
	i, known := t.index[h]
	if !known && t.withoutTokens >= t.maxWithoutTokens { // too many blocks without tokens
		t.ignoredRetains++
		t.stats.Refused++
		return
	}
	if !known {
		i = t.addEntryLocked(h)
	}
	e := t.entries.at(i)
	if known && e.refs == 0 {
		t.unlinkLocked(i) // a retained block is not evicted
	}
	if e.refs == 0 {
		t.stats.Retained++
	}
	e.refs++
}

// Release takes back one Retain of h. After the last one the tokens stay until their bytes are
// needed: the block joins the list of blocks to evict. A block that never got tokens is dropped.
func (t *Table) Release(h kv.SequenceHash) {
	t.mu.Lock()
	defer t.mu.Unlock()
	i, known := t.index[h]
	if !known || t.entries.at(i).refs == 0 {
		if t.ignoredRetains > 0 { // Retain has ignored blocks beyond its bound, probably this one
			t.ignoredRetains--
			return
		}
		panic("BUG: a block's tokens are released more often than retained")
	}
	e := t.entries.at(i)
	if e.refs--; e.refs > 0 {
		return
	}
	t.stats.Retained--
	if e.first == none {
		t.dropLocked(i)
		return
	}
	t.linkLocked(i)
	t.shrinkLocked(0)
}

// Describe sets the tokens, block size, adapter, salt and multimodal objects of e to
// those of block h, and Eagle for an engine whose blocks have one token more than their
// size. It reuses the memory of e.Tokens. False means that the tokens are unknown; then e
// is unchanged.
func (t *Table) Describe(h kv.SequenceHash, e *engineevent.Event) bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	i, known := t.index[h]
	if !known || t.entries.at(i).first == none {
		t.stats.Misses++
		return false
	}
	b := t.entries.at(i)
	n := int(b.tokens)
	words := t.wordsLocked(e.Tokens[:0], b)
	e.Tokens, e.Multimodal = words[:n], nil
	if b.objects > 0 {
		e.Multimodal = [][]uint64{joinWords(words[n:])}
	}
	name := t.names.at(b.name)
	e.LoRAName, e.Salt, e.BlockSize = name.lora, name.salt, name.blockSize
	e.Eagle = n == int(name.blockSize)+1
	return true
}

// Stats returns the counters.
func (t *Table) Stats() Stats {
	t.mu.Lock()
	defer t.mu.Unlock()
	s := t.stats
	s.Blocks, s.Bytes = uint64(len(t.index)), uint64(t.bytes)
	return s
}
