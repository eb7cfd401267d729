// Package layout is the pure geometry of KV blocks in memory: which bytes of
// which storage belong to which block, layer and outer index, and which copies
// bring a block from one layout to another. It does no I/O and holds no memory.
//
// A region is the smallest contiguous piece: one page (page_size tokens) of
// one layer of K or V, R = page_size·inner_dim·dtype bytes. FullyContiguous
// keeps all regions of a block together:
//
//	block 0                                      pad  block 1
//	├─ layer 0 ─────────┬─ layer 1 ─────────┬ …  ┊    ├─ layer 0 …
//	│ outer 0 │ outer 1 │ outer 0 │ outer 1 │    ┊    │
//	0         R         2R        3R             ┊    block stride
//
// LayerSeparate has one storage per layer, in one of two orders. BlockFirst
// keeps K and V of a block together:
//
//	layer l   block 0             pad  block 1             pad
//	          │ outer 0 │ outer 1 │  ┊ │ outer 0 │ outer 1 │  ┊ …
//	          0         R         2R   block stride
//
// OuterFirst has K of all blocks before V of all blocks, each page padded:
//
//	layer l   outer 0                              outer 1
//	          block 0  pad  block 1  pad      …    block 0  pad  block 1 …
//	          0        R    block stride           outer stride = blocks · block stride
//
// A slot that several ranks share is divided by a Sharding. Each rank has one
// contiguous shard, [layers, outer, page, inner_dim/ranks]; Replicated, the
// slot is rank 0's and all ranks load it:
//
//	slot b    rank 0                        rank 1                        …
//	          ├─ layer 0 ─────┬─ layer 1 …  ├─ layer 0 ─────┬─ layer 1 …
//	          0                             block bytes / ranks
//
// The tables of such layouts, in bytes, are in testdata/regions.
//
// A Planner turns pairs of blocks into copies between any two layouts of equal
// geometry, neighbouring regions joined. DetectFullyContiguous and
// DetectLayerSeparate find the layout of the tensors that an engine registers;
// what the shapes leave open is an error, never a guess.
//
// Guarantees: two regions never overlap, every region lies inside its storage,
// and every block starts at a multiple of the alignment (relative to the
// aligned base), in LayerSeparate inside each layer. Sums and products that do
// not fit are refused by the constructors, so that offsets never wrap.
//
// Everything here is a value: safe for concurrent use.
package layout
