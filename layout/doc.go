// Package layout computes where the bytes of KV blocks lie: which bytes of which
// storage belong to which block, layer and outer index. It does no I/O and holds no
// memory.
//
//	slot, err := layout.NewFullyContiguous(layout.Config{
//		NumBlocks: 1, NumLayers: 32, OuterDim: 2, PageSize: 16, InnerDim: 1024, DTypeBytes: 2,
//	})
//	page, err := slot.Place(0, 5, 1) // V of layer 5
//
// A region is the smallest contiguous piece: one page (page_size tokens) of one layer
// of K or V, R = page_size·inner_dim·dtype bytes. FullyContiguous keeps all regions of
// a block together, [layers, outer, page, inner]. Each block is padded to the
// alignment. LayerSeparate has one storage per layer: BlockFirst keeps K and V of a
// block together, OuterFirst has K of all blocks before V of all blocks.
//
// A Sharding divides a slot among ranks. Each rank has one contiguous shard, [layers,
// outer, page, inner_dim/ranks], rank 0 first. Replicated, the slot is rank 0's and all
// ranks load it. The tables of such layouts, in bytes, are in testdata/regions.
//
// # Guarantees
//
//   - Two regions never overlap, and every region lies inside its storage.
//   - Every block starts at a multiple of the alignment, relative to the aligned base;
//     in LayerSeparate inside each layer.
//   - Constructors refuse sums and products that do not fit, so that offsets never wrap.
//
// All types are values and safe for concurrent use. Errors name the field, its value
// and its range.
package layout
