package config

import (
	"errors"
	"fmt"

	"github.com/blockyard-ai/blockyard/internal/kv"
	"github.com/blockyard-ai/blockyard/layout"
)

// LayoutType says how the blocks of a tier lie in their storage.
type LayoutType uint8

const (
	// FullyContiguous keeps all layers of a block together, in one storage.
	FullyContiguous LayoutType = iota
	// LayerSeparateOuterFirst has one storage for each layer, in which all K
	// pages come before all V pages.
	LayerSeparateOuterFirst
	// LayerSeparateBlockFirst has one storage for each layer, in which a block's
	// K and V pages are neighbours.
	LayerSeparateBlockFirst
)

// String is the type's name.
func (t LayoutType) String() string {
	switch t {
	case FullyContiguous:
		return layout.FullyContiguousName
	case LayerSeparateOuterFirst:
		return "layer_separate_outer_first"
	case LayerSeparateBlockFirst:
		return "layer_separate_block_first"
	}
	return fmt.Sprintf("layout type %d", uint8(t))
}

// place lays blocks out.
func (t LayoutType) place(c layout.Config) (layout.Layout, error) {
	switch t {
	case FullyContiguous:
		return layout.NewFullyContiguous(c)
	case LayerSeparateOuterFirst:
		return layout.NewLayerSeparate(c, layout.OuterFirst)
	case LayerSeparateBlockFirst:
		return layout.NewLayerSeparate(c, layout.BlockFirst)
	}
	return nil, fmt.Errorf("layout_type %d: want %d (%s), %d (%s) or %d (%s)", uint8(t), FullyContiguous, FullyContiguous,
		LayerSeparateOuterFirst, LayerSeparateOuterFirst, LayerSeparateBlockFirst, LayerSeparateBlockFirst)
}

// BlockParallelism says how a block is spread over workers.
type BlockParallelism uint8

const (
	// NotParallel keeps whole blocks here; it is the default.
	NotParallel BlockParallelism = iota
	// LeaderWorkerSharded spreads each block over all workers: the leader keeps
	// account of blocks, and each worker has its part of their bytes.
	LeaderWorkerSharded
)

// String is the strategy's name.
func (p BlockParallelism) String() string {
	switch p {
	case NotParallel:
		return "not_parallel"
	case LeaderWorkerSharded:
		return "leader_worker_sharded"
	}
	return fmt.Sprintf("block parallelism %d", uint8(p))
}

var errNoSource = errors.New("storage, allocator and logical are all unset: one of them must say where the blocks lie")

// Layout describes the blocks of one tier. Exactly one of Storage, Allocator
// and Logical says where they lie.
type Layout struct {
	// NumBlocks is the number of blocks, at least 1.
	NumBlocks uint64
	// Type is FullyContiguous by default.
	Type LayoutType
	// Storage is memory or files that exist: one for FullyContiguous, one for
	// each layer otherwise.
	Storage []Storage
	// Allocator makes the storage.
	Allocator Allocator
	// Logical leaves it open where the bytes lie; see LeaderWorkerSharded.
	Logical BlockParallelism
	// OffloadFilter chooses which blocks go on to the next lower tier; nil for
	// all. The disk tier has none below it and takes no filter.
	OffloadFilter OffloadFilter
}

// Validate checks the layout of blocks of shape m in tier t; the error names
// the first bad field.
func (l *Layout) Validate(t kv.Tier, m Model) error {
	blocks, err := l.Type.place(m.geometry(l.NumBlocks))
	if err != nil {
		return err
	}
	if l.Logical > LeaderWorkerSharded {
		return fmt.Errorf("logical %d: want %d (%s) or %d (%s)", uint8(l.Logical), NotParallel, NotParallel, LeaderWorkerSharded, LeaderWorkerSharded)
	}
	if err := l.validateSource(t); err != nil {
		return err
	}
	if l.OffloadFilter != nil && t == kv.TierDisk {
		return fmt.Errorf("offload_filter: want none in tier %s, because nothing lies below it", t)
	}
	return l.validateStorage(t, blocks)
}

// validateSource checks that the blocks come from one place.
func (l *Layout) validateSource(t kv.Tier) error {
	var set []string
	if len(l.Storage) > 0 {
		set = append(set, "storage")
	}
	if l.Allocator != nil {
		set = append(set, "allocator")
	}
	if l.Logical != NotParallel {
		set = append(set, "logical")
	}
	if len(set) == 0 {
		return errNoSource
	}
	if len(set) > 1 {
		return fmt.Errorf("%q are all set: only one of storage, allocator and logical may say where the blocks lie", set)
	}
	if l.Allocator != nil && l.Allocator.Tier() != t {
		return fmt.Errorf("allocator is of tier %s: want %s", l.Allocator.Tier(), t)
	}
	return nil
}

// validateStorage checks that the storages that are there hold the blocks.
func (l *Layout) validateStorage(t kv.Tier, blocks layout.Layout) error {
	if len(l.Storage) == 0 {
		return nil
	}
	if have, want := len(l.Storage), blocks.Storages(); have != want {
		return fmt.Errorf("storage has %d parts: want %d for %s", have, want, l.Type)
	}
	for i, s := range l.Storage {
		if s == nil {
			return fmt.Errorf("storage %d: must not be nil", i)
		}
		if s.Tier() != t {
			return fmt.Errorf("storage %d is of tier %s: want %s", i, s.Tier(), t)
		}
		if s.Bytes() < blocks.TotalBytes() {
			return fmt.Errorf("storage %d of %d bytes: want at least %d for %d blocks", i, s.Bytes(), blocks.TotalBytes(), l.NumBlocks)
		}
	}
	return nil
}
