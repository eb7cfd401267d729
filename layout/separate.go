package layout

import (
	"fmt"
	"math/bits"
)

// Order says which axis of a layer's storage comes first.
type Order uint8

const (
	// BlockFirst is [blocks, outer, page, inner] in each layer: K and V of a
	// block lie together.
	BlockFirst Order = iota
	// OuterFirst is [outer, blocks, page, inner] in each layer: K of all blocks
	// lies before V of all blocks.
	OuterFirst
)

// String is "block_first" or "outer_first".
func (o Order) String() string {
	switch o {
	case BlockFirst:
		return "block_first"
	case OuterFirst:
		return "outer_first"
	}
	return fmt.Sprintf("order(%d)", uint8(o))
}

// LayerSeparate is a layout with one storage per layer. It is a value; make
// one with NewLayerSeparate.
type LayerSeparate struct {
	cfg         Config
	order       Order
	outerStride uint64
	blockStride uint64
	dataBytes   uint64
}

// NewLayerSeparate checks cfg and computes the strides. The start of every
// block inside each layer is a multiple of the alignment; OuterFirst, where K
// and V of a block lie apart, the start of both is.
func NewLayerSeparate(cfg Config, order Order) (LayerSeparate, error) {
	if err := cfg.Validate(); err != nil {
		return LayerSeparate{}, err
	}
	l := LayerSeparate{cfg: cfg, order: order}
	perBlock := cfg.regionBytes() // what is padded to the alignment
	switch order {
	case BlockFirst:
		perBlock *= cfg.OuterDim
	case OuterFirst:
	default:
		return LayerSeparate{}, fmt.Errorf("layout order %d: want %d (%s) or %d (%s)", order, BlockFirst, BlockFirst, OuterFirst, OuterFirst)
	}
	l.blockStride = alignUp(perBlock, cfg.alignment())
	// Padding every page may take more than Validate has allowed for.
	hi, lo := bits.Mul64(cfg.NumBlocks, l.blockStride)
	limit := (MaxBytes - cfg.alignment()) / cfg.OuterDim
	if hi != 0 || lo > limit {
		return LayerSeparate{}, fmt.Errorf("layout num_blocks %d: %d bytes each in a layer do not fit %d bytes", cfg.NumBlocks, l.blockStride, uint64(MaxBytes))
	}
	if order == OuterFirst {
		l.outerStride = lo
		l.dataBytes = lo * cfg.OuterDim
	} else {
		l.outerStride = cfg.regionBytes()
		l.dataBytes = lo
	}
	return l, nil
}

// Config is the geometry that the layout was made from.
func (l LayerSeparate) Config() Config { return l.cfg }

// Order is which axis comes first in each layer.
func (l LayerSeparate) Order() Order { return l.order }

// Strides is the layout as numbers.
func (l LayerSeparate) Strides() Strides {
	return Strides{Block: l.blockStride, Outer: l.outerStride, LayerStorage: true}
}

// Storages is the number of layers.
func (l LayerSeparate) Storages() int { return int(l.cfg.NumLayers) }

// BlockBytes is the size of one block's bytes in all layers, without padding.
func (l LayerSeparate) BlockBytes() uint64 { return l.cfg.blockBytes() }

// DataBytes is the size of one layer. The last block is padded like every
// other.
func (l LayerSeparate) DataBytes() uint64 { return l.dataBytes }

// TotalBytes is the size of an allocation that holds one layer wherever its
// base falls.
func (l LayerSeparate) TotalBytes() uint64 { return l.dataBytes + l.cfg.alignment() - 1 }

// BaseOffset is how far into a layer's allocation at address addr its aligned
// base lies.
func (l LayerSeparate) BaseOffset(addr uint64) uint64 { return -addr & (l.cfg.alignment() - 1) }

// Place is one page of one layer of K or V.
func (l LayerSeparate) Place(block, layer, outer uint64) (Place, error) {
	if err := l.cfg.checkIndices(block, layer, outer); err != nil {
		return Place{}, err
	}
	return l.Strides().place(block, layer, outer, l.cfg.regionBytes()), nil
}
