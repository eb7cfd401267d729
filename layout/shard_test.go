package layout

import (
	"testing"

	"pgregory.net/rapid"
)

func TestShardsOfAllRanksTileTheSlot(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		c := drawGeometry(t)
		ranks := rapid.Uint64Range(1, 6).Draw(t, "ranks")
		c.NumBlocks = rapid.Uint64Range(1, 4).Draw(t, "blocks")
		c.InnerDim *= ranks
		c.Alignment = rapid.SampledFrom([]uint64{0, 1, 64, 512}).Draw(t, "alignment")
		slots := must(NewFullyContiguous(c))(t)
		s := must(NewSharding(slots, ranks, LeaderWorkerSharded))(t)

		owned := make([]int, slots.DataBytes())
		for rank := range ranks {
			shard := must(s.Shard(rank))(t)
			if shard.Config() != s.RankConfig() || !s.Stores(rank) {
				t.Fatalf("rank %d: config %+v, stores %v", rank, shard.Config(), s.Stores(rank))
			}
			for b := range c.NumBlocks {
				whole := must(shard.Block(b))(t)
				if slot := must(slots.Block(b))(t); whole.Offset != slot.Offset+rank*(slots.BlockBytes()/ranks) || whole.Size != slots.BlockBytes()/ranks {
					t.Fatalf("rank %d of %d has %v of slot %v", rank, ranks, whole, slot)
				}
				for i := whole.Offset; i < whole.End(); i++ {
					owned[i]++
				}
			}
		}
		for b := range c.NumBlocks {
			slot := must(slots.Block(b))(t)
			for i, n := range owned[slot.Offset:slot.End()] {
				if n != 1 {
					t.Fatalf("byte %d of slot %d belongs to %d ranks", i, b, n)
				}
			}
		}
	})
}

func TestRanksThatStore(t *testing.T) {
	slots := must(NewFullyContiguous(Config{NumBlocks: 1, NumLayers: 1, OuterDim: 1, PageSize: 1, InnerDim: 4, DTypeBytes: 2}))(t)
	for mode, want := range map[Parallelism][5]bool{
		LeaderWorkerSharded: {true, true, true, true, false},
		Replicated:          {true, false, false, false, false},
	} {
		s := must(NewSharding(slots, 4, mode))(t)
		for rank, stores := range want {
			if s.Stores(uint64(rank)) != stores {
				t.Errorf("%s: rank %d stores: %v, want %v", mode, rank, !stores, stores)
			}
		}
	}
}

func TestShardingErrorsNameFieldValueAndRange(t *testing.T) {
	slots := must(NewFullyContiguous(Config{NumBlocks: 4, NumLayers: 2, OuterDim: 1, PageSize: 16, InnerDim: 10, DTypeBytes: 2}))(t)
	for _, c := range []struct {
		ranks uint64
		mode  Parallelism
		want  string
	}{
		{0, LeaderWorkerSharded, "layout ranks 0: want 1 to 1024"},
		{1025, Replicated, "layout ranks 1025: want 1 to 1024"},
		{4, LeaderWorkerSharded, "layout inner_dim 10: want a multiple of the 4 ranks"},
		{4, Replicated, ""},
		{2, Parallelism(7), "layout parallelism 7: want 0 (leader_worker_sharded) or 1 (replicated)"},
	} {
		if _, err := NewSharding(slots, c.ranks, c.mode); errorText(err) != c.want {
			t.Errorf("got %v, want %q", err, c.want)
		}
	}
	s := must(NewSharding(slots, 2, LeaderWorkerSharded))(t)
	if s.Ranks() != 2 {
		t.Errorf("%d ranks, want 2", s.Ranks())
	}
	if _, err := s.Shard(2); errorText(err) != "layout rank 2: want 0 to 1" {
		t.Errorf("got %v", err)
	}
	if s.Stores(2) {
		t.Error("a rank that does not exist stores")
	}
	if _, err := must(s.Shard(1))(t).Block(4); errorText(err) != "layout block 4: want 0 to 3" {
		t.Errorf("got %v", err)
	}
}

func TestTheShardOfOneRankIsTheWholeSlot(t *testing.T) {
	slots := must(NewFullyContiguous(Config{NumBlocks: 4, NumLayers: 2, OuterDim: 1, PageSize: 16, InnerDim: 9, Alignment: 4096, DTypeBytes: 1}))(t)
	for _, mode := range []Parallelism{LeaderWorkerSharded, Replicated} {
		shard := must(must(NewSharding(slots, 1, mode))(t).Shard(0))(t)
		if shard.Config() != slots.Config() || shard.Strides() != slots.Strides() || shard.BlockBytes() != slots.BlockBytes() {
			t.Errorf("%s: %+v with strides %+v, want %+v with %+v", mode, shard.Config(), shard.Strides(), slots.Config(), slots.Strides())
		}
	}
}
