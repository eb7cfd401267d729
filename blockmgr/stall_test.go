package blockmgr

import (
	"context"
	"errors"
	"sync/atomic"
	"testing"
	"time"

	"github.com/blockyard-ai/blockyard/blockmgr/diskio"
	"github.com/blockyard-ai/blockyard/blockmgr/storage"
	"github.com/blockyard-ai/blockyard/blockmgr/storage/extent"
	"github.com/blockyard-ai/blockyard/blockmgr/storage/storagetest"
	"github.com/blockyard-ai/blockyard/internal/kv"
)

// testDeadline is short for a test and long for an operation that does not stall.
const testDeadline = 200 * time.Millisecond

// stallingPool is a disk pool whose reads of blocks, or writes of them, wait at
// a gate while it is armed. An operation may take testDeadline.
func stallingPool(t *testing.T, op storagetest.Op, change func(*Config)) (*testPool, *storagetest.Gate, *atomic.Bool) {
	gate, armed := &storagetest.Gate{}, &atomic.Bool{}
	plan := func(o storagetest.Op, _ int) storagetest.Fault {
		if o == op && armed.Load() {
			return storagetest.FaultStall
		}
		return storagetest.FaultNone
	}
	p := diskPool(t, func(cfg *Config) {
		cfg.IODeadline, cfg.Transfers = testDeadline, 1
		wrap := faults(plan, isExtent)
		cfg.WrapDisk = func(path string, f extent.File) extent.File {
			f = wrap(path, f)
			f.(*storagetest.Faulty).Gate = gate
			return f
		}
		if change != nil {
			change(cfg)
		}
	})
	t.Cleanup(gate.Open) // before the pool closes
	p.hasDisk()
	return p, gate, armed
}

// hasDisk waits for the disk tier where a busy machine may not have made it within
// a short deadline.
func (p *testPool) hasDisk() {
	p.t.Helper()
	waitFor(p.t, func() bool { st := p.Stats(); return !st.DiskJoining && st.Disk.Extents > 0 && !st.DiskOpen })
}

func TestReadThatStallsIsAMissAndItsSlotWaitsForIt(t *testing.T) {
	p, gate, armed := stallingPool(t, storagetest.OpRead, nil)
	blocks := chain(1, 3)
	p.store(blocks)
	p.quiesce()
	p.evictHost(blocks)
	trips := p.Stats().DiskTrips // a busy machine may open the disk late, which is a trip
	armed.Store(true)
	if got := p.find(blocks); len(got) != 0 {
		t.Errorf("found %q on a disk that does not answer", sources(got))
	}
	st := p.Stats()
	if st.ReadsAbandoned != 1 || st.ReadsCancelled != 2 || st.Host.Quarantined != 1 || st.Host.Staging != 0 || !st.DiskOpen || st.DiskTrips != trips+1 {
		t.Errorf("%+v", st)
	}
	p.check()
	p.checkEvents()
	p.leaveDiskAlone()
	// Host memory goes on serving, without the slot that the kernel may write to.
	if n := p.store(chain(9, 8)); n != 7 {
		t.Errorf("%d blocks granted beside the slot of the read", n)
	}
	if got := p.find(chain(9, 8)); len(got) != 7 {
		t.Errorf("%d blocks found in host memory", len(got))
	}
	// Nobody waits for the disk a second time.
	if got := p.find(blocks); len(got) != 0 || p.Stats().ReadsAbandoned != 1 {
		t.Errorf("found %q, %d reads abandoned", sources(got), p.Stats().ReadsAbandoned)
	}

	armed.Store(false)
	gate.Open()
	waitFor(t, func() bool { st := p.Stats(); return st.Host.Quarantined == 0 && !st.DiskOpen })
	p.quiesce()
	p.evictHost(blocks)
	// On a busy machine a read may come to its deadline.
	waitFor(t, func() bool { p.retryDisk(); return len(p.find(blocks)) == 3 })
	p.quiesce()
}

