package blockmgr

import (
	"strings"
	"testing"

	"pgregory.net/rapid"

	"github.com/blockyard-ai/blockyard/blockmgr/policy"
	"github.com/blockyard-ai/blockyard/blockmgr/registry"
	"github.com/blockyard-ai/blockyard/blockmgr/tier"
	"github.com/blockyard-ai/blockyard/internal/kv"
)

func TestTerabytesAreAcceptedByDefaultAndMoreExtentsThanCanBeNamedAreNot(t *testing.T) {
	for _, c := range []struct {
		change func(*Config)
		want   string
	}{
		{func(c *Config) { c.DiskBytes = 2 << 40 }, ""},
		{func(c *Config) { c.DiskBytes = 16 << 40 }, ""},
		{func(c *Config) { c.DiskBytes = 17 << 40 }, "extent size 1GiB: makes 17408 extents, want at most 16384"},
		{func(c *Config) { c.DiskBytes, c.ExtentBytes = 2<<40, 64<<20 }, "extent size 64MiB: makes 32768 extents"},
		{func(c *Config) { c.DiskBlocks = MaxBlocks }, ""},
		{func(c *Config) { c.DiskBlocks = MaxBlocks + 1 }, "blocks of a namespace 4294705153: want 0 to 4294705152 in each tier"},
		{func(c *Config) { c.HostBytes, c.HostBlocks = 0, 1<<40 }, "blocks of a namespace 1099511627776"},
	} {
		cfg := Config{HostDir: "/host", DiskDir: "/disk", HostBytes: 1 << 30}
		c.change(&cfg)
		switch err := cfg.Validate(); {
		case c.want == "" && err != nil:
			t.Errorf("%+v: %v", cfg, err)
		case c.want != "" && (err == nil || !strings.Contains(err.Error(), c.want)):
			t.Errorf("%+v: got %v, want %q", cfg, err, c.want)
		}
	}
}

// Whatever the settings, no tier of a pool has more extents than a Ref can name.
func TestExtentsOfATierAreBoundedForAllSettings(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		cfg := Config{HostBytes: rapid.Uint64Range(0, 16<<40).Draw(t, "bytes"), HostBlocks: rapid.Uint64Range(0, MaxBlocks).Draw(t, "blocks")}
		slotBytes := rapid.Uint64Range(1, MaxExtentBytes/minExtentBytes).Draw(t, "pages") * minExtentBytes
		extentBytes := rapid.Uint64Range(minExtentBytes, MaxExtentBytes).Draw(t, "extent")
		least := leastSlots(cfg.HostBlocks, MaxExtentBytes/slotBytes)
		if least == 0 || least > MaxExtentBytes/slotBytes || least < MaxExtentBytes/slotBytes && cfg.HostBlocks/least > fewExtents {
			t.Errorf("%d slots in an extent at least", least)
		}
		if n := cfg.maxHostExtents(cfg.HostBytes, slotBytes, extentBytes, least); n < 1 || n > registry.MaxExtents {
			t.Errorf("%d extents", n)
		}
	})
	full := tier.New(registry.Disk, 0, 0, policy.RuleLRU, new(tier.Usage))
	full.Live = registry.MaxExtents
	if !full.AtBound() || full.Fits(1) {
		t.Error("a tier grows beyond the extents that can be named")
	}
}

// An earlier agent had more than this one may have, in seven extents or more.
func TestLessAfterARestartIsExactAndItsWatchersAreTold(t *testing.T) {
	for name, c := range map[string]struct {
		change func(*Config)
		slots  int
	}{
		"number of blocks": {func(c *Config) { c.HostBytes, c.HostBlocks = 0, 4 }, 4},
		"a few less":       {func(c *Config) { c.HostBytes, c.HostBlocks = 0, 27 }, 27},
		"bypass":           {func(c *Config) { c.HostBytes = 0 }, stagingSlots},
		"disk":             {func(c *Config) { c.DiskBytes, c.DiskBlocks = 0, 5 }, 32},
	} {
		t.Run(name, func(t *testing.T) {
			cfg := Config{HostDir: t.TempDir(), HostBytes: hostBytes(32), ExtentBytes: hostBytes(4), DiskDir: t.TempDir(), DiskBytes: 64 * testSlotBytes}
			var seed uint64
			p := openTestPool(t, cfg)
			p.demand(&seed, 32)
			p.finish()
			c.change(&cfg)
			q := openTestPool(t, cfg)
			defer q.finish()
			q.check()
			q.checkEvents()
			if st := q.Stats(); st.Host.Capacity > c.slots || cfg.DiskBlocks != 0 && st.Disk.Capacity > int(cfg.DiskBlocks) {
				t.Errorf("%d slots in memory and %d on disk after the restart", st.Host.Capacity, st.Disk.Capacity)
			}
			ch, stop := q.WatchExtents()
			for range q.Extents() {
				<-ch
			}
			stop()
			q.demand(&seed, 2*c.slots)
			if st := q.Stats(); st.Host.Capacity != c.slots || cfg.DiskBlocks != 0 && st.Disk.Capacity != int(cfg.DiskBlocks) {
				t.Errorf("%d slots in memory and %d on disk under demand", st.Host.Capacity, st.Disk.Capacity)
			}
			q.check()
			q.checkEvents()
		})
	}
}

// Sessions of the earlier agent keep their extents, which may be more than the
// size now has.
func TestWatchersAreToldOfExtentsBeyondTheSize(t *testing.T) {
	cfg := Config{HostDir: t.TempDir(), HostBytes: hostBytes(32), ExtentBytes: hostBytes(4)}
	var seed uint64
	p := openTestPool(t, cfg)
	p.demand(&seed, 32)
	n := len(p.Extents())
	p.m.Abandon()
	cfg.HostBytes = hostBytes(8)
	q := openTestPool(t, cfg)
	defer q.finish()
	ch, stop := q.WatchExtents()
	defer stop()
	for range n {
		<-ch
	}
	q.demand(&seed, 4)
	if got := len(q.Extents()); got != n {
		t.Errorf("%d extents, want the %d that there were", got, n)
	}
}

// Another block size, another slot size: the bound counts blocks, not bytes.
func TestNumbersOfBlocksDoNotDependOnTheirSize(t *testing.T) {
	p := newTestPool(t, Config{HostBlocks: 6, ExtentBytes: hostBytes(4)})
	ns := testNamespace("wide")
	ns.InnerDim = 300
	wide := p.openNamespace(ns)
	for seed := range uint64(9) {
		wide.store(chain(seed, 1))
		wide.quiesce()
	}
	if st := wide.Stats(); wide.SlotBytes() == testSlotBytes || st.Host.Capacity != 6 {
		t.Errorf("slots of %d bytes, %+v", wide.SlotBytes(), st)
	}
	// A disk of so many blocks and no host tier is bypassed like one of bytes.
	bypass := newTestPool(t, Config{DiskBlocks: 4, ExtentBytes: hostBytes(4)})
	bypass.store(chain(1, 3))
	bypass.quiesce()
	if st := bypass.Stats(); st.Disk.Capacity != 4 || st.Host.Capacity != stagingSlots || bypass.tiersOf(chain(1, 3)) != "BBB" {
		t.Errorf("%+v", st)
	}
	if got := bypass.find(chain(1, 3)); len(got) != 3 || got[0] != kv.TierHost {
		t.Errorf("found %q", sources(got))
	}
}
