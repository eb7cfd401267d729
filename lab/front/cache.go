package front

import (
	"encoding/binary"
	"hash/maphash"
	"slices"
	"sync"
	"time"

	"github.com/blockyard-ai/blockyard/internal/engineevent"
	"github.com/blockyard-ai/blockyard/internal/kv"
	"github.com/blockyard-ai/blockyard/internal/kvevent"
)

// cache is a stub's prefix cache. Beyond its capacity the blocks that were stored first are
// removed. Any goroutine may use it.
type cache struct {
	capacity int
	seed     maphash.Seed
	publish  func(payload []byte) bool

	mu       sync.Mutex
	resident map[kv.EngineHash]struct{}
	order    []kv.EngineHash // a ring; the oldest is at first
	first    int
}

func newCache(capacity int, publish func([]byte) bool) *cache {
	return &cache{capacity: capacity, seed: maphash.MakeSeed(), publish: publish, resident: make(map[kv.EngineHash]struct{}, capacity)}
}

// chain returns the engine hashes of the full blocks of a prompt. Each depends on all tokens
// before it.
func (c *cache) chain(tokens []uint32) []kv.EngineHash {
	out := make([]kv.EngineHash, 0, len(tokens)/blockSize)
	var piece [8 + 4*blockSize]byte
	for block := range slices.Chunk(tokens, blockSize) {
		if len(block) < blockSize {
			break
		}
		for i, t := range block {
			binary.LittleEndian.PutUint32(piece[8+4*i:], t)
		}
		h := maphash.Bytes(c.seed, piece[:])
		binary.LittleEndian.PutUint64(piece[:], h)
		out = append(out, kv.EngineHash(h))
	}
	return out
}

// admit stores the blocks of a prompt in the simulated cache and publishes the events. It returns
// the number of tokens that were cached before. As in vLLM the last token is always computed,
// with its block.
func (c *cache) admit(tokens []uint32) (cached int) {
	hashes := c.chain(tokens)
	c.mu.Lock()
	defer c.mu.Unlock()
	hits := 0
	for hits < len(hashes) {
		if _, ok := c.resident[hashes[hits]]; !ok {
			break
		}
		hits++
	}
	// A later block may be resident without the one before it: vLLM stores from the first
	// missing one on.
	if batch := c.store(tokens, hashes, hits); batch != nil {
		c.publish(batch)
	}
	return min(hits, max(0, len(tokens)-1)/blockSize) * blockSize
}

// store adds the blocks after the first hits ones, which are cached, and evicts the oldest blocks
// of a full cache. It returns the encoded events; nil without a new block. The caller holds c.mu.
func (c *cache) store(tokens []uint32, hashes []kv.EngineHash, hits int) []byte {
	if hits == len(hashes) {
		return nil
	}
	stored := engineevent.Event{
		Kind: kvevent.Stored, BlockHashes: hashes[hits:], Tokens: tokens[hits*blockSize : len(hashes)*blockSize],
		BlockSize: blockSize, Medium: "GPU", Group: engineevent.NoGroup,
	}
	if hits > 0 {
		stored.Parent, stored.HasParent = hashes[hits-1], true
	}
	removed := engineevent.Event{Kind: kvevent.Removed, Medium: "GPU", Group: engineevent.NoGroup}
	for _, h := range stored.BlockHashes {
		if _, ok := c.resident[h]; ok {
			continue
		}
		c.resident[h] = struct{}{}
		if len(c.order) < c.capacity {
			c.order = append(c.order, h)
			continue
		}
		delete(c.resident, c.order[c.first])
		removed.BlockHashes = append(removed.BlockHashes, c.order[c.first])
		c.order[c.first] = h
		c.first = (c.first + 1) % c.capacity
	}
	batch := engineevent.Batch{Timestamp: float64(time.Now().UnixMicro()) / 1e6, HasRank: true}
	if len(removed.BlockHashes) > 0 {
		batch.Events = append(batch.Events, removed)
	}
	batch.Events = append(batch.Events, stored)
	return engineevent.AppendBatch(nil, &batch)
}
