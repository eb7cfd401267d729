package oplog

import (
	"fmt"
	"math"

	"github.com/blockyard-ai/blockyard/internal/kv"
	"github.com/blockyard-ai/blockyard/internal/kvevent"
)

// Builder makes a log in memory. Make one with NewBuilder; it is for one
// goroutine.
type Builder struct {
	words  []uint64
	header Header
}

// NewBuilder starts a log of so many engines, 1..MaxEngines, and blocks of so many
// tokens, 1..MaxBlockTokens.
func NewBuilder(engines, blockTokens int) (*Builder, error) {
	b := &Builder{words: make([]uint64, headerWords)}
	b.words[0] = magic
	b.words[wordEngines], b.words[wordTokens] = uint64(engines), uint64(blockTokens)
	return b, b.header.read(b.words)
}

// Stored appends a record of blocks, each the child of the one before it. The first one
// is the child of parent; with 0 it begins a sequence.
func (b *Builder) Stored(engine uint32, parent kv.SequenceHash, blocks []kvevent.StoredBlock) error {
	at := b.head(Stored, engine, len(blocks))
	b.words = append(b.words, uint64(parent))
	for _, s := range blocks {
		b.words = append(b.words, uint64(s.Hash), uint64(s.Local))
	}
	return b.tail(at)
}

// Removed appends a record of blocks that an engine dropped.
func (b *Builder) Removed(engine uint32, hashes []kv.SequenceHash) error {
	at := b.head(Removed, engine, len(hashes))
	for _, h := range hashes {
		b.words = append(b.words, uint64(h))
	}
	return b.tail(at)
}

// Query appends the query for a prompt that then went to engine.
func (b *Builder) Query(engine uint32, locals []kv.LocalHash) error {
	at := b.head(Query, engine, len(locals))
	for _, l := range locals {
		b.words = append(b.words, uint64(l))
	}
	return b.tail(at)
}

func (b *Builder) head(op Op, engine uint32, n int) (at int) {
	at = len(b.words)
	b.words = append(b.words, uint64(op)|uint64(engine)<<32, uint64(n))
	return at
}

// tail adds the record that starts at the word at to the header's totals. It removes a record
// that the format does not allow, and returns why.
func (b *Builder) tail(at int) error {
	if n := b.words[at+1]; n > math.MaxUint32 {
		b.words = b.words[:at]
		return fmt.Errorf("op log: record %d: %d items, want %d at most", b.header.Records, n, uint32(math.MaxUint32))
	}
	if _, err := b.header.count(b.words[at:], uint32(b.header.Engines)); err != nil {
		b.words = b.words[:at]
		return fmt.Errorf("op log: record %d: %w", b.header.Records, err)
	}
	return nil
}

// Finish writes the header and returns the log's words for Parse and Save. It may be
// called again with other answers. Records must not follow.
func (b *Builder) Finish(a Answers) []uint64 {
	h := &b.header
	for at, v := range map[int]uint64{
		wordRecords: h.Records, wordStored: h.Stored, wordRemoved: h.Removed, wordQueried: h.Queried, wordQueries: h.Queries,
	} {
		b.words[at] = v
	}
	copy(b.words[wordAnswers:], []uint64{a.Memberships, a.Distinct, a.Score, a.Best, a.FinalScore, a.FinalBest})
	return b.words
}
