package blockmgr

import (
	"context"
	"fmt"
	"sync"
	"time"

	"go.uber.org/zap"

	"github.com/blockyard-ai/blockyard/blockmgr/registry"
	"github.com/blockyard-ai/blockyard/blockmgr/storage"
	"github.com/blockyard-ai/blockyard/internal/kv"
)

// Pool is the host and disk blocks of one namespace, shared by all its
// sessions. Its methods are safe for concurrent use.
type Pool struct {
	cfg        *Config
	ns         kv.Namespace
	id         kv.NamespaceID
	blockBytes uint64
	slotBytes  uint64
	log        *zap.Logger
	broker     *broker
	// workers are the pool's goroutines, transfers those of them that may be stuck
	// in an operation on the disk; stop ends all of them.
	workers, transfers sync.WaitGroup
	stop               chan struct{}
	// growWake says that the host tier may need another extent.
	growWake chan struct{}

	// readSlots and writeSlots have a place for each block that may be read or
	// written at a time.
	readSlots, writeSlots chan struct{}
	// flushing is held while records are written to disk; it is taken before mu.
	flushing sync.Mutex

	mu sync.Mutex
	// closing: callers are refused, the workers still run. closed: the memory is
	// gone.
	closing, closed bool
	reg             *registry.Registry
	// host is nil when the manager is off, disk when it has no disk tier. A tier
	// without extents is one that found no room.
	host, disk *tier
	clock      uint64
	sessions   map[SessionID]*session
	// formers are the sessions of an earlier agent that still hold slots here, and
	// forgetFormer is Manager.Forget. orphans are slots whose records were torn by
	// its death, free once all formers are gone and so are the heirs: sessions that
	// resumed a former one while there were orphans.
	formers      map[SessionID]*former
	forgetFormer func(SessionID)
	orphans      []registry.Ref
	heirs        map[SessionID]struct{}
	flights      map[registry.Ref]*flight
	sealing      refQueue
	writing      writeQueue
	reading      refQueue
	// scrubCheck is closed when the check that the scrubber is in ends, nil when it
	// is in none; it begins none while scrubPaused is not 0.
	scrubCheck  chan struct{}
	scrubPaused int
	// prefetching counts the flights that Prefetch began.
	prefetching int
	// flushWanted has the write-behind write the disk tier's records; it is counted
	// in busy.
	flushWanted bool
	// growingDisk: a disk extent is being made.
	growingDisk bool
	// stuckReads counts reads that were given up and have not returned.
	stuckReads int
	// missed are slots that found the write-behind full. They are not held: what
	// is evicted meanwhile is not offered again.
	missed refQueue
	// The conditions are for the workers of each queue; they use mu.
	sealWork, writeWork, readWork *sync.Cond
	// busy counts what Quiesce waits for: everything queued or in work.
	busy int
	// quiet are the channels of those who wait in Quiesce.
	quiet map[chan struct{}]struct{}
	// kept are the retention pins and when they end, keptIn how many each tier has.
	kept   map[keptSlot]time.Time
	keptIn [registry.NumLevels]int
	// keepTimer goes off at keepUntil, when the first of them may end; nil when none
	// is kept.
	keepTimer *time.Timer
	keepUntil time.Time
	watchers  map[chan ExtentInfo]struct{}
	// heldBuf is room for Grant.
	heldBuf []registry.Ref
	// watchCap is the most host extents that the pool may have at once, and
	// hostSlots how many slots one has at least.
	watchCap  int
	hostSlots uint64
	// joining: the disk has yet to hand out extents of an earlier agent, and nothing
	// is offered to it before. makingRoom: somebody makes the first disk extent.
	joining, makingRoom bool
	// diskSlots is how many slots a disk extent has at least.
	diskSlots uint64
	// unusedSince is the broker's turn at which the pool was used last.
	unusedSince uint64
	count       Stats
}

