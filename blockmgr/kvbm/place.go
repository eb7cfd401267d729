package kvbm

import (
	"cmp"
	"fmt"
	"io"

	"go.uber.org/zap"

	"github.com/blockyard-ai/blockyard/blockmgr"
	"github.com/blockyard-ai/blockyard/blockmgr/config"
	"github.com/blockyard-ai/blockyard/blockmgr/storage"
	"github.com/blockyard-ai/blockyard/internal/kv"
	"github.com/blockyard-ai/blockyard/layout"
)

// Place says what config.Config has no field for: where the bytes lie, and of which model
// they are.
type Place struct {
	// HostDir is the directory of the host tier, best on tmpfs or hugetlbfs. A host or a disk
	// tier needs it, unless host_layout names a directory.
	HostDir string
	// Disk says how to make the files of the disk tier, and in which directory, unless
	// disk_layout names one. The directory has no default.
	Disk config.DiskFiles
	// Transfer bounds the copies between host and disk; 0 is blockmgr.Config's default.
	Transfer config.Transfer

	// Model is the name of the served model, Weights a fingerprint of its weights, DType the
	// type of the cache's elements, such as "bfloat16", and KVFormat the engine's name for
	// its format and version. All must be set. Blocks that differ in one of them are different
	// blocks.
	Model, Weights, DType, KVFormat string
	// TP, PP and DCP are the tensor, pipeline and decode-context parallel sizes, 1
	// to 1024; 0 means 1.
	TP, PP, DCP uint32
	// A block here is made of the parts of Ranks neighbouring ranks, from FirstRank on, among
	// all TP·PP·DCP ranks. Ranks 0 means all. Without a logical layout a block is the part of
	// one rank.
	FirstRank, Ranks uint32
	// Replicated says that the parts of all ranks are equal, as with MLA and tensor
	// parallelism. A slot then holds one part, and PP and DCP must be 1.
	Replicated bool

	// Consolidate starts what config.Consolidator describes; agent/consolidated.Start does.
	// An error fails New. New calls it when there is a Consolidator and no Events. The
	// manager closes the result when it has ended, or when New fails.
	Consolidate func(Consolidation) (Consolidator, error)
	// Log receives warnings; nil for none.
	Log *zap.Logger
}

// Consolidation is what Place.Consolidate starts.
type Consolidation struct {
	config.Consolidator
	// WorkerID is the engine's, BlockTokens the number of tokens in a block.
	WorkerID    kv.WorkerID
	BlockTokens uint32
	// Log is the manager's.
	Log *zap.Logger
}

// Consolidator merges the engine's events with the manager's, until Close.
type Consolidator interface {
	blockmgr.EventSink
	io.Closer
}

// shape is the size and the namespace of a block.
type shape struct {
	namespace kv.Namespace
	sharding  layout.Sharding
	// slotBytes is the size of a block, rounded up to a page.
	slotBytes uint64
}

// shape returns the size and the namespace of a block, and how ranks share a slot. It checks the
// fields that say what a block is. The error names the first bad field.
func (p *Place) shape(cfg *config.Config) (shape, error) {
	for _, f := range []struct{ name, value string }{
		{"model", p.Model}, {"weights", p.Weights}, {"dtype", p.DType}, {"kv_format", p.KVFormat},
	} {
		if f.value == "" {
			return shape{}, fmt.Errorf("place %s %q: must be set, so that blocks of another one are told apart", f.name, f.value)
		}
	}
	sharded, err := sharded(cfg)
	if err != nil {
		return shape{}, err
	}
	ranks, err := p.ranks(sharded)
	if err != nil {
		return shape{}, err
	}
	mode := layout.LeaderWorkerSharded
	if p.Replicated {
		mode = layout.Replicated
	}
	geometry := cfg.Model.Geometry(1, p.parts(ranks))
	geometry.Alignment = storage.PageSize
	slot, err := layout.NewFullyContiguous(geometry)
	if err != nil {
		return shape{}, fmt.Errorf("model, %d ranks together: %w", ranks, err)
	}
	sh := shape{namespace: p.namespace(slot.Config(), ranks)}
	if err := sh.namespace.Validate(); err != nil {
		return shape{}, fmt.Errorf("place and model, %d ranks together: %w", ranks, err)
	}
	sh.slotBytes = blockmgr.SlotBytes(&sh.namespace)
	sh.sharding, err = layout.NewSharding(slot, ranks, mode)
	return sh, err
}

