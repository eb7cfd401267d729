package kvbm

import (
	"bytes"
	"errors"
	"testing"

	"github.com/blockyard-ai/blockyard/blockmgr"
	"github.com/blockyard-ai/blockyard/blockmgr/config"
	"github.com/blockyard-ai/blockyard/internal/kv"
	"github.com/blockyard-ai/blockyard/layout"
)

func TestBadFieldIsAnErrorThatNamesItAndLeavesNothingOpen(t *testing.T) {
	for _, c := range []struct {
		spoil func(*config.Config, *Place)
		want  string
	}{
		{func(c *config.Config, _ *Place) { c.Runtime.WorkerID = 0 }, `runtime worker_id 0: must be set and not be 0`},
		{func(c *config.Config, _ *Place) {
			c.Runtime.NIXL = config.NIXLOptions{Mode: config.NIXLEnabledWithAgent}
		},
			`runtime nixl agent name "": 0 bytes, want 1 to 255 with enabled with agent`},
		{func(c *config.Config, _ *Place) { c.Model.PageSize = 0 }, `model: layout page_size 0: want 1 to 4096`},
		{func(c *config.Config, _ *Place) { c.HostLayout.NumBlocks = 0 }, `host_layout: layout num_blocks 0: want 1 to 4294967295`},
		{func(c *config.Config, _ *Place) { c.HostLayout.Storage = nil },
			`host_layout: storage, allocator and logical are all unset: one of them must say where the blocks lie`},
		{func(c *config.Config, _ *Place) { c.DeviceLayout = &config.Layout{NumBlocks: 1} },
			`device_layout: storage, allocator and logical are all unset: one of them must say where the blocks lie`},
		{func(c *config.Config, _ *Place) {
			c.Consolidator = &config.Consolidator{EngineSource: config.SourceKVBM}
		},
			`consolidator engine_source kvbm: want vllm or trtllm; the block manager is no engine, it hands its events over directly`},

		{func(c *config.Config, _ *Place) {
			c.HostLayout = &config.Layout{NumBlocks: 4, Type: config.LayerSeparateBlockFirst, Allocator: maker{kv.TierHost}}
		}, `host_layout: layout_type layer_separate_block_first: want fully_contiguous, because blocks are kept in one piece`},
		{func(c *config.Config, _ *Place) {
			c.DiskLayout.Type = config.LayerSeparateOuterFirst
			c.DiskLayout.Storage = nil
			c.DiskLayout.Allocator = maker{kv.TierDisk}
		},
			`disk_layout: layout_type layer_separate_outer_first: want fully_contiguous, because blocks are kept in one piece`},
		{func(c *config.Config, _ *Place) { c.HostLayout.Storage[0] = memory{kv.TierHost, 4 * 1024} },
			`host_layout: storage 0 of 4096 bytes: want at least 16384 for 4 blocks in slots of 4096 bytes, which are whole pages`},
		{func(c *config.Config, _ *Place) {
			c.DiskLayout.Storage[0] = directory{memory{kv.TierDisk, 4 * slotBytes}, ""}
		},
			`disk_layout: storage 0 dir "": want a directory`},
		{func(c *config.Config, _ *Place) {
			c.HostLayout.Storage, c.HostLayout.Allocator = nil, &allocator{err: errors.New("no more memory")}
		},
			`host_layout: allocator: 16384 bytes: no more memory`},
		{func(c *config.Config, _ *Place) { c.HostLayout.Storage, c.HostLayout.Allocator = nil, &allocator{} },
			`host_layout: the allocator's storage is nil: want one`},
		{func(c *config.Config, _ *Place) {
			c.HostLayout.Storage, c.HostLayout.Allocator = nil, &allocator{makes: memory{kv.TierDisk, 1 << 20}}
		},
			`host_layout: the allocator's storage is of tier disk: want host_pinned`},
		{func(c *config.Config, _ *Place) {
			c.DiskLayout.Storage, c.DiskLayout.Logical = nil, config.LeaderWorkerSharded
		},
			`disk_layout: logical leader_worker_sharded: want not_parallel, as in host_layout`},

		{func(_ *config.Config, p *Place) { p.HostDir = "" },
			`place host_dir "": must be set, because host_layout names no directory; blocks for the disk pass through it too`},
		{func(c *config.Config, p *Place) { p.HostDir, c.HostLayout = "", nil },
			`place host_dir "": must be set, because host_layout names no directory; blocks for the disk pass through it too`},
		{func(_ *config.Config, p *Place) { p.Disk.Dir = "" }, `place disk dir "": must be set, because disk_layout names no directory`},
		{func(_ *config.Config, p *Place) { p.Disk.Dir = "same"; p.HostDir = "same" }, `block manager: disk directory "same": must not be the host directory`},
		{func(_ *config.Config, p *Place) { p.Transfer.MaxBatch = -1 }, `block manager: transfer batch -1: want 0 (default 64) to 1024 blocks`},
		{func(_ *config.Config, p *Place) { p.Model = "" }, `place model "": must be set, so that blocks of another one are told apart`},
		{func(_ *config.Config, p *Place) { p.Weights = "" }, `place weights "": must be set, so that blocks of another one are told apart`},
		{func(_ *config.Config, p *Place) { p.DType = "" }, `place dtype "": must be set, so that blocks of another one are told apart`},
		{func(_ *config.Config, p *Place) { p.KVFormat = "" }, `place kv_format "": must be set, so that blocks of another one are told apart`},
		{func(_ *config.Config, p *Place) { p.TP = 1025 }, `place tp 1025: want 0 (which means 1) to 1024`},
		{func(_ *config.Config, p *Place) { p.TP = 2 },
			`place ranks 2: want 1, because no layout has logical leader_worker_sharded, and the ranks' parts are not replicated`},
		{func(_ *config.Config, p *Place) { p.TP, p.Ranks = 2, 3 }, `place ranks 3: want 0 (all) or 1 to 2`},
		{func(_ *config.Config, p *Place) { p.TP, p.DCP, p.Ranks, p.FirstRank = 2, 2, 1, 4 }, `place first_rank 4: want 0 to 3 for 1 of 4 ranks`},
		{func(_ *config.Config, p *Place) { p.PP, p.Replicated = 2, true }, `place pp 2: want 1 with replicated: ranks of different pp have different parts`},
		{func(c *config.Config, p *Place) {
			c.Model.InnerDim, p.TP = 1<<20, 32
			c.HostLayout, c.DiskLayout = sources(kv.TierHost, 1)["logical"], nil
		}, `model, 32 ranks together: layout inner_dim 33554432: want 1 to 16777216`},
		{func(c *config.Config, p *Place) {
			c.Model.InnerDim, p.TP = 1<<16, 64
			c.HostLayout, c.DiskLayout = sources(kv.TierHost, 1)["logical"], nil
		}, `place and model, 64 ranks together: namespace geometry: a block of 536870912 bytes exceeds 268435456`},
	} {
		cfg, place := both(t, 4)
		c.spoil(&cfg, &place)
		if _, err := New(t.Context(), cfg, place); err == nil || err.Error() != c.want {
			t.Errorf("got %v\nwant %s", err, c.want)
		}
	}
}

