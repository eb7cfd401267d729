package blockmgr

import (
	"context"
	"time"

	"go.uber.org/zap"

	"github.com/blockyard-ai/blockyard/blockmgr/diskio"
	"github.com/blockyard-ai/blockyard/blockmgr/registry"
	"github.com/blockyard-ai/blockyard/blockmgr/storage"
	"github.com/blockyard-ai/blockyard/blockmgr/tier"
	"github.com/blockyard-ai/blockyard/internal/backoff"
)

// openDisk recovers the namespace's disk extents of an earlier agent. It waits for the disk for
// Config.IODeadline at most: a failing disk must not keep engines from host memory. rest
// delivers the extents that come later, for joinDisk; it is nil when all have come.
func (p *Pool) openDisk() (rest <-chan storage.DiskExtent) {
	if !p.cfg.hasDisk() {
		return nil
	}
	p.mover.Joining = true
	// readDisk reads the records of the next extent while this function recovers one.
	extents, failing := make(chan storage.DiskExtent), make(chan struct{})
	p.life.transfers.Go(func() { p.readDisk(extents, failing) })
	deadline := time.NewTimer(p.cfg.IODeadline)
	defer deadline.Stop()
	for {
		select {
		case found, ok := <-extents:
			if !ok { // all have come
				p.endJoining()
				return nil
			}
			p.recoverDisk(found)
			continue
		case <-deadline.C:
		case <-failing:
		case <-p.broker.closing:
		}
		p.log.Warn("the pool opens without its disk tier, which joins when the disk answers")
		return extents
	}
}

// readDisk makes the pool's disk tier, sends the namespace's extents of an earlier agent and closes
// the channel. After the first failure it closes failing, and tries again until the disk answers or
// the pool stops. A step that takes longer than Config.IODeadline opens the disk's breaker.
func (p *Pool) readDisk(extents chan<- storage.DiskExtent, failing chan<- struct{}) {
	defer close(extents)
	watch := time.AfterFunc(p.cfg.IODeadline, p.broker.health.All.Stalled) // off during pauses
	defer watch.Stop()
	again := time.NewTimer(0)
	defer again.Stop()
	pauses := backoff.Doubling(growRetry, diskio.BreakerPauseMax)
	for !p.enterDisk() {
		watch.Stop()
		if failing != nil {
			close(failing)
			failing = nil
		}
		if !p.restFromDisk(again, max(pauses.NextBackOff(), p.broker.health.All.UntilTry())) {
			return
		}
		watch.Reset(p.cfg.IODeadline)
	}
	if p.stopped() {
		return // the extents stay for the next pool of the namespace
	}
	for found := range p.broker.disk.Load().Claim(p.slots.Disk.Namespace) {
		watch.Stop()
		extents <- found
		if p.stopped() {
			return
		}
		watch.Reset(p.cfg.IODeadline)
	}
	p.broker.health.All.Succeeded()
}

// restFromDisk waits for d, or until Open's try to open the disk tier has ended. It returns false
// when the pool stops, and when the manager has no disk tier because that try failed.
func (p *Pool) restFromDisk(timer *time.Timer, d time.Duration) bool {
	select {
	case <-p.broker.diskAnswered: // nothing but the pause is left to wait for
		return p.broker.disk.Load() != nil && p.mover.Rest(timer, d)
	default:
	}
	timer.Reset(d)
	select {
	case <-timer.C:
		return true
	case <-p.broker.diskAnswered:
		return p.broker.disk.Load() != nil
	case <-p.life.stop:
		return false
	}
}

// enterDisk gives the pool a disk tier without extents, and its namespace a number in the disk's
// slot table. Extents come later: those of an earlier agent by joinDisk, new ones by growth. It
// returns false when the disk fails, has not answered yet or its breaker is open.
func (p *Pool) enterDisk() bool {
	arena := p.broker.disk.Load()
	if arena == nil || !p.broker.health.All.Allow() {
		return false
	}
	// These calls wait for the disk: the lock must not be held.
	index, err := arena.Namespace(p.id, p.slotBytes)
	// An earlier agent's blocks that this pool has not recovered yet are unclaimed. The registry has
	// one table for host and disk, so that it must expect the blocks of both.
	expected := p.broker.host.Unclaimed(p.slots.Host.Namespace)
	if err == nil {
		expected += arena.Unclaimed(index)
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	if err != nil {
		if diskio.IsDeviceError(err) {
			p.broker.health.All.Failed(err)
		}
		p.count.GrowErrors++
		p.log.Warn("pool is without a disk tier for now", zap.Error(err))
		return false
	}
	p.growth.disk.leastSlots = leastSlots(p.cfg.DiskBlocks, arena.MostSlots(p.slotBytes))
	p.slots.Disk = tier.New(registry.Disk, index, p.cfg.DiskBlocks, p.cfg.DiskRule, &p.use.bytes[registry.Disk])
	p.slots.Registry.Expect(expected)
	return true
}

// joinDisk recovers the extents of the disk tier that openDisk did not wait for, while the pool is
// in use. Then the disk tier is complete: joinDisk makes a first extent if there is none, and
// offers the blocks in host memory to the disk. It ends early when the pool stops.
func (p *Pool) joinDisk(rest <-chan storage.DiskExtent) {
	for found := range rest {
		if p.announceAll(registry.Disk, p.joinExtent(found)) { // else the pool stops
			p.announceWaiting()
		}
	}
	if p.stopped() {
		return
	}
	if p.slots.Disk == nil { // readDisk has ended without making the tier
		p.endJoining()
		p.log.Warn("the pool goes on without a disk tier until the next start")
		return
	}
	p.trim(registry.Disk)
	p.endJoining()
	p.broker.trimIfLimited()
	p.log.Info("the disk tier has joined the pool")
	ctx, cancel := context.WithTimeout(context.Background(), drainTime)
	defer cancel()
	p.makeDiskRoom(ctx)
	p.mu.Lock()
	defer p.mu.Unlock()
	p.mover.OfferAll()
}

// endJoining records that all extents of an earlier agent have come from the disk.
func (p *Pool) endJoining() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.mover.Joining = false
}