// session is what one session holds in the pool.
type session struct {
	// pins counts how often the session has pinned each host slot, and bit marks
	// them in the pin words, which outlive the agent.
	pins pinCounts
	bit  uint64
	// pinned is the sum of pins and of what running lookups may yet pin.
	pinned  int
	granted map[registry.Ref]struct{}
	// late are those of the granted slots whose block somebody else had stored
	// before the session resumed.
	late map[registry.Ref]struct{}
}

// Namespace is what the pool's blocks have in common.
func (p *Pool) Namespace() kv.Namespace { return p.ns }

// NamespaceID is the namespace's fingerprint.
func (p *Pool) NamespaceID() kv.NamespaceID { return p.id }

// BlockBytes is the size of one block's bytes.
func (p *Pool) BlockBytes() uint64 { return p.blockBytes }

// SlotBytes is the distance between two slots: BlockBytes rounded up to a page.
func (p *Pool) SlotBytes() uint64 { return p.slotBytes }

// Configured reports whether the agent has a tier for blocks at all. Where it
// has none the pool never holds anything.
func (p *Pool) Configured() bool { return p.host != nil }

// Enabled reports whether the pool can hold anything now. It cannot when no
// tier is configured or when other pools, all in use, have all of the room.
func (p *Pool) Enabled() bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.host == nil || p.host.capacity == 0 {
		return false
	}
	return !p.cfg.BypassesHost() || p.disk != nil && p.disk.capacity > 0
}

// Stats is a snapshot of the pool's gauges and counters.
func (p *Pool) Stats() Stats {
	p.mu.Lock()
	defer p.mu.Unlock()
	st := p.count
	st.Host, st.Disk = p.host.stats(), p.disk.stats()
	st.Sessions, st.FormerSessions = len(p.sessions), len(p.formers)
	st.Blocks = p.reg.Blocks()
	for _, s := range p.sessions {
		st.Pins += s.pinned
	}
	st.DiskOpen, st.DiskTrips = p.broker.breaker.state()
	st.DiskJoining, st.ExtentsLeaving, st.ExtentsRemoved = p.joining, p.broker.leaving(), p.broker.removed()
	st.SealQueue, st.WriteQueue, st.PromoteQueue = p.sealing.len(), p.writing.len(), len(p.flights)
	return st
}

// Quiesce waits until nothing is being sealed, written to disk, promoted or
// grown. It returns at once when that is so, even with a context that is done.
func (p *Pool) Quiesce(ctx context.Context) error {
	for {
		p.mu.Lock()
		if p.busy == 0 || p.closed {
			p.mu.Unlock()
			return nil
		}
		ch := make(chan struct{})
		p.quiet[ch] = struct{}{}
		p.mu.Unlock()
		select {
		case <-ch:
		case <-ctx.Done():
			p.mu.Lock()
			delete(p.quiet, ch)
			busy := p.busy
			p.mu.Unlock()
			return fmt.Errorf("%d operations of pool %s are not done: %w", busy, p.id, ctx.Err())
		}
	}
}

// Idle reports whether Quiesce would return at once. It waits for nothing.
func (p *Pool) Idle() bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.busy == 0 || p.closed
}

// doneLocked ends n operations that were counted in busy.
func (p *Pool) doneLocked(n int) {
	p.busy -= n
	if p.busy == 0 {
		p.wakeQuietLocked()
		p.releasedLocked()
	}
}

func (p *Pool) wakeQuietLocked() {
	for ch := range p.quiet {
		close(ch)
	}
	clear(p.quiet)
}

// tickLocked begins an operation: the next moment of the pool's clock.
func (p *Pool) tickLocked() { p.clock++ }

// settleLocked is tier.settle with the children that the registry counts.
func (p *Pool) settleLocked(t *tier, ref registry.Ref, s *slot) {
	leaf := s.entry != registry.None && p.reg.At(s.entry).Kids[t.level] == 0
	t.settle(ref, s, leaf)
}

// settleEntryLocked settles the slot that an entry has in tier t, if any.
func (p *Pool) settleEntryLocked(t *tier, id registry.ID) {
	if id == registry.None {
		return
	}
	if ref := p.reg.At(id).Slots[t.level]; ref != registry.NoRef {
		p.settleLocked(t, ref, t.slot(ref))
	}
}

