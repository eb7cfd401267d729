package blockmgr

import (
	"context"
	"fmt"
	"sync"
	"time"

	"go.uber.org/zap"

	"github.com/blockyard-ai/blockyard/blockmgr/diskio"
	"github.com/blockyard-ai/blockyard/blockmgr/registry"
	"github.com/blockyard-ai/blockyard/blockmgr/tier"
	"github.com/blockyard-ai/blockyard/internal/kv"
)

// Pool is the host and disk blocks of one namespace, shared by all its
// sessions. Its methods are safe for concurrent use.
type Pool struct {
	identity

	// resets is held by the one reset that is under way. It is taken before
	// writes.flushing.
	resets sync.Mutex

	// mu guards everything below.
	mu sync.Mutex
	// slots are the slots of the pool's tiers, and where its blocks are.
	slots *tier.Set
	// announcing: a goroutine tells the sink of the recovered blocks.
	announcing bool
	// heldBuf is room for Grant.
	heldBuf []registry.Ref

	life    lifecycle
	members members
	keeper  keeper
	reads   reads
	writes  writes
	seals   seals
	scrub   scrub
	growth  growth
	pending pending
	count   Counters
}

// identity says which pool this is. It never changes.
type identity struct {
	cfg        *Config
	ns         kv.Namespace
	id         kv.NamespaceID
	blockBytes uint64
	slotBytes  uint64
	log        *zap.Logger
	broker     *broker
	// retire is Manager.retire.
	retire func(*Pool) (<-chan struct{}, error)
}

// lifecycle says whether the pool serves callers, and ends its goroutines.
type lifecycle struct {
	// closing: callers are refused, the goroutines still run. closed: the memory is
	// gone. retired: both because of Retire, not because the manager closes.
	closing, closed, retired bool
	// unusedSince is the broker's turn at which the pool was used last.
	unusedSince uint64

	// stop ends all goroutines. transfers are those that may be stuck in an operation
	// on the disk, workers the others. They need no lock.
	stop               chan struct{}
	workers, transfers sync.WaitGroup
}

// pending counts what Quiesce waits for.
type pending struct {
	// operations counts everything that is queued or in work.
	operations int
	// waiting are the channels of the calls of Quiesce that wait.
	waiting map[chan struct{}]struct{}
}

// members are those who hold slots of the pool: sessions of this agent and of the
// previous one.
type members struct {
	sessions map[SessionID]*session
	// exiting counts the sessions that have ended and whose processes may still copy.
	exiting int
	// previous are the sessions of the previous agent that still hold slots here. forget
	// is Manager.Forget.
	previous map[SessionID]*previousSession
	forget   func(SessionID)
	// torn are slots whose records were damaged by the death of the previous agent: any
	// of its sessions may use one. They are free when there are neither previous
	// sessions nor torn holders: sessions that resumed one while there were torn slots.
	torn        []registry.Ref
	tornHolders map[SessionID]struct{}
}

// reads are the blocks on their way from disk to host memory, and the checks of
// blocks that were found in host memory.
type reads struct {
	// flights are the reads and checks, by the host slot.
	flights map[registry.Ref]*flight
	// queue are the reads that have not begun; work wakes a reader.
	queue diskio.RefQueue
	work  *sync.Cond
	// limit has room for each block that may be read at a time. It needs no lock.
	limit chan struct{}
	// time is how long blocks were being read.
	time diskio.BusyTime
	// stuck counts the reads that were given up and have not returned, prefetching those
	// that Prefetch began.
	stuck, prefetching int
}

// writes are the blocks on their way from host memory to disk.
type writes struct {
	// queue are the host slots that wait for the disk, each of them held.
	queue diskio.WriteQueue
	// deferred are host slots that found the queue full or the disk failing. They are
	// not held: what is evicted meanwhile is not offered again.
	deferred diskio.RefQueue
	// work wakes a writer.
	work *sync.Cond
	// limit has room for each block that may be written at a time. It needs no lock.
	limit chan struct{}
	// flushWanted has a writer write the disk tier's records; it is counted in pending.
	flushWanted bool
	// faults are the disk slots that failed.
	faults diskFaults
	// flushing is held while records are written to disk. It is taken before the pool's
	// lock.
	flushing sync.Mutex
}

// seals are the host slots whose checksums are to be computed or compared.
type seals struct {
	queue diskio.RefQueue
	// work wakes a sealer.
	work *sync.Cond
}