// joinExtent recovers a disk extent while the pool is in use. It returns the slots with blocks,
// in the order of their announcement.
func (p *Pool) joinExtent(found storage.DiskExtent) []registry.Ref {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.life.closed { // the extent stays as it is for the next agent
		return nil
	}
	added, t := diskExtent(found), p.slots.Disk
	p.recoverDiskLocked(added)
	t.SetTurnover(p.sizeLocked(t))
	return p.slots.OrderJoined(t, added)
}

// recoverDisk recovers a disk extent while the pool is being opened.
func (p *Pool) recoverDisk(found storage.DiskExtent) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.recoverDiskLocked(diskExtent(found))
}

func diskExtent(found storage.DiskExtent) *tier.Extent {
	return &tier.Extent{ID: found.ID, Records: found.Slots, Disk: found.Extent}
}

// awaitDiskRoom makes the first extent of the disk tier, if it has none. It waits for
// Config.IODeadline at most; after that makeDiskRoom goes on in the background.
func (p *Pool) awaitDiskRoom(ctx context.Context) {
	p.mu.Lock()
	lacking := p.lacksDiskLocked()
	p.mu.Unlock()
	if !lacking {
		return
	}
	made := make(chan struct{})
	p.life.transfers.Go(func() {
		defer close(made)
		p.makeDiskRoom(ctx)
	})
	deadline := time.NewTimer(p.cfg.IODeadline)
	defer deadline.Stop()
	select {
	case <-made:
	case <-deadline.C:
	case <-p.broker.closing:
	}
}

// lacksDiskLocked reports whether the disk tier has no extent and none is being made.
func (p *Pool) lacksDiskLocked() bool {
	return p.slots.Disk != nil && !p.mover.Joining && p.slots.Disk.Live == 0 && !p.growth.makingFirst && !p.life.closing
}

// makeDiskRoom makes the first extent of the disk tier. It does nothing when the tier has an
// extent, another goroutine is making the first one, or the disk's breaker is open.
func (p *Pool) makeDiskRoom(ctx context.Context) {
	p.mu.Lock()
	if !p.lacksDiskLocked() || !p.broker.health.All.Allow() {
		p.mu.Unlock()
		return
	}
	p.growth.makingFirst = true
	p.mu.Unlock()
	p.findRoomIn(ctx, registry.Disk)
	p.mu.Lock()
	defer p.mu.Unlock()
	p.growth.makingFirst = false
}

// growDisk makes disk extents until want slots are free or the disk tier is at its size. A disk
// that does not answer within the deadline counts as stalled. The caller has asked the breaker.
func (p *Pool) growDisk(want int) {
	for p.growDiskOnce(want) {
	}
}

// growDiskOnce makes a disk extent, unless want slots are free or the tier cannot grow. added is
// true when the pool has got one.
func (p *Pool) growDiskOnce(want int) (added bool) {
	plan, ok := p.planDiskGrowth(want)
	if !ok {
		return false
	}
	defer p.endDiskGrowth()
	watch := time.AfterFunc(p.cfg.IODeadline, p.mover.WriteStalled)
	made, err := p.broker.growDisk(p, plan.first, plan.maxSlots)
	watch.Stop()
	if err == nil && p.cfg.Budget != nil {
		p.cfg.Budget.Wrote(made.Extent.ZeroFilled(), time.Now())
	}
	added = p.addDiskExtent(plan, made, err)
	if !added && err == nil {
		p.broker.disk.Load().Drop(made)
	}
	return added
}

// planDiskGrowth returns the next disk extent to make, for a caller that wants that many free
// slots. ok is false when they are free already or the tier cannot grow; else endDiskGrowth ends
// the plan.
//
// One extent is made at a time. The budget that one caller has reserved would look used up to
// another, which would then evict blocks that there is room for.
func (p *Pool) planDiskGrowth(want int) (plan growthPlan, ok bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for p.growth.growingDisk {
		p.growth.diskGrown.Wait()
	}
	t := p.slots.Disk
	if t.Free() >= want || p.growthFailedLocked(t) || t.AtBound() {
		return growthPlan{}, false
	}
	p.growth.growingDisk = true
	return growthPlan{turn: p.broker.turns.Load(), first: t.Live == 0, maxSlots: t.Room()}, true
}

// addDiskExtent adds the extent made for plan, or records err, which says why none was made. added
// is also false when the pool cannot have the extent, because it has grown in the meantime.
func (p *Pool) addDiskExtent(plan growthPlan, made storage.DiskExtent, err error) (added bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	t := p.slots.Disk
	if err != nil {
		if diskio.IsDeviceError(err) {
			p.broker.health.WriteFailed(err)
		}
		p.growFailedLocked(t, plan.turn, err)
		return false
	}
	p.broker.health.All.Succeeded() // not Writes: writes of blocks may still fail
	if !t.Fits(made.Slots.Slots()) {
		return false
	}
	t.Add(&tier.Extent{ID: made.ID, Records: made.Slots, Disk: made.Extent})
	p.trimOverLimitLocked(t)
	return true
}

// endDiskGrowth allows the next growth of the disk tier, after a surplus extent has been dropped.
func (p *Pool) endDiskGrowth() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.growth.growingDisk = false
	p.growth.diskGrown.Broadcast()
}
