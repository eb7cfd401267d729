package layout

import "fmt"

// Region is a piece of an allocation: Size bytes from Offset on, counted from
// the aligned base.
type Region struct {
	Offset uint64
	Size   uint64
}

// End is the offset of the first byte after the region.
func (r Region) End() uint64 { return r.Offset + r.Size }

// FullyContiguousName is how namespaces and configurations call FullyContiguous.
const FullyContiguousName = "fully_contiguous"

// FullyContiguous is the layout [blocks, layers, outer, page, inner] in one
// allocation. It is a value; make one with NewFullyContiguous.
type FullyContiguous struct {
	cfg         Config
	outerStride uint64
	layerStride uint64
	blockBytes  uint64
	blockStride uint64
}

// NewFullyContiguous checks cfg and computes its strides.
func NewFullyContiguous(cfg Config) (FullyContiguous, error) {
	if err := cfg.Validate(); err != nil {
		return FullyContiguous{}, err
	}
	region := cfg.regionBytes()
	return FullyContiguous{
		cfg:         cfg,
		outerStride: region,
		layerStride: region * cfg.OuterDim,
		blockBytes:  cfg.blockBytes(),
		blockStride: alignUp(cfg.blockBytes(), cfg.alignment()),
	}, nil
}

// Config is the geometry that the layout was made from.
func (l FullyContiguous) Config() Config { return l.cfg }

// OuterStride is the distance in bytes between two outer indices of a layer,
// which is also the size of a region.
func (l FullyContiguous) OuterStride() uint64 { return l.outerStride }

// LayerStride is the distance in bytes between two layers of a block.
func (l FullyContiguous) LayerStride() uint64 { return l.layerStride }

// BlockStride is the distance in bytes between two blocks: BlockBytes rounded
// up to the alignment.
func (l FullyContiguous) BlockStride() uint64 { return l.blockStride }

// BlockBytes is the size of one block's bytes, without padding.
func (l FullyContiguous) BlockBytes() uint64 { return l.blockBytes }

// DataBytes is the number of bytes from the first byte of the first block to
// the last byte of the last one; the last block is not padded.
func (l FullyContiguous) DataBytes() uint64 {
	return (l.cfg.NumBlocks-1)*l.blockStride + l.blockBytes
}

// TotalBytes is the size of an allocation that holds the data wherever its
// base falls: DataBytes plus what aligning the base may cost.
func (l FullyContiguous) TotalBytes() uint64 { return l.DataBytes() + l.cfg.alignment() - 1 }

// BaseOffset is how far into an allocation at address addr the aligned base
// lies.
func (l FullyContiguous) BaseOffset(addr uint64) uint64 { return -addr & (l.cfg.alignment() - 1) }

// Block is the region of all bytes of a block.
func (l FullyContiguous) Block(block uint64) (Region, error) {
	if block >= l.cfg.NumBlocks {
		return Region{}, fmt.Errorf("layout block %d: want 0 to %d", block, l.cfg.NumBlocks-1)
	}
	return Region{Offset: block * l.blockStride, Size: l.blockBytes}, nil
}

// Region is one page of one layer of K or V.
func (l FullyContiguous) Region(block, layer, outer uint64) (Region, error) {
	r, err := l.Block(block)
	if err != nil {
		return Region{}, err
	}
	if layer >= l.cfg.NumLayers {
		return Region{}, fmt.Errorf("layout layer %d: want 0 to %d", layer, l.cfg.NumLayers-1)
	}
	if outer >= l.cfg.OuterDim {
		return Region{}, fmt.Errorf("layout outer index %d: want 0 to %d", outer, l.cfg.OuterDim-1)
	}
	return Region{Offset: r.Offset + layer*l.layerStride + outer*l.outerStride, Size: l.outerStride}, nil
}
