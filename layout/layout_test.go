package layout

import (
	"strings"
	"testing"
)

func TestStridesOfAKnownModel(t *testing.T) {
	// 32 layers, K and V, 16 tokens, 8 heads of 128, two bytes: 2 MiB a block.
	l, err := NewFullyContiguous(Config{NumBlocks: 10, NumLayers: 32, OuterDim: 2, PageSize: 16, InnerDim: 1024, Alignment: 4096, DTypeBytes: 2})
	if err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		name      string
		got, want uint64
	}{
		{"outer stride", l.OuterStride(), 32768},
		{"layer stride", l.LayerStride(), 65536},
		{"block bytes", l.BlockBytes(), 2 << 20},
		{"block stride", l.BlockStride(), 2 << 20},
		{"data bytes", l.DataBytes(), 20 << 20},
		{"total bytes", l.TotalBytes(), 20<<20 + 4095},
		{"base offset of an odd address", l.BaseOffset(4097), 4095},
		{"base offset of an aligned address", l.BaseOffset(8192), 0},
	} {
		if c.got != c.want {
			t.Errorf("%s = %d, want %d", c.name, c.got, c.want)
		}
	}
}

// An MLA block of 18432 bytes is four and a half pages: alignment pads it, so
// that O_DIRECT can address it.
func TestBlockThatIsNoMultipleOfAPageIsPadded(t *testing.T) {
	l, err := NewFullyContiguous(Config{NumBlocks: 3, NumLayers: 1, OuterDim: 1, PageSize: 16, InnerDim: 576, Alignment: 4096, DTypeBytes: 2})
	if err != nil {
		t.Fatal(err)
	}
	if l.BlockBytes() != 18432 || l.BlockStride() != 20480 || l.DataBytes() != 2*20480+18432 {
		t.Errorf("block %d, stride %d, data %d", l.BlockBytes(), l.BlockStride(), l.DataBytes())
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
	l, err := NewFullyContiguous(good)
	if err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		b, l, o uint64
		want    string
	}{
		{4, 0, 0, "layout block 4: want 0 to 3"},
		{0, 2, 0, "layout layer 2: want 0 to 1"},
		{0, 0, 2, "layout outer index 2: want 0 to 1"},
	} {
		if _, err := l.Region(c.b, c.l, c.o); err == nil || err.Error() != c.want {
			t.Errorf("got %v, want %q", err, c.want)
		}
	}
}
