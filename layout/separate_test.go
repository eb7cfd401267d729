package layout

import (
	"strings"
	"testing"

	"pgregory.net/rapid"
)

func TestLayerStridesOfKnownShapes(t *testing.T) {
	odd := Config{NumBlocks: 7, NumLayers: 5, OuterDim: 2, PageSize: 4, InnerDim: 13, DTypeBytes: 4} // R = 208
	padded := odd
	padded.Alignment = 256
	oneByte := odd
	oneByte.DTypeBytes = 1 // R = 52
	for _, c := range []struct {
		name                       string
		cfg                        Config
		order                      Order
		block, outer, data, blockB uint64
	}{
		{"block first", odd, BlockFirst, 416, 208, 7 * 416, 2080},
		{"outer first", odd, OuterFirst, 208, 7 * 208, 7 * 416, 2080},
		{"block first, aligned", padded, BlockFirst, 512, 208, 7 * 512, 2080},
		{"outer first, aligned", padded, OuterFirst, 256, 7 * 256, 7 * 512, 2080},
		{"block first, one byte", oneByte, BlockFirst, 104, 52, 7 * 104, 520},
		{"outer first, one byte", oneByte, OuterFirst, 52, 7 * 52, 7 * 104, 520},
		{"Llama-3.1-8B", Config{NumBlocks: 10, NumLayers: 32, OuterDim: 2, PageSize: 16, InnerDim: 1024, Alignment: 4096, DTypeBytes: 2}, OuterFirst, 32768, 327680, 655360, 2 << 20},
	} {
		l := must(NewLayerSeparate(c.cfg, c.order))(t)
		want := Strides{Block: c.block, Outer: c.outer, LayerStorage: true}
		if l.Strides() != want || l.DataBytes() != c.data || l.BlockBytes() != c.blockB || l.Storages() != int(c.cfg.NumLayers) ||
			l.TotalBytes() != c.data+c.cfg.alignment()-1 || l.Order() != c.order || l.Config() != c.cfg {
			t.Errorf("%s: strides %+v, data %d, block %d, storages %d", c.name, l.Strides(), l.DataBytes(), l.BlockBytes(), l.Storages())
		}
	}
}

// Without an outer axis there is nothing that the order could order.
func TestBothOrdersAreTheSameMemoryWithOneOuterIndex(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		c := drawGeometry(t)
		c.OuterDim = 1
		c.NumBlocks = rapid.Uint64Range(1, 6).Draw(t, "blocks")
		c.Alignment = rapid.SampledFrom([]uint64{0, 16, 512}).Draw(t, "alignment")
		a, b := must(NewLayerSeparate(c, BlockFirst))(t), must(NewLayerSeparate(c, OuterFirst))(t)
		if a.DataBytes() != b.DataBytes() || a.BlockBytes() != b.BlockBytes() {
			t.Fatalf("%d and %d bytes, blocks of %d and %d", a.DataBytes(), b.DataBytes(), a.BlockBytes(), b.BlockBytes())
		}
		for block := range c.NumBlocks {
			for layer := range c.NumLayers {
				if p, q := must(a.Place(block, layer, 0))(t), must(b.Place(block, layer, 0))(t); p != q {
					t.Fatalf("block %d, layer %d lies at %v and at %v", block, layer, p, q)
				}
			}
		}
	})
}

// What O_DIRECT needs: blocks at multiples of 4096. Of the known models some
// have them by themselves, and alignment gives them to the others.
func TestAlignmentMakesEveryModelsBlocksFitForDirectIO(t *testing.T) {
	for _, c := range []struct {
		name                       string
		layers, outer, page, inner uint64
		region, block, stride      uint64
	}{
		{"Llama-3.1-8B, 4 ranks", 32, 2, 16, 256, 8192, 524288, 524288},
		{"Llama-3.1-70B, 8 ranks", 80, 2, 16, 128, 4096, 655360, 655360},
		{"DeepSeek-V3, 16 tokens", 61, 1, 16, 576, 18432, 1124352, 1126400},
		{"DeepSeek-V3, 32 tokens", 61, 1, 32, 576, 36864, 2248704, 2248704},
		{"DeepSeek-V3, 64 tokens", 61, 1, 64, 576, 73728, 4497408, 4497408},
	} {
		l := must(NewFullyContiguous(Config{NumBlocks: 3, NumLayers: c.layers, OuterDim: c.outer, PageSize: c.page, InnerDim: c.inner, Alignment: 4096, DTypeBytes: 2}))(t)
		if l.OuterStride() != c.region || l.BlockBytes() != c.block || l.BlockStride() != c.stride || c.stride%4096 != 0 {
			t.Errorf("%s: region %d, block %d, stride %d", c.name, l.OuterStride(), l.BlockBytes(), l.BlockStride())
		}
	}
}

