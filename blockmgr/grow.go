package blockmgr

import (
	"errors"
	"time"

	"go.uber.org/zap"

	"github.com/blockyard-ai/blockyard/blockmgr/storage"
)

// wakeGrowerLocked asks for another host extent when less than half of one is
// free.
func (p *Pool) wakeGrowerLocked() {
	if p.hostWantsLocked() {
		select {
		case p.growWake <- struct{}{}:
			p.busy++
		default:
		}
	}
}

func (p *Pool) hostWantsLocked() bool {
	if p.closing || p.fullLocked(p.host) || p.host.atBound() || p.host.live >= p.watchCap {
		return false
	}
	return p.host.live == 0 || p.host.free() < p.host.capacity/p.host.live/2+1
}

// growLoop makes host extents in the background, since populating one takes
// longer than an engine may wait.
func (p *Pool) growLoop() {
	for {
		select {
		case <-p.growWake:
		case <-p.stop:
			return
		}
		p.mu.Lock()
		for p.hostWantsLocked() {
			p.growHostLocked()
		}
		p.doneLocked(1)
		p.mu.Unlock()
	}
}

// growHostLocked adds one host extent; it lets go of the mutex while the extent
// is made.
func (p *Pool) growHostLocked() {
	turn, first, room := p.broker.turns.Load(), p.host.live == 0, p.host.room()
	p.mu.Unlock()
	made, err := p.broker.growHost(p, first, room)
	p.mu.Lock()
	switch {
	case err != nil:
		p.growFailedLocked(p.host, turn, err)
	case p.host.live >= p.watchCap || !p.host.fits(made.Slots.Slots()):
		// Somebody else grew the pool meanwhile.
		p.mu.Unlock()
		p.broker.host.Drop(made)
		p.mu.Lock()
	default:
		p.addHostLocked(made)
	}
}

// fullLocked reports whether trying to grow the tier is useless for now.
func (p *Pool) fullLocked(t *tier) bool {
	return t.full && t.fullAt == p.broker.turns.Load() && time.Now().Before(t.tryAgain)
}

// growRetry is how long a tier that could not grow does not try again.
const growRetry = time.Second

// growFailedLocked stops a tier from growing until another pool may have become
// able to give something. A tier that is at its size has not failed.
func (p *Pool) growFailedLocked(t *tier, turn uint64, err error) {
	t.full, t.fullAt, t.tryAgain = true, turn, time.Now().Add(growRetry)
	if errors.Is(err, storage.ErrFull) {
		p.count.GrowRefused++
		return
	}
	p.count.GrowErrors++
	p.log.Warn("tier does not grow for now", zap.Stringer("tier", t.kind), zap.Int("slots", t.capacity), zap.Error(err))
}

// atBound reports whether the tier has as many slots, or extents, as one namespace
// may have.
func (t *tier) atBound() bool {
	return t.maxSlots != 0 && uint64(t.capacity) >= t.maxSlots || t.live >= maxParts
}

// fits reports whether another extent, of n slots, is within what one namespace
// may have.
func (t *tier) fits(n uint32) bool {
	return t.live < maxParts && (t.maxSlots == 0 || uint64(t.capacity)+uint64(n) <= t.maxSlots)
}

// room is how many more slots the namespace may have; 0 is no bound.
func (t *tier) room() uint64 {
	if t.maxSlots == 0 {
		return 0
	}
	return t.maxSlots - min(uint64(t.capacity), t.maxSlots)
}

func (p *Pool) addHostLocked(made storage.HostPart) {
	added := &part{id: made.ID, recs: made.Slots, host: made.Extent}
	p.host.add(added)
	info := extentInfo(added)
	for ch := range p.watchers {
		select {
		case ch <- info:
		default:
			// There is room for every extent that there can be at a time. A reader so
			// slow that more have come and gone finds this one in Extents.
			p.count.WatchDropped++
		}
	}
}

// growDiskLocked adds disk extents until want slots are free or the disk tier
// is at its size; it lets go of the mutex while an extent is made, and takes a disk
// that does not answer meanwhile for stalled. The caller has asked the breaker.
func (p *Pool) growDiskLocked(want int) {
	// One at a time: the budget that one has reserved would look used up to the
	// other, which would then evict what there is room for.
	for p.growingDisk {
		p.writeWork.Wait()
	}
	p.growingDisk = true
	defer func() {
		p.growingDisk = false
		p.writeWork.Broadcast()
	}()
	for p.disk.free() < want && !p.fullLocked(p.disk) && !p.disk.atBound() {
		turn, first, room := p.broker.turns.Load(), p.disk.live == 0, p.disk.room()
		p.mu.Unlock()
		watch := time.AfterFunc(p.cfg.IODeadline, p.writeStalled)
		made, err := p.broker.growDisk(p, first, room)
		watch.Stop()
		p.mu.Lock()
		if err != nil {
			if blamable(err) {
				p.writeFailedLocked(err)
			}
			p.growFailedLocked(p.disk, turn, err)
			return
		}
		p.broker.breaker.succeeded() // not for writes: blocks may still fail
		if !p.disk.fits(made.Slots.Slots()) {
			// Somebody else grew the pool meanwhile.
			p.mu.Unlock()
			p.broker.disk.Load().Drop(made)
			p.mu.Lock()
			return
		}
		p.disk.add(&part{id: made.ID, recs: made.Slots, disk: made.Extent})
	}
}

// Extents are the host extents that exist, all of them populated and grantable.
func (p *Pool) Extents() []ExtentInfo {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.extentsLocked()
}

func (p *Pool) extentsLocked() []ExtentInfo {
	if p.host == nil {
		return nil
	}
	infos := make([]ExtentInfo, 0, p.host.live)
	for _, part := range p.host.parts {
		if part != nil {
			infos = append(infos, extentInfo(part))
		}
	}
	return infos
}

// WatchExtents delivers the host extents that exist and then each new one as it
// becomes ready. A slow reader delays nobody: what the channel has no room for is
// in Extents. It is closed by stop, which may be called more than once, or when the
// manager closes.
func (p *Pool) WatchExtents() (ch <-chan ExtentInfo, stop func()) {
	p.mu.Lock()
	defer p.mu.Unlock()
	c := make(chan ExtentInfo, p.watchCap) // never less than what exists
	for _, info := range p.extentsLocked() {
		c <- info
	}
	if p.closing {
		close(c)
		return c, func() {}
	}
	p.watchers[c] = struct{}{}
	return c, func() {
		p.mu.Lock()
		defer p.mu.Unlock()
		p.unwatchLocked(c)
	}
}

func (p *Pool) unwatchLocked(c chan ExtentInfo) {
	if _, ok := p.watchers[c]; ok {
		delete(p.watchers, c)
		close(c)
		p.releasedLocked()
	}
}

func extentInfo(p *part) ExtentInfo {
	g := p.geometry()
	info := ExtentInfo{
		ID: p.id, Slots: g.Slots, SlotBytes: g.SlotBytes,
		DataOffset: g.DataOffset, FileBytes: g.FileBytes(), Path: p.path(),
	}
	if p.host != nil {
		info.File = p.host.File()
	}
	return info
}
