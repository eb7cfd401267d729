package blockmgr

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/blockyard-ai/blockyard/blockmgr/storage/extent"
	"github.com/blockyard-ai/blockyard/blockmgr/storage/storagetest"
	"github.com/blockyard-ai/blockyard/internal/kv"
)

// status is Status of a tier that there is.
func (p *testPool) status(kind kv.Tier) TierStatus {
	p.t.Helper()
	st, err := p.Status(kind)
	if err != nil {
		p.t.Fatalf("status: %v", err)
	}
	return st
}

func TestResetEmptiesOneTierAndReportsIt(t *testing.T) {
	p := diskPool(t, nil)
	blocks := chain(1, 4)
	release(p.register(blocks))
	p.quiesce()
	if got := p.status(kv.TierHost); got != (TierStatus{Inactive: 4, Empty: 4}) {
		t.Errorf("host %+v", got)
	}
	if err := p.Reset(kv.TierHost); err != nil {
		t.Fatal(err)
	}
	if got := p.tiersOf(blocks); got != "DDDD" || p.status(kv.TierHost) != (TierStatus{Empty: 8}) {
		t.Errorf("resident %q, host %+v", got, p.status(kv.TierHost))
	}
	p.check()
	p.checkEvents()
	if n := p.matched(t, blocks); n != 4 {
		t.Errorf("%d blocks onboarded from the other tier", n)
	}
	p.quiesce()
	if err := p.Reset(kv.TierDisk); err != nil {
		t.Fatal(err)
	}
	p.quiesce()
	if got := p.tiersOf(blocks); got != "HHHH" || p.Stats().BlocksReset != 8 {
		t.Errorf("resident %q, %d reset", got, p.Stats().BlocksReset)
	}
}

func TestResetIsRefusedWhileBlocksAreInUse(t *testing.T) {
	for name, use := range map[string]func(*testPool, []Block){
		"pinned": func(p *testPool, b []Block) { p.pin(p.sid, b) },
		"kept": func(p *testPool, b []Block) {
			if _, err := p.Keep([]kv.StoredKey{b[0].Key, b[1].Key}, time.Hour); err != nil {
				p.t.Fatalf("keep: %v", err)
			}
		},
		"allocated": func(p *testPool, _ []Block) { p.allocate(2) },
	} {
		t.Run(name, func(t *testing.T) {
			p := diskPool(t, nil)
			blocks := chain(1, 4)
			release(p.register(blocks))
			p.quiesce()
			use(p, blocks[:2])
			err := p.Reset(kv.TierHost)
			if !errors.Is(err, ErrActive) || !strings.Contains(err.Error(), "2 blocks are in use") {
				t.Errorf("reset of the host tier: %v", err)
			}
			if err := p.ResetAll(); !errors.Is(err, ErrActive) {
				t.Errorf("reset of both tiers: %v", err)
			}
			if got := p.tiersOf(blocks); got != "BBBB" || p.Stats().BlocksReset != 0 {
				t.Errorf("a refused reset leaves %q", got)
			}
		})
	}
}

func TestResetIsRefusedForSessionsOfAnEarlierAgent(t *testing.T) {
	cfg := Config{HostDir: t.TempDir(), HostBytes: hostBytes(8), DiskDir: t.TempDir()}
	first := openTestPool(t, cfg)
	first.store(chain(1, 2))
	first.quiesce()
	first.pin(first.sid, chain(1, 2))
	first.m.Abandon()
	second := openTestPool(t, cfg)
	defer second.finish()
	if err := second.Reset(kv.TierHost); !errors.Is(err, ErrActive) {
		t.Errorf("reset under a loader of an earlier agent: %v", err)
	}
	second.m.Forget(first.sid)
	if err := second.Reset(kv.TierHost); err != nil {
		t.Error(err)
	}
}

func TestResetOfTheDiskOutlivesACrash(t *testing.T) {
	cfg := Config{HostDir: t.TempDir(), HostBytes: hostBytes(8), DiskDir: t.TempDir(), DiskBytes: 64 * testSlotBytes}
	first := openTestPool(t, cfg)
	release(first.register(chain(1, 4)))
	first.quiesce()
	if err := first.ResetAll(); err != nil {
		t.Fatal(err)
	}
	first.quiesce()
	first.m.Abandon()
	second := openTestPool(t, cfg)
	defer second.finish()
	if st := second.Stats(); st.Blocks != 0 || st.Recovered+st.RecoveredHost != 0 {
		t.Errorf("%+v", st)
	}
}

func TestResetBlocksSaysWhatBecameOfEach(t *testing.T) {
	p := diskPool(t, nil)
	idle, used := chain(1, 3), chain(2, 1)
	release(p.register(idle))
	handle := p.register(used)[0]
	p.quiesce()
	missing := chain(3, 1)[0].Seq
	res, err := p.ResetBlocks(kv.TierHost, []kv.SequenceHash{idle[1].Seq, missing, used[0].Seq, idle[1].Seq, idle[2].Seq})
	if err != nil {
		t.Fatal(err)
	}
	if !slices.Equal(res.Reset, []kv.SequenceHash{idle[1].Seq, idle[2].Seq}) ||
		!slices.Equal(res.NotFound, []kv.SequenceHash{missing}) || !slices.Equal(res.NotReset, []kv.SequenceHash{used[0].Seq}) {
		t.Errorf("%+v", res)
	}
	if got := p.tiersOf(idle); got != "BDD" || !handle.Valid() {
		t.Errorf("resident %q", got)
	}
	p.check()
	// The middle of a sequence may go; what comes after it waits for it.
	if _, err := p.ResetBlocks(kv.TierDisk, []kv.SequenceHash{idle[1].Seq}); err != nil {
		t.Fatal(err)
	}
	if n := p.matched(t, idle); n != 1 {
		t.Errorf("%d blocks found across a hole", n)
	}
	release(p.register(idle[1:2]))
	if n := p.matched(t, idle); n != 3 {
		t.Errorf("%d blocks found once the hole is filled", n)
	}
	handle.Release()
	p.quiesce()
}