// The memory that a cache of the sizing examples takes: blocks = ⌊GB·10^9 / all
// ranks' bytes per block⌋. One copy for eight replicas is eight times as many.
func TestSizesOfKnownModels(t *testing.T) {
	for _, c := range []struct {
		name                         string
		layers, outer, page, inner   uint64 // inner of one rank
		ranks                        uint64
		mode                         Parallelism
		rankBytes, gigabytes, blocks uint64
	}{
		{"Llama-3.1-8B", 32, 2, 16, 1024, 1, LeaderWorkerSharded, 2097152, 100, 47683},
		{"Llama-3.1-8B, 4 ranks", 32, 2, 16, 256, 4, LeaderWorkerSharded, 524288, 100, 47683},
		{"Llama-3.1-70B, 8 ranks", 80, 2, 16, 128, 8, LeaderWorkerSharded, 655360, 500, 95367},
		{"DeepSeek-V3, 8 ranks, a copy each", 61, 1, 64, 576, 8, LeaderWorkerSharded, 4497408, 100, 2779},
		{"DeepSeek-V3, 8 ranks, one copy", 61, 1, 64, 576, 8, Replicated, 4497408, 100, 22235},
	} {
		inner := c.inner
		if c.mode == LeaderWorkerSharded {
			inner *= c.ranks
		}
		slots := must(NewFullyContiguous(Config{NumBlocks: c.blocks, NumLayers: c.layers, OuterDim: c.outer, PageSize: c.page, InnerDim: inner, DTypeBytes: 2}))(t)
		s := must(NewSharding(slots, c.ranks, c.mode))(t)
		if n := must(s.Shard(c.ranks - 1))(t).BlockBytes(); n != c.rankBytes {
			t.Errorf("%s: %d bytes per rank and block, want %d", c.name, n, c.rankBytes)
		}
		size := c.gigabytes * 1e9
		if slots.TotalBytes() > size || slots.TotalBytes()+slots.BlockBytes() <= size {
			t.Errorf("%s: %d blocks take %d bytes of %d", c.name, c.blocks, slots.TotalBytes(), size)
		}
	}
}

func TestLayerSeparateErrorsNameFieldValueAndRange(t *testing.T) {
	good := Config{NumBlocks: 4, NumLayers: 2, OuterDim: 2, PageSize: 16, InnerDim: 8, DTypeBytes: 2}
	for _, c := range []struct {
		change func(*Config, *Order)
		want   string
	}{
		{func(c *Config, _ *Order) { c.OuterDim = 3 }, "layout outer_dim 3: want 1 to 2"},
		{func(c *Config, _ *Order) { c.Alignment = 3 }, "layout alignment 3: want a power of two"},
		{func(_ *Config, o *Order) { *o = 2 }, "layout order 2: want 0 (block_first) or 1 (outer_first)"},
		{func(c *Config, o *Order) {
			// A page is 1⅛ GiB. A block padded to 3 GiB fits, two pages padded to
			// 2 GiB each do not.
			*c, *o = Config{NumBlocks: 2863311530, NumLayers: 1, OuterDim: 2, PageSize: 9, InnerDim: 1 << 24, Alignment: 1 << 30, DTypeBytes: 8}, OuterFirst
		}, "layout num_blocks 2863311530: 2147483648 bytes each in a layer do not fit 9223372036854775807 bytes"},
	} {
		bad, order := good, BlockFirst
		c.change(&bad, &order)
		if _, err := NewLayerSeparate(bad, order); err == nil || !strings.HasPrefix(err.Error(), c.want) {
			t.Errorf("got %v, want %q", err, c.want)
		}
	}
}

func TestIndicesOutOfRangeAreNamedByEveryLayout(t *testing.T) {
	c := Config{NumBlocks: 4, NumLayers: 2, OuterDim: 2, PageSize: 16, InnerDim: 8, DTypeBytes: 2}
	slots := must(NewFullyContiguous(c))(t)
	sharding := must(NewSharding(slots, 2, LeaderWorkerSharded))(t)
	for _, l := range []Layout{slots, must(NewLayerSeparate(c, BlockFirst))(t), must(NewLayerSeparate(c, OuterFirst))(t), must(sharding.Shard(1))(t)} {
		for _, x := range []struct {
			b, l, o uint64
			want    string
		}{
			{4, 0, 0, "layout block 4: want 0 to 3"},
			{0, 2, 0, "layout layer 2: want 0 to 1"},
			{0, 0, 2, "layout outer index 2: want 0 to 1"},
			{3, 1, 1, ""},
		} {
			if _, err := l.Place(x.b, x.l, x.o); errorText(err) != x.want {
				t.Errorf("%T: got %v, want %q", l, err, x.want)
			}
		}
	}
}

func errorText(err error) string {
	if err == nil {
		return ""
	}
	return err.Error()
}
