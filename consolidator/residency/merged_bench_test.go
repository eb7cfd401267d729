package residency

import (
	"runtime"
	"testing"

	"github.com/blockyard-ai/blockyard/consolidator/residency/residencytest"
	"github.com/blockyard-ai/blockyard/consolidator/tokens"
	"github.com/blockyard-ai/blockyard/internal/kv"
	"github.com/blockyard-ai/blockyard/internal/kvevent"
)

// BenchmarkMerged has 512 blocks stored and removed again per operation, by a worker
// whose pool has a million others; with and without the tokens being retained.
func BenchmarkMerged(b *testing.B) {
	b.Run("plain", func(b *testing.B) { benchmarkMerged(b, nil) })
	b.Run("tokens", func(b *testing.B) { benchmarkMerged(b, tokens.New(0)) })
}

func benchmarkMerged(b *testing.B, table *tokens.Table) {
	m := NewMerged(testOwner.Worker(), MergeTiered, nil)
	if table != nil {
		m.KeepTokens(table)
	}
	const warm, run = 1 << 20, 512
	before := heap()
	for first := 0; first < warm; first += run {
		m.pool.Publish([]kvevent.RouterEvent{treeEvent(kv.TierHost, first, run)})
	}
	perBlock := float64(heap()-before) / warm
	stored := treeEvent(kv.TierDevice, warm, run)
	removed := kvevent.RouterEvent{Kind: kvevent.Removed, Tier: kv.TierDevice}
	for _, s := range stored.Blocks {
		removed.Removed = append(removed.Removed, s.Hash)
	}
	turn := []kvevent.RouterEvent{stored, removed}
	block := make([]uint32, 16)
	b.ReportAllocs()
	blocks := 0
	for b.Loop() {
		if table != nil {
			for i := range stored.Blocks {
				table.BlockTokens(stored.Blocks[i].Hash, block, tokens.Identity{BlockSize: 16})
			}
		}
		m.Own().Publish(turn)
		blocks += 2 * run
	}
	b.ReportMetric(float64(blocks)/b.Elapsed().Seconds(), "blocks/s")
	b.ReportMetric(perBlock, "bytes/block")
	runtime.KeepAlive(m)
}

// treeEvent stores n blocks in a chain, the first of which is at the root.
func treeEvent(t kv.Tier, first, n int) kvevent.RouterEvent {
	e := kvevent.RouterEvent{Kind: kvevent.Stored, Tier: t, HasStart: true}
	for i := range n {
		e.Blocks = append(e.Blocks, kvevent.StoredBlock{Hash: residencytest.TreeHash(first + i)})
	}
	return e
}

// heap is the number of bytes of live objects.
func heap() uint64 {
	runtime.GC()
	runtime.GC()
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return m.HeapAlloc
}