func (p *Pool) holdLocked(t *tier, ref registry.Ref) {
	s := t.slot(ref)
	s.holds++
	p.settleLocked(t, ref, s)
}

func (p *Pool) releaseLocked(t *tier, ref registry.Ref) {
	s := t.slot(ref)
	s.holds--
	p.letGoLocked(t, ref, s)
}

// letGoLocked settles a slot that lost a pin or a hold, and frees it when that
// was the last one and its block is gone already.
func (p *Pool) letGoLocked(t *tier, ref registry.Ref, s *slot) {
	if s.lost && s.pins+s.holds == 0 {
		p.freeLocked(t, ref)
		return
	}
	p.settleLocked(t, ref, s)
}

// touchLocked makes the slot the most recently used one. A part of the moment is
// kept beside the record, so that the order outlives the agent.
func (p *Pool) touchLocked(t *tier, ref registry.Ref, s *slot) {
	if s.tick != p.clock {
		p.ageLocked(t, ref, s, p.clock)
	}
}

// occupyLocked gives block b the free slot ref in tier t, in the given state,
// with record r.
func (p *Pool) occupyLocked(t *tier, ref registry.Ref, b *Block, state storage.State, s SessionID, r storage.Record) {
	id, parent := p.reg.Occupy(b.Key, b.Position > 0, b.parentKey(), t.level, ref)
	sl := t.slot(ref)
	sl.entry, sl.session, sl.tick, sl.priority = id, s, p.clock, r.Priority
	t.setState(sl, state)
	t.put(ref, r)
	p.settleEntryLocked(t, parent)
}

// allocLocked takes a free slot, evicting a block when there is none. It
// returns NoRef when everything is in use.
func (p *Pool) allocLocked(t *tier) registry.Ref {
	if ref := t.popFree(); ref != registry.NoRef {
		return ref
	}
	// A victim whose generation word cannot be written is quarantined instead of
	// freed; then the next one has to go.
	for {
		victim, ok := p.victimLocked(t)
		if !ok {
			return registry.NoRef
		}
		p.countEvictionLocked(t)
		p.dropLocked(t, victim, storage.StateFree)
		if ref := t.popFree(); ref != registry.NoRef {
			return ref
		}
	}
}

// ageDiskLocked has the disk copy of a host block take over the block's age.
func (p *Pool) ageDiskLocked(host *slot) {
	ref := p.reg.At(host.entry).Slots[registry.Disk]
	if ref == registry.NoRef {
		return
	}
	s := p.disk.slot(ref)
	if host.tick <= s.tick {
		return
	}
	p.ageLocked(p.disk, ref, s, host.tick)
}

// ageLocked gives a slot another age.
func (p *Pool) ageLocked(t *tier, ref registry.Ref, s *slot, tick uint64) {
	if s.tick>>recencyShift != tick>>recencyShift {
		part, i := t.at(ref)
		part.recs.SetRecency(i, uint32(tick>>recencyShift))
	}
	s.tick = tick
	if s.ordered {
		t.order.Place(ref, s.priority, tick)
	}
}

// maxReprieves bounds how many blocks one eviction puts back.
const maxReprieves = 64

// victimLocked is the slot to evict first. A disk block whose copy in host memory
// was used later is as young as that: it takes over its age and goes back.
func (p *Pool) victimLocked(t *tier) (registry.Ref, bool) {
	for range maxReprieves {
		victim, ok := t.order.Victim()
		if !ok || t.level == registry.Host {
			return victim, ok
		}
		s := t.slot(victim)
		host := p.reg.At(s.entry).Slots[registry.Host]
		if host == registry.NoRef {
			return victim, true
		}
		tick := p.host.slot(host).tick
		if tick <= s.tick {
			return victim, true
		}
		p.ageLocked(t, victim, s, tick)
	}
	return t.order.Victim()
}

