package config

import (
	"cmp"
	"errors"
	"fmt"

	"github.com/blockyard-ai/blockyard/internal/kv"
	"github.com/blockyard-ai/blockyard/layout"
)

// defaultDTypeBytes is the width of 16-bit floats.
const defaultDTypeBytes = 2

// Model is the shape of one rank's part of a block.
type Model struct {
	// NumLayers is the number of layers, at least 1.
	NumLayers uint64
	// OuterDim is 2 when K and V lie apart, 1 for MLA and fused caches.
	OuterDim uint64
	// PageSize is the number of tokens in a block, at least 1.
	PageSize uint64
	// InnerDim is the number of elements for each token, layer and outer index, at least 1.
	InnerDim uint64
	// DTypeBytes is the size of an element, 1 (8-bit formats) to 8, default 2.
	DTypeBytes uint64
}

// Validate checks the range of every field. The error names the first bad field.
func (m Model) Validate() error { return m.Geometry(1, 1).Validate() }

// BlockBytes returns the size of one rank's part of a block.
func (m Model) BlockBytes() (uint64, error) {
	l, err := layout.NewFullyContiguous(m.Geometry(1, 1))
	return l.BlockBytes(), err
}

// Geometry returns the layout of n blocks that hold the parts of that many ranks side by side, in
// the inner dimension.
func (m Model) Geometry(n, ranks uint64) layout.Config {
	return layout.Config{
		NumBlocks: n, NumLayers: m.NumLayers, OuterDim: m.OuterDim, PageSize: m.PageSize,
		InnerDim: m.InnerDim * ranks, DTypeBytes: cmp.Or(m.DTypeBytes, defaultDTypeBytes),
	}
}

// LayoutType says how the blocks of a tier lie in their storage.
type LayoutType uint8

const (
	// FullyContiguous keeps all layers of a block together, in one storage.
	FullyContiguous LayoutType = iota
	// LayerSeparateOuterFirst has one storage for each layer, with all K pages before all V
	// pages.
	LayerSeparateOuterFirst
	// LayerSeparateBlockFirst has one storage for each layer, with the K and V pages of a
	// block side by side.
	LayerSeparateBlockFirst
)

// String returns the type's name.
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

// BlockParallelism says how a block is spread over workers.
type BlockParallelism uint8

const (
	// NotParallel keeps whole blocks here. It is the default.
	NotParallel BlockParallelism = iota
	// LeaderWorkerSharded spreads each block over all workers. The leader keeps account of
	// blocks, and each worker has its part of their bytes.
	LeaderWorkerSharded
)

// String returns the strategy's name.
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

// Layout describes the blocks of one tier. Exactly one of Storage, Allocator and Logical
// says where they lie.
type Layout struct {
	// NumBlocks is the number of blocks, at least 1.
	NumBlocks uint64
	// Type is FullyContiguous by default.
	Type LayoutType
	// Storage is memory or files that exist: one for FullyContiguous, otherwise one for each
	// layer.
	Storage []Storage
	// Allocator makes the storage.
	Allocator Allocator
	// Logical leaves open where the bytes lie; see LeaderWorkerSharded.
	Logical BlockParallelism
	// OffloadFilter chooses the blocks that move to the next lower tier; nil for all. The disk
	// tier is the lowest and takes no filter.
	OffloadFilter OffloadFilter
}

// Validate checks the layout of blocks of shape m in tier t. The error names the first bad
// field.
func (l *Layout) Validate(t kv.Tier, m Model) error {
	blocks, err := layout.NewFullyContiguous(m.Geometry(l.NumBlocks, 1))
	switch {
	case err != nil:
		return err
	case l.Type > LayerSeparateBlockFirst:
		return fmt.Errorf("layout_type %d: want %d (%s), %d (%s) or %d (%s)", uint8(l.Type), FullyContiguous, FullyContiguous,
			LayerSeparateOuterFirst, LayerSeparateOuterFirst, LayerSeparateBlockFirst, LayerSeparateBlockFirst)
	case l.Logical > LeaderWorkerSharded:
		return fmt.Errorf("logical %d: want %d (%s) or %d (%s)", uint8(l.Logical), NotParallel, NotParallel, LeaderWorkerSharded, LeaderWorkerSharded)
	}
	if err := l.validateSource(t); err != nil {
		return err
	}
	if l.OffloadFilter != nil && t == kv.TierDisk {
		return fmt.Errorf("offload_filter: want none in tier %s, because nothing lies below it", t)
	}
	storages := uint64(1)
	if l.Type != FullyContiguous { // each layer has its own
		storages = m.NumLayers
	}
	return l.validateStorage(t, int(storages), l.NumBlocks*blocks.BlockBytes()/storages)
}

// validateSource checks that exactly one of Storage, Allocator and Logical is set, and that an
// allocator is of tier t.
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

// validateStorage checks the storages that the caller gave: want of them, each of tier t and at
// least that many bytes. A layout without storages is valid: the manager makes them.
func (l *Layout) validateStorage(t kv.Tier, want int, bytes uint64) error {
	if len(l.Storage) == 0 {
		return nil
	}
	if have := len(l.Storage); have != want {
		return fmt.Errorf("storage has %d parts: want %d for %s", have, want, l.Type)
	}
	for i, s := range l.Storage {
		if s == nil {
			return fmt.Errorf("storage %d: must not be nil", i)
		}
		if s.Tier() != t {
			return fmt.Errorf("storage %d is of tier %s: want %s", i, s.Tier(), t)
		}
		if s.Bytes() < bytes {
			return fmt.Errorf("storage %d of %d bytes: want at least %d for %d blocks", i, s.Bytes(), bytes, l.NumBlocks)
		}
	}
	return nil
}
