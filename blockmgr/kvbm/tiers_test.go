package kvbm

import (
	"errors"
	"io/fs"
	"math"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/blockyard-ai/blockyard/blockmgr/config"
	"github.com/blockyard-ai/blockyard/internal/kv"
)

// sources are the three ways to say where n blocks of a tier lie.
func sources(tier kv.Tier, n uint64) map[string]*config.Layout {
	size := n * slotBytes
	return map[string]*config.Layout{
		"storage":   {NumBlocks: n, Storage: []config.Storage{memory{tier, size}}},
		"allocator": {NumBlocks: n, Allocator: maker{tier}},
		"logical":   {NumBlocks: n, Logical: config.LeaderWorkerSharded},
	}
}

// maker is an allocator of a tier.
type maker struct{ tier kv.Tier }

func (m maker) Tier() kv.Tier { return m.tier }

func (m maker) Allocate(size uint64) (config.Storage, error) { return memory{m.tier, size}, nil }

func TestEveryValidCombinationOfLayoutsHoldsExactlyItsBlocks(t *testing.T) {
	for hostName, host := range orNone(sources(kv.TierHost, 5)) {
		for diskName, disk := range orNone(sources(kv.TierDisk, 9)) {
			for deviceName, device := range orNone(sources(kv.TierDevice, 3)) {
				if host != nil && disk != nil && host.Logical != disk.Logical {
					continue // refused, as another test says
				}
				t.Run("device "+deviceName+" host "+hostName+" disk "+diskName, func(t *testing.T) {
					cfg, place := both(t, 1)
					cfg.DeviceLayout, cfg.HostLayout, cfg.DiskLayout = device, host, disk
					open(t, cfg, place).checkHoldsAll(host, disk)
				})
			}
		}
	}
}

func orNone(layouts map[string]*config.Layout) map[string]*config.Layout {
	layouts["none"] = nil
	return layouts
}

// checkHoldsAll fills the host tier and finds everything again.
func (c *client) checkHoldsAll(host, disk *config.Layout) {
	c.t.Helper()
	const n = 5
	blocks := c.sequence(1, n)
	if host == nil && disk == nil {
		if c.Pool().Configured() || c.find(blocks) != 0 {
			c.t.Error("a manager without tiers holds blocks")
		}
		return
	}
	c.add(1, blocks)
	if found := c.find(blocks); found != n {
		c.t.Errorf("%d of %d blocks are found", found, n)
	}
	st := c.Pool().Stats()
	if host != nil && uint64(st.Host.Capacity) != host.NumBlocks {
		c.t.Errorf("%d host blocks, want %d", st.Host.Capacity, host.NumBlocks)
	}
	if disk != nil && (uint64(st.Disk.Capacity) != disk.NumBlocks || st.WriteBehind != n) {
		c.t.Errorf("%d disk blocks, want %d; %d written, want %d", st.Disk.Capacity, disk.NumBlocks, st.WriteBehind, n)
	}
}

func TestTierThatTheNodeHasNoRoomForIsRefusedBeforeAnythingIsMade(t *testing.T) {
	cfg, place := both(t, 4)
	place.HostDir = filepath.Join(place.HostDir, "host")
	cfg.Model.InnerDim = 1 << 20 // blocks of 128 MiB
	cfg.HostLayout = &config.Layout{NumBlocks: math.MaxUint32, Allocator: maker{kv.TierHost}}
	cfg.DiskLayout = nil
	_, err := New(t.Context(), cfg, place)
	if err == nil || !strings.Contains(err.Error(), "lower host_layout num_blocks") {
		t.Errorf("2^59 bytes of host memory: %v", err)
	}
	if _, err := os.Stat(place.HostDir); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("the directory was made: %v", err)
	}
}

func TestDirectoryOfAStorageWinsOverThePlace(t *testing.T) {
	cfg, place := both(t, 4)
	place.HostDir, place.Disk.Dir = filepath.Join(t.TempDir(), "host"), filepath.Join(t.TempDir(), "disk")
	host, disk := filepath.Join(t.TempDir(), "h"), filepath.Join(t.TempDir(), "d")
	cfg.HostLayout.Storage = nil
	cfg.HostLayout.Allocator = &allocator{makes: directory{memory{kv.TierHost, 4 * slotBytes}, host}}
	cfg.DiskLayout.Storage[0] = directory{memory{kv.TierDisk, 4 * slotBytes}, disk}
	c := open(t, cfg, place)
	c.add(1, c.sequence(1, 4))
	for dir, want := range map[string]bool{host: true, disk: true, place.HostDir: false, place.Disk.Dir: false} {
		if _, err := os.Stat(dir); (err == nil) != want {
			t.Errorf("%s: %v, want one: %v", dir, err, want)
		}
	}
}

