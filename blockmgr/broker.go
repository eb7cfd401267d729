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
	"github.com/blockyard-ai/blockyard/blockmgr/storage"
	"github.com/blockyard-ai/blockyard/blockmgr/tier"
)

// broker makes the extents that pools ask for. When a tier's size is used up,
// extents change hands whole, as policy.Giver decides: from pools that nobody
// uses, the one unused longest first, then from the one most over its share. The
// last extent of a tier goes only to a pool that has none: an engine that is
// merely restarting finds something of its own. An extent that somebody has a
// slot of is nobody's to give: a single block that is pinned or kept for long holds
// all of it. Where namespaces have slots of different sizes, an extent that was made
// of what was left is short, and stays so until it is given: what they have
// together is within the size, though in more and smaller files. Pools call it
// without their mutex.
type broker struct {
	host *storage.HostArena
	// disk is nil without a disk tier, and until the disk has let it be opened. Once
	// it is there it stays.
	disk atomic.Pointer[storage.DiskArena]
	// diskAnswered is the manager's: without disk when it is closed there is none.
	diskAnswered <-chan struct{}
	// health says whether the disk may be used.
	health diskio.Health
	pools  func() []*Pool
	// closing is closed when the manager closes: nobody waits for room any more.
	closing chan struct{}
	// turns counts the moments at which somebody may have become able to give: it
	// orders pools by their last use and ends a full tier's wait.
	turns atomic.Uint64
}

func (b *broker) growHost(p *Pool, first bool, maxSlots uint64) (storage.HostPart, error) {
	least := leastOf(p.growth.host.leastSlots, maxSlots)
	for {
		made, err := b.host.Grow(p.slots.Host.Namespace, p.slotBytes, least, maxSlots)
		if !errors.Is(err, storage.ErrFull) || !b.reclaim(p, registry.Host, first) {
			return made, err
		}
	}
}

func (b *broker) growDisk(p *Pool, first bool, maxSlots uint64) (storage.DiskPart, error) {
	least := leastOf(p.growth.disk.leastSlots, maxSlots)
	for {
		made, err := b.disk.Load().Grow(p.slots.Disk.Namespace, p.slotBytes, least, maxSlots)
		if !errors.Is(err, storage.ErrFull) || !b.reclaim(p, registry.Disk, first) {
			return made, err
		}
	}
}

// leastOf is the fewest slots that a new extent may have: the last one of a
// namespace has what is left of its number of blocks, 0 for no bound.
func leastOf(least, maxSlots uint64) uint64 {
	if maxSlots == 0 {
		return least
	}
	return min(least, maxSlots)
}

// drop gives an extent that a pool has taken out back to its arena.
func (b *broker) drop(gone *tier.Extent) {
	if gone.Host != nil {
		b.host.Drop(gone.HostPart())
	} else {
		b.disk.Load().Drop(gone.DiskPart())
	}
}

// extentBytes is what the slots of an extent of a tier take.
func (b *broker) extentBytes(lv registry.Level) uint64 {
	if lv == registry.Host {
		return b.host.ExtentBytes()
	}
	return b.disk.Load().ExtentBytes()
}

// room is how many bytes of a tier's size no pool has.
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

// reclaim makes some other pool give one extent up and reports whether one did;
// first says that p wants its first in the tier. A pool that turns out to have
// none to spare is left out, and the next one is asked. Nobody gives in vain: what
// all who would give have together must make room for the least that p needs.
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
	holders[taker].InUse = true
	for {
		i, ok := p.giver(lv, holders, taker, first)
		if !ok {
			return false
		}
		if pools[i].yield(lv) {
			return true
		}
		holders[i].Bytes = 0
	}
}

