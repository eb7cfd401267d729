package residency

import (
	"slices"
	"testing"
	"time"

	"github.com/blockyard-ai/blockyard/consolidator/residency/residencytest"
	"github.com/blockyard-ai/blockyard/internal/kv"
	"github.com/blockyard-ai/blockyard/internal/kvevent"
)

// BenchmarkStoreWait is how long a store of one block waits while a consumer is busy with a
// pool of 4 Mi blocks: with its snapshot, or with taking it over into a rank's merged stream.
// Each store is of a block anywhere in the table. Run it with -benchtime 1x.
func BenchmarkStoreWait(b *testing.B) {
	const blocks = 4 << 20
	pool := NewStream(kv.PoolOwner(9), nil)
	for first := 0; first < blocks; first += 512 {
		e := treeEvent(kv.TierHost, first, 512)
		pool.Store(kv.TierHost, 0, false, 0, e.Blocks)
		pool.Flush()
	}
	consumers := map[string]func(){
		"nobody":   func() { <-time.After(time.Second) },
		"snapshot": func() { pool.Snapshot() },
		"join": func() {
			m := NewMerged(testOwner.Worker(), MergeTiered, &discard{})
			if err := m.FollowPool(pool); err != nil {
				b.Error(err)
				return
			}
			<-m.Joined()
			m.Close()
		},
	}
	for _, name := range []string{"nobody", "snapshot", "join"} {
		b.Run(name, func(b *testing.B) {
			var waits []time.Duration
			for b.Loop() {
				done := make(chan struct{})
				go func() { consumers[name](); close(done) }()
				waits = append(waits, storeWaits(pool, blocks, done)...)
			}
			slices.Sort(waits)
			b.ReportMetric(float64(waits[len(waits)-1].Microseconds()), "worst-us")
			b.ReportMetric(float64(waits[len(waits)*999/1000].Nanoseconds())/1000, "p99.9-us")
			b.ReportMetric(float64(len(waits))/b.Elapsed().Seconds(), "stores/s")
		})
	}
}

// storeWaits stores, and removes again, blocks all over the table until done, and says how
// long each call took.
func storeWaits(pool *Stream, blocks int, done <-chan struct{}) (waits []time.Duration) {
	pause := time.NewTicker(100 * time.Microsecond)
	defer pause.Stop()
	for i := 0; ; i++ {
		select {
		case <-done:
			return waits
		default:
		}
		h := residencytest.TreeHash(i * 977 % blocks)
		at := time.Now()
		if i%2 == 0 {
			pool.Store(kv.TierDisk, 0, false, 0, []kvevent.StoredBlock{{Hash: h}})
		} else {
			pool.Remove(kv.TierDisk, []kv.SequenceHash{residencytest.TreeHash((i - 1) * 977 % blocks)})
		}
		waits = append(waits, time.Since(at))
		if i%64 == 0 {
			pool.Flush()
			<-pause.C
		}
	}
}
