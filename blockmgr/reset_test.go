package blockmgr

import (
	"sync/atomic"
	"testing"

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
	noError(t, p.ResetAll())
	waitFor(t, func() bool { return gate.Waiting() == 1 })
	release(p.register(chain(2, 1)))
	if n := p.matched(t, chain(2, 1)); n != 1 {
		t.Errorf("%d blocks found", n)
	}
	gate.Open()
	p.quiesce()
}
