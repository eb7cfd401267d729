package events

import (
	"context"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/blockyard-ai/blockyard/blockmgr"
	"github.com/blockyard-ai/blockyard/internal/kv"
	"github.com/blockyard-ai/blockyard/internal/kvevent"
)

// TestLoadsAreRatesOfASecond: bytes per second and the mean time of a promotion come
// from counters that only grow, and each report begins anew.
func TestLoadsAreRatesOfASecond(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var mu sync.Mutex
		var st blockmgr.Stats
		st.Host = blockmgr.TierStats{Capacity: 10, Free: 4}
		st.Disk = blockmgr.TierStats{Capacity: 100, Free: 90}
		st.BytesRead, st.Promotions = 1<<40, 1<<20 // of before
		change := func(f func()) {
			mu.Lock()
			defer mu.Unlock()
			f()
		}
		sources := []loadSource{
			{publisher: 5, owner: kv.PoolOwner(9), slotBytes: 4096, blockBytes: 4000, pool: func() blockmgr.Stats {
				mu.Lock()
				defer mu.Unlock()
				return st
			}},
			{publisher: 6, owner: kv.WorkerOwner(kv.Worker{ID: 1}), gauges: func() (EngineGauges, bool) {
				return EngineGauges{DeviceBlocks: 8, DeviceUsed: 7, Running: 6, Waiting: 5}, true
			}},
			{publisher: 7, owner: kv.WorkerOwner(kv.Worker{ID: 2}), gauges: func() (EngineGauges, bool) { return EngineGauges{}, false }},
		}
		got := make(chan kvevent.LoadReport, 100)
		ctx, cancel := context.WithCancel(t.Context())
		var running sync.WaitGroup
		running.Go(func() {
			reportLoads(ctx, func() []loadSource { return sources }, func(r *kvevent.LoadReport) { got <- *r })
		})
		next := func(seconds time.Duration) map[uint64]kvevent.LoadReport {
			time.Sleep(seconds * time.Second)
			synctest.Wait()
			all := make(map[uint64]kvevent.LoadReport)
			for len(got) > 0 {
				r := <-got
				all[r.PublisherID] = r
			}
			return all
		}
		// Two blocks are under way for the whole second, and ten have arrived.
		change(func() { st.PromoteQueue = 2 })
		time.Sleep(500 * time.Millisecond)
		change(func() {
			st.BytesRead += 900
			st.ReadMicros += 30
			st.BytesWritten += 1800
			st.Promotions += 10
			st.WriteQueue = 3
		})
		first := next(1)
		if r := first[6]; len(first) != 2 || r.Worker != (kvevent.WorkerLoad{DeviceBlocksTotal: 8, DeviceBlocksUsed: 7, Running: 6, Waiting: 5}) {
			t.Errorf("%d reports, worker %+v", len(first), r)
		}
		want := kvevent.PoolLoad{HostBytesTotal: 40960, HostBytesUsed: 6 * 4096, DiskBytesTotal: 409600, DiskBytesUsed: 40960,
			ReadBytesPerSecond: 1000, WriteBytesPerSecond: 2000, ReadQueue: 2, WriteQueue: 3, PromoteMicros: 180000, BlockBytes: 4000, DiskReadBytes: 900, DiskReadMicros: 30}
		if r := first[5]; r.Pool != want || r.Owner != kv.PoolOwner(9) {
			t.Errorf("pool %+v, want %+v", r.Pool, want)
		}
		change(func() { st.PromoteQueue, st.WriteQueue = 0, 0 })
		next(1)
		if r := next(1)[5].Pool; r.ReadBytesPerSecond != 0 || r.WriteBytesPerSecond != 0 || r.PromoteMicros != 0 ||
			r.DiskReadBytes != 0 || r.DiskReadMicros != 0 {
			t.Errorf("a quiet second: %+v", r)
		}
		cancel()
		running.Wait()
	})
}

// TestAMeterEndsWithItsPool: one that comes back under the same id begins anew.
func TestAMeterEndsWithItsPool(t *testing.T) {
	meters := make(loadMeters)
	pool := []loadSource{{owner: kv.PoolOwner(1), pool: func() blockmgr.Stats { return blockmgr.Stats{} }}}
	send := func(*kvevent.LoadReport) {}
	sampleLoads(meters, pool, time.Now(), true, send)
	if len(meters) != 1 {
		t.Fatalf("%d meters", len(meters))
	}
	if sampleLoads(meters, nil, time.Now(), true, send); len(meters) != 0 {
		t.Errorf("%d meters of pools that are gone", len(meters))
	}
}

// TestCopiesAreOfTheTimeThatWorkersCopied: the speed of copies is that of all workers of
// a rank together, counts from the first look, and survives a sum that begins anew. A
// rank that says nothing of itself is reported when its workers have copied.
func TestCopiesAreOfTheTimeThatWorkersCopied(t *testing.T) {
	var sum CopySum
	sources := []loadSource{{
		owner:  kv.WorkerOwner(kv.Worker{ID: 1}),
		gauges: func() (EngineGauges, bool) { return EngineGauges{}, false },
		copies: func() CopySum { return sum },
	}}
	meters := make(loadMeters)
	report := func() (got []kvevent.WorkerLoad) {
		sampleLoads(meters, sources, time.Now(), true, func(r *kvevent.LoadReport) { got = append(got, r.Worker) })
		return got
	}
	sum = CopySum{Bytes: 1 << 30, Micros: 1, Workers: 2} // of before
	if got := report(); len(got) != 0 {
		t.Errorf("what was copied before the first look: %+v", got)
	}
	sum = CopySum{Bytes: 1<<30 + 8000, Micros: 1 + 20, Workers: 2}
	if got := report(); len(got) != 1 || got[0] != (kvevent.WorkerLoad{CopyBytes: 8000, CopyMicros: 10}) {
		t.Errorf("two workers that copied 10 µs each: %+v", got)
	}
	if got := report(); len(got) != 0 {
		t.Errorf("a quiet second: %+v", got)
	}
	sum = CopySum{Bytes: 500, Micros: 5, Workers: 1}
	if got := report(); len(got) != 0 {
		t.Errorf("a sum that began anew: %+v", got)
	}
	sum = CopySum{Bytes: 700, Micros: 7, Workers: 1}
	if got := report(); len(got) != 1 || got[0] != (kvevent.WorkerLoad{CopyBytes: 200, CopyMicros: 2}) {
		t.Errorf("after that: %+v", got)
	}
}