// giver is the first of the pools that have to give an extent, so that p gets
// one; ok is false when they would not suffice.
func (p *Pool) giver(lv registry.Level, holders []policy.Holder, taker int, first bool) (giver int, ok bool) {
	budget, least := p.cfg.HostBytes, p.slotBytes*p.growth.host.leastSlots
	if lv == registry.Disk {
		budget, least = p.cfg.DiskBytes, p.slotBytes
	}
	plan := slices.Clone(holders)
	giver = -1
	for given := uint64(0); given < least; {
		i, ok := policy.Giver(plan, taker, budget, first)
		if !ok {
			return 0, false
		}
		if giver < 0 {
			giver = i
		}
		// What a pool gives may be its smallest extent; a slot is the least.
		taken := min(plan[i].Extent, plan[i].Bytes)
		plan[i].Bytes -= taken
		given += max(taken, 1)
	}
	return giver, giver >= 0
}

// holding is what the pool has of a tier, as policy.Giver wants to know it.
func (p *Pool) holding(lv registry.Level) policy.Holder {
	p.mu.Lock()
	defer p.mu.Unlock()
	h := policy.Holder{
		Weight: p.cfg.weight(p.ns.Model), InUse: !p.unusedLocked(), Since: p.life.unusedSince, Empty: p.slots.Registry.Blocks() == 0,
	}
	if t := p.slots.Tier(lv); t != nil {
		extent := p.broker.extentBytes(lv)
		h.Extent = max(extent-extent%p.slotBytes, p.slotBytes)
		h.Bytes, h.Last = uint64(t.Capacity)*p.slotBytes, t.Live <= 1
	}
	return h
}

// drain waits for a pool without sessions that is still busy with its last
// blocks, and reports whether one has finished: it may give something now.
func (b *broker) drain(ctx context.Context, p *Pool) bool {
	for _, other := range b.pools() {
		if other != p && other.draining() && other.Quiesce(ctx) == nil {
			return true
		}
	}
	return false
}

// unusedLocked reports whether nobody uses the pool and nothing is under way
// in it, so that its extents may go.
func (p *Pool) unusedLocked() bool {
	return len(p.members.sessions)+len(p.members.previous) == 0 && len(p.growth.watchers) == 0 && p.pending.operations == 0 && !p.life.closing
}

func (p *Pool) draining() bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	return len(p.members.sessions) == 0 && p.pending.operations > 0 && !p.life.closing
}

// releasedLocked takes note of it when the pool has become unused.
func (p *Pool) releasedLocked() {
	if p.unusedLocked() {
		p.life.unusedSince = p.broker.turns.Add(1)
	}
}

// yield gives one extent of one tier back to the budget: of those that nobody
// holds a slot of, the one whose blocks were used least recently. Its blocks are
// evicted; the pool goes on with what is left. It reports whether there was one.
func (p *Pool) yield(lv registry.Level) bool {
	if lv == registry.Disk {
		// Records that are being written must not come after those of whoever gets the
		// extent's place in the table.
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
			p.log.Info("extent goes to another namespace", zap.String("path", coldest.Path()))
			p.broker.drop(coldest)
			return true
		}
	}
	return false
}

// yieldTries is how often yield looks for an extent when the one that it found is
// used again before it can take it.
const yieldTries = 3

// coldest is the idle extent of a tier whose blocks were used least recently, nil
// when there is none. It lets go of the mutex between extents, so that nobody waits
// for more than one of them.
func (p *Pool) coldest(lv registry.Level) (coldest *tier.Extent) {
	var oldest uint64
	for n := 0; ; n++ {
		p.mu.Lock()
		t := p.slots.Tier(lv)
		if t == nil || p.life.closing || n >= len(t.Extents) {
			p.mu.Unlock()
			return coldest
		}
		if e := t.Extents[n]; e != nil {
			if lastUse, idle := e.Idle(); idle && (coldest == nil || lastUse < oldest) {
				coldest, oldest = e, lastUse
			}
		}
		p.mu.Unlock()
	}
}

// takeOut empties an extent and takes it out, if it is still there and idle.
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

// emptyLocked evicts the blocks of an extent and takes it out.
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
