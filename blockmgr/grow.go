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

// growth is the state of growing the tiers, and the demand for host slots. The demand decides
// how far the host tier grows ahead.
type growth struct {
	host, disk tierGrowth
	// asked counts the host slots asked for since the newest extent was begun. refused
	// counts the refused ones since the last try to make an extent ended.
	asked, refused int
	// ahead is the number of slots that the grower keeps free while the tier has unused room.
	ahead int
	// ended is the channel that wait returned; nil without a waiter.
	ended chan struct{}
	// wakeup wakes the grower. It needs no lock.
	wakeup chan struct{}
	// maxHostExtents is the most host extents that the pool may have.
	maxHostExtents int
	// makingFirst: the first disk extent is being made. growingDisk: a disk extent is being
	// made; diskGrown wakes the goroutines that wait for it.
	makingFirst, growingDisk bool
	diskGrown                *sync.Cond
	// watchers get each new host extent.
	watchers map[chan ExtentInfo]struct{}
}

// tierGrowth is the state of growing one tier.
type tierGrowth struct {
	// leastSlots is the fewest slots of an extent.
	leastSlots uint64
	// failed: no extent could be made at the broker's turn failedAt. The next try is at
	// another turn or at the time tryAgain: a pool in use may have become able to give.
	failed   bool
	failedAt uint64
	tryAgain time.Time
	// takes: another pool gave room for the newest extent, and may give more room.
	takes bool
}

// of returns the growth of a tier.
func (g *growth) of(lv registry.Level) *tierGrowth {
	if lv == registry.Host {
		return &g.host
	}
	return &g.disk
}

// begin starts to count the slots that are asked for while an extent is made, until end.
func (g *growth) begin() { g.asked = 0 }

// end ends the try to make an extent and wakes the lookups that wait for it. It sets ahead to the
// slots asked for during the try and refused before, at most limit, but lowers it by a quarter at most.
func (g *growth) end(limit int) {
	g.ahead = min(max(g.asked+g.refused, g.ahead-g.ahead/4), limit)
	g.refused = 0
	g.wake()
}

// wake closes the channel that wait has returned.
func (g *growth) wake() {
	if g.ended != nil {
		close(g.ended)
		g.ended = nil
	}
}

// wait returns a channel that is closed when the current or next try to make a host extent ends,
// or when no extent is needed any more.
func (g *growth) wait() <-chan struct{} {
	if g.ended == nil {
		g.ended = make(chan struct{})
	}
	return g.ended
}

// tickLocked begins a call of the pool: it advances the clock by which blocks age. A level of
// priority counts as much in evictions as the ticks in which the tier is filled anew.
func (p *Pool) tickLocked() {
	p.slots.Tick()
	for _, t := range p.slots.Tiers() {
		t.SetTurnover(p.sizeLocked(t))
	}
}

// allocLocked takes a slot of a tier, and evicts a block when none is free. It returns NoRef
// when every slot is in use, or when the host tier has no free slot and can grow.
func (p *Pool) allocLocked(t *tier.Tier) registry.Ref {
	if t.Level == registry.Host {
		p.growth.asked++
	}
	if t.Free() == 0 && p.refusesLocked(t) {
		return registry.NoRef
	}
	return p.slots.Alloc(t)
}

// allocForLocked takes a slot of a tier for block b, or returns NoRef. When no slot is free it evicts
// a block, but no ancestor of b, because a lookup finds b only behind its ancestors.
func (p *Pool) allocForLocked(t *tier.Tier, b *Block) registry.Ref {
	if _, ok := p.slots.ParentKey(b); !ok || t.Free() > 0 {
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

// refusesLocked reports whether a tier refuses a block because it has no free slot and can
// grow. It counts the demand.
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
			p.pending.operations++ // planHostGrowth ends it
		default: // the grower has a wake-up to handle
		}
	}
}

const (
	// maxAhead bounds growth.ahead, in multiples of the tier's slots. The demand may be
	// higher, because blocks that are refused and offered again count each time.
	maxAhead = 4
	// One in headroomShare slots of the host tier stays free without any demand, for the
	// first prompts of a starting engine.
	headroomShare = 32
)