// scrub is what the scrubber does now.
type scrub struct {
	// check is closed when the check that is under way ends; nil when there is none.
	check chan struct{}
	// paused: no check begins while it is not 0.
	paused int
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
func (p *Pool) Configured() bool { return p.slots.Host != nil }

// Enabled reports whether the pool can hold anything now. It cannot when no
// tier is configured or when other pools, all in use, have all of the room.
func (p *Pool) Enabled() bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.slots.Host == nil || p.slots.Host.Capacity == 0 {
		return false
	}
	return !p.cfg.BypassesHost() || p.slots.Disk != nil && p.slots.Disk.Capacity > 0
}

// Stats is a snapshot of the pool's gauges and counters.
func (p *Pool) Stats() Stats {
	p.mu.Lock()
	defer p.mu.Unlock()
	st := Stats{Counters: p.countersLocked(), Unverified: p.slots.Unverified, Unannounced: p.slots.Unannounced()}
	st.ReadMicros = p.reads.time.Micros(time.Now())
	st.Host, st.Disk = p.slots.Host.Stats(), p.slots.Disk.Stats()
	st.Sessions, st.FormerSessions = len(p.members.sessions), len(p.members.previous)
	st.Blocks = p.slots.Registry.Blocks()
	now := time.Now()
	for _, s := range p.members.sessions {
		st.Pins += s.pinned
		st.PinnedSlotsMost = max(st.PinnedSlotsMost, s.slots)
		st.GrantsOverdue += s.overdue(now)
		st.GrantsLate += len(s.superseded)
	}
	if p.slots.Host != nil {
		st.PinnedSlots = p.slots.Host.Pinned
	}
	st.DiskOpen, st.DiskTrips = p.broker.breaker.State()
	writes, trips := p.broker.writes.State()
	st.DiskOpen, st.DiskReadOnly, st.DiskTrips = st.DiskOpen || writes, writes && !st.DiskOpen, st.DiskTrips+trips
	st.DiskJoining, st.ExtentsLeaving, st.ExtentsRemoved = p.growth.diskJoining, p.broker.leaving(), p.broker.removed()
	st.SealQueue, st.WriteQueue, st.PromoteQueue = p.seals.queue.Len(), p.writes.queue.Len(), len(p.reads.flights)
	return st
}

// Quiesce waits until nothing is being sealed, written to disk, promoted, grown or
// announced. It returns at once when that is so, even with a context that is done.
func (p *Pool) Quiesce(ctx context.Context) error {
	for {
		p.mu.Lock()
		if p.quietLocked() || p.life.closed {
			p.mu.Unlock()
			return nil
		}
		ch := make(chan struct{})
		p.pending.waiting[ch] = struct{}{}
		p.mu.Unlock()
		select {
		case <-ch:
		case <-ctx.Done():
			p.mu.Lock()
			delete(p.pending.waiting, ch)
			busy := p.pending.operations
			p.mu.Unlock()
			return fmt.Errorf("%d operations of pool %s are not done: %w", busy, p.id, ctx.Err())
		}
	}
}

// Idle reports whether Quiesce would return at once. It waits for nothing.
func (p *Pool) Idle() bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.quietLocked() || p.life.closed
}

// quietLocked reports whether there is nothing that Quiesce waits for. A pool that
// closes does not wait for its announcement: the next agent announces all of its blocks.
func (p *Pool) quietLocked() bool {
	return p.pending.operations == 0 && (p.life.closing || !p.announcing)
}

// done is doneLocked for callers that do not have the lock.
func (p *Pool) done(n int) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.doneLocked(n)
}

// doneLocked ends n operations that were counted in pending.
func (p *Pool) doneLocked(n int) {
	p.pending.operations -= n
	if p.pending.operations > 0 {
		return
	}
	if p.quietLocked() {
		p.wakeQuietLocked()
	}
	p.releasedLocked()
}

func (p *Pool) wakeQuietLocked() {
	for ch := range p.pending.waiting {
		close(ch)
	}
	clear(p.pending.waiting)
}

// countersLocked are the pool's counters, with those of its slots.
func (p *Pool) countersLocked() Counters {
	c := p.count
	c.Counters = p.slots.Counters
	return c
}

// closedLocked is what a call of a pool that is closing is refused with.
func (p *Pool) closedLocked() error {
	if p.life.retired {
		return ErrRetired
	}
	return ErrClosed
}

// checkLocked finds a session of a pool that is open.
func (p *Pool) checkLocked(s SessionID) (*session, error) {
	if p.life.closing {
		return nil, p.closedLocked()
	}
	sess, ok := p.members.sessions[s]
	if !ok {
		return nil, fmt.Errorf("session %d: %w", s, ErrNoSession)
	}
	return sess, nil
}
