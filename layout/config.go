package layout

import (
	"fmt"
	"math"
	"math/bits"
)

// MaxBytes is the largest size of all blocks together: file offsets are signed.
const MaxBytes = math.MaxInt64

// Config is the geometry of a number of blocks.
type Config struct {
	// NumBlocks is the number of blocks, at least 1.
	NumBlocks uint64
	// NumLayers is the number of layers in a block, at least 1.
	NumLayers uint64
	// OuterDim is 2 when K and V lie apart, 1 for MLA and fused caches.
	OuterDim uint64
	// PageSize is the number of tokens in a block, at least 1.
	PageSize uint64
	// InnerDim is the number of elements per token, layer and outer index.
	InnerDim uint64
	// Alignment is the unit of a slot's size in bytes, a power of two. Zero means 1.
	Alignment uint64
	// DTypeBytes is the size of one element, 1 to 8.
	DTypeBytes uint64
}

// Validate checks the range of every field, and that all blocks fit MaxBytes. The error
// names the first bad field.
func (c Config) Validate() error {
	for _, f := range []struct {
		name        string
		v, min, max uint64
	}{
		{"num_blocks", c.NumBlocks, 1, math.MaxUint32},
		{"num_layers", c.NumLayers, 1, 4096},
		{"outer_dim", c.OuterDim, 1, 2},
		{"page_size", c.PageSize, 1, 4096},
		{"inner_dim", c.InnerDim, 1, 1 << 24},
		{"dtype_width_bytes", c.DTypeBytes, 1, 8},
	} {
		if f.v < f.min || f.v > f.max {
			return fmt.Errorf("layout %s %d: want %d to %d", f.name, f.v, f.min, f.max)
		}
	}
	if a := c.Alignment; a&(a-1) != 0 || a > 1<<30 {
		return fmt.Errorf("layout alignment %d: want a power of two, at most %d", a, 1<<30)
	}
	// The ranges above keep a block below 2^53 bytes, so that rounding it up
	// cannot wrap.
	hi, lo := bits.Mul64(c.NumBlocks, alignUp(c.blockBytes(), c.alignment()))
	if hi != 0 || lo > MaxBytes-c.alignment() {
		return fmt.Errorf("layout num_blocks %d: %d bytes each do not fit %d bytes", c.NumBlocks, c.blockBytes(), uint64(MaxBytes))
	}
	return nil
}

func (c Config) alignment() uint64 { return max(c.Alignment, 1) }

func (c Config) blockBytes() uint64 {
	return c.NumLayers * c.OuterDim * c.PageSize * c.InnerDim * c.DTypeBytes
}

// alignUp returns n rounded up to a multiple of a, which is a power of two.
func alignUp(n, a uint64) uint64 { return (n + a - 1) &^ (a - 1) }
