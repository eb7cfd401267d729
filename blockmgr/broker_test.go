package blockmgr

import (
	"errors"
	"os"
	"sync"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/blockyard-ai/blockyard/blockmgr/registry"
)

// The example of it all: a model fills the node and leaves, another one comes,
// and then the first one comes back.
func TestPoolWithoutSessionsYieldsItsExtents(t *testing.T) {
	p := newTestPool(t, Config{HostBytes: 2 * hostBytes(8), DiskBytes: 2 * hostBytes(8), ExtentBytes: hostBytes(8)})
	blocks := chain(1, 8)
	p.store(blocks)
	p.quiesce()
	p.store(chain(2, 8))
	// Not quiet: the newcomer waits for the last blocks' way to disk.
	p.EndSession(1, nil)
	var old []os.FileInfo
	for _, e := range p.Extents() {
		// Open, so that the file system does not use its inode for another file.
		f, err := os.Open(e.Path)
		if err != nil {
			t.Fatal(err)
		}
		defer f.Close()
		st, err := f.Stat()
		if err != nil {
			t.Fatal(err)
		}
		old = append(old, st)
	}

	other := p.openOther("other")
	if !holds(other) || other.Stats().Host.Extents != 1 || other.Stats().Disk.Extents != 1 {
		t.Errorf("newcomer: %+v", other.Stats())
	}
	// One of the host tier; of the disk none when its last writes had not come there
	// yet, or more when they took room that it had just given.
	if st := p.Stats(); st.ExtentsYielded < 1 || st.Host.Extents != 1 || st.Disk.Extents != 1 {
		t.Errorf("yielded: %+v", st)
	}
	p.check()
	p.checkEvents()
	now, err := os.Stat(other.Extents()[0].Path)
	if err != nil {
		t.Fatal(err)
	}
	for _, st := range old {
		if os.SameFile(st, now) {
			t.Error("the newcomer has an old file, which a client may still map")
		}
	}
	// It has one of its own: it does not take the last one of a pool whose engine
	// may only be restarting.
	for i := range uint64(2) {
		other.store(chain(i, 8))
		other.quiesce()
	}
	if st := other.Stats(); st.Host.Extents != 1 || st.HostEvictions != 8 {
		t.Errorf("newcomer under pressure: %+v", st)
	}
	if st := p.Stats(); st.Host.Extents != 1 || !holds(p) {
		t.Errorf("the pool that gave one: %+v", st)
	}
	// Another newcomer has none, and takes the last one.
	third := p.openOther("third")
	if st := p.Stats(); st.Host.Capacity != 0 || st.Host.Extents != 0 || holds(p) || !holds(third) {
		t.Errorf("the pool that gave all: %+v", st)
	}

	// Back again while the other is in use: no room, no error, and no harm.
	back := p.openOther("test")
	if back.Pool != p.Pool || holds(back) || back.Stats().GrowRefused == 0 {
		t.Errorf("back: %+v", back.Stats())
	}
	if res, err := p.Grant(back.sid, blocks, 0); err != nil || res.Refused+res.Present != 8 {
		t.Errorf("%+v, %v", res, err)
	}
	if got := back.find(blocks); len(got) != 0 {
		t.Errorf("found %q", sources(got))
	}
	p.quiesce()
	p.check()

	// When the other's session ends the next demand finds room.
	other.EndSession(other.sid, nil)
	back.store(chain(5, 1))
	p.quiesce()
	back.store(chain(5, 1))
	if !holds(p) || sources(back.find(chain(5, 1))) != "H" {
		t.Errorf("after the other left: %+v", p.Stats())
	}
	p.quiesce()
	p.check()
	other.check()
	other.checkEvents()
	third.check()
}

// TestYieldedExtentLeavesNoMemoryBehind: a client that keeps an extent mapped
// does not keep its memory, so that extents that change hands stay within the
// host size; and its loads there fail, because the generation words are gone.
func TestYieldedExtentLeavesNoMemoryBehind(t *testing.T) {
	p := newTestPool(t, Config{HostBytes: hostBytes(8)})
	p.store(chain(1, 8))
	p.quiesce()
	kept, err := os.Open(p.Extents()[0].Path)
	if err != nil {
		t.Fatal(err)
	}
	defer kept.Close()
	p.EndSession(1, nil)
	if other := p.openOther("other"); !holds(other) {
		t.Fatalf("newcomer: %+v", other.Stats())
	}
	var st unix.Stat_t
	noError(t, unix.Fstat(int(kept.Fd()), &st))
	word := make([]byte, 8)
	if _, err := kept.ReadAt(word, 0); err != nil {
		t.Fatal(err)
	}
	if st.Blocks != 0 || string(word) != string(make([]byte, 8)) {
		t.Errorf("the file still has %d blocks, its first generation word is %x", st.Blocks, word)
	}
}

func TestBlockLargerThanATierOpensDisabledAndTakesNothing(t *testing.T) {
	p := newTestPool(t, Config{HostBytes: hostBytes(8)})
	p.EndSession(1, nil)
	ns := testNamespace("big")
	ns.InnerDim = 1 << 16
	big, err := p.m.Pool(ns)
	if err != nil || holds(big) || big.Stats().GrowErrors != 1 {
		t.Errorf("%+v, %v", big.Stats(), err)
	}
	if n := p.Stats().ExtentsYielded; n != 0 {
		t.Errorf("%d extents were given up for nothing", n)
	}
}

