package blockmgr

import (
	"testing"
	"testing/synctest"
	"time"

	"github.com/blockyard-ai/blockyard/blockmgr/diskio"
	"github.com/blockyard-ai/blockyard/blockmgr/registry"
	"github.com/blockyard-ai/blockyard/blockmgr/storage/extent"
	"github.com/blockyard-ai/blockyard/internal/kv"
)

// scrub runs the scrubber over one slot, as its loop does.
func (p *testPool) scrubSlot(lv registry.Level, s Slot) bool {
	p.t.Helper()
	buf, free, err := extent.NewBuffer(p.SlotBytes())
	if err != nil {
		p.t.Fatalf("buffer: %v", err)
	}
	defer free()
	p.mu.Lock()
	ref, ok := p.slots.Tier(lv).Lookup(s)
	p.mu.Unlock()
	if !ok {
		p.t.Fatalf("no slot %+v", s)
	}
	return p.mover.ScrubSlot(lv, ref, buf)
}

func TestScrubberLeavesBusySlotsAlone(t *testing.T) {
	p := diskPool(t, nil)
	blocks := chain(1, 2)
	p.store(blocks[:1])
	p.quiesce()
	granted := p.grant(p.sid, blocks[1:])[0]
	host, disk := p.hostLocation(blocks[0].Key).Slot, p.diskLocation(blocks[0].Key).Slot
	free := Slot{Extent: host.Extent, Index: 7, Generation: 1}
	if p.scrubSlot(registry.Host, granted) || p.scrubSlot(registry.Host, free) {
		t.Error("a slot without a sealed block was scrubbed")
	}
	for lv, slot := range map[registry.Level]Slot{registry.Host: host, registry.Disk: disk} {
		p.mu.Lock()
		tier := p.slots.Tier(lv)
		ref, _ := tier.Lookup(slot)
		p.slots.Hold(tier, ref)
		p.mu.Unlock()
		if p.scrubSlot(lv, slot) {
			t.Errorf("a %s slot was scrubbed while it was in use", tier.Kind)
		}
		p.mu.Lock()
		p.slots.Release(tier, ref)
		p.mu.Unlock()
		if !p.scrubSlot(lv, slot) {
			t.Errorf("a %s slot was not scrubbed when nobody used it", tier.Kind)
		}
	}
	if st := p.Stats(); st.Scrubbed != 2 || st.CorruptHost+st.CorruptReads != 0 {
		t.Errorf("%+v", st)
	}
	if p.mover.ScrubSlot(registry.Host, registry.MakeRef(9, 0), nil) {
		t.Error("a slot of an extent that is not there was scrubbed")
	}
}

// Whoever has a corrupt block pinned may go on with it; nobody else gets it, and
// nobody gets its slot before.
func TestPinnedSlotOfACorruptBlockIsFreeAfterItsLastPin(t *testing.T) {
	p := newTestPool(t, Config{HostBytes: hostBytes(4)})
	blocks := chain(1, 1)
	p.store(blocks)
	p.quiesce()
	other := p.begin()
	mine, theirs := p.pin(p.sid, blocks), p.pin(other, blocks)
	where := p.hostLocation(blocks[0].Key)
	flip(t, where.Path, where.Offset)
	if !p.scrubSlot(registry.Host, mine[0]) {
		t.Fatal("not scrubbed")
	}
	p.check()
	if st := p.Stats(); st.CorruptHost != 1 || st.Host.Quarantined != 1 || st.Pins != 2 {
		t.Errorf("%+v", st)
	}
	if got := p.find(blocks); len(got) != 0 {
		t.Errorf("found %q", sources(got))
	}
	if err := p.Unpin(p.sid, mine); err != nil {
		t.Error(err)
	}
	if n := p.store(chain(2, 4)); n != 3 {
		t.Errorf("%d blocks granted beside the pinned slot", n)
	}
	p.EndSession(other, nil)
	p.quiesce()
	if st := p.Stats(); st.Host.Quarantined != 0 || st.Host.Free != 1 {
		t.Errorf("%+v", st.Host)
	}
	if err := p.Unpin(p.sid, theirs); err == nil {
		t.Error("another session's pin was given back")
	}
}

// A try of the scrubber is a try: it ends what the breaker began.
func TestScrubberClosesTheBreakerOfADiskThatIsBack(t *testing.T) {
	p := diskPool(t, nil)
	blocks := chain(1, 1)
	p.store(blocks)
	p.quiesce()
	slot := p.diskLocation(blocks[0].Key).Slot
	tripBreaker(t, &p.broker.health.All)
	p.leaveDiskAlone()
	if p.scrubSlot(registry.Disk, slot) {
		t.Error("a disk that is left alone was read")
	}
	p.retryDisk()
	if !p.scrubSlot(registry.Disk, slot) || p.Stats().DiskOpen {
		t.Errorf("disk left alone: %v", p.Stats().DiskOpen)
	}
}

func TestScrubberKeepsToItsRate(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		// Ten blocks a second.
		p := newTestPool(t, Config{HostBytes: hostBytes(8), DiskBytes: 16 * testSlotBytes, ScrubBytesPerSecond: 23040})
		p.store(chain(1, 6))
		p.quiesce()
		time.Sleep(diskio.ScrubIdle) // it had found nothing to do and rests
		before := p.Stats().Scrubbed
		time.Sleep(20 * time.Second)
		synctest.Wait()
		if got := p.Stats().Scrubbed - before; got < 180 || got > 201 {
			t.Errorf("%d blocks in 20 s, want 200", got)
		}
	})
}

// The rate is the node's: pools share it.
func TestScrubRateIsThatOfAllPoolsTogether(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const perSecond, seconds = 4, 50
		p := newTestPool(t, Config{HostBytes: hostBytes(64), ExtentBytes: 8 * testSlotBytes, ScrubBytesPerSecond: 2304 * perSecond})
		pools := []*testPool{p, p.openOther("b"), p.openOther("c"), p.openOther("d")}
		for i, pool := range pools {
			if n := pool.store(chain(uint64(i+1), 8)); n != 8 {
				t.Fatalf("%d blocks granted", n)
			}
		}
		time.Sleep(diskio.ScrubIdle) // all scrubbers have found something
		before := uint64(0)
		for _, pool := range pools {
			before += pool.Stats().Scrubbed
		}
		time.Sleep(seconds * time.Second)
		var checked uint64
		for _, pool := range pools {
			n := pool.Stats().Scrubbed
			checked += n
			if n == 0 {
				t.Errorf("pool %s is never scrubbed", pool.Namespace().Model)
			}
		}
		if got, want := checked-before, uint64(perSecond*seconds); got > want+uint64(len(pools)) || got < want*3/4 {
			t.Errorf("%d blocks verified in %d s, want %d", got, seconds, want)
		}
	})
}

// The filter learns how many blocks the tiers can hold when a pool opens.
func TestFilterIsToldTheSizeOfTheTiers(t *testing.T) {
	f := &expectingFilter{}
	newTestPool(t, Config{HostBytes: hostBytes(16), DiskBytes: 48 * testSlotBytes, Filter: f})
	if f.blocks != 64 {
		t.Errorf("told %d blocks, want 64", f.blocks)
	}
}

type expectingFilter struct{ blocks uint64 }

func (f *expectingFilter) Expect(blocks uint64)               { f.blocks = blocks }
func (f *expectingFilter) ShouldOffload(kv.SequenceHash) bool { return true }
