package agent

import (
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"testing"

	"github.com/blockyard-ai/blockyard/agent/agenttest"
	"github.com/blockyard-ai/blockyard/agent/pools"
	"github.com/blockyard-ai/blockyard/blockmgr"
	"github.com/blockyard-ai/blockyard/internal/proto"
)

// footprint is what an agent of this process has.
type footprint struct{ files, goroutines, extents int }

func (a *testAgent) footprint(t *testing.T) (f footprint) {
	t.Helper()
	fds, err := os.ReadDir("/proc/self/fd")
	if err != nil {
		t.Fatal(err)
	}
	for _, dir := range []string{a.cfg.Tiers.HostDir, a.cfg.Tiers.DiskDir} {
		names, err := filepath.Glob(filepath.Join(dir, "extent-*"))
		if err != nil {
			t.Fatal(err)
		}
		f.extents += len(names)
	}
	f.files, f.goroutines = len(fds), runtime.NumGoroutine()
	return f
}

// checkSlots checks that each tier of each pool has every one of its slots in one
// state, and that together they are within the sizes.
func (a *testAgent) checkSlots(t *testing.T) {
	t.Helper()
	var host, disk uint64
	for _, p := range a.Stats().Pools {
		for _, ts := range []blockmgr.TierStats{p.Host, p.Disk} {
			if sum := ts.Free + ts.Granted + ts.Staging + ts.Receiving + ts.Quarantined + ts.Active + ts.Inactive; sum != ts.Capacity {
				t.Errorf("pool %d: %d slots of %d have a state", p.Pool, sum, ts.Capacity)
			}
		}
		host, disk = host+uint64(p.Host.Capacity), disk+uint64(p.Disk.Capacity)
	}
	if host*4096 > a.cfg.Tiers.HostBytes || disk*4096 > a.cfg.Tiers.DiskBytes {
		t.Errorf("%d host slots and %d disk slots are more than the tiers have", host, disk)
	}
}

// Weights that are updated in place give an engine one namespace after the other,
// for as long as it lives.
func TestNamespacesComeAndGo(t *testing.T) {
	const rounds, settled = 300, 100
	cfg := testConfig(t)
	a := startAgent(t, cfg)
	first := a.Scheduler(t, 1)
	agenttest.StorePrompt(t, first, proto.RequestID{ID: 1}, 1, 3)
	visit := func(i int) {
		h := agenttest.Hello(2)
		h.Namespace = agenttest.NamespaceNumber(i)
		c, err := a.DialWith(t, h)
		if err != nil {
			t.Fatalf("namespace %d: %v", i, err)
		}
		agenttest.StorePrompt(t, c, proto.RequestID{ID: 1}, i, 3)
		if err := c.Bye(t.Context(), "new weights"); err != nil {
			t.Fatal(err)
		}
		c.Close()
	}
	var before footprint
	for i := range rounds {
		visit(i)
		if i == settled {
			agenttest.Eventually(t, "quiet", func() bool { return a.Stats().Quiet })
			before = a.footprint(t)
		}
	}
	agenttest.Eventually(t, "quiet", func() bool { return a.Stats().Quiet })
	a.checkSlots(t)
	after := a.footprint(t)
	if after.files > before.files+8 || after.goroutines > before.goroutines+16 || after.extents > int((cfg.Tiers.HostBytes+cfg.Tiers.DiskBytes)/cfg.Tiers.ExtentBytes) {
		t.Errorf("after %d namespaces %+v, after %d %+v", settled, before, rounds, after)
	}
	s := a.Stats()
	if len(s.Pools) != pools.MaxPools || len(s.Streams) != pools.MaxPools+1 || s.Totals.Streams.Blocks == 0 {
		t.Errorf("%d pools and %d streams, want %d and one more", len(s.Pools), len(s.Streams), pools.MaxPools)
	}
	if _, got := a.pools.Manager().Census(); got.Pools != rounds+1-pools.MaxPools || got.Committed != 3*got.Pools {
		t.Errorf("retired %+v", got)
	}
	agenttest.WantReady(t, first, 3)
	last := agenttest.Hello(2)
	last.Namespace = agenttest.NamespaceNumber(0) // it went long ago
	c, err := a.DialWith(t, last)
	if err != nil {
		t.Fatal(err)
	}
	agenttest.StorePrompt(t, c, proto.RequestID{ID: 1}, 0, 3)
}

// A kept block holds its pool, which is not closed for others.
func TestPoolWithAKeptBlockDoesNotMakeRoom(t *testing.T) {
	a := startAgent(t, testConfig(t))
	c := a.Scheduler(t, 1)
	agenttest.StorePrompt(t, c, proto.RequestID{ID: 1}, 1, 3)
	ns := agenttest.Namespace()
	if kept := a.keep(t, ns.ID().String(), agenttest.Prompt(1, 3), ""); kept != `{"kept":3,"blocks":3}` {
		t.Fatal(kept)
	}
	if err := c.Bye(t.Context(), "test"); err != nil {
		t.Fatal(err)
	}
	for i := range pools.MaxPools + 2 {
		h := agenttest.Hello(2)
		h.Namespace = agenttest.NamespaceNumber(i)
		c, err := a.DialWith(t, h)
		if err != nil {
			t.Fatal(err)
		}
		if err := c.Bye(t.Context(), "test"); err != nil {
			t.Fatal(err)
		}
	}
	var open []string
	for _, p := range a.Stats().Pools {
		open = append(open, p.Namespace)
	}
	if !slices.Contains(open, ns.ID().String()) {
		t.Errorf("the pool with kept blocks is not among %s", strings.Join(open, " "))
	}
}
