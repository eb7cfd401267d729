package disk

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"time"

	"go.uber.org/zap"

	"github.com/blockyard-ai/blockyard/blockmgr"
	"github.com/blockyard-ai/blockyard/blockmgr/storage"
	"github.com/blockyard-ai/blockyard/blockmgr/storage/extent"
	"github.com/blockyard-ai/blockyard/internal/kv"
)

const (
	// promptBlocks is the number of blocks of a prompt that is looked up.
	promptBlocks = 1000
	// tinyBlock is the size of registered blocks. Their number costs, not their bytes.
	tinyBlock = 16
	// tinySlot is the slot of such a block.
	tinySlot = storage.PageSize
	// tinyExtent is the largest extent, so that there are few files.
	tinyExtent = storage.MaxExtentBytes
	// maxHotPrompts bounds the prompts in host memory that lookups cycle through:
	// enough that the registry's entries leave the processor's caches between two
	// lookups.
	maxHotPrompts = 128
	// storeRoom is the number of host slots for blocks stored meanwhile.
	storeRoom = 8192
	// tinyScrub is the default scrub rate in blocks, for blocks of two megabytes.
	tinyScrub = 8 * tinyBlock
	// openings is the number of times that the pool is opened.
	openings = 3
)

// hotPrompts returns the number of prompts in host memory of a pool of so many blocks.
func hotPrompts(blocks int) int { return min(maxHotPrompts, blocks/promptBlocks/2) }

// hotHostBytes returns the size of the host tier for the hot prompts.
func hotHostBytes(blocks int) uint64 {
	return uint64(hotPrompts(blocks)*promptBlocks+storeRoom) * tinySlot
}

// tinyExtents returns the number of disk extents for so many blocks, plus one for
// stored blocks.
func tinyExtents(blocks int) uint64 {
	const perExtent = tinyExtent / tinySlot
	return (uint64(blocks)+perExtent-1)/perExtent + 1
}

// holes makes files without reserving space.
type holes struct {
	extent.File
	path string
}

// Allocate makes one hole of size bytes.
func (h holes) Allocate(size int64) error { return os.Truncate(h.path, size) }

// makeRegistered makes in dir the disk arena that an agent leaves behind after it stored that
// many blocks, prompt after prompt. It writes the records only; the blocks' bytes are holes in
// the files.
func makeRegistered(ctx context.Context, dir string, ns kv.NamespaceID, blocks int) (err error) {
	arena, err := storage.OpenDiskArena(storage.ArenaConfig{
		Dir: dir, Bytes: tinyExtents(blocks) * tinyExtent, ExtentBytes: tinyExtent, Log: zap.NewNop(),
		Disk: extent.DiskOptions{Wrap: func(path string, f extent.File) extent.File { return holes{f, path} }},
	})
	if err != nil {
		return err
	}
	var parts []storage.DiskExtent
	defer func() { err = errors.Join(err, arena.Close(parts)) }()
	index, err := arena.Namespace(ns, tinySlot)
	if err != nil {
		return err
	}
	for next := 0; next < blocks; {
		if err := ctx.Err(); err != nil {
			return err
		}
		part, err := arena.Grow(index, tinySlot, 1, 0)
		if err != nil {
			return err
		}
		parts = append(parts, part)
		for i := uint32(0); i < part.Slots.Slots() && next < blocks; i++ {
			part.Slots.Put(i, sealedRecord(index, next))
			next++
		}
		if err := storage.WritePages(part.Slots.TakeDirty(nil)); err != nil {
			return err
		}
	}
	return nil
}

// sealedRecord returns the slot record of block n, from 0, of the namespace with index ns:
// stored, of zeros, on its slot's first generation.
func sealedRecord(ns uint32, n int) *storage.Record {
	prompt, i := uint64(n/promptBlocks), n%promptBlocks
	key := promptKey(prompt, i).InGroup(0)
	r := &storage.Record{
		Key: key, Parent: promptKey(prompt, i-1), Namespace: ns, Position: uint32(i), Length: tinyBlock,
		Local: kv.LocalHash(mix(prompt, i, 2)), Seq: kv.SequenceHash(mix(prompt, i, 3)),
		Generation: 1, Recency: uint32(prompt), State: storage.StateSealed,
	}
	if i > 0 {
		r.ParentSeq = kv.SequenceHash(mix(prompt, i-1, 3))
	}
	var zeros [tinyBlock]byte
	r.Checksum = storage.Bind(extent.ContentSum(key, zeros[:]), key, r.Generation)
	return r
}

// fullPool is a pool with many blocks.
type fullPool struct {
	manager *blockmgr.Manager
	pool    *blockmgr.Pool
	// prompts is the number of prompts in host memory.
	prompts int
}

// openFullPool makes an arena of o.Blocks blocks and opens a pool on it some times. It returns
// the pool of the last time, and the seconds that opening took.
func openFullPool(ctx context.Context, o *Options, dir *workspace) (*fullPool, Summary, error) {
	ns := namespaceOf("registered", tinyBlock)
	cfg := blockmgr.Config{
		HostDir: filepath.Join(dir.host, "blocks"), HostBytes: storeRoom * tinySlot,
		DiskDir: filepath.Join(dir.disk, "blocks"), DiskBytes: tinyExtents(o.Blocks) * tinyExtent,
		ExtentBytes: tinyExtent, ScrubBytesPerSecond: tinyScrub, DiscardHost: true, Log: o.Log,
	}
	if err := makeRegistered(ctx, cfg.DiskDir, ns.ID(), o.Blocks); err != nil {
		return nil, Summary{}, fmt.Errorf("make %d blocks: %w", o.Blocks, err)
	}
	var seconds []float64
	for range openings {
		start := time.Now()
		c, err := openPool(cfg, ns)
		if err != nil {
			return nil, Summary{}, fmt.Errorf("open %d blocks: %w", o.Blocks, err)
		}
		seconds = append(seconds, time.Since(start).Seconds())
		if err := errors.Join(c.check(ctx, o.Blocks), c.close()); err != nil {
			return nil, Summary{}, err
		}
	}
	// Populating host memory takes time that does not belong to the blocks.
	cfg.HostBytes = hotHostBytes(o.Blocks)
	c, err := openPool(cfg, ns)
	if err != nil {
		return nil, Summary{}, fmt.Errorf("open %d blocks: %w", o.Blocks, err)
	}
	c.prompts = hotPrompts(o.Blocks)
	return c, summarize(seconds), nil
}

// openPool opens a manager with cfg and its pool for the namespace ns.
func openPool(cfg blockmgr.Config, ns kv.Namespace) (*fullPool, error) {
	m, err := blockmgr.Open(cfg)
	if err != nil {
		return nil, err
	}
	p, err := m.Pool(ns)
	if err != nil {
		return nil, errors.Join(err, m.Close())
	}
	return &fullPool{manager: m, pool: p}, nil
}

// check fails unless every block was found again.
func (c *fullPool) check(ctx context.Context, blocks int) error {
	if st := c.pool.Stats(); st.Recovered != uint64(blocks) || st.Blocks != blocks {
		return fmt.Errorf("%d of %d blocks were found again, %d are registered", st.Recovered, blocks, st.Blocks)
	}
	return ctx.Err()
}

func (c *fullPool) close() error { return c.manager.Close() }
