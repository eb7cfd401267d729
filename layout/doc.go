// Package layout is the pure geometry of KV blocks in memory: which bytes of
// an allocation belong to which block, layer and outer index. It does no I/O
// and holds no memory.
//
// A region is the smallest contiguous piece: one page (page_size tokens) of
// one layer of K or V, page_size·inner_dim·dtype bytes. FullyContiguous keeps
// all regions of a block together:
//
//	block 0                                      pad  block 1
//	├─ layer 0 ─────────┬─ layer 1 ─────────┬ …  ┊    ├─ layer 0 …
//	│ outer 0 │ outer 1 │ outer 0 │ outer 1 │    ┊    │
//	0         R         2R        3R             ┊    block stride
//
// Guarantees: two regions never overlap, every region lies inside the
// allocation, and every block starts at a multiple of the alignment (relative
// to the aligned base). Sums and products that do not fit are refused by
// Validate, so that offsets never wrap.
//
// Everything here is a value: safe for concurrent use.
package layout
