package layout

import "fmt"

// Layout says where the regions of blocks lie. A layout lies over one storage
// or more: pieces of memory or of a file, all of the same size, each with a
// base of its own. FullyContiguous, LayerSeparate and Shard are layouts.
type Layout interface {
	// Config is the geometry of the blocks.
	Config() Config
	// Strides is the layout as numbers.
	Strides() Strides
	// Storages is the number of storages that the layout lies over.
	Storages() int
	// BlockBytes is the number of bytes of one block, without padding, in all
	// storages together.
	BlockBytes() uint64
	// DataBytes is the number of bytes that the layout spans in each storage,
	// counted from the aligned base.
	DataBytes() uint64
	// TotalBytes is the size of each storage that holds DataBytes wherever its
	// base falls.
	TotalBytes() uint64
	// BaseOffset is how far into a storage at address addr the aligned base lies.
	BaseOffset(addr uint64) uint64
	// Place is where one page of one layer of K or V lies. The error names the
	// index that is out of range.
	Place(block, layer, outer uint64) (Place, error)
}

var (
	_ Layout = FullyContiguous{}
	_ Layout = LayerSeparate{}
	_ Layout = Shard{}
)

// Place is a region of one of a layout's storages.
type Place struct {
	// Storage is the storage's index.
	Storage int
	Region
}

// Strides are the distances in bytes between neighbours along each axis. The
// region (block, layer, outer) lies Origin + block·Block + layer·Layer +
// outer·Outer bytes behind the aligned base.
type Strides struct {
	Origin, Block, Layer, Outer uint64
	// LayerStorage says that every layer has a storage of its own, whose index
	// is the layer's. Layer is 0 then.
	LayerStorage bool
}

// place is where a region of size bytes lies. The indices are in range.
func (s Strides) place(block, layer, outer, size uint64) Place {
	p := Place{Region: Region{Offset: s.Origin + block*s.Block + layer*s.Layer + outer*s.Outer, Size: size}}
	if s.LayerStorage {
		p.Storage = int(layer)
	}
	return p
}

// Strides is the layout as numbers.
func (l FullyContiguous) Strides() Strides {
	return Strides{Block: l.blockStride, Layer: l.layerStride, Outer: l.outerStride}
}

// Storages is 1.
func (l FullyContiguous) Storages() int { return 1 }

// Place is Region, with the index of the only storage.
func (l FullyContiguous) Place(block, layer, outer uint64) (Place, error) {
	r, err := l.Region(block, layer, outer)
	return Place{Region: r}, err
}

// checkIndices reports which of a region's indices is not in c's range.
func (c Config) checkIndices(block, layer, outer uint64) error {
	for _, i := range []struct {
		name  string
		v, to uint64
	}{{"block", block, c.NumBlocks}, {"layer", layer, c.NumLayers}, {"outer index", outer, c.OuterDim}} {
		if i.v >= i.to {
			return fmt.Errorf("layout %s %d: want 0 to %d", i.name, i.v, i.to-1)
		}
	}
	return nil
}
