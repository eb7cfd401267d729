package blockmgr

import (
	"errors"
	"sync"
	"time"

	"go.uber.org/zap"

	"github.com/blockyard-ai/blockyard/blockmgr/registry"
	"github.com/blockyard-ai/blockyard/blockmgr/storage"
	"github.com/blockyard-ai/blockyard/blockmgr/tier"
)

// growth is how the tiers get extents, and the demand for host slots, which decides
// how far the host tier grows ahead.
type growth struct {
	host, disk tierGrowth
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
	// maxHostExtents is the most host extents that the pool may have.
	maxHostExtents int
	// makingFirst: the first disk extent is being made. growingDisk: a disk extent is
	// being made; diskGrown wakes those that wait for it.
	makingFirst, growingDisk bool
	diskGrown                *sync.Cond
	// watchers get each new host extent.
	watchers map[chan ExtentInfo]struct{}
}

// tierGrowth is how one tier gets extents.
type tierGrowth struct {
	// leastSlots is how many slots an extent has at least.
	leastSlots uint64
	// failed: no extent could be had at the broker's turn failedAt. Another try is
	// worth it at another turn, or at tryAgain: a pool in use may give then what it
	// could not give before.
	failed   bool
	failedAt uint64
	tryAgain time.Time
	// takes: another pool gave room for the newest extent, and may give more.
	takes bool
}

