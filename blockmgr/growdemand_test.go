package blockmgr

import (
	"context"
	"os"
	"path/filepath"
	"testing"

	"github.com/blockyard-ai/blockyard/blockmgr/registry"
	"github.com/blockyard-ai/blockyard/blockmgr/storage"
)

// growingConfig is a host tier of 1024 slots that grows by 64.
func growingConfig() Config {
	return Config{HostBytes: hostBytes(1024), ExtentBytes: 64 * testSlotBytes}
}

func TestHostTierThatCannotGrowEvicts(t *testing.T) {
	cfg := growingConfig()
	cfg.HostDir = filepath.Join(t.TempDir(), "host")
	p := openTestPool(t, cfg)
	p.quiesce()
	p.store(chain(1, 64))
	p.quiesce()
	moved := cfg.HostDir + "-away"
	noError(t, os.Rename(cfg.HostDir, moved))
	p.store(chain(2, 256)) // finds out that the directory is gone
	p.quiesce()
	if st := p.Stats(); st.GrowErrors == 0 || st.HostEvictions != 0 {
		t.Errorf("%d failed extents, %d evictions; want some and none", st.GrowErrors, st.HostEvictions)
	}
	if n := p.store(chain(3, 64)); n != 64 {
		t.Errorf("%d of 64 blocks are stored, want all: the tier evicts", n)
	}
	p.quiesce()
	noError(t, os.Rename(moved, cfg.HostDir))
	p.finish()
}

// A call that needs more slots than are free ends the growth one way or the other: the
// tier gets them from other pools, or it evicts.
func TestAllocateBeyondTheFreeSlotsMakesTheTierGrow(t *testing.T) {
	p := newTestPool(t, Config{HostBytes: hostBytes(64), ExtentBytes: 16 * testSlotBytes})
	other := p.openOther("other")
	for seed := uint64(1); seed <= 6; seed++ {
		other.store(chain(seed, 8))
		other.quiesce()
	}
	other.EndSession(other.sid, nil)
	p.store(chain(1, 8))
	p.quiesce() // the other pool, which nobody uses, has given an extent
	if st := p.Stats().Host; st.Capacity != 32 || st.Free != 24 || !p.growth.host.takes {
		t.Fatalf("%+v", st)
	}
	for _, n := range []int{32, 48} {
		var blocks []*MutableBlock
		for range 4 {
			var err error
			if blocks, err = p.Allocate(p.sid, n); err == nil {
				break
			}
			p.quiesce()
		}
		if len(blocks) != n {
			t.Errorf("%d of %d slots, %+v", len(blocks), n, p.Stats().Host)
		}
		for _, b := range blocks {
			b.Release()
		}
	}
}

// A prefetch that finds no free slot makes the tier grow, too.
func TestRefusedPrefetchMakesTheTierGrow(t *testing.T) {
	cfg := growingConfig()
	cfg.HostDir, cfg.DiskDir, cfg.DiskBytes = t.TempDir(), t.TempDir(), 1024*testSlotBytes
	p := newTestPool(t, cfg)
	blocks := chain(1, 8)
	p.store(blocks)
	p.quiesce()
	p.resetHost(blocks)
	p.mu.Lock()
	free := p.slots.Host.Free()
	var used []registry.Ref // all of them
	for range free {
		ref := p.slots.Alloc(p.slots.Host)
		p.slots.Grant(ref, 0, storage.Record{})
		used = append(used, ref)
	}
	p.mu.Unlock()
	n := p.Prefetch(blocks)
	timed := p.durations()["lookup"]
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	res, err := p.Lookup(ctx, p.sid, blocks) // waits for room in vain
	noError(t, err)
	noError(t, p.Unpin(p.sid, res.Slots))
	if now := p.durations()["lookup"]; now != timed+1 {
		t.Errorf("%d lookups are timed after one, want 1", now-timed)
	}
	p.mu.Lock()
	for _, ref := range used {
		p.slots.Free(p.slots.Host, ref)
	}
	p.mu.Unlock()
	p.quiesce()
	if n != 0 || p.Stats().Host.Capacity <= free {
		t.Errorf("%d reads, %d slots after a refusal; want 0 and more than %d", n, p.Stats().Host.Capacity, free)
	}
}

func TestGrowthFollowsDemand(t *testing.T) {
	var g growth
	for _, step := range []struct{ asked, refused, limit, ahead int }{
		{asked: 10, refused: 30, limit: 100, ahead: 40},
		{asked: 0, refused: 0, limit: 100, ahead: 30},
		{asked: 29, refused: 0, limit: 100, ahead: 29},
		{asked: 500, refused: 500, limit: 128, ahead: 128},
		{asked: 0, refused: 0, limit: 64, ahead: 64},
	} {
		waiting := g.wait()
		g.begin()
		g.asked, g.refused = step.asked, step.refused
		g.end(step.limit)
		if g.ahead != step.ahead || g.refused != 0 {
			t.Errorf("%+v: ahead %d, refused %d", step, g.ahead, g.refused)
		}
		select {
		case <-waiting:
		default:
			t.Errorf("%+v: still waiting", step)
		}
	}
}
