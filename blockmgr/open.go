package blockmgr

import (
	"context"
	"errors"
	"fmt"
	"runtime"
	"slices"
	"sync"
	"time"

	"go.uber.org/zap"

	"github.com/blockyard-ai/blockyard/blockmgr/diskio"
	"github.com/blockyard-ai/blockyard/blockmgr/registry"
	"github.com/blockyard-ai/blockyard/blockmgr/storage"
	"github.com/blockyard-ai/blockyard/blockmgr/storage/extent"
	"github.com/blockyard-ai/blockyard/blockmgr/tier"
	"github.com/blockyard-ai/blockyard/internal/kv"
	"github.com/blockyard-ai/blockyard/layout"
)

// ErrNamespace: the namespace cannot be served. The text names the wrong field.
var ErrNamespace = errors.New("namespace is not served")

// SlotBytes returns the size of a slot for a block of a namespace: the block's bytes rounded
// up to a page.
func SlotBytes(ns *kv.Namespace) uint64 {
	return extent.RoundUp(ns.BlockBytes(), storage.PageSize)
}

// checkNamespace returns an ErrNamespace if the namespace cannot be served. A block of a KV group has
// no layout of ours: the engine alone knows what lies where in it.
func checkNamespace(ns *kv.Namespace) error {
	if err := ns.Validate(); err != nil {
		return fmt.Errorf("%w: %w", ErrNamespace, err)
	}
	if ns.Layout != layout.FullyContiguousName {
		return fmt.Errorf("%w: layout %q: want %q", ErrNamespace, ns.Layout, layout.FullyContiguousName)
	}
	if len(ns.Groups) > 0 {
		return nil
	}
	_, err := blockLayout(ns)
	return err
}

// blockLayout returns the layout of one block of a namespace without KV groups in its slot.
func blockLayout(ns *kv.Namespace) (layout.FullyContiguous, error) {
	l, err := layout.NewFullyContiguous(layout.Config{
		NumBlocks: 1, NumLayers: uint64(ns.Layers), OuterDim: uint64(ns.OuterDim), PageSize: uint64(ns.BlockSize),
		InnerDim: uint64(ns.InnerDim), DTypeBytes: uint64(ns.DTypeBytes), Alignment: storage.PageSize,
	})
	if err != nil {
		return layout.FullyContiguous{}, fmt.Errorf("%w: %w", ErrNamespace, err)
	}
	return l, nil
}

// newPool opens a pool and starts its goroutines. A tier for which there is no room opens
// without slots. Blocks of the host tier are usable at once; extents of the disk tier that
// take long to recover join in the background (joinDisk).
func (m *Manager) newPool(ns kv.Namespace) (*Pool, error) {
	p := &Pool{
		identity: identity{
			cfg: &m.cfg, ns: ns, id: ns.ID(), broker: m.broker, retire: m.retire,
			blockBytes: ns.BlockBytes(), slotBytes: SlotBytes(&ns), use: m.broker.uses.enter(ns.Model), erase: make(chan struct{}, 1),
		},
	}
	p.life.stop = make(chan struct{})
	p.members = members{
		sessions: map[SessionID]*session{}, previous: m.previousOf(p.id), forget: m.Forget,
		tornHolders: map[SessionID]struct{}{},
	}
	p.pending.waiting = map[chan struct{}]struct{}{}
	p.growth.wakeup, p.growth.watchers = make(chan struct{}, 1), map[chan ExtentInfo]struct{}{}
	p.growth.maxHostExtents, p.growth.host.leastSlots = 1, 1
	p.growth.diskGrown = sync.NewCond(&p.mu)
	p.log = m.cfg.Log.With(zap.Stringer("namespace", p.id))
	p.slots = tier.NewSet(&p.ns, m.cfg.Sink, p.log)
	p.slots.Tenants = m.broker.tenants
	p.slots.OnErase(p.eraseQueuedLocked)
	p.slots.OnShort(func() { m.broker.sharer.Begin() })
	writeBytes := storage.DiskStride(p.slotBytes, m.cfg.DiskKey)
	p.mover = diskio.NewMover(diskio.Options{
		BlockBytes: p.blockBytes, SlotBytes: p.slotBytes, WriteBytes: writeBytes, Transfers: m.cfg.Transfers, Batch: m.cfg.TransferBatch,
		Deadline: m.cfg.IODeadline, ScrubBytesPerSecond: m.cfg.ScrubBytesPerSecond, Filter: m.cfg.Filter, Budget: m.cfg.Budget,
		Log: p.log, Health: &m.broker.health, Stop: p.life.stop,
	}, operations{p}, &p.mu, p.slots)
	if b := m.cfg.Budget; b != nil && writeBytes > b.Most() {
		p.log.Warn("blocks are not written to disk: a block is larger than the write budget ever has left",
			zap.Uint64("write_bytes", writeBytes), zap.Uint64("most_bytes", b.Most()))
	}
	m.expectBlocks(p.slotBytes)
	if !m.cfg.enabled() {
		return p, nil // without a tier every lookup is a miss
	}
	if err := p.openHost(); err != nil {
		m.broker.uses.leave(ns.Model)
		return nil, err
	}
	// The disk comes first: it makes room in the empty registry for the blocks of both tiers. rest
	// are the extents that it has not given yet; nil when it has given all.
	rest := p.openDisk()
	p.claimHost()
	p.orderRecovered()
	p.trim(registry.Host)
	if rest == nil && p.slots.Disk != nil {
		p.trim(registry.Disk)
	}
	p.findRoom()
	p.start()
	if rest != nil {
		p.life.transfers.Go(func() { p.joinDisk(rest) })
	}
	return p, nil
}

