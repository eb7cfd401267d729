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

// Retired is the sum of the numbers of the pools that Retire has closed or begun to
// close.
type Retired struct {
	// Pools is how many are closed.
	Pools uint64 `json:"pools"`
	// Counters are the sums of the pools' Stats.
	Counters
}

// Census lists the open pools and counts the others as of one moment. The sum of both
// never falls, whatever is retired meanwhile.
func (m *Manager) Census() (pools []*Pool, retired Retired) {
	m.mu.Lock()
	pools, retired = m.poolsLocked(), m.retired
	going := slices.Collect(maps.Keys(m.retiring))
	m.mu.Unlock()
	for _, p := range going {
		st := p.Stats()
		retired.Add(&st.Counters)
	}
	return pools, retired
}

// Unused reports whether Retire would close the pool now (ok). A pool with a smaller
// since has been unused for longer. A pool that is empty has no block to lose.
//
// A pool is in use as long as it has a session, an ended session whose processes may
// still copy, a session of an earlier agent, a watcher of its extents, a block that is
// kept, or an operation under way.
func (p *Pool) Unused() (since uint64, empty, ok bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.life.unusedSince, p.slots.Registry.Blocks() == 0, p.retirableLocked()
}

func (p *Pool) retirableLocked() bool {
	return p.unusedLocked() && p.members.exiting == 0 && p.mover.Stuck() == 0 && p.slots.Kept() == 0
}

// Draining reports whether the pool has no session and still does something that
// Quiesce waits for.
func (p *Pool) Draining() bool { return p.draining() }

// Retire closes a pool that nobody uses. It gives back the extents of both tiers with
// their blocks, and the namespace's row in the slot tables. The removal of each block is
// reported. gone is closed when all of that is done; a disk that does not answer delays
// it. Manager.Pool of the namespace waits for gone and opens a new pool. Extents of an
// earlier agent that could not be read stay on the disk until somebody needs their room.
//
// ErrActive: the pool is in use, or somebody asks for it; nothing has happened.
// ErrRetired: the pool is closed or closing. ErrClosed: the manager is closed.
func (p *Pool) Retire() (gone <-chan struct{}, err error) {
	if gone, err = p.retire(p); err != nil {
		return nil, fmt.Errorf("retire pool %s: %w", p.id, err)
	}
	return gone, nil
}

// retire is Pool.Retire of one of the manager's pools.
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

// enterOpenPool keeps the entry of an open pool until leaveRetired.
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

// leaveRetired forgets an entry without a pool that nobody else uses.
func (m *Manager) leaveRetired(id kv.NamespaceID, entry *poolEntry) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.leaveEntryLocked(id, entry)
}

// beginRetire takes the pool out of the manager, if nobody uses it. The caller has
// entry.transition.
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

// beginRetire makes the pool refuse callers, if nobody uses it.
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
	p.broker.turns.Add(1) // somebody may find room now
	p.log.Info("pool is closed, its room is free", zap.Int("extents", len(extents)))
}

// removeChunk is how many removals are reported under one lock.
const removeChunk = 4096

// takeAll reports the removal of every block, children before parents, and returns the
// extents. The pool's goroutines have ended: the lock is for callers that only read.
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
				extents = append(extents, e)
			}
		}
	}
	p.life.closed = true
	p.mover.Close()
	p.wakeQuietLocked()
	return extents
}

// reportRemoved tells the sink that some blocks of a tier are gone.
func (p *Pool) reportRemoved(t *tier.Tier, refs []registry.Ref) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.slots.AnnounceRemoved(t, refs)
}

// ResetExclusive is ResetAll for session s, if s is the pool's only session: exclusive
// says so. Otherwise nothing happens. Ended sessions whose processes may still copy count,
// and so do sessions of an earlier agent. ErrActive: s is the only session, but blocks are
// in use, and nothing has happened. A block that is being sealed or written is in use: call Quiesce
// first.
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