// of is the growth of a tier.
func (g *growth) of(lv registry.Level) *tierGrowth {
	if lv == registry.Host {
		return &g.host
	}
	return &g.disk
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

// tickLocked begins an operation: the slots' clock goes on. A level of priority is
// worth one turnover: the ticks in which as many blocks come in as the tier may have
// slots.
func (p *Pool) tickLocked() {
	p.slots.Tick()
	for _, t := range p.slots.Tiers() {
		t.SetTurnover(p.sizeLocked(t))
	}
}

// allocLocked takes a slot of a tier, and evicts a block when none is free. A host
// tier that can grow refuses instead. NoRef: it refuses, or every slot is in use.
func (p *Pool) allocLocked(t *tier.Tier) registry.Ref {
	if t.Level == registry.Host {
		p.growth.asked++
	}
	if t.Free() == 0 && p.refusesLocked(t) {
		return registry.NoRef
	}
	return p.slots.Alloc(t)
}

// allocForLocked is allocLocked for block b, of which no ancestor is evicted.
func (p *Pool) allocForLocked(t *tier.Tier, b *Block) registry.Ref {
	if b.Position == 0 || t.Free() > 0 {
		return p.allocLocked(t)
	}
	if p.refusesLocked(t) {
		return registry.NoRef
	}
	if t.Level == registry.Host {
		p.growth.asked++
	}
	return p.slots.AllocFor(t, b)
}

// refusesLocked reports whether a tier without a free slot refuses a block, because
// the tier can grow, and counts the demand.
func (p *Pool) refusesLocked(t *tier.Tier) bool {
	if t.Level != registry.Host || !p.hostGrowsLocked() {
		return false
	}
	p.growth.refused++
	return true
}

// wakeGrowerLocked asks for another host extent when the free slots run short.
func (p *Pool) wakeGrowerLocked() {
	if p.hostWantsLocked() {
		select {
		case p.growth.wakeup <- struct{}{}:
			p.pending.operations++ // until the grower has tried
		default:
		}
	}
}

const (
	// maxAhead bounds what the grower keeps free, in multiples of the slots that there
	// are: blocks that are refused and offered again count each time.
	maxAhead = 4
	// headroomShare is the part of the host tier, one in so many, that the grower keeps
	// free without any demand, for the first prompts of an engine that starts.
	headroomShare = 32
)

// hostWantsLocked reports whether the host tier should have another extent: less than
// half an extent is free; or a block was refused because the tier grows; or less is free
// than an extent, the headroom or the demand, while the tier has room that no pool uses.
func (p *Pool) hostWantsLocked() bool {
	t := p.slots.Host
	if p.life.closing || p.growthFailedLocked(t) || t.AtBound() || t.Live >= p.growth.maxHostExtents {
		return false
	}
	if t.Live == 0 {
		return true
	}
	extent := t.Capacity / t.Live
	if t.Free() < extent/2+1 || p.growth.refused > 0 {
		return true
	}
	ahead := max(extent, p.sizeLocked(t)/headroomShare, p.growth.ahead)
	return t.Free() < ahead && p.hostRoomLocked()
}

// sizeLocked is how many slots a tier would have with all the room that no other pool
// uses.
func (p *Pool) sizeLocked(t *tier.Tier) int {
	size := uint64(t.Capacity) + p.broker.room(t.Level)/p.slotBytes
	if t.MaxSlots != 0 {
		size = min(size, t.MaxSlots)
	}
	return int(min(size, MaxBlocks))
}

// hostRoomLocked reports whether the host tier has room for an extent that no pool
// uses.
func (p *Pool) hostRoomLocked() bool {
	return p.broker.host.Room() >= leastOf(p.growth.host.leastSlots, p.slots.Host.Room())*p.slotBytes
}

// hostGrowsLocked reports whether the host tier is about to get another extent. Until
// then a block without a free slot is refused, and no block is evicted for it. A tier
// that could not grow the last time does not count, although the grower tries again.
func (p *Pool) hostGrowsLocked() bool {
	t, g := p.slots.Host, &p.growth.host
	if p.life.closing || g.failed || t.AtBound() || t.Live >= p.growth.maxHostExtents {
		return false
	}
	return t.Live == 0 || g.takes || p.hostRoomLocked()
}

// growLoop makes host extents in the background, because populating one takes longer
// than an engine may wait.
func (p *Pool) growLoop() {
	for {
		select {
		case <-p.growth.wakeup:
		case <-p.life.stop:
			return
		}
		for {
			plan, ok := p.planHostGrowth()
			if !ok {
				break
			}
			p.growHost(plan)
		}
	}
}

// growthPlan says which extent to make.
type growthPlan struct {
	// turn is the broker's at which the plan was made.
	turn uint64
	// first: the tier has no extent yet. takes: another pool must give room.
	first, takes bool
	// maxSlots is the most slots that the extent may have; 0 is no bound.
	maxSlots uint64
}

// planHostGrowth returns the next host extent to make. ok is false when none is
// wanted: then the grower's operation is over.
func (p *Pool) planHostGrowth() (plan growthPlan, ok bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if !p.hostWantsLocked() {
		p.growth.wake()
		p.doneLocked(1)
		return growthPlan{}, false
	}
	return p.planHostExtentLocked(), true
}

func (p *Pool) planHostExtentLocked() growthPlan {
	p.growth.begin()
	t := p.slots.Host
	return growthPlan{turn: p.broker.turns.Load(), first: t.Live == 0, takes: !p.hostRoomLocked(), maxSlots: t.Room()}
}

// growHost makes a host extent. The caller has planned it.
func (p *Pool) growHost(plan growthPlan) {
	made, err := p.broker.growHost(p, plan.first, plan.maxSlots)
	if p.addHostExtent(plan, made, err) {
		p.broker.host.Drop(made)
		p.endHostGrowth() // now, that the extent's budget is free again
	}
}

// addHostExtent ends the making of a host extent. surplus: somebody else has grown the
// pool meanwhile, and the extent has no place. The caller drops it and calls
// endHostGrowth.
func (p *Pool) addHostExtent(plan growthPlan, made storage.HostExtent, err error) (surplus bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	t := p.slots.Host
	if err == nil && (t.Live >= p.growth.maxHostExtents || !t.Fits(made.Slots.Slots())) {
		return true
	}
	defer func() { p.growth.end(maxAhead * t.Capacity) }()
	if err != nil {
		p.growFailedLocked(t, plan.turn, err)
		return false
	}
	p.growth.host.failed, p.growth.host.takes = false, plan.takes
	added := &tier.Extent{ID: made.ID, Records: made.Slots, Host: made.Extent}
	t.Add(added)
	p.notifyWatchersLocked(extentInfo(added))
	return false
}

func (p *Pool) endHostGrowth() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.growth.end(maxAhead * p.slots.Host.Capacity)
}

// growthFailedLocked reports whether trying to grow the tier is useless for now.
func (p *Pool) growthFailedLocked(t *tier.Tier) bool {
	g := p.growth.of(t.Level)
	return g.failed && g.failedAt == p.broker.turns.Load() && time.Now().Before(g.tryAgain)
}

// growRetry is how long a tier that could not grow does not try again.
const growRetry = time.Second

// growFailedLocked stops a tier from growing until another pool may have become
// able to give something. A tier that is at its size has not failed.
func (p *Pool) growFailedLocked(t *tier.Tier, turn uint64, err error) {
	g := p.growth.of(t.Level)
	g.failed, g.takes, g.failedAt, g.tryAgain = true, false, turn, time.Now().Add(growRetry)
	if errors.Is(err, storage.ErrFull) {
		p.count.GrowRefused++
		return
	}
	p.count.GrowErrors++
	p.log.Warn("tier does not grow for now", zap.Stringer("tier", t.Kind), zap.Int("slots", t.Capacity), zap.Error(err))
}
