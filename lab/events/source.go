package events

import (
	"math/rand/v2"
	"time"

	"github.com/blockyard-ai/blockyard/internal/engineevent"
	"github.com/blockyard-ai/blockyard/internal/kv"
	"github.com/blockyard-ai/blockyard/internal/kvevent"
)

// vocabulary is the number of different tokens: large ones need five bytes on the
// wire, as real ones do.
const vocabulary = 150_000

// source makes an engine's batches, byte for byte as vLLM sends them. Beyond capacity
// each new block removes the oldest one.
type source struct {
	capacity int
	rng      *rand.Rand
	resident []kv.EngineHash // a ring; the oldest is at first
	first    int
	batch    engineevent.Batch
	tokens   []uint32
	buf      []byte
}

// newSource returns a source of an engine's events whose device holds capacity blocks. Equal
// seeds give equal events.
func newSource(capacity int, seed uint64) *source {
	return &source{
		capacity: capacity, rng: rand.New(rand.NewPCG(seed, 0)),
		resident: make([]kv.EngineHash, 0, capacity),
		batch:    engineevent.Batch{HasRank: true},
		tokens:   make([]uint32, chainBlocks*blockSize),
	}
}

// next encodes a batch that stores batchBlocks blocks and removes the oldest blocks
// beyond capacity. With probe tokens it also stores one block of them. The bytes are
// valid until the next call. named is the number of blocks that the events name.
func (s *source) next(probe []uint32) (payload []byte, named int) {
	s.batch.Timestamp = float64(time.Now().UnixMicro()) / 1e6
	s.batch.Events = s.batch.Events[:0]
	for range chains {
		for i := range s.tokens {
			s.tokens[i] = s.rng.Uint32N(vocabulary)
		}
		s.store(append([]uint32(nil), s.tokens...), &named)
	}
	if probe != nil {
		s.store(probe, &named)
	}
	s.buf = engineevent.AppendBatch(s.buf[:0], &s.batch)
	return s.buf, named
}

// store adds to the batch an event that stores a sequence of blocks with these tokens, and before
// it an event that removes the oldest blocks when the device is full. It adds the number of
// blocks in both to *named.
func (s *source) store(tokens []uint32, named *int) {
	n := len(tokens) / blockSize
	stored := engineevent.Event{
		Kind: kvevent.Stored, Tokens: tokens, BlockSize: blockSize, Medium: "GPU", SpecKind: "full_attention",
		BlockHashes: make([]kv.EngineHash, n),
	}
	removed := engineevent.Event{Kind: kvevent.Removed, Medium: "GPU"}
	for i := range stored.BlockHashes {
		h := kv.EngineHash(s.rng.Uint64())
		stored.BlockHashes[i] = h
		if len(s.resident) < s.capacity {
			s.resident = append(s.resident, h)
			continue
		}
		removed.BlockHashes = append(removed.BlockHashes, s.resident[s.first])
		s.resident[s.first] = h
		s.first = (s.first + 1) % s.capacity
	}
	if len(removed.BlockHashes) > 0 {
		s.batch.Events = append(s.batch.Events, removed)
	}
	s.batch.Events = append(s.batch.Events, stored)
	*named += len(stored.BlockHashes) + len(removed.BlockHashes)
}

// held returns how many blocks the engine holds.
func (s *source) held() int { return len(s.resident) }