// allocForLocked is allocLocked for block b, which must not push its own prefix
// out: without that nobody could find it. The nearest ancestor in the tier is
// held meanwhile, which holds the ones before it by the leaf-first order. For a
// block whose prefix is not in the pool nothing is evicted.
func (p *Pool) allocForLocked(t *tier, b *Block) registry.Ref {
	if b.Position == 0 || t.free() > 0 {
		return p.allocLocked(t)
	}
	parent := b.parentKey()
	for id := p.reg.Find(&parent); ; {
		if id == registry.None || !p.reg.At(id).Occupied() {
			return registry.NoRef
		}
		e := p.reg.At(id)
		if ref := e.Slots[t.level]; ref != registry.NoRef {
			p.holdLocked(t, ref)
			defer p.releaseLocked(t, ref)
			return p.allocLocked(t)
		}
		if e.Parent == registry.None {
			return p.allocLocked(t)
		}
		id = e.Parent
	}
}

func (p *Pool) countEvictionLocked(t *tier) {
	if t.level == registry.Host {
		p.count.HostEvictions++
	} else {
		p.count.DiskEvictions++
	}
}

// dropLocked takes the slot's block out of the tier: it is forgotten, its
// removal is reported, and the slot becomes free or quarantined.
func (p *Pool) dropLocked(t *tier, ref registry.Ref, to storage.State) {
	s := t.slot(ref)
	wasResident := s.resident()
	if t.level == registry.Host && wasResident {
		p.ageDiskLocked(s)
	}
	parent := p.reg.Vacate(s.entry, t.level)
	if wasResident && p.cfg.Sink != nil {
		r := t.record(ref)
		p.cfg.Sink.BlockRemoved(p.id, t.kind, blockOf(&r))
	}
	p.unkeepLocked(t, ref, s)
	s.entry, s.fromDisk, s.unverified, s.wanted, s.attempts = registry.None, false, false, false, 0
	if to == storage.StateFree {
		p.freeLocked(t, ref)
	} else {
		p.quarantineLocked(t, ref)
	}
	p.settleEntryLocked(t, parent)
}

// freeLocked makes a slot without a block grantable again, as its next
// generation.
func (p *Pool) freeLocked(t *tier, ref registry.Ref) {
	s := t.slot(ref)
	s.generation++
	s.session, s.holds, s.priority, s.lost = 0, 0, 0, false
	part, i := t.at(ref)
	if part.host != nil {
		if err := part.host.SetGeneration(i, s.generation); err != nil {
			p.memoryErrorLocked(part, err)
			p.quarantineLocked(t, ref)
			return
		}
	}
	t.setState(s, storage.StateFree)
	t.put(ref, storage.Record{})
	t.settle(ref, s, false)
	t.pushFree(ref)
}

// quarantineLocked takes a slot without a block out of use. Its record keeps
// saying what it held, and for whom; a damaged one, which an earlier agent's death
// can leave, stays as it is.
func (p *Pool) quarantineLocked(t *tier, ref registry.Ref) {
	s := t.slot(ref)
	t.setState(s, storage.StateQuarantined)
	part, i := t.at(ref)
	if r, err := part.recs.Get(i); err == nil {
		t.put(ref, r)
	}
	t.settle(ref, s, false)
}

func (p *Pool) memoryErrorLocked(part *part, err error) {
	p.count.MemoryErrors++
	p.log.Error("host memory is damaged; its slot is taken out of use", zap.String("extent", part.path()), zap.Error(err))
}

// storedLocked reports a block that became resident.
func (p *Pool) storedLocked(t *tier, r *storage.Record) {
	if p.cfg.Sink != nil {
		p.cfg.Sink.BlockStored(p.id, t.kind, blockOf(r))
	}
}

// checkLocked finds a session of a pool that is open.
func (p *Pool) checkLocked(s SessionID) (*session, error) {
	if p.closing {
		return nil, ErrClosed
	}
	sess, ok := p.sessions[s]
	if !ok {
		return nil, fmt.Errorf("session %d: %w", s, ErrNoSession)
	}
	return sess, nil
}