func TestDirectoryInUseIsRefused(t *testing.T) {
	cfg, place := both(t, 4)
	open(t, cfg, place)
	if _, err := New(t.Context(), cfg, place); err == nil {
		t.Error("two managers have one directory")
	}
}

// shardedConfig is a configuration of blocks that all local ranks share.
func shardedConfig(t *testing.T) (config.Config, Place) {
	t.Helper()
	cfg, place := both(t, 8)
	cfg.HostLayout, cfg.DiskLayout = sources(kv.TierHost, 8)["logical"], sources(kv.TierDisk, 8)["logical"]
	return cfg, place
}

func TestPartsOfAllRanksLieInOneSlotAndComeBackFromDisk(t *testing.T) {
	const ranks = 4
	cfg, place := shardedConfig(t)
	place.TP, place.PP = 2, 2
	c := open(t, cfg, place)
	part, err := cfg.Model.BlockBytes()
	if err != nil {
		t.Fatal(err)
	}
	if got := c.Pool().BlockBytes(); got != ranks*part || c.Sharding().Ranks() != ranks {
		t.Fatalf("blocks of %d bytes for %d ranks, want %d for %d", got, c.Sharding().Ranks(), ranks*part, ranks)
	}
	slots, err := c.Pool().Allocate(c.s, 1)
	if err != nil {
		t.Fatal(err)
	}
	blocks := c.sequence(1, 1)
	if err := slots[0].ApplyTokenBlock(blockmgr.TokenBlock{Block: blocks[0], Tokens: tokens(1, 0)}); err != nil {
		t.Fatal(err)
	}
	c.eachShard(func(rank uint64, at layout.Region) {
		copy(slots[0].Data()[at.Offset:], bytes.Repeat([]byte{byte(1 + rank)}, int(at.Size)))
	})
	handles, err := c.Pool().Register(c.s, slots)
	if err != nil {
		t.Fatal(err)
	}
	c.quiesce()
	release(handles)
	if err := c.Reset(t.Context(), config.G2); err != nil {
		t.Fatal(err)
	}
	handles, err = c.Pool().Match(t.Context(), c.s, blocks)
	if err != nil || len(handles) != 1 {
		t.Fatalf("%d blocks are found, %v", len(handles), err)
	}
	var covered uint64
	c.eachShard(func(rank uint64, at layout.Region) {
		covered += at.Size
		if !bytes.Equal(handles[0].Data()[at.Offset:at.Offset+at.Size], bytes.Repeat([]byte{byte(1 + rank)}, int(at.Size))) {
			t.Errorf("rank %d does not find its own bytes at %d", rank, at.Offset)
		}
	})
	if covered != c.Pool().BlockBytes() {
		t.Errorf("the ranks' parts are %d bytes of %d", covered, c.Pool().BlockBytes())
	}
	release(handles)
}

