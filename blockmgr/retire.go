package blockmgr

import (
	"fmt"
	"maps"
	"slices"

	"go.uber.org/zap"

	"github.com/blockyard-ai/blockyard/blockmgr/registry"
	"github.com/blockyard-ai/blockyard/blockmgr/storage"
	"github.com/blockyard-ai/blockyard/blockmgr/tier"
	"github.com/blockyard-ai/blockyard/internal/kv"
)

// ErrNamespaces: the tiers have as many namespaces as their slot tables hold.
var ErrNamespaces = storage.ErrNamespaces

// Retired has the sums over the pools that Retire has closed or begun to close.
type Retired struct {
	// Pools counts the closed pools.
	Pools uint64 `json:"pools"`
	// Counters are the sums of the pools' Stats.
	Counters
}

// Census returns the open pools and the sums of the retired ones, of one moment. The totals of
// both never fall.
func (m *Manager) Census() (pools []*Pool, retired Retired) {
	m.mu.Lock()
	pools, retired = m.poolsLocked(), m.retired
	retiring := slices.Collect(maps.Keys(m.retiring)) // not in retired yet
	m.mu.Unlock()
	for _, p := range retiring {
		st := p.Stats()
		retired.Add(&st.Counters)
	}
	return pools, retired
}

// Unused reports whether Retire would close the pool now (ok). A pool with a smaller since has
// been unused for longer. empty says that the pool has no block.
//
// A pool is in use as long as it has a session, an ended session whose processes may
// still copy, a session of an earlier agent, a watcher of its extents, a block that is
// kept, or an operation.
func (p *Pool) Unused() (since uint64, empty, ok bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.life.unusedSince, p.slots.Registry.Blocks() == 0, p.retirableLocked()
}

func (p *Pool) retirableLocked() bool {
	return p.unusedLocked() && p.members.exiting == 0 && p.mover.Stuck() == 0 && p.slots.Kept() == 0
}

// Retire closes an unused pool. It gives back the extents of both tiers with their blocks, and
// the namespace's row in the slot tables. It reports the removal of each block to the sink. gone
// is closed at the end; a disk that does not answer delays it. Manager.Pool of the namespace
// waits for gone and opens a new pool. Unreadable extents of an earlier agent stay on disk until
// a pool needs their room.
//
// ErrActive: the pool is in use or is being opened, and stays. ErrRetired: the pool is closed or
// closing. ErrClosed: the manager is closed.
func (p *Pool) Retire() (gone <-chan struct{}, err error) {
	if gone, err = p.retire(p); err != nil {
		return nil, fmt.Errorf("retire pool %s: %w", p.id, err)
	}
	return gone, nil
}

// retire closes an unused pool in the background; gone is closed at the end. Until then the
// goroutine holds entry.transition, for which Manager.Pool waits. ErrActive: the pool is in use.
func (m *Manager) retire(p *Pool) (<-chan struct{}, error) {
	entry, err := m.enterOpenPool(p)
	if err != nil {
		return nil, err
	}
	if !entry.transition.TryLock() {
		m.leaveRetired(p.id, entry)
		return nil, ErrActive
	}
	if err := m.beginRetire(entry, p); err != nil {
		entry.transition.Unlock()
		m.leaveRetired(p.id, entry)
		return nil, err
	}
	gone := make(chan struct{})
	go func() { // ends with the pool's last operation; Close waits for it
		defer m.retireDone.Done()
		defer close(gone)
		defer m.leaveRetired(p.id, entry)
		defer entry.transition.Unlock()
		p.giveBack()
		m.countRetired(p)
	}()
	return gone, nil
}

// enterOpenPool returns the entry of an open pool and counts the caller until leaveRetired, so that
// the entry stays. ErrRetired: the pool is not open any more.
func (m *Manager) enterOpenPool(p *Pool) (*poolEntry, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	entry := m.entries[p.id]
	if m.closed {
		return nil, ErrClosed
	}
	if entry == nil || entry.pool != p {
		return nil, ErrRetired
	}
	entry.callers++
	return entry, nil
}

