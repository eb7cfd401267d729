package residency

import (
	"fmt"
	"testing"

	"github.com/blockyard-ai/blockyard/internal/kv"
	"github.com/blockyard-ai/blockyard/internal/kvevent"
)

// discard is a sink that drops the events.
type discard struct{ events int }

// Publish implements Sink.
func (d *discard) Publish(events []kvevent.RouterEvent) { d.events += len(events) }

// What a change of a pool costs beside the workers that reach the pool: every rank's
// merged stream takes it in, behind the pool's lock.
func BenchmarkPoolFanOut(b *testing.B) {
	const run = 64 // blocks stored, and removed again, in an operation
	for _, ranks := range []int{1, 8, MaxSinks} {
		b.Run(fmt.Sprintf("ranks=%d", ranks), func(b *testing.B) {
			pool := NewStream(kv.PoolOwner(1), nil)
			for i := range ranks {
				m := NewMerged(kv.Worker{ID: kv.WorkerID(i + 1)}, MergeTiered, &discard{})
				if err := m.FollowPool(pool); err != nil {
					b.Fatal(err)
				}
				defer m.Close()
			}
			blocks, hashes := make([]kvevent.StoredBlock, run), make([]kv.SequenceHash, run)
			for i := range blocks {
				hashes[i] = kv.SequenceHash(1000 + i)
				blocks[i] = kvevent.StoredBlock{Hash: hashes[i], Local: kv.LocalHash(i)}
			}
			b.ReportAllocs()
			for b.Loop() {
				pool.Store(kv.TierHost, 0, false, 0, blocks)
				pool.Remove(kv.TierHost, hashes)
				pool.Flush()
			}
			changes := float64(b.N) * 2 * run
			b.ReportMetric(float64(b.Elapsed().Nanoseconds())/changes/float64(ranks), "ns/block/rank")
		})
	}
}
