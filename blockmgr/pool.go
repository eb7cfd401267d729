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

// Pool has the host and disk blocks of one namespace. All sessions of the namespace share it.
// Its methods are safe for concurrent use.
type Pool struct {
	identity

	// resets is held during a reset. It comes before mu.
	resets sync.Mutex

	// mu guards everything below.
	mu sync.Mutex
	// slots has the slots of the pool's tiers and the registry of its blocks.
	slots *tier.Set
	// mover moves blocks between the tiers and computes checksums.
	mover *diskio.Mover
	// announcing: a goroutine announces the recovered blocks to the sink.
	announcing bool
	// heldBuf is a buffer of Grant.
	heldBuf []registry.Ref

	life    lifecycle
	members members
	keeper  keeper
	expiry  expiry
	growth  growth
	pending pending
	count   Counters
}

// identity has the fields of a pool that never change.
type identity struct {
	cfg        *Config
	ns         kv.Namespace
	id         kv.NamespaceID
	blockBytes uint64
	slotBytes  uint64
	log        *zap.Logger
	broker     *broker
	// use is what the pools of the namespace's model use.
	use *modelUse
	// erase wakes the eraser.
	erase chan struct{}
	// retire is Manager.retire.
	retire func(*Pool) (<-chan struct{}, error)
}

// lifecycle says whether the pool serves callers, and ends its goroutines.
type lifecycle struct {
	// closing: callers are refused, the goroutines still run. closed: the memory is
	// unmapped. retired: Retire has closed the pool, not the manager.
	closing, closed, retired bool
	// unusedSince is the broker's turn at the last use of the pool.
	unusedSince uint64

	// stop ends all goroutines. transfers are the goroutines that may be stuck in an
	// operation of the disk, workers all other ones. They need no lock.
	stop               chan struct{}
	workers, transfers sync.WaitGroup
}

// pending counts the operations that Quiesce waits for.
type pending struct {
	// operations counts queued and running operations.
	operations int
	// waiting has a channel for each waiting call of Quiesce.
	waiting map[chan struct{}]struct{}
}

// members are the sessions that hold slots of the pool, of this agent and of the previous one.
type members struct {
	sessions map[SessionID]*session
	// exiting counts the ended sessions whose processes may still copy.
	exiting int
	// previous are the sessions of the previous agent that still hold slots here. forget
	// is Manager.Forget.
	previous map[SessionID]*previousHolds
	forget   func(SessionID)
	// tornSlots are slots whose records were damaged by the death of the previous agent. Any of
	// its sessions may use one. They become free when there are neither previous sessions nor
	// torn holders. A torn holder is a session that resumed a previous session while there
	// were torn slots.
	tornSlots   []registry.Ref
	tornHolders map[SessionID]struct{}
}

// Namespace returns the pool's namespace.
func (p *Pool) Namespace() kv.Namespace { return p.ns }

// NamespaceID returns the namespace's fingerprint.
func (p *Pool) NamespaceID() kv.NamespaceID { return p.id }

// BlockBytes returns the size of one block's bytes.
func (p *Pool) BlockBytes() uint64 { return p.blockBytes }

// SlotBytes returns the distance between two slots: BlockBytes rounded up to a page.
func (p *Pool) SlotBytes() uint64 { return p.slotBytes }

// Configured reports whether the manager has a tier. Without a tier the pool never has a block.
func (p *Pool) Configured() bool { return p.slots.Host != nil }

// Promotes reports whether the pool has blocks on disk that it reads into host memory.
func (p *Pool) Promotes() bool { return p.slots.Host != nil && p.slots.Disk != nil }

// Stats returns the pool's gauges and counters.
func (p *Pool) Stats() Stats {
	p.mu.Lock()
	defer p.mu.Unlock()
	counters, queues := p.countersLocked()
	st := Stats{Counters: counters, Unverified: p.slots.Unverified, Unannounced: p.slots.Unannounced()}
	st.Host, st.Disk = p.slots.Host.Stats(), p.slots.Disk.Stats()
	st.Sessions, st.PreviousSessions = len(p.members.sessions), len(p.members.previous)
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
	st.DiskOpen, st.DiskReadOnly, st.DiskTrips = p.broker.health.State()
	st.DiskJoining, st.ExtentsLeaving, st.ExtentsRemoved = p.mover.Joining, p.broker.leaving(), p.broker.removed()
	st.TrimsGivenUp = p.broker.trimmer.GivenUp()
	st.SealQueue, st.WriteQueue, st.PromoteQueue = queues.Seal, queues.Write, queues.Read
	return st
}