// The retry of a read that failed after its time is over counts for nobody.
func TestAbandonedReadThatFailsInTheEndLosesNoBlock(t *testing.T) {
	release, entered := make(chan struct{}), make(chan struct{}, 2)
	var armed atomic.Bool
	p := diskPool(t, func(cfg *Config) {
		cfg.IODeadline = testDeadline
		cfg.WrapDisk = faults(func(op storagetest.Op, _ int) storagetest.Fault {
			if op != storagetest.OpRead || !armed.Load() {
				return storagetest.FaultNone
			}
			entered <- struct{}{}
			<-release
			return storagetest.FaultEIO
		}, isExtent)
	})
	p.hasDisk()
	blocks := chain(1, 1)
	p.store(blocks)
	p.quiesce()
	p.evictHost(blocks)
	armed.Store(true)
	if got := p.find(blocks); len(got) != 0 {
		t.Errorf("found %q", sources(got))
	}
	<-entered
	close(release)
	waitFor(t, func() bool { return p.Stats().Host.Quarantined == 0 })
	armed.Store(false)
	p.quiesce()
	if st := p.Stats(); st.Disk.Quarantined != 0 || st.ReadErrors != 0 || !st.DiskOpen {
		t.Errorf("%+v", st)
	}
	p.retryDisk()
	if got := sources(p.find(blocks)); got != "D" || p.Stats().DiskOpen {
		t.Errorf("found %q, disk left alone: %v", got, p.Stats().DiskOpen)
	}
}

func TestQueuedReadThatNobodyWantsIsNotMade(t *testing.T) {
	p, gate, armed := stallingPool(t, storagetest.OpRead, func(cfg *Config) { cfg.IODeadline = time.Minute })
	wanted, unwanted := chain(1, 2), chain(2, 2)
	p.store(wanted)
	p.store(unwanted)
	p.quiesce()
	p.evictHost(wanted)
	p.evictHost(unwanted)
	armed.Store(true)
	leaver := p.begin()
	looked := make(chan LookupResult, 1)
	go func() {
		res, err := p.Lookup(context.Background(), p.sid, wanted)
		if err != nil {
			t.Error(err)
		}
		looked <- res
	}()
	waitFor(t, func() bool { return gate.Waiting() == 1 })
	left := make(chan error, 1)
	ctx, cancel := context.WithCancel(t.Context())
	go func() {
		_, err := p.Lookup(ctx, leaver, unwanted)
		left <- err
	}()
	waitFor(t, func() bool { return p.Stats().PromoteQueue == 4 })
	p.EndSession(leaver, nil)
	cancel()
	if err := <-left; !errors.Is(err, ErrNoSession) {
		t.Errorf("lookup of a session that ended: %v", err)
	}
	gate.Open()
	res := <-looked
	if got := sources(res.Sources); got != "DD" {
		t.Errorf("found %q", got)
	}
	p.quiesce()
	if st := p.Stats(); st.Promotions != 2 || st.ReadsCancelled != 2 || st.Host.Staging != 0 {
		t.Errorf("%+v", st)
	}
	if err := p.Unpin(p.sid, res.Slots); err != nil {
		t.Error(err)
	}
}

// A block that a lookup was told is coming is read although nobody waits.
func TestQueuedReadThatIsComingIsMade(t *testing.T) {
	p, gate, armed := stallingPool(t, storagetest.OpRead, func(cfg *Config) { cfg.IODeadline = time.Minute })
	blocks := chain(1, 2)
	p.store(blocks)
	p.quiesce()
	p.evictHost(blocks)
	armed.Store(true)
	hurried, cancel := context.WithCancel(t.Context())
	cancel()
	res, err := p.Lookup(hurried, p.sid, blocks)
	if err != nil || len(res.Slots) != 0 || res.Coming != 2 {
		t.Fatalf("%+v, %v", res, err)
	}
	gate.Open()
	p.quiesce()
	if got := p.tiersOf(blocks); got != "BB" {
		t.Errorf("resident %q", got)
	}
}

// The kernel may write into the memory of a read that does not return: it stays
// mapped, and the directories stay locked, for as long as the process lives.
func TestCloseUnderAStuckReadSaysSoAndUnmapsNothing(t *testing.T) {
	t.Parallel() // Close takes its time
	gate := &storagetest.Gate{}
	var armed atomic.Bool
	wrap := faults(func(op storagetest.Op, _ int) storagetest.Fault {
		if op == storagetest.OpRead && armed.Load() {
			return storagetest.FaultStall
		}
		return storagetest.FaultNone
	}, isExtent)
	cfg := Config{HostDir: t.TempDir(), HostBytes: hostBytes(8), DiskDir: t.TempDir(), DiskBytes: 16 * testSlotBytes,
		IODeadline: testDeadline, WrapDisk: func(path string, f extent.File) extent.File {
			f = wrap(path, f)
			f.(*storagetest.Faulty).Gate = gate
			return f
		}}
	p := openTestPool(t, cfg)
	p.hasDisk()
	blocks := chain(1, 1)
	p.store(blocks)
	p.quiesce()
	p.evictHost(blocks)
	armed.Store(true)
	if got := p.find(blocks); len(got) != 0 {
		t.Errorf("found %q", sources(got))
	}
	if err := p.m.Close(); !errors.Is(err, errStuck) {
		t.Errorf("close: %v", err)
	}
	host := p.slots.Host.Extents[0].Host
	if err := extent.Guard(func() { host.Slot(0)[0]++ }); err != nil {
		t.Errorf("the read's memory is gone: %v", err)
	}
	if _, err := Open(cfg); !errors.Is(err, storage.ErrLocked) {
		t.Errorf("another agent may use memory that a read may change: %v", err)
	}
	gate.Open()
	waitFor(t, func() bool {
		p.mu.Lock()
		defer p.mu.Unlock()
		return p.mover.Stuck() == 0
	})
}