// eachShard calls do for every rank's part of a slot.
func (c *client) eachShard(do func(rank uint64, at layout.Region)) {
	c.t.Helper()
	for rank := range c.Sharding().Ranks() {
		at, err := c.Sharding().Shard(rank)
		if err != nil {
			c.t.Fatal(err)
		}
		do(rank, at)
	}
}

func TestReplicatedBlockIsStoredOnce(t *testing.T) {
	cfg, place := shardedConfig(t)
	place.TP, place.Replicated = 8, true
	c := open(t, cfg, place)
	part, err := cfg.Model.BlockBytes()
	if err != nil {
		t.Fatal(err)
	}
	if got := c.Pool().BlockBytes(); got != part || !c.Sharding().Stores(0) || c.Sharding().Stores(7) || c.Sharding().Ranks() != 8 {
		t.Errorf("blocks of %d bytes, want %d, of which rank 0 stores all", got, part)
	}
}

func TestBlocksThatDifferInWhatTheyAreHaveDifferentNamespaces(t *testing.T) {
	seen := map[kv.NamespaceID]int{}
	for i, change := range []func(*config.Config, *Place){
		func(*config.Config, *Place) {},
		func(_ *config.Config, p *Place) { p.Model = "other" },
		func(_ *config.Config, p *Place) { p.Weights = "other" },
		func(_ *config.Config, p *Place) { p.DType = "other" },
		func(_ *config.Config, p *Place) { p.KVFormat = "other" },
		func(c *config.Config, _ *Place) { c.Model.DTypeBytes = 1 },
		func(c *config.Config, _ *Place) { c.Model.InnerDim = 16 },
		func(_ *config.Config, p *Place) { p.TP = 2 },
		func(_ *config.Config, p *Place) { p.PP = 2 },
		func(_ *config.Config, p *Place) { p.DCP = 2 },
		func(_ *config.Config, p *Place) { p.TP, p.Ranks = 2, 1 },
		func(_ *config.Config, p *Place) { p.TP, p.Ranks, p.FirstRank = 2, 1, 1 },
		func(_ *config.Config, p *Place) { p.TP, p.Replicated = 2, true },
	} {
		cfg, place := shardedConfig(t)
		change(&cfg, &place)
		sh, err := place.shape(&cfg)
		if err != nil {
			t.Fatalf("change %d: %v", i, err)
		}
		if other, taken := seen[sh.namespace.ID()]; taken {
			t.Errorf("changes %d and %d have one namespace", i, other)
		}
		seen[sh.namespace.ID()] = i
	}
	cfg, place := shardedConfig(t)
	cfg.Model.DTypeBytes, place.TP, place.PP, place.DCP, place.Ranks = 2, 1, 1, 1, 1
	if sh, err := place.shape(&cfg); err != nil || seen[sh.namespace.ID()] != 0 {
		t.Errorf("defaults that are spelled out are another namespace, %v", err)
	}
}
