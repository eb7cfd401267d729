package blockmgr

import (
	"context"
	"errors"
	"slices"
	"sync/atomic"

	"go.uber.org/zap"

	"github.com/blockyard-ai/blockyard/blockmgr/diskio"
	"github.com/blockyard-ai/blockyard/blockmgr/policy"
	"github.com/blockyard-ai/blockyard/blockmgr/registry"
	"github.com/blockyard-ai/blockyard/blockmgr/settle"
	"github.com/blockyard-ai/blockyard/blockmgr/storage"
	"github.com/blockyard-ai/blockyard/blockmgr/tenant"
	"github.com/blockyard-ai/blockyard/blockmgr/tier"
)

// broker makes the extents that pools ask for. When a tier's size is used up, another pool
// gives a whole extent. policy.Giver chooses the pool: an unused one, longest unused first,
// then the one most over its share. The last extent of a pool in a tier goes only to a pool
// without extents, so that a restarted engine finds blocks of its own.
//
// A pool gives an extent only if all of its slots are idle: one pinned or kept block holds the
// whole extent. With slots of different sizes an extent may be shorter than extentBytes, made
// of the bytes that were left. Pools call the broker without their lock.
type broker struct {
	host *storage.HostArena
	// disk is nil without a disk tier, and until the disk has answered. Then it never
	// changes.
	disk atomic.Pointer[storage.DiskArena]
	// diskAnswered is the manager's. There is no disk tier when it is closed and disk is nil.
	diskAnswered <-chan struct{}
	// health says whether the disk may be used.
	health diskio.Health
	pools  func() []*Pool
	// weights are the shares of models: see Manager.SetWeights.
	weights atomic.Pointer[map[string]uint64]
	// limits are the limits of models, uses what their pools use; see Manager.SetModelLimits.
	limits atomic.Pointer[map[string]Limit]
	uses   modelUses
	log    *zap.Logger
	// tenants are those of Manager.SetTenants.
	tenants *tenant.Table
	// budget is Config.Budget.
	budget diskio.Budget
	// trimmer gives back what is beyond sizes and limits. sharer is the loop around shareTenants.
	trimmer, sharer *settle.Loop
	// closing is closed when the manager closes. It ends the waits for room.
	closing chan struct{}
	// turns counts the events after which a pool may be able to give an extent. It orders
	// pools by their last use, and tells a tier that could not grow when to try again.
	turns atomic.Uint64
}

// growHost makes a host extent of at most maxSlots slots for pool p, 0 for no bound. first says
// that p has no host extent. When the arena is full growHost takes extents from other pools, as
// reclaim allows, and tries again. ErrFull: no pool can give an extent.
func (b *broker) growHost(p *Pool, first bool, maxSlots uint64) (storage.HostExtent, error) {
	least := leastOf(p.growth.host.leastSlots, maxSlots)
	maxSlots, err := b.withinLimit(p, registry.Host, least, maxSlots)
	if err != nil {
		return storage.HostExtent{}, err
	}
	for {
		made, err := b.host.Grow(p.slots.Host.Namespace, p.slotBytes, least, maxSlots)
		if !errors.Is(err, storage.ErrFull) || !b.reclaim(p, registry.Host, first) {
			return made, err
		}
	}
}

// growDisk makes a disk extent for pool p as growHost makes a host extent. The disk has answered.
func (b *broker) growDisk(p *Pool, first bool, maxSlots uint64) (storage.DiskExtent, error) {
	least := leastOf(p.growth.disk.leastSlots, maxSlots)
	maxSlots, err := b.withinLimit(p, registry.Disk, least, maxSlots)
	if err != nil {
		return storage.DiskExtent{}, err
	}
	for {
		made, err := b.disk.Load().Grow(p.slots.Disk.Namespace, p.slotBytes, least, maxSlots)
		if !errors.Is(err, storage.ErrFull) || !b.reclaim(p, registry.Disk, first) {
			return made, err
		}
	}
}

// leastOf returns the fewest slots that a new extent may have: least, or maxSlots if that is
// lower. maxSlots is the number of slots that the namespace may still have; 0 for no bound.
func leastOf(least, maxSlots uint64) uint64 {
	if maxSlots == 0 {
		return least
	}
	return min(least, maxSlots)
}

