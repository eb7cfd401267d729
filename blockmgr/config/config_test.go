package config

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/blockyard-ai/blockyard/internal/kv"
)

// fake is a storage, an allocator and a filter.
type fake struct {
	tier kv.Tier
	size uint64
}

func (f fake) Tier() kv.Tier                         { return f.tier }
func (f fake) Bytes() uint64                         { return f.size }
func (f fake) Allocate(size uint64) (Storage, error) { return fake{f.tier, size}, nil }
func (f fake) ShouldOffload(kv.SequenceHash) bool    { return true }

// small has blocks of 2 layers of 2 * 4 * 8 * 2 = 128 bytes.
func small() Model { return Model{NumLayers: 2, OuterDim: 2, PageSize: 4, InnerDim: 8} }

// good is a configuration that uses every field.
func good() Config {
	host, disk := fake{kv.TierHost, 0}, fake{kv.TierDisk, 5 * 256}
	return Config{
		Runtime:      Runtime{WorkerID: 7, NIXL: NIXLOptions{Mode: NIXLDisabled}},
		Model:        small(),
		DeviceLayout: &Layout{NumBlocks: 3, Type: LayerSeparateOuterFirst, Storage: []Storage{fake{kv.TierDevice, 384}, fake{kv.TierDevice, 384}}},
		HostLayout:   &Layout{NumBlocks: 4, Allocator: host, OffloadFilter: host},
		DiskLayout:   &Layout{NumBlocks: 5, Storage: []Storage{disk}},
		Reset:        make(chan CacheLevel),
		Consolidator: &Consolidator{"tcp://127.0.0.1:5557", "tcp://*:5558", SourceVLLM, Dedup},
	}
}

func TestGoodConfigurationIsAccepted(t *testing.T) {
	c := good()
	if err := c.Validate(); err != nil {
		t.Error(err)
	}
	logical := good()
	logical.HostLayout = &Layout{NumBlocks: 1, Logical: LeaderWorkerSharded}
	logical.DeviceLayout, logical.DiskLayout, logical.Consolidator = nil, nil, nil
	if err := logical.Validate(); err != nil {
		t.Error(err)
	}
}

func TestBadFieldIsAnErrorThatNamesItItsValueAndTheRange(t *testing.T) {
	host := fake{kv.TierHost, 1 << 20}
	for _, c := range []struct {
		spoil func(*Config)
		want  string
	}{
		{func(c *Config) { c.Runtime.WorkerID = 0 }, `runtime worker_id 0: must be set and not be 0`},
		{func(c *Config) { c.Runtime.NIXL.Mode = 3 }, `runtime nixl mode 3: want 0 (enabled), 1 (enabled with agent) or 2 (disabled)`},
		{func(c *Config) { c.Runtime.NIXL = NIXLOptions{Mode: NIXLEnabledWithAgent} }, `runtime nixl agent name "": 0 bytes, want 1 to 255 with enabled with agent`},
		{func(c *Config) { c.Runtime.NIXL.Agent = "a" }, `runtime nixl agent name "a": want none with disabled`},
		{func(c *Config) { c.Model.NumLayers = 0 }, `model: layout num_layers 0: want 1 to 4096`},
		{func(c *Config) { c.Model.OuterDim = 3 }, `model: layout outer_dim 3: want 1 to 2`},
		{func(c *Config) { c.Model.PageSize = 0 }, `model: layout page_size 0: want 1 to 4096`},
		{func(c *Config) { c.Model.InnerDim = 0 }, `model: layout inner_dim 0: want 1 to 16777216`},
		{func(c *Config) { c.Model.DTypeBytes = 9 }, `model: layout dtype_width_bytes 9: want 1 to 8`},
		{func(c *Config) { c.DeviceLayout.NumBlocks = 0 }, `device_layout: layout num_blocks 0: want 1 to 4294967295`},
		{func(c *Config) { c.HostLayout.Type = 3 }, `host_layout: layout_type 3: want 0 (fully_contiguous), 1 (layer_separate_outer_first) or 2 (layer_separate_block_first)`},
		{func(c *Config) { c.HostLayout.Logical = 2 }, `host_layout: logical 2: want 0 (not_parallel) or 1 (leader_worker_sharded)`},
		{func(c *Config) { c.HostLayout.Allocator = nil }, `host_layout: storage, allocator and logical are all unset: one of them must say where the blocks lie`},
		{func(c *Config) { c.HostLayout.Storage = []Storage{host} }, `host_layout: ["storage" "allocator"] are all set: only one of storage, allocator and logical may say where the blocks lie`},
		{func(c *Config) { c.HostLayout.Logical = LeaderWorkerSharded }, `host_layout: ["allocator" "logical"] are all set: only one of storage, allocator and logical may say where the blocks lie`},
		{func(c *Config) { c.DiskLayout.Logical = LeaderWorkerSharded }, `disk_layout: ["storage" "logical"] are all set: only one of storage, allocator and logical may say where the blocks lie`},
		{func(c *Config) { c.HostLayout.Allocator = fake{kv.TierDisk, 0} }, `host_layout: allocator is of tier disk: want host_pinned`},
		{func(c *Config) { c.DiskLayout.OffloadFilter = host }, `disk_layout: offload_filter: want none in tier disk, because nothing lies below it`},
		{func(c *Config) { c.DiskLayout.Storage[0] = nil }, `disk_layout: storage 0: must not be nil`},
		{func(c *Config) { c.DiskLayout.Storage[0] = host }, `disk_layout: storage 0 is of tier host_pinned: want disk`},
		{func(c *Config) { c.DiskLayout.Storage[0] = fake{kv.TierDisk, 1279} }, `disk_layout: storage 0 of 1279 bytes: want at least 1280 for 5 blocks`},
		{func(c *Config) { c.DeviceLayout.Storage[1] = fake{kv.TierDevice, 383} }, `device_layout: storage 1 of 383 bytes: want at least 384 for 3 blocks`},
		{func(c *Config) { c.DeviceLayout.Type = FullyContiguous }, `device_layout: storage has 2 parts: want 1 for fully_contiguous`},
		{func(c *Config) { c.DiskLayout.Type = LayerSeparateBlockFirst }, `disk_layout: storage has 1 parts: want 2 for layer_separate_block_first`},
		{func(c *Config) { c.Consolidator.Mode = 3 }, `consolidator mode 3: want 0 (dedup), 1 (passthrough) or 2 (tiered)`},
	} {
		cfg := good()
		c.spoil(&cfg)
		if err := cfg.Validate(); err == nil || err.Error() != c.want {
			t.Errorf("got %v\nwant %s", err, c.want)
		}
	}
}

