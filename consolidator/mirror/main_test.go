package mirror

import (
	"testing"

	"go.uber.org/goleak"

	"github.com/blockyard-ai/blockyard/consolidator/residency"
	"github.com/blockyard-ai/blockyard/consolidator/residency/residencytest"
	"github.com/blockyard-ai/blockyard/internal/kv"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

const testBlockSize = residencytest.BlockSize

var testOwner = kv.WorkerOwner(kv.Worker{ID: 7})

// newCache returns a mirror of rank 0 that writes to s.
func newCache(s *residency.Stream, blockSize, maxBlocks int) *Cache {
	return New(Config{Stream: s, BlockSize: blockSize, MaxBlocks: maxBlocks, Counters: new(Counters)})
}