// openHost makes the host tier, without an extent yet. It also sets the bounds of its extents:
// their slots and their number.
func (p *Pool) openHost() error {
	arena := p.broker.host
	index, err := arena.Namespace(p.id, p.slotBytes)
	if err != nil {
		return err
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	// most is the number of slots of the largest possible extent. maxSlots bounds the tier's
	// slots; 0 for no bound.
	most, maxSlots := arena.MostSlots(p.slotBytes), p.cfg.HostBlocks
	if p.cfg.BypassesHost() {
		// The pool has a single staging extent, through which blocks pass to and from disk.
		p.growth.host.leastSlots = min(stagingSlots, most)
		maxSlots = max(min(arena.ExtentBytes()/p.slotBytes, most), p.growth.host.leastSlots)
	} else {
		p.growth.host.leastSlots = leastSlots(p.cfg.HostBlocks, most)
		p.growth.maxHostExtents = p.cfg.maxHostExtents(arena.Bytes(), p.slotBytes, arena.ExtentBytes(), p.growth.host.leastSlots)
	}
	p.slots.Host = tier.New(registry.Host, index, maxSlots, p.cfg.HostRule, &p.use.bytes[registry.Host])
	return nil
}

// claimHost takes the namespace's host extents of an earlier agent into use. Sealed blocks are
// registered, and verified when they are first read. Slots that a previous session was granted or
// had pinned stay out of use, because its engine may still copy. All other slots become free. The
// table in ARCHITECTURE.md, "Slot states and deaths", has each state.
func (p *Pool) claimHost() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.slots.Registry.Expect(p.broker.host.Unclaimed(p.slots.Host.Namespace))
	for _, found := range p.broker.host.Claim(p.slots.Host.Namespace) {
		e := &tier.Extent{ID: found.ID, Records: found.Slots, Host: found.Extent}
		p.slots.Recover(p.slots.Host, e, p.recoverHostSlotLocked)
	}
	// Recovered extents may be of any size: they do not count against the bound.
	p.growth.maxHostExtents = min(p.growth.maxHostExtents+p.slots.Host.Live, registry.MaxExtents)
}

// orderRecovered adds the recovered blocks of both tiers to the eviction order, when all are known:
// a block with children may not be evicted.
func (p *Pool) orderRecovered() {
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, t := range p.slots.Tiers() {
		t.SetTurnover(p.sizeLocked(t))
	}
	p.slots.OrderRecovered()
}

// trim deletes the newest extents of a tier until the namespace has no more slots than
// Config.HostBlocks or DiskBlocks allows. An earlier agent with a higher bound left the extents.
// Extents that are in use stay.
func (p *Pool) trim(lv registry.Level) {
	if lv == registry.Disk {
		// Records that are being written must not overwrite the records of the pool that gets
		// the extent's rows of the table.
		p.mover.LockRecords()
		defer p.mover.UnlockRecords()
	}
	p.mu.Lock()
	t := p.slots.Tier(lv)
	var gone []*tier.Extent
	for _, e := range slices.Backward(t.Extents) {
		if t.MaxSlots == 0 || uint64(t.Capacity) <= t.MaxSlots {
			break
		}
		if e == nil { // an extent that was removed earlier
			continue
		}
		if _, idle := e.Idle(); idle {
			p.emptyLocked(t, e)
			gone = append(gone, e)
		}
	}
	p.mu.Unlock()
	if len(gone) > 0 {
		p.log.Warn("the namespace has more extents of an earlier agent than its bound: the newest are deleted with their blocks",
			zap.Stringer("tier", t.Kind), zap.Int("extents", len(gone)), zap.Uint64("blocks_wanted", t.MaxSlots))
	}
	for _, e := range gone {
		p.broker.drop(e)
	}
}

// findRoom makes an extent in each tier without one. It counts and logs a tier without room. It
// waits up to drainTime for pools without sessions to finish, and up to Config.IODeadline for
// the disk.
func (p *Pool) findRoom() {
	ctx, cancel := context.WithTimeout(context.Background(), drainTime)
	defer cancel()
	go func() { // ends with ctx
		select {
		case <-p.broker.closing:
			cancel()
		case <-ctx.Done():
		}
	}()
	p.mu.Lock()
	p.life.unusedSince = p.broker.turns.Add(1) // a call of Manager.Pool is a use
	p.mu.Unlock()
	if p.slots.Host == nil {
		return
	}
	p.findRoomIn(ctx, registry.Host)
	p.awaitDiskRoom(ctx)
}

