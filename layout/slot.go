package layout

import "fmt"

// FullyContiguousName is what namespaces and configurations call FullyContiguous.
const FullyContiguousName = "fully_contiguous"

// FullyContiguous keeps all layers of a block together. NewFullyContiguous makes it.
type FullyContiguous struct{ cfg Config }

// NewFullyContiguous returns the layout of cfg, or the error of its first bad field.
func NewFullyContiguous(cfg Config) (FullyContiguous, error) {
	if err := cfg.Validate(); err != nil {
		return FullyContiguous{}, err
	}
	return FullyContiguous{cfg}, nil
}

// Config returns the geometry.
func (l FullyContiguous) Config() Config { return l.cfg }

// BlockBytes returns the size of a block, without padding.
func (l FullyContiguous) BlockBytes() uint64 { return l.cfg.blockBytes() }

// BlockStride returns the size of a slot: BlockBytes rounded up to the alignment.
func (l FullyContiguous) BlockStride() uint64 {
	return alignUp(l.cfg.blockBytes(), l.cfg.alignment())
}

// Region is Size bytes of a slot from Offset on.
type Region struct{ Offset, Size uint64 }

// MaxRanks is the largest number of ranks that share a block.
const MaxRanks = 1024

// Parallelism says what each rank holds of a block.
type Parallelism uint8

const (
	// LeaderWorkerSharded gives each of R ranks inner_dim/R elements of every token, layer
	// and outer index. All ranks store, all load.
	LeaderWorkerSharded Parallelism = iota
	// Replicated gives every rank the same bytes, as with MLA. Rank 0 stores them, all load.
	Replicated
)

// String returns "leader_worker_sharded" or "replicated".
func (p Parallelism) String() string {
	switch p {
	case LeaderWorkerSharded:
		return "leader_worker_sharded"
	case Replicated:
		return "replicated"
	}
	return fmt.Sprintf("parallelism(%d)", uint8(p))
}

// Sharding says which part of a slot belongs to which rank. NewSharding makes it.
type Sharding struct {
	blockBytes, ranks uint64
	mode              Parallelism
}

// NewSharding divides a slot among ranks. The slot's inner_dim counts the elements of all
// ranks, or of one rank if they are replicas.
func NewSharding(slot FullyContiguous, ranks uint64, mode Parallelism) (Sharding, error) {
	if ranks < 1 || ranks > MaxRanks {
		return Sharding{}, fmt.Errorf("layout ranks %d: want 1 to %d", ranks, MaxRanks)
	}
	switch inner := slot.cfg.InnerDim; {
	case mode > Replicated:
		return Sharding{}, fmt.Errorf("layout parallelism %d: want %d (%s) or %d (%s)", mode, LeaderWorkerSharded, LeaderWorkerSharded, Replicated, Replicated)
	case mode == LeaderWorkerSharded && inner%ranks != 0:
		return Sharding{}, fmt.Errorf("layout inner_dim %d: want a multiple of the %d ranks", inner, ranks)
	}
	return Sharding{slot.BlockBytes(), ranks, mode}, nil
}

// Ranks returns the number of ranks.
func (s Sharding) Ranks() uint64 { return s.ranks }

// Stores reports whether a rank writes its part when a block is stored. A rank that does not
// has the bytes of rank 0.
func (s Sharding) Stores(rank uint64) bool {
	return rank < s.ranks && (s.mode != Replicated || rank == 0)
}

// Shard returns the part of the slot that a rank loads. A rank of which Stores is true also
// writes this part.
func (s Sharding) Shard(rank uint64) (Region, error) {
	if rank >= s.ranks {
		return Region{}, fmt.Errorf("layout rank %d: want 0 to %d", rank, s.ranks-1)
	}
	if s.mode == Replicated {
		return Region{Size: s.blockBytes}, nil
	}
	size := s.blockBytes / s.ranks
	return Region{Offset: rank * size, Size: size}, nil
}
