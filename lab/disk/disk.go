package disk

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"time"

	"github.com/blockyard-ai/blockyard/blockmgr"
	"github.com/blockyard-ai/blockyard/internal/kv"
)

// sessionID is the only session of every pool here.
const sessionID blockmgr.SessionID = 1

// keepPrompt is the prompt that read rounds look up. Write rounds use the numbers after
// it.
const keepPrompt = 1

// noScrub turns the scrubber off. A block that it verifies cannot be evicted, nor can
// its ancestors, but a round replaces all blocks of the last one.
const noScrub = -1

// diskBench is a pool whose disk path is measured. doc.go says how a round makes sure
// that it uses the disk.
type diskBench struct {
	manager *blockmgr.Manager
	pool    *blockmgr.Pool
	mapped  *mapping
	// n is the number of blocks of a round.
	n int
	// base is the common bytes of all blocks, prompt the prompt that was written last.
	base   []byte
	prompt uint64
}

// openDiskBench opens a pool of blocks of size bytes with a host tier and a disk tier in dir, and
// stores the prompt that read rounds look up. The caller closes the bench.
func openDiskBench(ctx context.Context, o *Options, dir *workspace, size uint64) (*diskBench, error) {
	n := o.roundBlocks(size)
	round := uint64(n) * size
	m, err := blockmgr.Open(blockmgr.Config{
		HostDir: filepath.Join(dir.host, "blocks"), HostBytes: round,
		DiskDir: filepath.Join(dir.disk, "blocks"), DiskBytes: 2 * round,
		ExtentBytes: round, DirectIO: blockmgr.DirectIORequire, Transfers: depth, ScrubBytesPerSecond: noScrub,
		DiscardHost: true, Log: o.Log,
	})
	if err != nil {
		return nil, err
	}
	d := &diskBench{manager: m, n: n, base: make([]byte, size), prompt: keepPrompt}
	fillRandom(d.base, size)
	if d.pool, err = m.Pool(namespaceOf("disk", size)); err == nil {
		err = d.pool.BeginSession(sessionID)
	}
	if err == nil {
		d.mapped, err = mapPool(d.pool)
	}
	if err == nil {
		_, err = d.store(ctx)
	}
	if err != nil {
		return nil, errors.Join(err, d.close())
	}
	return d, nil
}

func (d *diskBench) close() error {
	var err error
	if d.mapped != nil {
		err = d.mapped.close()
	}
	return errors.Join(err, d.manager.Close())
}

func (d *diskBench) sample(elapsed time.Duration) sample {
	return sample{d.n, uint64(d.n) * d.pool.SlotBytes(), elapsed}
}

// write makes a round that stores the next prompt.
func (d *diskBench) write(ctx context.Context) (sample, error) {
	d.prompt++
	return d.store(ctx)
}

// store fills slots with d.prompt and measures from their commit until all blocks are
// on disk.
func (d *diskBench) store(ctx context.Context) (sample, error) {
	blocks := appendPrompt(nil, d.prompt, 0, d.n)
	slots, err := grantAll(d.pool, blocks)
	if err != nil {
		return sample{}, err
	}
	for i, s := range slots {
		data, err := d.mapped.slot(s, d.pool.BlockBytes())
		if err != nil {
			return sample{}, err
		}
		copy(data, d.base)
		stamp(data, &blocks[i])
	}
	before := d.pool.Stats()
	start := time.Now()
	if err := d.pool.Commit(sessionID, slots); err != nil {
		return sample{}, err
	}
	if err := d.pool.Quiesce(ctx); err != nil {
		return sample{}, err
	}
	elapsed := time.Since(start)
	after := d.pool.Stats()
	if got := after.WriteBehind - before.WriteBehind; got != uint64(d.n) {
		return sample{}, fmt.Errorf("%d of %d blocks came to the disk; refused %d, failed %d",
			got, d.n, after.WriteBehindRefused-before.WriteBehindRefused, after.WriteErrors-before.WriteErrors)
	}
	return d.sample(elapsed), nil
}

