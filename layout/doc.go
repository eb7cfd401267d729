// Package layout computes where the bytes of a KV block lie in its slot. It does no I/O and
// holds no memory.
//
//	slot, err := layout.NewFullyContiguous(layout.Config{
//		NumBlocks: 1, NumLayers: 32, OuterDim: 2, PageSize: 16, InnerDim: 1024, DTypeBytes: 2,
//	})
//	slot.BlockBytes() // 2 MiB
//
// A block is [layers, outer, page, inner]: page_size tokens of each layer, K before V. The
// slot is the block, padded to the alignment.
//
// A Sharding divides a slot among ranks. Each rank has one contiguous part, [layers, outer,
// page, inner/ranks], rank 0 first. Replicated, the whole slot is rank 0's, and all ranks
// load it.
//
// Guarantees: parts never overlap and together are the block. Constructors refuse sums and
// products that do not fit, so that offsets never wrap. All types are values and safe for
// concurrent use. Errors name the field, its value and its range.
package layout
