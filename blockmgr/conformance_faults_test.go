package blockmgr

import (
	"os"
	"runtime"
	"sync"
	"testing"

	"github.com/blockyard-ai/blockyard/blockmgr/storage/storagetest"
)

// What must not go wrong when copies, disks and requests do, one by one.

func TestBlocksOfAnotherFingerprintAreNotServedAfterARestart(t *testing.T) {
	cfg := Config{HostDir: t.TempDir(), HostBytes: hostBytes(8), DiskDir: t.TempDir(), DiskBytes: 64 * testSlotBytes}
	first := openTestPool(t, cfg)
	blocks := chain(1, 4)
	release(first.register(blocks))
	first.quiesce()
	first.finish()
	second := openTestPool(t, cfg)
	defer second.finish()
	if n := second.matched(t, blocks); n != 4 {
		t.Errorf("%d of 4 blocks after a restart", n)
	}
	ns := testNamespace("test")
	ns.Weights = "retrained"
	if n := second.openNamespace(ns).matched(t, blocks); n != 0 {
		t.Errorf("%d blocks of other weights", n)
	}
	second.quiesce()
}

func TestTenThousandAbortedRequestsLeaveNothingBehind(t *testing.T) {
	p := diskPool(t, nil)
	stored := chain(1, 2)
	release(p.register(stored))
	p.quiesce()
	abort := func(i int) {
		blocks := chain(uint64(100+i), 3)
		granted, err := p.Grant(p.sid, blocks[:2], 0)
		if err != nil || len(granted.Grants) == 0 {
			t.Fatalf("request %d: %+v, %v", i, granted, err)
		}
		b := p.allocate(1)
		p.prepare(b, blocks[2:])
		handles := p.match(t, stored[:1])
		if i%2 == 0 { // the session ends with everything
			p.EndSession(p.sid, nil)
			p.sid = p.begin()
			return
		}
		var slots []Slot
		for _, g := range granted.Grants {
			slots = append(slots, g.Slot)
		}
		noError(t, p.Abort(p.sid, slots))
		release(b)
		release(handles)
	}
	for i := range 100 {
		abort(i)
	}
	p.quiesce()
	before, memory := census(t, p)
	for i := range 10_000 {
		abort(100 + i)
	}
	p.quiesce()
	// What ends by itself may take a moment, such as the goroutine of a timer.
	var grown uint64
	waitFor(t, func() bool {
		var after used
		after, grown = census(t, p)
		return after == before
	})
	if grown > memory+1<<20 {
		t.Errorf("%d bytes on the heap, were %d", grown, memory)
	}
}

// used is what a pool must not have more of after requests that came to nothing.
type used struct {
	files, goroutines, entries, sessions, pins, flights, queued, free int
}

func census(t *testing.T, p *testPool) (used, uint64) {
	t.Helper()
	files, err := os.ReadDir("/proc/self/fd")
	if err != nil {
		t.Skip(err)
	}
	runtime.GC()
	var mem runtime.MemStats
	runtime.ReadMemStats(&mem)
	st := p.Stats()
	p.mu.Lock()
	defer p.mu.Unlock()
	_, queues := p.mover.Snapshot()
	entries := 0
	for range p.slots.Registry.All {
		entries++
	}
	return used{
		len(files), runtime.NumGoroutine(), entries, st.Sessions, st.Pins, queues.Read,
		queues.Seal + queues.Write + queues.Deferred, st.Host.Free,
	}, mem.HeapAlloc
}

func TestSlowOnboardFromDiskDoesNotDelayAHostHit(t *testing.T) {
	gate := &storagetest.Gate{}
	p := diskPool(t, func(cfg *Config) { cfg.WrapDisk = stallReads(gate) })
	cold := chain(1, 4)
	release(p.register(cold))
	p.quiesce()
	p.evictHost(cold)
	warm := chain(2, 1)
	release(p.register(warm))
	p.quiesce()
	var wg sync.WaitGroup
	wg.Go(func() {
		if n := p.matched(t, cold); n != 4 {
			t.Errorf("%d of 4 blocks onboarded", n)
		}
	})
	waitFor(t, func() bool { return gate.Waiting() > 0 })
	// No read returns before the gate opens, and this does not wait for it.
	if n := p.matched(t, warm); n != 1 {
		t.Errorf("%d blocks found in host memory", n)
	}
	if gate.Waiting() == 0 {
		t.Error("the reads have ended meanwhile")
	}
	gate.Open()
	wg.Wait()
}
