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

// openDisk takes the namespace's disk extents of an earlier agent into use. It waits for
// the disk for Config.IODeadline, so that a disk that fails or stalls does not keep
// engines from host memory. The extents that come later are for joinDisk; nil when all
// have come.
func (p *Pool) openDisk() (rest <-chan storage.DiskPart) {
	if !p.cfg.hasDisk() {
		return nil
	}
	p.mover.Joining = true
	// While one extent's records are looked through, the next one's are read.
	parts, resting := make(chan storage.DiskPart), make(chan struct{})
	p.life.transfers.Go(func() { p.readDisk(parts, resting) })
	late := time.NewTimer(p.cfg.IODeadline)
	defer late.Stop()
	for {
		select {
		case found, ok := <-parts:
			if !ok {
				p.mu.Lock()
				p.mover.Joining = false
				p.mu.Unlock()
				return nil
			}
			p.mu.Lock()
			p.recoverDiskPartLocked(found)
			p.mu.Unlock()
			continue
		case <-late.C:
		case <-resting:
		case <-p.broker.closing:
		}
		p.log.Warn("the pool opens without its disk tier, which joins when the disk answers")
		return parts
	}
}

// readDisk enters the namespace in the disk's slot table, which makes the tier, and sends
// its extents. When that fails it closes resting and tries again now and then.
func (p *Pool) readDisk(parts chan<- storage.DiskPart, resting chan<- struct{}) {
	defer close(parts)
	watch := time.AfterFunc(p.cfg.IODeadline, p.broker.health.All.Stalled)
	defer watch.Stop()
	again := time.NewTimer(0)
	defer again.Stop()
	pauses := backoff.Doubling(growRetry, diskio.BreakerPauseMax)
	for !p.enterDisk() {
		watch.Stop()
		if resting != nil {
			close(resting)
			resting = nil
		}
		if !p.restFromDisk(again, max(pauses.NextBackOff(), p.broker.health.All.UntilTry())) {
			return
		}
		watch.Reset(p.cfg.IODeadline)
	}
	if p.stopped() {
		return // the extents stay for whoever asks next
	}
	for found := range p.broker.disk.Load().Claim(p.slots.Disk.Namespace) {
		watch.Stop()
		parts <- found
		if p.stopped() {
			return
		}
		watch.Reset(p.cfg.IODeadline)
	}
	p.broker.health.All.Succeeded()
}

// restFromDisk waits for d. It returns false when the pool stops, and when there will be
// no disk tier because it could not be opened.
func (p *Pool) restFromDisk(timer *time.Timer, d time.Duration) bool {
	select {
	case <-p.broker.diskAnswered:
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

// enterDisk makes the disk tier, without an extent. It returns false when the disk fails
// or its breaker is open.
func (p *Pool) enterDisk() bool {
	arena := p.broker.disk.Load()
	if arena == nil || !p.broker.health.All.Allow() {
		return false
	}
	// These calls wait for the disk, so that they come before the lock.
	index, err := arena.Namespace(p.id, p.slotBytes)
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
	p.slots.Disk = tier.New(registry.Disk, index, p.cfg.DiskBlocks)
	p.slots.Registry.Expect(expected)
	return true
}

func (p *Pool) recoverDiskPartLocked(found storage.DiskPart) *tier.Extent {
	added := &tier.Extent{ID: found.ID, Records: found.Slots, Disk: found.Extent}
	p.recoverDiskLocked(added)
	return added
}

// joinDisk takes in the rest of the disk tier while the pool is in use.
func (p *Pool) joinDisk(rest <-chan storage.DiskPart) {
	for found := range rest {
		var refs []registry.Ref
		p.mu.Lock()
		if !p.life.closed { // or else Close gave the disk up, and its extents stay as they are
			refs = p.settleJoinedLocked(p.recoverDiskPartLocked(found))
		}
		p.mu.Unlock()
		if p.announceAll(registry.Disk, refs) {
			p.announceLater()
		}
	}
	if p.stopped() {
		return
	}
	p.mu.Lock()
	lost := p.slots.Disk == nil
	p.mover.Joining = !lost
	p.mu.Unlock()
	if lost {
		p.log.Warn("the pool goes on without a disk tier until the next start")
		return
	}
	p.trim(registry.Disk)
	p.mu.Lock()
	p.mover.Joining = false
	p.mu.Unlock()
	p.log.Info("the disk tier has joined the pool")
	ctx, cancel := context.WithTimeout(context.Background(), drainTime)
	defer cancel()
	p.makeDiskRoom(ctx)
	p.mu.Lock()
	p.mover.OfferAll()
	p.mu.Unlock()
}

// settleJoinedLocked does for one extent what settleRecovered does for all of them. It
// returns the slots with blocks in the order in which they are announced.
func (p *Pool) settleJoinedLocked(added *tier.Extent) []registry.Ref {
	t := p.slots.Disk
	t.SetTurnover(p.sizeLocked(t))
	return p.slots.SettleJoined(t, added)
}

// awaitDiskRoom calls makeDiskRoom in the background and waits for it for
// Config.IODeadline.
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
	late := time.NewTimer(p.cfg.IODeadline)
	defer late.Stop()
	select {
	case <-made:
	case <-late.C:
	case <-p.broker.closing:
	}
}

// lacksDiskLocked reports whether the disk tier has no extent and nobody makes one.
func (p *Pool) lacksDiskLocked() bool {
	return p.slots.Disk != nil && !p.mover.Joining && p.slots.Disk.Live == 0 && !p.growth.makingFirst && !p.life.closing
}

// makeDiskRoom makes the first extent of the disk tier, unless the breaker is open.
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