func TestExtentsInUseAreNotYielded(t *testing.T) {
	p := newTestPool(t, Config{HostBytes: hostBytes(8)})
	blocks := chain(1, 2)
	res, err := p.Grant(1, blocks, 0)
	if err != nil || len(res.Grants) != 2 {
		t.Fatalf("%+v, %v", res, err)
	}
	_, stop := p.WatchExtents()
	gone := make(chan struct{})
	p.EndSession(1, gone)
	yields := func() bool { return p.yield(registry.Host) }
	if yields() {
		t.Error("yielded while a client watches")
	}
	stop()
	if yields() {
		t.Error("yielded while a dying worker may write")
	}
	close(gone)
	waitFor(t, yields)
	if yields() || p.Stats().Host.Capacity != 0 {
		t.Error("yielded what it does not have")
	}
	// Whoever names a slot of the extent that is gone is told so.
	if err := p.Commit(p.begin(), []Slot{res.Grants[0].Slot}); !errors.Is(err, ErrBadSlot) {
		t.Errorf("commit: %v", err)
	}
}

func TestExtentThatIsUsedAgainBeforeItIsTakenStays(t *testing.T) {
	p := newTestPool(t, Config{HostBytes: 2 * hostBytes(8), ExtentBytes: hostBytes(8)})
	var seed uint64
	p.demand(&seed, 16)
	coldest := p.coldest(registry.Host)
	used := p.pin(p.sid, chain(1, 1)) // the block that was stored first
	if used[0].Extent != coldest.ID {
		t.Fatalf("extent %d is the coldest, the first block is in %d", coldest.ID, used[0].Extent)
	}
	if p.takeOut(registry.Host, coldest) {
		t.Error("an extent with a pinned block was taken")
	}
	if !p.yield(registry.Host) || p.hostLocation(chain(1, 1)[0].Key).Slot != used[0] {
		t.Error("the other extent was not yielded in its place")
	}
	if p.takeOut(registry.Host, coldest) || p.yield(registry.Host) {
		t.Error("the last one was taken")
	}
	if err := p.Unpin(p.sid, used); err != nil {
		t.Error(err)
	}
}

func TestYieldForgetsBlocksThatWaitToBeOfferedToTheDisk(t *testing.T) {
	p := diskPool(t, nil)
	tripBreaker(t, &p.broker.health.Writes)
	p.leaveDiskAlone()
	p.store(chain(1, 2))
	p.quiesce()
	waiting := p.queues().Deferred
	p.EndSession(1, nil)
	if !p.yield(registry.Host) {
		t.Error("nothing was yielded")
	}
	if left := p.queues().Deferred; waiting != 2 || left != 0 || p.Stats().Host.Capacity != 0 {
		t.Errorf("%d slots waited for the disk, %d that are gone still wait", waiting, left)
	}
	p.check()
}

// Models that come and go on a node too small for all of them: nobody reads a
// wrong byte, nothing deadlocks, and every extent is accounted for.
func TestModelsThatComeAndGoShareTheNode(t *testing.T) {
	p := newTestPool(t, Config{HostBytes: 3 * hostBytes(8), DiskBytes: 4 * hostBytes(8), ExtentBytes: hostBytes(8)})
	p.EndSession(1, nil)
	var wg sync.WaitGroup
	for _, model := range []string{"a", "b", "c", "d"} {
		wg.Go(func() {
			for round := range uint64(30) {
				pool, err := p.m.Pool(testNamespace(model))
				if err != nil {
					t.Errorf("%s: %v", model, err)
					return
				}
				s := SessionID(p.ids.Add(1))
				if err := pool.BeginSession(s); err != nil {
					t.Errorf("%s: %v", model, err)
					return
				}
				other := &testPool{Pool: pool, t: t, m: p.m}
				other.storeAndFind(t, s, chain(1+round%4, 8))
				other.storeAndFind(t, s, chain(1+round%3, 8))
				pool.EndSession(s, nil)
			}
		})
	}
	wg.Wait()
	// All of them first: a pool that grows still may take from one that is counted.
	for _, pool := range p.m.Pools() {
		(&testPool{Pool: pool, t: t}).quiesce()
	}
	yielded, hostBytesUsed := uint64(0), uint64(0)
	for _, pool := range p.m.Pools() {
		other := &testPool{Pool: pool, t: t, m: p.m, sink: p.sink, clock: p.clock}
		other.check()
		other.checkEvents()
		st := pool.Stats()
		if st.CorruptReads+st.ReadErrors+st.WriteErrors+st.MemoryErrors+st.GrowErrors != 0 {
			t.Errorf("%+v", st)
		}
		yielded += st.ExtentsYielded
		// The size bounds the slots; a page of generation words comes on top.
		hostBytesUsed += uint64(st.Host.Capacity) * testSlotBytes
	}
	if hostBytesUsed > p.cfg.HostBytes || yielded == 0 {
		t.Errorf("%d bytes of host memory of %d, %d extents yielded", hostBytesUsed, p.cfg.HostBytes, yielded)
	}
}

// holds reports whether a pool has room for blocks in host memory.
func holds(p interface{ Stats() Stats }) bool { return p.Stats().Host.Capacity > 0 }
