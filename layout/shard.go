package layout

import (
	"fmt"
	"math/bits"
)

// MaxRanks is how many ranks may share one block.
const MaxRanks = 1024

// Parallelism says what each rank of a worker holds of a block.
type Parallelism uint8

const (
	// LeaderWorkerSharded: of R ranks each holds inner_dim/R elements of every
	// token, layer and outer index. All store, all load.
	LeaderWorkerSharded Parallelism = iota
	// Replicated: every rank holds the same bytes, as with MLA. Rank 0 stores
	// the block once, all load it.
	Replicated
)

// String is "leader_worker_sharded" or "replicated".
func (p Parallelism) String() string {
	switch p {
	case LeaderWorkerSharded:
		return "leader_worker_sharded"
	case Replicated:
		return "replicated"
	}
	return fmt.Sprintf("parallelism(%d)", uint8(p))
}

// Sharding says which part of a slot belongs to which rank: the shards lie one
// behind the other, rank 0 first, each [layers, outer, page, inner_dim/R].
// Replicated, the whole slot is everybody's. It is a value; make one with
// NewSharding.
type Sharding struct {
	slots FullyContiguous
	ranks uint64
	mode  Parallelism
	shard Config // what one rank holds
}

// NewSharding divides slots, whose inner_dim counts the elements of all ranks
// (of one rank if they are replicas), among ranks.
func NewSharding(slots FullyContiguous, ranks uint64, mode Parallelism) (Sharding, error) {
	if ranks < 1 || ranks > MaxRanks {
		return Sharding{}, fmt.Errorf("layout ranks %d: want 1 to %d", ranks, MaxRanks)
	}
	cfg := slots.Config()
	switch mode {
	case Replicated:
	case LeaderWorkerSharded:
		if cfg.InnerDim%ranks != 0 {
			return Sharding{}, fmt.Errorf("layout inner_dim %d: want a multiple of the %d ranks", cfg.InnerDim, ranks)
		}
		cfg.InnerDim /= ranks
		if ranks > 1 {
			// A shard starts a multiple of its size behind the slot, so that it is
			// aligned to whatever power of two divides both.
			cfg.Alignment = 1 << bits.TrailingZeros64(slots.cfg.alignment()|cfg.blockBytes())
		}
	default:
		return Sharding{}, fmt.Errorf("layout parallelism %d: want %d (%s) or %d (%s)", mode, LeaderWorkerSharded, LeaderWorkerSharded, Replicated, Replicated)
	}
	return Sharding{slots: slots, ranks: ranks, mode: mode, shard: cfg}, nil
}

// Ranks is the number of ranks.
func (s Sharding) Ranks() uint64 { return s.ranks }

// RankConfig is the geometry of the blocks that each rank holds. Its alignment
// is what the start of every shard is a multiple of.
func (s Sharding) RankConfig() Config { return s.shard }

// Stores reports whether rank writes its bytes when a block is stored. A rank
// that does not has the bytes of rank 0.
func (s Sharding) Stores(rank uint64) bool {
	return rank < s.ranks && (s.mode != Replicated || rank == 0)
}

// Shard is where rank's part of every block lies: the place that it loads from
// and, if it Stores, stores to.
func (s Sharding) Shard(rank uint64) (Shard, error) {
	if rank >= s.ranks {
		return Shard{}, fmt.Errorf("layout rank %d: want 0 to %d", rank, s.ranks-1)
	}
	sh := Shard{cfg: s.shard, slots: s.slots}
	if s.mode == LeaderWorkerSharded {
		sh.origin = rank * s.shard.blockBytes()
	}
	return sh, nil
}

// Shard is one rank's view of slots: a layout of the rank's own geometry over
// the storage of the slots. Sharding.Shard makes it.
type Shard struct {
	cfg    Config
	slots  FullyContiguous
	origin uint64
}

// Config is the geometry of what the rank holds.
func (s Shard) Config() Config { return s.cfg }

// Strides is the layout as numbers. The block stride is that of the slots, the
// others are the rank's own.
func (s Shard) Strides() Strides {
	region := s.cfg.regionBytes()
	return Strides{Origin: s.origin, Block: s.slots.blockStride, Layer: region * s.cfg.OuterDim, Outer: region}
}

// Storages is 1: the storage of the slots.
func (s Shard) Storages() int { return s.slots.Storages() }

// BlockBytes is the size of the rank's part of a block.
func (s Shard) BlockBytes() uint64 { return s.cfg.blockBytes() }

// DataBytes is that of the slots.
func (s Shard) DataBytes() uint64 { return s.slots.DataBytes() }

// TotalBytes is that of the slots.
func (s Shard) TotalBytes() uint64 { return s.slots.TotalBytes() }

// BaseOffset is that of the slots.
func (s Shard) BaseOffset(addr uint64) uint64 { return s.slots.BaseOffset(addr) }

// Block is the region of all bytes that the rank has in a slot.
func (s Shard) Block(block uint64) (Region, error) {
	r, err := s.slots.Block(block)
	if err != nil {
		return Region{}, err
	}
	return Region{Offset: r.Offset + s.origin, Size: s.BlockBytes()}, nil
}

// Place is one page of one layer of K or V, of the rank's elements.
func (s Shard) Place(block, layer, outer uint64) (Place, error) {
	if err := s.cfg.checkIndices(block, layer, outer); err != nil {
		return Place{}, err
	}
	return s.Strides().place(block, layer, outer, s.cfg.regionBytes()), nil
}
