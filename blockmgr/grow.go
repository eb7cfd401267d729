package blockmgr

import (
	"errors"
	"time"

	"go.uber.org/zap"

	"github.com/blockyard-ai/blockyard/blockmgr/storage"
)

// growth is how the tiers get extents, and the demand for host slots, which decides
// how far the host tier grows ahead.
type growth struct {
	// asked counts the host slots asked for since the newest extent was begun, refused
	// those refused since the last try to make one ended.
	asked, refused int
	// ahead is how many slots the grower keeps free, as long as the tier has room that
	// no pool uses.
	ahead int
	// ended is what wait returned; nil when nobody waits.
	ended chan struct{}
	// wakeup wakes the grower. It needs no lock.
	wakeup chan struct{}
	// maxHostExtents is the most host extents that the pool may have. leastHostSlots and
	// leastDiskSlots are how many slots an extent has at least.
	maxHostExtents                 int
	leastHostSlots, leastDiskSlots uint64
	// diskJoining: the disk has yet to hand out extents of an earlier agent, and no block
	// is offered to it before. makingFirst: the first disk extent is being made.
	// growingDisk: a disk extent is being made.
	diskJoining, makingFirst, growingDisk bool
	// watchers are told of each new host extent.
	watchers map[chan ExtentInfo]struct{}
}

// begin starts to count what is asked for while an extent is made.
func (g *growth) begin() { g.asked = 0 }

// end sets ahead to what was asked for while an extent was made and what was refused
// before. Without demand ahead falls by a quarter each time. At most limit slots.
func (g *growth) end(limit int) {
	g.ahead = min(max(g.asked+g.refused, g.ahead-g.ahead/4), limit)
	g.refused = 0
	g.wake()
}

// wake ends the wait of everybody in wait.
func (g *growth) wake() {
	if g.ended != nil {
		close(g.ended)
		g.ended = nil
	}
}

// wait returns a channel that is closed when the next try to make an extent ends, or
// when none is needed any more.
func (g *growth) wait() <-chan struct{} {
	if g.ended == nil {
		g.ended = make(chan struct{})
	}
	return g.ended
}

// wakeGrowerLocked asks for another host extent when the free slots run short.
func (p *Pool) wakeGrowerLocked() {
	if p.hostWantsLocked() {
		select {
		case p.growth.wakeup <- struct{}{}:
			p.pending.operations++
		default:
		}
	}
}

// hostWantsLocked reports whether the host tier should have another extent: less than
// half an extent is free; or a block was refused because the tier grows; or less is free
// than an extent, the headroom or the demand, while the tier has room that no pool uses.
func (p *Pool) hostWantsLocked() bool {
	t := p.host
	if p.life.closing || p.fullLocked(t) || t.atBound() || t.live >= p.growth.maxHostExtents {
		return false
	}
	if t.live == 0 {
		return true
	}
	extent := t.capacity / t.live
	if t.free() < extent/2+1 || p.growth.refused > 0 {
		return true
	}
	ahead := max(extent, p.sizeLocked(t)/headroomShare, p.growth.ahead)
	return t.free() < ahead && p.hostRoomLocked()
}

// maxAhead bounds what the grower keeps free, in multiples of the slots that there are:
// blocks that are refused and offered again count each time.
const maxAhead = 4

// headroomShare is the part of the host tier, one in so many, that the grower keeps
// free without any demand, for the first prompts of an engine that starts.
const headroomShare = 32

// sizeLocked is how many slots a tier would have with all the room that no other pool
// uses.
func (p *Pool) sizeLocked(t *tier) int {
	size := uint64(t.capacity) + p.broker.room(t.level)/p.slotBytes
	if t.maxSlots != 0 {
		size = min(size, t.maxSlots)
	}
	return int(min(size, MaxBlocks))
}

// hostRoomLocked reports whether the host tier has room for an extent that no pool
// uses.
func (p *Pool) hostRoomLocked() bool {
	return p.broker.host.Room() >= leastOf(p.growth.leastHostSlots, p.host.room())*p.slotBytes
}

// hostGrowsLocked reports whether the host tier is about to get another extent: then
// a block without a free slot is refused, and no block is evicted for it. A tier that
// could not grow the last time does not count, although the grower tries again.
func (p *Pool) hostGrowsLocked() bool {
	t := p.host
	if p.life.closing || t.full || t.atBound() || t.live >= p.growth.maxHostExtents {
		return false
	}
	return t.live == 0 || t.takes || p.hostRoomLocked()
}

// growLoop makes host extents in the background, since populating one takes
// longer than an engine may wait.
func (p *Pool) growLoop() {
	for {
		select {
		case <-p.growth.wakeup:
		case <-p.life.stop:
			return
		}
		p.mu.Lock()
		for p.hostWantsLocked() {
			p.growHostLocked()
		}
		p.growth.wake()
		p.doneLocked(1)
		p.mu.Unlock()
	}
}

// growHostLocked adds one host extent; it lets go of the mutex while the extent
// is made.
func (p *Pool) growHostLocked() {
	turn, first, room := p.broker.turns.Load(), p.host.live == 0, p.host.room()
	takes := !p.hostRoomLocked()
	p.growth.begin()
	p.mu.Unlock()
	made, err := p.broker.growHost(p, first, room)
	p.mu.Lock()
	defer func() { p.growth.end(maxAhead * p.host.capacity) }()
	switch {
	case err != nil:
		p.growFailedLocked(p.host, turn, err)
	case p.host.live >= p.growth.maxHostExtents || !p.host.fits(made.Slots.Slots()):
		// Somebody else grew the pool meanwhile.
		p.mu.Unlock()
		p.broker.host.Drop(made)
		p.mu.Lock()
	default:
		p.host.full, p.host.takes = false, takes
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
	t.full, t.takes, t.fullAt, t.tryAgain = true, false, turn, time.Now().Add(growRetry)
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
	for ch := range p.growth.watchers {
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
	for p.growth.growingDisk {
		p.writes.work.Wait()
	}
	p.growth.growingDisk = true
	defer func() {
		p.growth.growingDisk = false
		p.writes.work.Broadcast()
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
				p.broker.writeFailed(err)
			}
			p.growFailedLocked(p.disk, turn, err)
			return
		}
		p.broker.breaker.Succeeded() // not for writes: blocks may still fail
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
	c := make(chan ExtentInfo, p.growth.maxHostExtents) // never less than what exists
	for _, info := range p.extentsLocked() {
		c <- info
	}
	if p.life.closing {
		close(c)
		return c, func() {}
	}
	p.growth.watchers[c] = struct{}{}
	return c, func() {
		p.mu.Lock()
		defer p.mu.Unlock()
		p.unwatchLocked(c)
	}
}

func (p *Pool) unwatchLocked(c chan ExtentInfo) {
	if _, ok := p.growth.watchers[c]; ok {
		delete(p.growth.watchers, c)
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