// parts returns how many parts a slot holds for that many ranks.
func (p *Place) parts(ranks uint64) uint64 {
	if p.Replicated {
		return 1
	}
	return ranks
}

// blockBytes returns the size of a block with a logical layout: the parts of all of its ranks.
func (p *Place) blockBytes(m config.Model) (uint64, error) {
	const sharded = true
	ranks, err := p.ranks(sharded)
	if err != nil {
		return 0, err
	}
	block, err := layout.NewFullyContiguous(m.Geometry(1, p.parts(ranks)))
	if err != nil {
		return 0, fmt.Errorf("model, %d ranks together: %w", ranks, err)
	}
	return block.BlockBytes(), nil
}

// sharded reports whether slots hold the parts of several ranks. A block has the same bytes
// in all tiers, so that host and disk must agree.
func sharded(cfg *config.Config) (bool, error) {
	host, disk := cfg.HostLayout, cfg.DiskLayout
	if host != nil && disk != nil && host.Logical != disk.Logical {
		return false, fmt.Errorf("disk_layout: logical %s: want %s, as in host_layout", disk.Logical, host.Logical)
	}
	return host != nil && host.Logical == config.LeaderWorkerSharded ||
		disk != nil && disk.Logical == config.LeaderWorkerSharded, nil
}

// maxParallel bounds each of TP, PP and DCP, so that their product fits.
const maxParallel = 1024

// ranks returns how many ranks have a part of a block, or share it.
func (p *Place) ranks(sharded bool) (uint64, error) {
	all := uint64(1)
	for _, f := range []struct {
		name string
		size uint32
	}{{"tp", p.TP}, {"pp", p.PP}, {"dcp", p.DCP}} {
		if f.size > maxParallel {
			return 0, fmt.Errorf("place %s %d: want 0 (which means 1) to %d", f.name, f.size, maxParallel)
		}
		if f.size > 1 && f.name != "tp" && p.Replicated {
			return 0, fmt.Errorf("place %s %d: want 1 with replicated: ranks of different %s have different parts", f.name, f.size, f.name)
		}
		all *= uint64(max(f.size, 1))
	}
	ranks, first := cmp.Or(uint64(p.Ranks), all), uint64(p.FirstRank)
	switch {
	case ranks > min(all, layout.MaxRanks):
		return 0, fmt.Errorf("place ranks %d: want 0 (all) or 1 to %d", ranks, min(all, layout.MaxRanks))
	case first > all-ranks:
		return 0, fmt.Errorf("place first_rank %d: want 0 to %d for %d of %d ranks", first, all-ranks, ranks, all)
	case ranks > 1 && !sharded && !p.Replicated:
		return 0, fmt.Errorf("place ranks %d: want 1, because no layout has logical %s, and the ranks' parts are not replicated",
			ranks, config.LeaderWorkerSharded)
	}
	return ranks, nil
}

// namespace returns the identity that all blocks share. slot is the layout of a block, ranks the
// number of ranks whose parts are in it. Blocks with the parts of some ranks only name these ranks
// in their format, so that they are not taken for blocks of other ranks.
func (p *Place) namespace(slot layout.Config, ranks uint64) kv.Namespace {
	ns := kv.Namespace{
		Model: p.Model, Weights: p.Weights, DType: p.DType, KVFormat: p.KVFormat, Layout: layout.FullyContiguousName,
		Layers: uint32(slot.NumLayers), OuterDim: uint32(slot.OuterDim), BlockSize: uint32(slot.PageSize),
		InnerDim: uint32(slot.InnerDim), DTypeBytes: uint32(slot.DTypeBytes),
		TP: max(p.TP, 1), PP: max(p.PP, 1), DCP: max(p.DCP, 1),
	}
	switch all := uint64(ns.TP) * uint64(ns.PP) * uint64(ns.DCP); {
	case p.Replicated:
		ns.KVFormat += " replicated"
	case ranks < all:
		ns.KVFormat += fmt.Sprintf(" ranks %d+%d", p.FirstRank, ranks)
	}
	return ns
}