// drop gives an extent back to its arena. The pool has removed it from its tier.
func (b *broker) drop(gone *tier.Extent) {
	if err := b.overwriteLeaving(gone); err != nil {
		b.log.Error("an extent is removed with bytes of a tenant that could not be overwritten",
			zap.String("path", gone.Path()), zap.Int("slots", len(gone.Erase)), zap.Error(err))
	}
	if gone.Host != nil {
		b.host.Drop(gone.HostExtent())
	} else {
		b.disk.Load().Drop(gone.DiskExtent())
	}
}

// extentBytes returns the size of an extent of a tier in bytes.
func (b *broker) extentBytes(lv registry.Level) uint64 {
	if lv == registry.Host {
		return b.host.ExtentBytes()
	}
	return b.disk.Load().ExtentBytes()
}

// room returns the bytes of a tier's size that no pool uses.
func (b *broker) room(lv registry.Level) uint64 {
	if lv == registry.Host {
		return b.host.Room()
	}
	return b.disk.Load().Room()
}

// leaving counts the extents whose files could not be removed yet.
func (b *broker) leaving() (n int) {
	if b.host != nil {
		n = b.host.Leaving()
	}
	if disk := b.disk.Load(); disk != nil {
		n += disk.Leaving()
	}
	return n
}

// removed counts the extents of earlier agents that could not be taken over.
func (b *broker) removed() (n uint64) {
	if b.host != nil {
		n = b.host.Removed()
	}
	if disk := b.disk.Load(); disk != nil {
		n += disk.Removed()
	}
	return n
}

// reclaim makes another pool give an extent, and reports whether one did. first says that p has
// no extent in the tier. When a pool has no idle extent, reclaim asks the next one. No pool
// gives in vain: the pools that would give must together make room for an extent of p.
func (b *broker) reclaim(p *Pool, lv registry.Level, first bool) bool {
	pools := b.pools()
	taker := slices.Index(pools, p)
	if taker < 0 { // p is being opened
		taker = len(pools)
		pools = append(pools, p)
	}
	holders := make([]policy.Holder, len(pools))
	for i, other := range pools {
		holders[i] = other.holding(lv)
	}
	holders[taker].InUse = true // p may have no session yet
	for {
		i, ok := p.giver(lv, holders, taker, first)
		if !ok {
			return false
		}
		if pools[i].yield(lv) {
			return true
		}
		holders[i].Bytes = 0 // it has no idle extent: ask the next pool
	}
}

// giver returns the index in holders of the pool that should give an extent of the tier first.
// holders describes all pools; p is holders[taker]. Several pools may have to give before the
// room is enough for an extent of p. ok is false when all of them together cannot make the room.
func (p *Pool) giver(lv registry.Level, holders []policy.Holder, taker int, first bool) (giver int, ok bool) {
	// budget is the size of the tier, least the size of the smallest extent of p, in bytes.
	budget, least := p.broker.arena(lv).Bytes(), p.slotBytes*p.growth.host.leastSlots
	if lv == registry.Disk {
		least = p.slotBytes
	}
	plan := slices.Clone(holders) // as if each pool had given
	giver = -1
	for given := uint64(0); given < least; {
		i, ok := policy.Giver(plan, taker, budget, first)
		if !ok {
			return 0, false
		}
		if giver < 0 {
			giver = i
		}
		// The pool may give its smallest extent, which has at least one slot.
		taken := min(plan[i].Extent, plan[i].Bytes)
		plan[i].Bytes -= taken
		given += max(taken, 1)
	}
	return giver, giver >= 0
}

// holding describes the pool for policy.Giver.
func (p *Pool) holding(lv registry.Level) policy.Holder {
	p.mu.Lock()
	defer p.mu.Unlock()
	h := policy.Holder{
		Weight: p.broker.weight(p.ns.Model), InUse: !p.unusedLocked(), Since: p.life.unusedSince, Empty: p.slots.Registry.Blocks() == 0,
	}
	if t := p.slots.Tier(lv); t != nil {
		extent := p.broker.extentBytes(lv)
		h.Extent = max(extent-extent%p.slotBytes, p.slotBytes) // whole slots, at least one
		h.Bytes, h.Last = uint64(t.Capacity)*p.slotBytes, t.Live <= 1
	}
	return h
}

