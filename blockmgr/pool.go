package blockmgr

import (
	"context"
	"fmt"
	"sync"
	"time"

	"go.uber.org/zap"

	"github.com/blockyard-ai/blockyard/blockmgr/diskio"
	"github.com/blockyard-ai/blockyard/blockmgr/registry"
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
	// resets is held by the one reset that is under way; it is taken before flushing.
	resets sync.Mutex

	mu sync.Mutex
	// closing: callers are refused, the workers still run. closed: the memory is
	// gone. retired: both for Retire's sake, not because the manager closes.
	closing, closed, retired bool
	reg                      *registry.Registry
	// host is nil when the manager is off, disk when it has no disk tier. A tier
	// without extents is one that found no room.
	host, disk *tier
	// clock counts calls and, blockTicks each, blocks that came into host memory; arrived
	// are those that it has yet to count.
	clock, arrived uint64
	sessions       map[SessionID]*session
	// formers are the sessions of an earlier agent that still hold slots here, and
	// forgetFormer is Manager.Forget. orphans are slots whose records were torn by
	// its death, free once all formers are gone and so are the heirs: sessions that
	// resumed a former one while there were orphans.
	formers      map[SessionID]*former
	forgetFormer func(SessionID)
	// retire is Manager.retire.
	retire  func(*Pool) (<-chan struct{}, error)
	orphans []registry.Ref
	heirs   map[SessionID]struct{}
	flights map[registry.Ref]*flight
	faults  diskFaults
	// announcing is what the sink has yet to be told.
	announcing announcement
	sealing    diskio.RefQueue
	writing    diskio.WriteQueue
	reading    diskio.RefQueue
	// scrubCheck is closed when the check that the scrubber is in ends, nil when it
	// is in none; it begins none while scrubPaused is not 0.
	scrubCheck  chan struct{}
	scrubPaused int
	// prefetching counts the flights that Prefetch began.
	prefetching int
	// flushWanted has the write-behind write the disk tier's records; it is counted
	// in busy.
	flushWanted bool
	growth      growth
	// staleBlocks: a reset is under way; see resetting.
	staleBlocks bool
	// growingDisk: a disk extent is being made.
	growingDisk bool
	// exiting counts the sessions that have ended and whose processes may still copy.
	exiting int
	// reads is how long blocks were being read from disk.
	reads diskio.BusyTime
	// stuckReads counts reads that were given up and have not returned.
	stuckReads int
	// missed are slots that found the write-behind full. They are not held: what
	// is evicted meanwhile is not offered again.
	missed diskio.RefQueue
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
	count       Counters
	// unverified is Stats.Unverified.
	unverified int
}

// session is what one session holds in the pool.
type session struct {
	// pins counts how often the session has pinned each host slot, and bit marks
	// them in the pin words, which outlive the agent.
	pins pinCounts
	bit  uint64
	// pinned is the sum of pins and of what running lookups may yet pin.
	pinned int
	// slots counts the slots that pins names, reserved those that running lookups may
	// yet add.
	slots, reserved int
	// granted slots and when each was.
	granted map[registry.Ref]time.Time
	// late are those of the granted slots whose block somebody else has stored, or was
	// granted another slot for; see supersedeLocked.
	late map[registry.Ref]struct{}
	// moved is when the session last settled a granted slot, or was granted the first of
	// those that it has.
	moved time.Time
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
	st := Stats{Counters: p.count, Unverified: p.unverified, Unannounced: p.announcing.blocks}
	st.ReadMicros = p.reads.Micros(time.Now())
	st.Host, st.Disk = p.host.stats(), p.disk.stats()
	st.Sessions, st.FormerSessions = len(p.sessions), len(p.formers)
	st.Blocks = p.reg.Blocks()
	now := time.Now()
	for _, s := range p.sessions {
		st.Pins += s.pinned
		st.PinnedSlotsMost = max(st.PinnedSlotsMost, s.slots)
		st.GrantsOverdue += s.overdue(now)
		st.GrantsLate += len(s.late)
	}
	if p.host != nil {
		st.PinnedSlots = p.host.pinned
	}
	st.DiskOpen, st.DiskTrips = p.broker.breaker.State()
	writes, trips := p.broker.writes.State()
	st.DiskOpen, st.DiskReadOnly, st.DiskTrips = st.DiskOpen || writes, writes && !st.DiskOpen, st.DiskTrips+trips
	st.DiskJoining, st.ExtentsLeaving, st.ExtentsRemoved = p.joining, p.broker.leaving(), p.broker.removed()
	st.SealQueue, st.WriteQueue, st.PromoteQueue = p.sealing.Len(), p.writing.Len(), len(p.flights)
	return st
}

// Quiesce waits until nothing is being sealed, written to disk, promoted, grown or
// announced. It returns at once when that is so, even with a context that is done.
func (p *Pool) Quiesce(ctx context.Context) error {
	for {
		p.mu.Lock()
		if p.quietLocked() || p.closed {
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
	return p.quietLocked() || p.closed
}

// quietLocked reports whether there is nothing that Quiesce waits for. A pool that
// closes does not wait for its announcement: the next agent announces all of its blocks.
func (p *Pool) quietLocked() bool { return p.busy == 0 && (p.closing || !p.announcing.running) }

// doneLocked ends n operations that were counted in busy.
func (p *Pool) doneLocked(n int) {
	p.busy -= n
	if p.busy > 0 {
		return
	}
	if p.quietLocked() {
		p.wakeQuietLocked()
	}
	p.releasedLocked()
}

func (p *Pool) wakeQuietLocked() {
	for ch := range p.quiet {
		close(ch)
	}
	clear(p.quiet)
}

// closedLocked is what a call of a pool that is closing is refused with.
func (p *Pool) closedLocked() error {
	if p.retired {
		return ErrRetired
	}
	return ErrClosed
}

// checkLocked finds a session of a pool that is open.
func (p *Pool) checkLocked(s SessionID) (*session, error) {
	if p.closing {
		return nil, p.closedLocked()
	}
	sess, ok := p.sessions[s]
	if !ok {
		return nil, fmt.Errorf("session %d: %w", s, ErrNoSession)
	}
	return sess, nil
}
