package layout

import (
	"strings"
	"testing"
)

// must fails the test on an error.
func must[T any](v T, err error) func(*testing.T) T {
	return func(t *testing.T) T {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
		return v
	}
}

func TestSizesOfKnownModels(t *testing.T) {
	for name, c := range map[string]struct {
		cfg           Config
		block, stride uint64
	}{
		"Llama 3.1 8B": {Config{NumBlocks: 10, NumLayers: 32, OuterDim: 2, PageSize: 16, InnerDim: 1024, Alignment: 4096, DTypeBytes: 2}, 2 << 20, 2 << 20},
		// Four and a half pages: O_DIRECT needs the padding.
		"a layer of MLA":    {Config{NumBlocks: 3, NumLayers: 1, OuterDim: 1, PageSize: 16, InnerDim: 576, Alignment: 4096, DTypeBytes: 2}, 18432, 20480},
		"without alignment": {Config{NumBlocks: 3, NumLayers: 1, OuterDim: 1, PageSize: 1, InnerDim: 3, DTypeBytes: 1}, 3, 3},
	} {
		l := must(NewFullyContiguous(c.cfg))(t)
		if l.BlockBytes() != c.block || l.BlockStride() != c.stride || l.Config() != c.cfg {
			t.Errorf("%s: block %d, stride %d", name, l.BlockBytes(), l.BlockStride())
		}
	}
}

func TestErrorsNameFieldValueAndRange(t *testing.T) {
	good := Config{NumBlocks: 4, NumLayers: 2, OuterDim: 2, PageSize: 16, InnerDim: 8, DTypeBytes: 2}
	for _, c := range []struct {
		change func(*Config)
		want   string
	}{
		{func(c *Config) { c.NumBlocks = 0 }, "layout num_blocks 0: want 1 to 4294967295"},
		{func(c *Config) { c.NumLayers = 5000 }, "layout num_layers 5000: want 1 to 4096"},
		{func(c *Config) { c.OuterDim = 3 }, "layout outer_dim 3: want 1 to 2"},
		{func(c *Config) { c.PageSize = 0 }, "layout page_size 0: want 1 to 4096"},
		{func(c *Config) { c.InnerDim = 0 }, "layout inner_dim 0: want 1 to 16777216"},
		{func(c *Config) { c.DTypeBytes = 9 }, "layout dtype_width_bytes 9: want 1 to 8"},
		{func(c *Config) { c.Alignment = 48 }, "layout alignment 48: want a power of two"},
		{func(c *Config) {
			*c = Config{NumBlocks: 1 << 31, NumLayers: 4096, OuterDim: 2, PageSize: 4096, InnerDim: 1 << 24, DTypeBytes: 8}
		}, "layout num_blocks 2147483648"},
	} {
		bad := good
		c.change(&bad)
		_, err := NewFullyContiguous(bad)
		if err == nil || !strings.HasPrefix(err.Error(), c.want) {
			t.Errorf("got %v, want %q", err, c.want)
		}
	}
}

func TestShardsOfAllRanksTileTheBlock(t *testing.T) {
	slot := must(NewFullyContiguous(Config{NumBlocks: 1, NumLayers: 3, OuterDim: 2, PageSize: 4, InnerDim: 12, Alignment: 512, DTypeBytes: 2}))(t)
	for _, ranks := range []uint64{1, 2, 3, 4, 6, 12} {
		s := must(NewSharding(slot, ranks, LeaderWorkerSharded))(t)
		var end uint64
		for rank := range ranks {
			part := must(s.Shard(rank))(t)
			if part.Offset != end || part.Size != slot.BlockBytes()/ranks || !s.Stores(rank) {
				t.Errorf("rank %d of %d has %+v", rank, ranks, part)
			}
			end += part.Size
		}
		if end != slot.BlockBytes() {
			t.Errorf("%d ranks have %d bytes of %d", ranks, end, slot.BlockBytes())
		}
	}
}

func TestRankZeroStoresWhatAllRanksLoad(t *testing.T) {
	slot := must(NewFullyContiguous(Config{NumBlocks: 1, NumLayers: 1, OuterDim: 1, PageSize: 1, InnerDim: 5, DTypeBytes: 2}))(t)
	s := must(NewSharding(slot, 4, Replicated))(t)
	for rank := range s.Ranks() {
		if part := must(s.Shard(rank))(t); part != (Region{Size: 10}) || s.Stores(rank) != (rank == 0) {
			t.Errorf("rank %d has %+v and stores: %v", rank, part, s.Stores(rank))
		}
	}
}

func TestShardingErrorsNameFieldValueAndRange(t *testing.T) {
	slot := must(NewFullyContiguous(Config{NumBlocks: 4, NumLayers: 2, OuterDim: 1, PageSize: 16, InnerDim: 10, DTypeBytes: 2}))(t)
	for _, c := range []struct {
		ranks uint64
		mode  Parallelism
		want  string
	}{
		{0, LeaderWorkerSharded, "layout ranks 0: want 1 to 1024"},
		{1025, Replicated, "layout ranks 1025: want 1 to 1024"},
		{4, LeaderWorkerSharded, "layout inner_dim 10: want a multiple of the 4 ranks"},
		{2, Parallelism(7), "layout parallelism 7: want 0 (leader_worker_sharded) or 1 (replicated)"},
	} {
		if _, err := NewSharding(slot, c.ranks, c.mode); err == nil || err.Error() != c.want {
			t.Errorf("got %v, want %q", err, c.want)
		}
	}
	s := must(NewSharding(slot, 2, LeaderWorkerSharded))(t)
	if _, err := s.Shard(2); err == nil || err.Error() != "layout rank 2: want 0 to 1" || s.Stores(2) {
		t.Errorf("rank 2 of 2: %v, stores: %v", err, s.Stores(2))
	}
}
