package blockmgr

import (
	"errors"

	"go.uber.org/zap"

	"github.com/blockyard-ai/blockyard/blockmgr/storage"
)

// wakeGrowerLocked asks for another host extent when less than half of the last
// one's size is free.
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
	if p.closing || p.fullLocked(p.host) || len(p.host.parts) >= p.watchCap {
		return false
	}
	if len(p.host.parts) == 0 {
		return true
	}
	last := p.host.parts[len(p.host.parts)-1]
	return uint32(len(p.host.free)) < last.recs.Slots()/2+1
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
	turn, first := p.broker.turns.Load(), len(p.host.parts) == 0
	p.mu.Unlock()
	made, err := p.broker.growHost(p, first)
	p.mu.Lock()
	switch {
	case err != nil:
		p.growFailedLocked(p.host, turn, err)
	case len(p.host.parts) >= p.watchCap:
		// Somebody else grew the pool meanwhile.
		p.mu.Unlock()
		p.broker.host.Drop(made)
		p.mu.Lock()
	default:
		p.addHostLocked(made)
	}
}

// fullLocked reports whether trying to grow the tier is useless for now.
func (p *Pool) fullLocked(t *tier) bool { return t.full && t.fullAt == p.broker.turns.Load() }

// growFailedLocked stops a tier from growing until another pool may have become
// able to give something. A tier that is at its size has not failed.
func (p *Pool) growFailedLocked(t *tier, turn uint64, err error) {
	t.full, t.fullAt = true, turn
	if errors.Is(err, storage.ErrFull) {
		p.count.GrowRefused++
		return
	}
	p.count.GrowErrors++
	p.log.Warn("tier does not grow for now", zap.Stringer("tier", t.kind), zap.Int("slots", len(t.slots)), zap.Error(err))
}

func (p *Pool) addHostLocked(made storage.HostPart) {
	p.host.add(part{id: made.ID, recs: made.Slots, host: made.Extent})
	info := extentInfo(&p.host.parts[len(p.host.parts)-1])
	for ch := range p.watchers {
		// Room for every extent there can be; see WatchExtents.
		ch <- info
	}
}

// growDiskLocked adds disk extents until want slots are free or the disk tier
// is at its size; it lets go of the mutex while an extent is made.
func (p *Pool) growDiskLocked(want int) {
	for len(p.disk.free) < want && !p.fullLocked(p.disk) {
		turn, first := p.broker.turns.Load(), len(p.disk.parts) == 0
		p.mu.Unlock()
		made, err := p.broker.growDisk(p, first)
		p.mu.Lock()
		if err != nil {
			p.growFailedLocked(p.disk, turn, err)
			return
		}
		p.disk.add(part{id: made.ID, recs: made.Slots, disk: made.Extent})
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
	infos := make([]ExtentInfo, len(p.host.parts))
	for i := range p.host.parts {
		infos[i] = extentInfo(&p.host.parts[i])
	}
	return infos
}

// WatchExtents delivers the host extents that exist and then each new one as it
// becomes ready. The channel holds every extent that the pool can have until
// stop, so a slow reader delays nobody; extents do not go while somebody watches.
// It is closed by stop, which may be called more than once, or when the manager
// closes.
func (p *Pool) WatchExtents() (ch <-chan ExtentInfo, stop func()) {
	p.mu.Lock()
	defer p.mu.Unlock()
	c := make(chan ExtentInfo, p.watchCap)
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
