package mirror

import (
	"testing"

	"go.uber.org/goleak"

	"github.com/blockyard-ai/blockyard/consolidator/residency"
	"github.com/blockyard-ai/blockyard/internal/engineevent"
	"github.com/blockyard-ai/blockyard/internal/kv"
	"github.com/blockyard-ai/blockyard/internal/kvevent"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

const testBlockSize = 4

var testOwner = kv.WorkerOwner(kv.Worker{ID: 7})

// newCache returns a mirror of rank 0 that writes to s.
func newCache(s *residency.Stream, blockSize, maxBlocks int) *Cache {
	return New(Config{Stream: s, BlockSize: blockSize, MaxBlocks: maxBlocks, Counters: new(Counters)})
}

// storedEvent is a chain of n blocks named from first on, after parent (0: none).
func storedEvent(parent, first, n int) engineevent.Event {
	e := engineevent.Event{Kind: kvevent.Stored, BlockSize: testBlockSize, Medium: "GPU", Group: engineevent.NoGroup}
	if parent > 0 {
		e.Parent, e.HasParent = kv.EngineHash(parent), true
	}
	for i := range n {
		e.BlockHashes = append(e.BlockHashes, kv.EngineHash(first+i))
		for j := range testBlockSize {
			e.Tokens = append(e.Tokens, uint32((first+i)*testBlockSize+j))
		}
	}
	return e
}

func removedEvent(hashes ...int) engineevent.Event {
	e := engineevent.Event{Kind: kvevent.Removed, Medium: "GPU", Group: engineevent.NoGroup}
	for _, h := range hashes {
		e.BlockHashes = append(e.BlockHashes, kv.EngineHash(h))
	}
	return e
}