// drain waits for a pool without sessions to finish its operations. It reports whether one has
// finished: that pool may be able to give an extent now.
func (b *broker) drain(ctx context.Context, p *Pool) bool {
	for _, other := range b.pools() {
		if other != p && other.Draining() && other.Quiesce(ctx) == nil {
			return true
		}
	}
	return false
}

// unusedLocked reports whether the pool has no user and no operation, so that its extents may
// go to other pools.
func (p *Pool) unusedLocked() bool {
	return len(p.members.sessions)+len(p.members.previous) == 0 && len(p.growth.watchers) == 0 && p.pending.operations == 0 && !p.life.closing
}

// Draining reports whether the pool has no session but still has operations; see Quiesce.
func (p *Pool) Draining() bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	return len(p.members.sessions) == 0 && p.pending.operations > 0 && !p.life.closing
}

// releasedLocked records the turn at which the pool became unused. It wakes the trimmer: slots may be free now.
func (p *Pool) releasedLocked() {
	p.broker.trimmer.Again()
	if p.unusedLocked() {
		p.life.unusedSince = p.broker.turns.Add(1)
	}
}

// yield gives the coldest idle extent of a tier back to the budget, and reports whether it did.
// Its blocks are evicted.
func (p *Pool) yield(lv registry.Level) bool {
	if lv == registry.Disk {
		// Records that are being written must not overwrite the records of the pool that
		// gets the extent's rows of the table.
		if !p.mover.TryLockRecords() {
			return false
		}
		defer p.mover.UnlockRecords()
	}
	for range yieldTries {
		coldest := p.coldest(lv)
		if coldest == nil {
			return false
		}
		if p.takeOut(lv, coldest) {
			p.log.Info("extent is given back", zap.Stringer("tier", kindOf(lv)), zap.String("path", coldest.Path()))
			p.broker.drop(coldest)
			return true
		}
	}
	return false
}

// yieldTries bounds the tries of yield: the extent that it finds may be used again before yield
// takes it.
const yieldTries = 3

// coldest returns the idle extent of a tier whose blocks were used least recently, nil when
// there is none. It takes the lock once for each extent, so that callers of the pool wait for
// one extent at most.
func (p *Pool) coldest(lv registry.Level) (coldest *tier.Extent) {
	var oldest uint64
	for number := 0; ; number++ {
		e, lastUse, more := p.idleExtent(lv, number)
		if !more {
			return coldest
		}
		if e != nil && (coldest == nil || lastUse < oldest) {
			coldest, oldest = e, lastUse
		}
	}
}

// idleExtent returns the extent with that number in a tier, nil if one of its slots is in use or
// no extent has the number. lastUse is the tick at which one of its blocks was last used. more is
// false behind the last extent.
func (p *Pool) idleExtent(lv registry.Level, number int) (e *tier.Extent, lastUse uint64, more bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	t := p.slots.Tier(lv)
	if t == nil || p.life.closing || number >= len(t.Extents) {
		return nil, 0, false
	}
	if e = t.Extents[number]; e != nil {
		var idle bool
		if lastUse, idle = e.Idle(); idle {
			return e, lastUse, true
		}
	}
	return nil, 0, true
}

// takeOut evicts the blocks of an extent and removes the extent from its tier. It returns false,
// and changes nothing, if the extent is no longer the pool's or one of its slots is in use again.
func (p *Pool) takeOut(lv registry.Level, gone *tier.Extent) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	t := p.slots.Tier(lv)
	if p.life.closing || t.Extents[gone.Number] != gone {
		return false
	}
	if _, idle := gone.Idle(); !idle {
		return false
	}
	p.emptyLocked(t, gone)
	p.count.ExtentsYielded++
	return true
}

// emptyLocked evicts the blocks of an idle extent and removes the extent from its tier. The
// caller gives the extent back to its arena; see broker.drop.
func (p *Pool) emptyLocked(t *tier.Tier, gone *tier.Extent) {
	p.slots.TakeOut(t, gone)
	p.mover.ForgetExtent(t.Level, gone.Number)
	if t.Level == registry.Disk {
		return
	}
	for _, sess := range p.members.sessions {
		sess.pins.forget(gone.Number)
	}
}