// hostWantsLocked reports whether the host tier should have another extent. It should when less
// than half an extent is free, or a block was refused because the tier can grow. While the tier
// has unused room it should also when less than an extent, the headroom or the demand is free.
func (p *Pool) hostWantsLocked() bool {
	t := p.slots.Host
	if p.life.closing || p.growthFailedLocked(t) || t.AtBound() || t.Live >= p.growth.maxHostExtents {
		return false
	}
	if t.Live == 0 {
		return true
	}
	extent := t.Capacity / t.Live // the mean number of slots
	if t.Free() < extent/2+1 || p.growth.refused > 0 {
		return true
	}
	ahead := max(extent, p.sizeLocked(t)/headroomShare, p.growth.ahead)
	return t.Free() < ahead && p.hostRoomLocked()
}

// sizeLocked returns the slots that the tier has and the slots that fit into its unused room.
func (p *Pool) sizeLocked(t *tier.Tier) int {
	size := uint64(t.Capacity) + p.room(t.Level)/p.slotBytes
	if t.MaxSlots != 0 {
		size = min(size, t.MaxSlots)
	}
	return int(min(size, MaxBlocks))
}

// hostRoomLocked reports whether the unused room of the host tier is enough for the smallest
// extent of this pool. Otherwise another pool must give an extent.
func (p *Pool) hostRoomLocked() bool {
	return p.room(registry.Host) >= leastOf(p.growth.host.leastSlots, p.slots.Host.Room())*p.slotBytes
}

// hostGrowsLocked reports whether the host tier is about to get another extent. Until then a
// block without a free slot is refused, and evicts no block. hostGrowsLocked is false after a
// failed try, although the grower tries again.
func (p *Pool) hostGrowsLocked() bool {
	t, g := p.slots.Host, &p.growth.host
	if p.life.closing || g.failed || t.AtBound() || t.Live >= p.growth.maxHostExtents {
		return false
	}
	return t.Live == 0 || g.takes || p.hostRoomLocked()
}

// growLoop makes host extents in the background, because populating one takes longer than an engine may wait.
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
	// turn is the broker's turn when the plan was made.
	turn uint64
	// first: the tier has no extent yet. takes: another pool must give room.
	first, takes bool
	// maxSlots bounds the slots of the extent; 0 for no bound.
	maxSlots uint64
}

// planHostGrowth returns the plan of the next host extent. ok is false when none is wanted: then
// it ends the grower's operation.
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

// growHost makes the host extent of a plan, adds it to the tier and ends the try. Without room it
// records the failed try; see growFailedLocked. The caller does not hold the lock.
func (p *Pool) growHost(plan growthPlan) {
	made, err := p.broker.growHost(p, plan.first, plan.maxSlots)
	if surplus := p.addHostExtent(plan, made, err); surplus {
		p.broker.host.Drop(made)
		p.endHostGrowth() // after Drop, which frees the extent's budget
	}
}

// addHostExtent adds the extent that growHost has made, or records err as a failed try, and ends
// the try. surplus says that the pool cannot have the extent, because the pool has grown in the
// meantime. Then the caller drops the extent and calls endHostGrowth.
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
	p.trimOverLimitLocked(t)
	p.notifyWatchersLocked(extentInfo(added))
	return false
}

// trimOverLimitLocked gives extents back if the model is over its limit: two of its pools may have grown at once.
func (p *Pool) trimOverLimitLocked(t *tier.Tier) {
	bound := (*p.broker.limits.Load())[p.ns.Model].Of(kindOf(t.Level))
	if bound != 0 && p.use.bytes[t.Level].Bytes() > bound {
		p.broker.trim()
	}
}

func (p *Pool) endHostGrowth() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.growth.end(maxAhead * p.slots.Host.Capacity)
}

// growthFailedLocked reports whether another try to grow the tier must wait.
func (p *Pool) growthFailedLocked(t *tier.Tier) bool {
	g := p.growth.of(t.Level)
	return g.failed && g.failedAt == p.broker.turns.Load() && time.Now().Before(g.tryAgain)
}

// growRetry is the pause after a failed try to grow a tier.
const growRetry = time.Second

// growFailedLocked records a failed try to grow a tier, begun at turn of broker.turns. The next try
// waits for another turn, which may bring room, or for growRetry. A full tier is not logged.
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