// Quiesce waits until the pool has no operation: no seal, write to disk, promotion, growth or
// announcement. Without an operation it returns nil at once, even if ctx has ended.
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

// Idle reports whether Quiesce would return at once. It does not wait.
func (p *Pool) Idle() bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.quietLocked() || p.life.closed
}

// quietLocked reports whether the pool has no operation. The announcement does not count in a
// closing pool: the next agent announces all of its blocks.
func (p *Pool) quietLocked() bool {
	return p.pending.operations == 0 && (p.life.closing || !p.announcing)
}

// done ends n operations that were counted in pending. The caller does not hold the lock.
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
	p.releasedLocked() // the last operation may have been the last use of the pool
}

func (p *Pool) wakeQuietLocked() {
	for ch := range p.pending.waiting {
		close(ch)
	}
	clear(p.pending.waiting)
}

// countersLocked returns the pool's counters, with those of its parts, and its queues' lengths.
func (p *Pool) countersLocked() (Counters, diskio.Queues) {
	c := p.count
	c.SlotCounters = p.slots.Counters
	var queues diskio.Queues
	c.DiskCounters, queues = p.mover.Snapshot()
	return c, queues
}

// operations implements diskio.Pool: it counts the mover's operations, for Quiesce.
type operations struct{ pool *Pool }

// Begin implements diskio.Pool.
func (o operations) Begin() { o.pool.pending.operations++ }

// Done implements diskio.Pool.
func (o operations) Done(n int) { o.pool.doneLocked(n) }

// GrowDisk implements diskio.Pool.
func (o operations) GrowDisk(n int) { o.pool.growDisk(n) }

// closedLocked returns the error of every call once the pool is closing.
func (p *Pool) closedLocked() error {
	if p.life.retired {
		return ErrRetired
	}
	return ErrClosed
}

// checkLocked returns a session of the pool, for a call of that session. The error is ErrClosed,
// ErrRetired or ErrNoSession.
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

// Extents returns the host extents that exist, all of them populated and grantable.
func (p *Pool) Extents() []ExtentInfo {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.extentsLocked()
}

// extentsLocked describes the host extents that exist.
func (p *Pool) extentsLocked() []ExtentInfo {
	if p.slots.Host == nil {
		return nil
	}
	infos := make([]ExtentInfo, 0, p.slots.Host.Live)
	for _, e := range p.slots.Host.Extents {
		if e != nil {
			infos = append(infos, extentInfo(e))
		}
	}
	return infos
}

// WatchExtents delivers the host extents, and then each new one as it becomes ready. A slow
// reader never blocks the pool: an extent for which the channel has no room is in Extents only.
// stop closes the channel, and so does the end of the manager. stop may be called again.
func (p *Pool) WatchExtents() (ch <-chan ExtentInfo, stop func()) {
	p.mu.Lock()
	defer p.mu.Unlock()
	c := make(chan ExtentInfo, p.growth.maxHostExtents) // has room for all extents
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

// notifyWatchersLocked tells the watchers of a new host extent.
func (p *Pool) notifyWatchersLocked(info ExtentInfo) {
	for ch := range p.growth.watchers {
		select {
		case ch <- info:
		default:
			// The channel has room for maxHostExtents. It overflows only when extents come
			// and go faster than the reader reads.
			p.count.WatchDropped++
		}
	}
}

// unwatchLocked ends a watch and closes its channel. It does nothing when the watch has ended.
func (p *Pool) unwatchLocked(c chan ExtentInfo) {
	if _, ok := p.growth.watchers[c]; ok {
		delete(p.growth.watchers, c)
		close(c)
		p.releasedLocked()
	}
}

// extentInfo describes an extent to callers of the pool.
func extentInfo(e *tier.Extent) ExtentInfo {
	g := e.Geometry()
	info := ExtentInfo{
		ID: e.ID, Slots: g.Slots, SlotBytes: g.SlotBytes,
		DataOffset: g.DataOffset, FileBytes: g.FileBytes(), Path: e.Path(),
	}
	if e.Host != nil {
		info.File = e.Host.File()
	}
	return info
}