// findRoomIn makes the first extent of a tier that the pool has. Without room it waits for other
// pools to finish operations, because they may then give an extent. It gives up when ctx ends.
func (p *Pool) findRoomIn(ctx context.Context, lv registry.Level) {
	for p.lacksExtent(lv) {
		if lv == registry.Host {
			p.growFirstHost()
		} else {
			p.growDisk(1)
		}
		if !p.lacksExtent(lv) {
			return
		}
		if !p.broker.drain(ctx, p) {
			p.log.Warn("no room for the namespace: the tier keeps none of its blocks for now", zap.Stringer("tier", p.slots.Tier(lv).Kind))
			return
		}
	}
}

// lacksExtent reports whether a tier of an open pool has no extent.
func (p *Pool) lacksExtent(lv registry.Level) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.slots.Tier(lv).Live == 0 && !p.life.closing
}

// growFirstHost makes a host extent, even right after a failed try.
func (p *Pool) growFirstHost() {
	p.mu.Lock()
	plan := p.planHostExtentLocked()
	p.mu.Unlock()
	p.growHost(plan)
}

// start starts the pool's goroutines, which end with p.life.stop: growth, checksums,
// announcements, scrubbing, and reads and writes of the disk.
func (p *Pool) start() {
	if p.slots.Host == nil {
		return
	}
	p.life.workers.Go(p.growLoop)
	p.life.transfers.Go(p.eraseLoop)
	for range runtime.GOMAXPROCS(0) {
		p.life.workers.Go(p.mover.RunSealer)
	}
	p.startAnnouncing()
	if p.cfg.ScrubBytesPerSecond > 0 {
		p.life.transfers.Go(p.mover.RunScrubber)
	}
	if !p.cfg.hasDisk() {
		return
	}
	for range p.mover.WriteLoops() {
		p.life.transfers.Go(p.mover.RunWriter)
	}
	for range p.mover.ReadLoops() {
		p.life.transfers.Go(p.mover.RunReader)
	}
}

// stopped reports whether the pool's goroutines must end.
func (p *Pool) stopped() bool {
	select {
	case <-p.life.stop:
		return true
	default:
		return false
	}
}

// beginClose makes the pool refuse callers with ErrClosed, even if Retire has begun to close the
// pool. The pool's goroutines go on.
func (p *Pool) beginClose() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.life.closing, p.life.retired = true, false
	p.disarmKeeperLocked()
	p.disarmExpiryLocked()
	for ch := range p.growth.watchers {
		p.unwatchLocked(ch)
	}
}

// errStuck: operations of the disk do not return.
var errStuck = errors.New("the disk does not answer")

// finishClose ends the pool's goroutines, each after its current operation. It returns the
// extents, for the caller to close. With flush it writes the changed records first. errStuck:
// operations did not return before ctx ended. The kernel may still write into the extents, so
// that they stay open until the process ends.
func (p *Pool) finishClose(ctx context.Context, flush bool) (host []storage.HostExtent, disk []storage.DiskExtent, err error) {
	// Half of the caller's time at most is for the ages of blocks, which the next agent can do without.
	agesUntil := time.Now().Add(p.cfg.IODeadline / 2)
	p.stopWorkers()
	p.life.workers.Wait()
	var flushed error
	returned := endsBefore(ctx, func() {
		p.life.transfers.Wait()
		if flush {
			flushed = p.mover.FlushAll(agesUntil)
		}
	})

	p.mu.Lock()
	defer p.mu.Unlock()
	p.life.closed = true
	p.mover.Close()
	p.wakeQuietLocked()
	if !returned {
		return nil, nil, fmt.Errorf("pool %s: %w: %d reads and perhaps other operations are under way", p.id, errStuck, p.mover.Stuck())
	}
	for _, t := range p.slots.Tiers() {
		for _, e := range t.Extents {
			switch {
			case e == nil:
			case e.Host != nil:
				host = append(host, e.HostExtent())
			default:
				disk = append(disk, e.DiskExtent())
			}
		}
	}
	return host, disk, flushed
}

// stopWorkers tells the pool's goroutines to end.
func (p *Pool) stopWorkers() {
	p.mu.Lock()
	defer p.mu.Unlock()
	close(p.life.stop)
	p.mover.Wake()
	p.growth.diskGrown.Broadcast()
}

// endsBefore calls run, which may wait for a disk, and reports whether run returned before ctx
// ended. Otherwise run goes on in its goroutine.
func endsBefore(ctx context.Context, run func()) bool {
	ended := make(chan struct{})
	go func() { // ends with the last operation
		defer close(ended)
		run()
	}()
	select {
	case <-ended:
		return true
	case <-ctx.Done():
		return false
	}
}