func TestAllocatorIsAskedOnceForWholeSlotsAndItsStorageIsClosedAtTheEnd(t *testing.T) {
	cfg, place := both(t, 4)
	a := &allocator{}
	bad := errors.New("does not close")
	a.makes = closable{memory{kv.TierHost, 4 * slotBytes}, a, bad}
	cfg.HostLayout = &config.Layout{NumBlocks: 4, Allocator: a}
	m, err := New(t.Context(), cfg, place)
	if err != nil {
		t.Fatal(err)
	}
	if !slices.Equal(a.asked, []uint64{4 * slotBytes}) || a.closed != 0 {
		t.Errorf("asked for %d bytes, closed %d times", a.asked, a.closed)
	}
	for range 2 {
		if err := m.Close(); !errors.Is(err, bad) || a.closed != 1 {
			t.Errorf("closed %d times, %v", a.closed, err)
		}
	}
	// What is wrong is found after the allocator was asked.
	place.Disk.Dir = ""
	if _, err := New(t.Context(), cfg, place); err == nil || !errors.Is(err, bad) || a.closed != 2 {
		t.Errorf("closed %d times, %v", a.closed, err)
	}
	place.Disk.Dir = place.HostDir
	if _, err := New(t.Context(), cfg, place); err == nil || !errors.Is(err, bad) || a.closed != 3 {
		t.Errorf("closed %d times, %v", a.closed, err)
	}
}

func TestHostFilterDecidesWhatIsWrittenToDisk(t *testing.T) {
	cfg, place := both(t, 8)
	wanted := make(filter, 1)
	cfg.HostLayout.OffloadFilter = wanted
	c := open(t, cfg, place)
	blocks := c.sequence(1, 4)
	wanted[0] = blocks[2].Seq
	c.add(1, blocks)
	var onDisk []kv.SequenceHash
	for _, info := range c.Pool().Dump() {
		if info.Tiers.Has(kv.TierDisk) {
			onDisk = append(onDisk, info.Block.Seq)
		}
	}
	if !slices.Equal(onDisk, wanted) {
		t.Errorf("blocks %d are on disk, want %d", onDisk, wanted)
	}
}

func TestDeviceFilterDecidesWhatIsStored(t *testing.T) {
	cfg, place := both(t, 8)
	if c := open(t, cfg, place); !c.ShouldStore(1) {
		t.Error("refused without a filter")
	}
	cfg, place = both(t, 8)
	cfg.DeviceLayout = sources(kv.TierDevice, 3)["storage"]
	cfg.DeviceLayout.OffloadFilter = filter{2}
	if c := open(t, cfg, place); c.ShouldStore(1) || !c.ShouldStore(2) {
		t.Error("the filter is not asked")
	}
}

// The number of blocks is the size of the tier, which must not decide how its
// files are cut: else every change of it would forget what they hold.
func TestTierOfAnotherSizeKeepsItsBlocks(t *testing.T) {
	cfg, place := both(t, 16)
	c := open(t, cfg, place)
	blocks := c.sequence(1, 8)
	c.add(1, blocks)
	if err := c.Close(); err != nil {
		t.Fatal(err)
	}
	for _, n := range []uint64{100_000, 16} {
		cfg.HostLayout, cfg.DiskLayout = sources(kv.TierHost, n)["storage"], sources(kv.TierDisk, n)["storage"]
		if m := (&tiers{host: room{bytes: n << 30}}).node(&cfg, &place); m.ExtentBytes != 0 {
			t.Errorf("%d blocks have extents of %d bytes", n, m.ExtentBytes)
		}
		c = open(t, cfg, place)
		if found := c.find(blocks); found != len(blocks) {
			t.Errorf("with %d blocks %d of %d are found", n, found, len(blocks))
		}
		if err := c.Close(); err != nil {
			t.Fatal(err)
		}
	}
}