// read looks up the prompt that is on disk only, measures until its blocks are in host memory,
// and checks their bytes.
func (d *diskBench) read(ctx context.Context) (sample, error) {
	blocks := appendPrompt(nil, keepPrompt, 0, d.n)
	before := d.pool.Stats()
	start := time.Now()
	found, err := d.pool.Lookup(ctx, sessionID, blocks)
	elapsed := time.Since(start)
	if err != nil {
		return sample{}, err
	}
	after := d.pool.Stats()
	if got := after.Promotions - before.Promotions; got != uint64(d.n) || len(found.Slots) != d.n {
		return sample{}, fmt.Errorf("%d of %d blocks were found and %d read from disk; corrupt %d, failed %d", len(found.Slots), d.n, got,
			after.CorruptReads-before.CorruptReads, after.ReadErrors-before.ReadErrors)
	}
	for i, s := range found.Slots {
		data, err := d.mapped.slot(s, d.pool.BlockBytes())
		if err != nil {
			return sample{}, err
		}
		if !stamped(data, &blocks[i]) || found.Sources[i] != kv.TierDisk {
			return sample{}, fmt.Errorf("block %d came from %s with wrong bytes", i, found.Sources[i])
		}
	}
	return d.sample(elapsed), d.pool.Unpin(sessionID, found.Slots)
}

// grantAll returns a granted slot for every block. It is an error when the pool has some of them
// or no room for all.
func grantAll(p *blockmgr.Pool, blocks []blockmgr.Block) ([]blockmgr.Slot, error) {
	granted, err := p.Grant(sessionID, blocks, 0)
	if err != nil {
		return nil, err
	}
	if len(granted.Grants) != len(blocks) {
		return nil, fmt.Errorf("%d of %d blocks got a slot; present %d, refused %d",
			len(granted.Grants), len(blocks), granted.Present, granted.Refused)
	}
	slots := make([]blockmgr.Slot, len(blocks))
	for i, g := range granted.Grants {
		slots[i] = g.Slot
	}
	return slots, nil
}

// compareDisk compares writes and reads of blocks of size bytes through the pool with a ceiling,
// the fastest program that moves as many bytes to or from the same disk. It also compares both
// with a loop that uses as many buffers as the pool does.
func compareDisk(ctx context.Context, o *Options, w *workspace, size uint64) (found []Comparison, err error) {
	dir, err := w.sub("disk-" + number(size))
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, dir.remove()) }()
	d, err := openDiskBench(ctx, o, dir, size)
	if err != nil {
		return nil, fmt.Errorf("pool of blocks of %d bytes: %w", size, err)
	}
	defer func() { err = errors.Join(err, d.close()) }()
	_, all := ceilings(o.noFio)
	write, err := diskPair(ctx, writeName, d.write, job{filepath.Join(dir.disk, "written"), true, size, d.n}, all)
	if err != nil {
		return nil, err
	}
	read, err := diskPair(ctx, readName, d.read, job{filepath.Join(dir.disk, "read"), false, size, d.n}, all)
	if err != nil {
		return nil, err
	}
	pairs := []*pair{write, read}
	for _, p := range []struct {
		what string
		ours side
		job  job
	}{
		{spreadWrite, d.write, job{filepath.Join(dir.disk, "written"), true, size, d.n}},
		{spreadRead, d.read, job{filepath.Join(dir.disk, "read"), false, size, d.n}},
	} {
		pairs = append(pairs, &pair{
			what: p.what, against: rawLoop{spread: true}.name(), block: size, ours: p.ours,
			ceiling: func(ctx context.Context) (sample, error) { return rawLoop{spread: true}.run(ctx, p.job) },
		})
	}
	return alternate(ctx, o.Duration, pairs...)
}

// diskPair returns the comparison of ours with the fastest of all ceilings for the job j, whose
// file it makes. what names the operation.
func diskPair(ctx context.Context, what string, ours side, j job, all []ceiling) (*pair, error) {
	if err := makeFile(ctx, j); err != nil {
		return nil, err
	}
	best, err := fastest(ctx, j, all)
	if err != nil {
		return nil, err
	}
	return &pair{
		what: what, against: best.name(), block: j.block, ours: ours,
		ceiling: func(ctx context.Context) (sample, error) { return best.run(ctx, j) },
	}, nil
}
