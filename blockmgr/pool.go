package blockmgr

import (
	"context"
	"fmt"
	"sync"

	"go.uber.org/zap"

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
	// workers are the pool's goroutines; stop ends them.
	workers sync.WaitGroup
	stop    chan struct{}
	// growWake says that the host tier may need another extent.
	growWake chan struct{}

	mu sync.Mutex
	// closing: callers are refused, the workers still run. closed: the memory is
	// gone.
	closing, closed bool
	reg             registry
	// host is nil when the manager is off, disk when it has no disk tier. A tier
	// without extents is one that found no room.
	host, disk *tier
	clock      uint64
	sessions   map[SessionID]*session
	flights    map[uint32]*flight
	sealing    refQueue
	writing    refQueue
	promoting  refQueue
	// missed are slots that found the write-behind full. They are not held: what
	// is evicted meanwhile is not offered again.
	missed refQueue
	// The conditions are for the workers of each queue; they use mu.
	sealWork, writeWork, promoteWork *sync.Cond
	// busy counts what Quiesce waits for: everything queued or in work.
	busy int
	// quiet are the channels of those who wait in Quiesce.
	quiet    map[chan struct{}]struct{}
	watchers map[chan ExtentInfo]struct{}
	// watchCap is the most host extents that the pool may have at once, and
	// hostSlots how many slots one has at least.
	watchCap  int
	hostSlots uint64
	// unusedSince is the broker's turn at which the pool was used last.
	unusedSince uint64
	count       Stats
}

// session is what one session holds in the pool.
type session struct {
	// pins maps host slots to how often the session has pinned them.
	pins map[uint32]uint32
	// pinned is the sum of pins and of what running lookups may yet pin.
	pinned  int
	granted map[uint32]struct{}
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
	if p.host == nil || len(p.host.slots) == 0 {
		return false
	}
	return p.cfg.HostBytes != 0 || p.disk != nil && len(p.disk.slots) > 0
}

// Stats is a snapshot of the pool's gauges and counters.
func (p *Pool) Stats() Stats {
	p.mu.Lock()
	defer p.mu.Unlock()
	st := p.count
	st.Host, st.Disk = p.host.stats(), p.disk.stats()
	st.Sessions = len(p.sessions)
	st.Blocks = p.reg.blocks
	for _, s := range p.sessions {
		st.Pins += s.pinned
	}
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

// tickLocked is the next moment of the pool's clock.
func (p *Pool) tickLocked() uint64 {
	p.clock++
	return p.clock
}

// settleLocked is tier.settle with the children that the registry counts.
func (p *Pool) settleLocked(t *tier, ref uint32) {
	var kids uint32
	if e := t.slots[ref].entry; e != none {
		kids = p.reg.at(e).kids[t.level]
	}
	t.settle(ref, kids)
}

// settleEntryLocked settles the slot that an entry has in tier t, if any.
func (p *Pool) settleEntryLocked(t *tier, id uint32) {
	if id == none {
		return
	}
	if ref := p.reg.at(id).slots[t.level]; ref != none {
		p.settleLocked(t, ref)
	}
}

func (p *Pool) holdLocked(t *tier, ref uint32) {
	t.slots[ref].holds++
	p.settleLocked(t, ref)
}

func (p *Pool) releaseLocked(t *tier, ref uint32) {
	t.slots[ref].holds--
	p.settleLocked(t, ref)
}

// touchLocked makes the slot the most recently used one.
func (p *Pool) touchLocked(t *tier, ref uint32) {
	t.slots[ref].tick = p.tickLocked()
	p.settleLocked(t, ref)
}

// occupyLocked gives block b the free slot ref in tier t, in the given state,
// with record r.
func (p *Pool) occupyLocked(t *tier, ref uint32, b *Block, state storage.State, s SessionID, r storage.Record) {
	id, parent := p.reg.occupy(b, t.level, ref)
	sl := &t.slots[ref]
	sl.entry, sl.session, sl.tick = id, s, p.tickLocked()
	t.setState(ref, state)
	t.put(ref, r)
	p.settleEntryLocked(t, parent)
}

// allocLocked takes a free slot, evicting a block when there is none. It
// returns none when everything is in use.
func (p *Pool) allocLocked(t *tier) uint32 {
	if ref := t.popFree(); ref != none {
		return ref
	}
	// A victim whose generation word cannot be written is quarantined instead of
	// freed; then the next one has to go.
	for {
		victim := t.order.victim()
		if victim == none {
			return none
		}
		p.countEvictionLocked(t)
		p.dropLocked(t, victim, storage.StateFree)
		if ref := t.popFree(); ref != none {
			return ref
		}
	}
}

// allocForLocked is allocLocked for block b, which must not push its own prefix
// out: without that nobody could find it. The nearest ancestor in the tier is
// held meanwhile, which holds the ones before it by the leaf-first order. For a
// block whose prefix is not in the pool nothing is evicted.
func (p *Pool) allocForLocked(t *tier, b *Block) uint32 {
	if b.Position == 0 || len(t.free) > 0 {
		return p.allocLocked(t)
	}
	for id := p.reg.find(b.Parent.InGroup(b.Key.Group())); ; {
		if id == none || !p.reg.at(id).occupied() {
			return none
		}
		e := p.reg.at(id)
		if ref := e.slots[t.level]; ref != none {
			p.holdLocked(t, ref)
			defer p.releaseLocked(t, ref)
			return p.allocLocked(t)
		}
		if e.parent == none {
			return p.allocLocked(t)
		}
		id = e.parent
	}
}

func (p *Pool) countEvictionLocked(t *tier) {
	if t.level == hostLevel {
		p.count.HostEvictions++
	} else {
		p.count.DiskEvictions++
	}
}

// dropLocked takes the slot's block out of the tier: it is forgotten, its
// removal is reported, and the slot becomes free or quarantined.
func (p *Pool) dropLocked(t *tier, ref uint32, to storage.State) {
	s := &t.slots[ref]
	r := t.record(ref)
	wasResident := s.resident()
	parent := p.reg.vacate(s.entry, t.level)
	s.entry, s.fromDisk = none, false
	if wasResident && p.cfg.Sink != nil {
		p.cfg.Sink.BlockRemoved(p.id, t.kind, blockOf(&r))
	}
	if to == storage.StateFree {
		p.freeLocked(t, ref)
	} else {
		p.quarantineLocked(t, ref)
	}
	p.settleEntryLocked(t, parent)
}

// freeLocked makes a slot without a block grantable again, as its next
// generation.
func (p *Pool) freeLocked(t *tier, ref uint32) {
	s := &t.slots[ref]
	s.generation++
	s.session, s.holds = 0, 0
	part, i := t.at(ref)
	if part.host != nil {
		if err := part.host.SetGeneration(i, s.generation); err != nil {
			p.memoryErrorLocked(part, err)
			p.quarantineLocked(t, ref)
			return
		}
	}
	t.setState(ref, storage.StateFree)
	t.put(ref, storage.Record{})
	t.settle(ref, 0)
	t.free = append(t.free, ref)
}

// quarantineLocked takes a slot without a block out of use.
func (p *Pool) quarantineLocked(t *tier, ref uint32) {
	t.setState(ref, storage.StateQuarantined)
	t.put(ref, t.record(ref))
	t.settle(ref, 0)
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