func TestTiersThatAreNotThereAreNamed(t *testing.T) {
	p := newTestPool(t, Config{HostBytes: hostBytes(4)})
	for _, kind := range []kv.Tier{kv.TierDevice, kv.TierDisk, kv.TierExternal, 9} {
		_, statusErr := p.Status(kind)
		_, blocksErr := p.ResetBlocks(kind, nil)
		for _, err := range []error{p.Reset(kind), p.m.Reset(kind), statusErr, blocksErr} {
			if !errors.Is(err, ErrNoTier) || !strings.Contains(err.Error(), kind.String()) {
				t.Errorf("tier %s: %v", kind, err)
			}
		}
	}
}

// The scrubber holds the slot that it reads, which is no use of it.
func TestResetWaitsForTheScrubber(t *testing.T) {
	gate := &storagetest.Gate{}
	cfg := Config{HostDir: t.TempDir(), HostBytes: hostBytes(8), DiskDir: t.TempDir(), DiskBytes: 64 * testSlotBytes}
	first := openTestPool(t, cfg)
	release(first.register(chain(1, 4)))
	first.quiesce()
	first.finish()
	cfg.ScrubBytesPerSecond, cfg.WrapDisk = 1<<40, stallReads(gate)
	p := openTestPool(t, cfg)
	defer p.finish()
	waitFor(t, func() bool { return gate.Waiting() == 1 })
	reset := make(chan error)
	go func() { reset <- p.ResetAll() }()
	waitFor(t, func() bool { return goroutinesIn(".(*Mover).PauseScrub(") == 1 })
	gate.Open()
	if err := <-reset; err != nil {
		t.Error(err)
	}
	p.quiesce()
	if st := p.Stats(); st.Blocks != 0 || st.BlocksReset != 8 {
		t.Errorf("%d blocks left, %d reset", st.Blocks, st.BlocksReset)
	}
}

func TestManagerResetsEveryPoolThatLetsIt(t *testing.T) {
	p := diskPool(t, func(cfg *Config) { cfg.HostBytes = 2 * hostBytes(8); cfg.ExtentBytes = hostBytes(8) })
	other := p.openOther("other")
	mine, theirs := chain(1, 2), chain(2, 2)
	release(p.register(mine))
	handles := other.register(theirs)
	p.quiesce()
	other.quiesce()
	err := p.m.Reset(kv.TierHost)
	if !errors.Is(err, ErrActive) || !strings.Contains(err.Error(), other.NamespaceID().String()) {
		t.Errorf("%v", err)
	}
	if got := p.tiersOf(mine) + other.tiersOf(theirs); got != "DDBB" {
		t.Errorf("resident %q", got)
	}
	release(handles)
	if err := p.m.Reset(kv.TierDisk); err != nil {
		t.Error(err)
	}
	if got := p.tiersOf(mine) + other.tiersOf(theirs); got != "--HH" {
		t.Errorf("resident %q", got)
	}
	p.quiesce()
	other.quiesce()
}

// A disk that does not answer keeps nobody from emptying the host tier.
func TestResetOfTheHostDoesNotWaitForTheDisk(t *testing.T) {
	gate := &storagetest.Gate{}
	var armed atomic.Bool
	p := diskPool(t, func(cfg *Config) {
		cfg.WrapDisk = func(_ string, f extent.File) extent.File {
			return &storagetest.Faulty{File: f, Gate: gate, Plan: func(storagetest.Op, int) storagetest.Fault {
				if armed.Load() {
					return storagetest.FaultStall
				}
				return storagetest.FaultNone
			}}
		}
	})
	release(p.register(chain(1, 4)))
	p.quiesce()
	armed.Store(true)
	if err := p.ResetAll(); err != nil {
		t.Fatal(err)
	}
	waitFor(t, func() bool { return gate.Waiting() == 1 })
	release(p.register(chain(2, 1)))
	if n := p.matched(t, chain(2, 1)); n != 1 {
		t.Errorf("%d blocks found", n)
	}
	gate.Open()
	p.quiesce()
}

// A reset of all pools is not refused because one of them goes meanwhile.
func TestResetOfAllPoolsPassesOverRetiredOnes(t *testing.T) {
	m, err := Open(Config{HostDir: t.TempDir(), HostBytes: hostBytes(64), ExtentBytes: hostBytes(4), ScrubBytesPerSecond: -1})
	if err != nil {
		t.Fatal(err)
	}
	defer m.Close()
	stop, ended := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(ended)
		for i := 0; ; i++ {
			select {
			case <-stop:
				return
			default:
			}
			p, err := m.Pool(testNamespace(fmt.Sprint(i % 8)))
			if err != nil {
				t.Error(err)
				return
			}
			if gone, err := p.Retire(); err == nil {
				<-gone
			}
		}
	}()
	for range 5000 {
		if err := m.Reset(kv.TierHost); err != nil {
			t.Error(err)
			break
		}
	}
	close(stop)
	<-ended
}