// A write that stalls holds up offloading and nothing else.
func TestWriteThatStallsOpensTheBreakerAndLeavesHostMemoryAlone(t *testing.T) {
	p, gate, armed := stallingPool(t, storagetest.OpWrite, nil)
	armed.Store(true)
	blocks := chain(1, 2)
	p.store(blocks)
	waitFor(t, func() bool { st := p.Stats(); return st.WritesStalled == 1 && st.DiskOpen })
	if got := sources(p.find(blocks)); got != "HH" {
		t.Errorf("found %q", got)
	}
	if n := p.store(chain(2, 6)); n != 6 {
		t.Errorf("%d blocks granted", n)
	}
	armed.Store(false)
	gate.Open()
	waitFor(t, func() bool { return p.tiersOf(blocks)+p.tiersOf(chain(2, 6)) == "BBBBBBBB" })
	if p.Stats().DiskOpen {
		t.Error("the disk is left alone although it works")
	}
	p.quiesce()
}

func TestTryOfAFailingDiskIsNotSpentOnALookupThatCannotRead(t *testing.T) {
	p := newTestPool(t, Config{HostBytes: hostBytes(4), DiskBytes: 64 * testSlotBytes})
	blocks := chain(1, 2)
	p.store(blocks)
	p.quiesce()
	p.evictHost(blocks)
	p.grant(p.sid, chain(200, 4)) // there is no host slot to read into
	b := &p.broker.health.All
	for range diskio.BreakerFailures {
		b.Failed(storage.ErrForeign)
	}
	p.retryDisk()
	if res, err := p.Lookup(context.Background(), p.sid, blocks); err != nil || len(res.Slots) != 0 {
		t.Fatalf("%+v, %v", res, err)
	}
	if !b.Ready() {
		t.Errorf("the try is gone: next in %v", b.UntilTry())
	}
}

func TestStalledWriteHoldsNoBlockButItsOwn(t *testing.T) {
	p, gate, armed := stallingPool(t, storagetest.OpWrite, nil)
	armed.Store(true)
	p.store(chain(1, 1))
	waitFor(t, func() bool { st := p.Stats(); return st.WritesStalled > 0 && st.DiskOpen })
	for i := range uint64(20) {
		p.store(chain(50+i, 1))
		waitFor(t, func() bool { return p.Stats().SealQueue == 0 })
	}
	// A block leaves the queue before its sealing ends, and is held until then.
	waitFor(t, func() bool { st := p.Stats(); return st.Host.Active <= 1 && st.WriteQueue == 0 })
	armed.Store(false)
	gate.Open()
	p.quiesce() // else the stalled write ends while the pool is checked
}

// A write that ends after Close changes nothing: the sink hears no more of the pool, and
// the next agent takes the block for lost.
func TestWriteThatEndsAfterCloseChangesNothing(t *testing.T) {
	p, gate, armed := stallingPool(t, storagetest.OpWrite, nil)
	armed.Store(true)
	blocks := chain(1, 1)
	p.store(blocks)
	waitFor(t, func() bool { return p.Stats().WritesStalled > 0 })
	if err := p.m.Close(); !errors.Is(err, errStuck) {
		t.Fatalf("Close: %v, want %v", err, errStuck)
	}
	told := &countingSink{}
	p.mu.Lock()
	p.slots.Sink = told
	p.mu.Unlock()
	armed.Store(false)
	gate.Open()
	p.life.transfers.Wait()
	if n := told.calls.Load(); n != 0 || p.Stats().WriteBehind != 0 {
		t.Errorf("%d events and %d written blocks after Close", n, p.Stats().WriteBehind)
	}
}

// countingSink counts what it is told.
type countingSink struct{ calls atomic.Int64 }

func (s *countingSink) BlockStored(kv.NamespaceID, kv.Tier, Block)  { s.calls.Add(1) }
func (s *countingSink) BlockRemoved(kv.NamespaceID, kv.Tier, Block) { s.calls.Add(1) }