// leaveRetired ends enterOpenPool. It removes an entry without a pool and without other callers.
func (m *Manager) leaveRetired(id kv.NamespaceID, entry *poolEntry) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.leaveEntryLocked(id, entry)
}

// beginRetire removes an unused pool from the manager. The caller holds entry.transition.
// ErrActive: the pool is in use.
func (m *Manager) beginRetire(entry *poolEntry, p *Pool) error {
	if !p.beginRetire() {
		return ErrActive
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.closed {
		return ErrClosed // Close goes on with the pool
	}
	entry.pool = nil
	m.retiring[p] = struct{}{}
	m.retireDone.Add(1)
	return nil
}

// countRetired adds the counters of a closed pool to m.retired.
func (m *Manager) countRetired(p *Pool) {
	st := p.Stats()
	m.mu.Lock()
	defer m.mu.Unlock()
	delete(m.retiring, p)
	m.retired.Pools++
	m.retired.Add(&st.Counters)
}

// beginRetire makes an unused pool refuse callers, and reports whether the pool was unused.
func (p *Pool) beginRetire() bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	if !p.retirableLocked() {
		return false
	}
	p.life.closing, p.life.retired = true, true
	return true
}

// giveBack ends the pool's goroutines and gives back its extents and its row in the slot
// tables.
func (p *Pool) giveBack() {
	p.stopWorkers()
	p.life.workers.Wait()
	p.life.transfers.Wait()
	extents := p.takeAll()
	for _, e := range extents {
		p.broker.drop(e)
	}
	if p.slots.Host != nil {
		p.broker.host.Forget(p.slots.Host.Namespace)
	}
	if p.slots.Disk != nil {
		p.broker.disk.Load().Forget(p.slots.Disk.Namespace)
	}
	p.slots.Leave()
	p.broker.uses.leave(p.ns.Model)
	p.broker.turns.Add(1) // another pool may find room now
	p.log.Info("pool is closed, its room is free", zap.Int("extents", len(extents)))
}

// removeChunk bounds the removals that are reported while the lock is held.
const removeChunk = 4096

// takeAll reports the removal of every block, children before parents, and returns the extents.
// The pool's goroutines have ended; the lock is for callers that read.
func (p *Pool) takeAll() (extents []*tier.Extent) {
	for _, t := range p.slots.Tiers() {
		if p.cfg.Sink == nil {
			break
		}
		p.mu.Lock()
		refs := t.ByPosition()
		p.mu.Unlock()
		slices.Reverse(refs)
		for chunk := range slices.Chunk(refs, removeChunk) {
			p.reportRemoved(t, chunk)
		}
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, t := range p.slots.Tiers() {
		for _, e := range t.Extents {
			if e != nil {
				e.Erase = p.slots.EraseAll(e)
				extents = append(extents, e)
			}
		}
	}
	p.life.closed = true
	p.mover.Close()
	p.wakeQuietLocked()
	return extents
}

// reportRemoved reports the removal of some blocks of a tier to the sink.
func (p *Pool) reportRemoved(t *tier.Tier, refs []registry.Ref) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.slots.AnnounceRemoved(t, refs)
}

// ResetExclusive removes every block from all tiers if s is the pool's only session; exclusive says
// whether it is.
// Ended sessions whose processes may still copy count, and so do sessions of an earlier agent.
// ErrActive: s is the only session, but blocks are in use, and no block was removed. A block that
// is being sealed or written is in use: call Quiesce first.
func (p *Pool) ResetExclusive(s SessionID) (exclusive bool, err error) {
	err = p.reset(func() ([]*tier.Tier, error) {
		if _, err := p.checkLocked(s); err != nil {
			return nil, err
		}
		if len(p.members.sessions) > 1 || len(p.members.previous) > 0 || p.members.exiting > 0 {
			return nil, nil
		}
		exclusive = true
		return p.slots.Tiers(), nil
	})
	return exclusive, err
}
