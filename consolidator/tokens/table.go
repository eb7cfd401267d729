package tokens

import (
	"math"
	"sync"

	"github.com/blockyard-ai/blockyard/internal/engineevent"
	"github.com/blockyard-ai/blockyard/internal/kv"
)

// Identity is what a block's hash covers besides its own tokens and its
// prefix, and what a format that carries tokens has to say too.
type Identity struct {
	LoRAName, Salt string
	// BlockSize is the engine's, in tokens. A block of an engine that caches
	// overlapping pairs has one token more than that.
	BlockSize uint32
	// Objects are the hashes of the multimodal objects in the block, lent; nil for
	// text.
	Objects []uint64
}

// Sink is told the tokens of blocks. Its method must not block; it is called
// before the event that stores the block, under the lock of whoever makes that.
type Sink interface {
	// BlockTokens says that block h consists of tokens, which are lent.
	BlockTokens(h kv.SequenceHash, tokens []uint32, id Identity)
}

const (
	// defaultTokenBytes is what a Table may use when nobody says.
	defaultTokenBytes = 256 << 20
	// maxBlockWords bounds the tokens and objects of one block.
	maxBlockWords = 1 << 16
	// cellWords is how many tokens one cell holds, the usual block size.
	cellWords = 16
	// cellBytes and entryBytes are what a cell and a block cost, with their share of
	// the table of hashes; nameBytes what a name costs besides its text.
	cellBytes  = 4 * (cellWords + 1)
	entryBytes = 40 + 24
	nameBytes  = 128
	// maxBareBlocks is how many blocks may be retained without tokens.
	maxBareBlocks = 4 << 20
	// none is the index of nothing.
	none = math.MaxUint32
)

// Table remembers the tokens of blocks for a format that carries them, which
// router events do not. A block that somebody retains stays; of the others, the
// one that has not been retained for the longest time goes first when there is no
// room. Blocks that are retained while their tokens are not known take nothing of
// that; there is a bound of its own for how many they may be.
//
// It is safe for concurrent use. Its lock is a leaf: nothing is called under it.
// Every method takes constant time but for the tokens of a block.
type Table struct {
	maxBytes int

	mu      sync.Mutex
	index   map[kv.SequenceHash]uint32
	entries slab[entry]
	cells   slab[cell]
	names   nameTable
	// bytes is what the blocks whose tokens are known cost; bare counts the others, and
	// ignored the retains that were one too many for them.
	bytes, bare, maxBare, ignored int
	// oldest and youngest are the ends of the list of blocks that nobody retains.
	oldest, youngest uint32
	stats            Stats
}

// entry is a block of the table, without pointers.
type entry struct {
	hash kv.SequenceHash
	// first is the first of the cells with its tokens and then its objects, each of
	// them two words, high word first; none while they are not known.
	first           uint32
	tokens, objects uint16
	name            uint32
	refs            uint32
	// older and younger are its neighbours in the list; they mean nothing while refs
	// is not 0.
	older, younger uint32
}

// cell holds a part of a block's words.
type cell struct {
	words [cellWords]uint32
	next  uint32
}

// Stats are a Table's counters since it was made, and what it holds.
type Stats struct {
	// Stored are the blocks whose tokens came in, Evicted those that made room.
	Stored  uint64 `json:"stored"`
	Evicted uint64 `json:"evicted"`
	// Refused are blocks whose tokens were not kept: everything else is retained, or
	// the block is too large; and retains of blocks without tokens beyond 4 Mi, whose
	// tokens may go early.
	Refused uint64 `json:"refused"`
	// Misses are questions for blocks whose tokens are not known.
	Misses uint64 `json:"misses"`
	// Blocks and Retained are how many blocks are known, or only retained, and how
	// many are retained; Bytes is what those cost whose tokens are known.
	Blocks   uint64 `json:"blocks" metric:",gauge"`
	Retained uint64 `json:"retained" metric:",gauge"`
	Bytes    uint64 `json:"bytes" metric:",gauge"`
}

// New returns an empty table for at most maxBytes; 0 or less means
// 256 MiB.
func New(maxBytes int) *Table {
	if maxBytes <= 0 {
		maxBytes = defaultTokenBytes
	}
	return &Table{
		maxBytes: maxBytes, maxBare: maxBareBlocks, index: make(map[kv.SequenceHash]uint32),
		names: nameTable{index: make(map[name]uint32)}, oldest: none, youngest: none,
	}
}

// BlockTokens implements Sink. What is known of h already stays: its hash
// covers its tokens.
func (t *Table) BlockTokens(h kv.SequenceHash, tokens []uint32, id Identity) {
	t.mu.Lock()
	defer t.mu.Unlock()
	i, known := t.index[h]
	if known && t.entries.at(i).first != none {
		t.usedLocked(i)
		return
	}
	words := len(tokens) + 2*len(id.Objects)
	if words == 0 || words >= maxBlockWords {
		t.stats.Refused++
		return
	}
	// The name is held before room is made: its last block may be what has to go.
	name, grown := t.names.hold(name{id.LoRAName, id.Salt, id.BlockSize})
	t.bytes += grown
	if !t.shrinkLocked(entryBytes + cellsFor(words)*cellBytes) {
		t.bytes -= t.names.leave(name)
		t.stats.Refused++
		return
	}
	if !known {
		i = t.addEntryLocked(h)
		t.linkLocked(i)
	}
	t.fillLocked(t.entries.at(i), name, tokens, id.Objects)
	t.stats.Stored++
}

// Retain keeps the tokens of h, or those that come in for it later, until as many
// calls of Release.
func (t *Table) Retain(h kv.SequenceHash) {
	t.mu.Lock()
	defer t.mu.Unlock()
	i, known := t.index[h]
	if !known && t.bare >= t.maxBare {
		t.ignored++
		t.stats.Refused++
		return
	}
	if !known {
		i = t.addEntryLocked(h)
	}
	e := t.entries.at(i)
	if known && e.refs == 0 {
		t.unlinkLocked(i)
	}
	if e.refs == 0 {
		t.stats.Retained++
	}
	e.refs++
}

// Release takes one Retain of h back.
func (t *Table) Release(h kv.SequenceHash) {
	t.mu.Lock()
	defer t.mu.Unlock()
	i, known := t.index[h]
	if !known || t.entries.at(i).refs == 0 {
		if t.ignored > 0 {
			t.ignored--
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

// Describe makes e the stored event of block h alone, but for its hash, parent and
// medium: tokens, block size, adapter, salt and multimodal objects, in e's own
// memory as far as that reaches. False: the tokens are not known, and e is as it
// was.
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
