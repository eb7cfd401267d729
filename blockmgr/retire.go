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

// Retired is what the pools that Retire has closed, or begun to close, leave behind
// in numbers.
type Retired struct {
	// Pools is how many are closed.
	Pools uint64 `json:"pools"`
	// Counters are the sums of what Stats says of them.
	Counters
}

// Census lists the open pools and counts the others as of one moment, so that
// what the pools on the list have counted and what retired has never add up to less
// than before, whatever is retired meanwhile.
func (m *Manager) Census() (pools []*Pool, retired Retired) {
	m.mu.Lock()
	pools, retired = m.poolsLocked(), m.retired
	going := slices.Collect(maps.Keys(m.going))
	m.mu.Unlock()
	for _, p := range going {
		st := p.Stats()
		retired.Add(&st.Counters)
	}
	return pools, retired
}

// Unused reports whether Retire would close the pool now, since when nobody has used
// it (a pool with a smaller number has been unused for longer), and whether it has
// no block, so that nothing would be lost. A pool is in use as long as it has a
// session, one that has ended and whose processes may still copy, a former one,
// somebody who watches its extents, a block that is kept, or something under way.
func (p *Pool) Unused() (since uint64, empty, ok bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.life.unusedSince, p.slots.Registry.Blocks() == 0, p.retirableLocked()
}

func (p *Pool) retirableLocked() bool {
	return p.unusedLocked() && p.members.exiting == 0 && p.mover.Stuck() == 0 && p.slots.Kept() == 0
}

// Draining reports whether the pool has no session and something is under way in
// it, for which Quiesce waits.
func (p *Pool) Draining() bool { return p.draining() }

// Retire closes a pool that nobody uses and gives all that it has back: its
// extents of both tiers with the blocks in them, and its namespace's place in the
// slot tables. The removal of each block is reported. gone is closed when that is
// done, which a disk that does not answer delays; Manager.Pool of the namespace
// waits for it, and opens a new pool. Extents of an earlier agent that could not be
// read stay on the disk until somebody needs their room.
//
// ErrActive: the pool is in use, or somebody asks for it; nothing has happened.
// ErrRetired: it is closed, or about to be. ErrClosed: the manager is.
func (p *Pool) Retire() (gone <-chan struct{}, err error) {
	if gone, err = p.retire(p); err != nil {
		return nil, fmt.Errorf("retire pool %s: %w", p.id, err)
	}
	return gone, nil
}

// retire is Pool.Retire of one of the manager's pools.
func (m *Manager) retire(p *Pool) (<-chan struct{}, error) {
	here, err := m.occupy(p)
	if err != nil {
		return nil, err
	}
	if !here.making.TryLock() {
		m.vacate(p.id, here)
		return nil, ErrActive
	}
	if err := m.beginRetire(here, p); err != nil {
		here.making.Unlock()
		m.vacate(p.id, here)
		return nil, err
	}
	gone := make(chan struct{})
	go func() { // ends with the pool's last operation; Close waits for it
		defer m.retiring.Done()
		defer close(gone)
		defer m.vacate(p.id, here)
		defer here.making.Unlock()
		p.giveBack()
		m.countRetired(p)
	}()
	return gone, nil
}

// occupy keeps the place of an open pool until vacate.
func (m *Manager) occupy(p *Pool) (*place, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	here := m.places[p.id]
	if m.closed {
		return nil, ErrClosed
	}
	if here == nil || here.pool != p {
		return nil, ErrRetired
	}
	here.callers++
	return here, nil
}

// vacate forgets a place that nobody else waits for and that has no pool any more.
func (m *Manager) vacate(id kv.NamespaceID, here *place) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.leaveLocked(id, here)
}

// beginRetire takes the pool out of the manager, if nobody uses it. The caller has
// the place's making.
func (m *Manager) beginRetire(here *place, p *Pool) error {
	if !p.beginRetire() {
		return ErrActive
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.closed {
		return ErrClosed // Close goes on with the pool
	}
	here.pool = nil
	m.going[p] = struct{}{}
	m.retiring.Add(1)
	return nil
}

// countRetired keeps what a pool that is closed has counted.
func (m *Manager) countRetired(p *Pool) {
	st := p.Stats()
	m.mu.Lock()
	defer m.mu.Unlock()
	delete(m.going, p)
	m.retired.Pools++
	m.retired.Add(&st.Counters)
}

// beginRetire refuses callers from now on, if nobody uses the pool.
func (p *Pool) beginRetire() bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	if !p.retirableLocked() {
		return false
	}
	p.life.closing, p.life.retired = true, true
	return true
}

// giveBack ends the pool's goroutines and gives its extents and its place in the
// slot tables back.
func (p *Pool) giveBack() {
	p.stopWorkers()
	p.life.workers.Wait()
	p.life.transfers.Wait()
	extents := p.takeAll()
	for _, part := range extents {
		p.broker.drop(part)
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

// takeAll reports the removal of every block, children before parents, and takes
// the extents of a pool whose goroutines have ended. Nobody else changes anything
// any more; the mutex is for those who look.
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
		for _, part := range t.Extents {
			if part != nil {
				extents = append(extents, part)
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

// ResetAlone is ResetAll for session s if no other session has the pool open;
// otherwise it leaves the pool alone. One that has ended and whose processes may
// still copy counts, and one of an earlier agent too. It reports whether s was
// alone. ErrActive: it was, but blocks are in use, and nothing has happened.
// What is being sealed or written is in use: Quiesce comes first.
func (p *Pool) ResetAlone(s SessionID) (alone bool, err error) {
	err = p.reset(func() ([]*tier.Tier, error) {
		if _, err := p.checkLocked(s); err != nil {
			return nil, err
		}
		if len(p.members.sessions) > 1 || len(p.members.previous) > 0 || p.members.exiting > 0 {
			return nil, nil
		}
		alone = true
		return p.slots.Tiers(), nil
	})
	return alone, err
}