func TestExactlyOneOfStorageAllocatorAndLogicalIsAccepted(t *testing.T) {
	for choice := range 8 {
		l := Layout{NumBlocks: 1}
		set := 0
		if choice&1 != 0 {
			l.Storage, set = []Storage{fake{kv.TierHost, 256}}, set+1
		}
		if choice&2 != 0 {
			l.Allocator, set = fake{kv.TierHost, 0}, set+1
		}
		if choice&4 != 0 {
			l.Logical, set = LeaderWorkerSharded, set+1
		}
		if err := l.Validate(kv.TierHost, small()); (err == nil) != (set == 1) {
			t.Errorf("%d of three are set: %v", set, err)
		}
	}
}

func TestWarningsSayWhatWasPerhapsNotMeant(t *testing.T) {
	quiet := good()
	quiet.DiskLayout = nil
	if w := quiet.Warnings(); len(w) != 0 {
		t.Errorf("got %q", w)
	}
	for want, change := range map[string]func(*Config){
		"runtime nixl is enabled, but":                    func(c *Config) { c.Runtime.NIXL = NIXLOptions{} },
		`runtime nixl is enabled with agent "seven", but`: func(c *Config) { c.Runtime.NIXL = NIXLOptions{NIXLEnabledWithAgent, "seven"} },
		"runtime nixl is disabled: the disk tier is kept": func(c *Config) { c.DiskLayout = good().DiskLayout },
		"host_layout offload_filter is not set": func(c *Config) {
			c.DiskLayout, c.HostLayout.OffloadFilter = good().DiskLayout, nil
		},
	} {
		c := good()
		c.DiskLayout = nil
		change(&c)
		if w := c.Warnings(); !slices.ContainsFunc(w, func(s string) bool { return strings.HasPrefix(s, want) }) {
			t.Errorf("%q is not among %q", want, w)
		}
	}
}

func TestCacheLevelsNameTheTiers(t *testing.T) {
	for i, l := range []CacheLevel{G1, G2, G3, G4} {
		if tier, err := l.Tier(); tier != kv.Tiers[i] || err != nil || l.String() != fmt.Sprintf("G%d", i+1) {
			t.Errorf("%s: tier %s, %v", l, tier, err)
		}
	}
}

func TestLevelFromAClosedChannelIsNoTier(t *testing.T) {
	reset := make(chan CacheLevel)
	close(reset)
	if tier, err := (<-reset).Tier(); err == nil {
		t.Errorf("got tier %s", tier)
	}
}
