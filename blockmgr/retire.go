package blockmgr

import (
	"fmt"
	"slices"

	"go.uber.org/zap"

	"github.com/blockyard-ai/blockyard/blockmgr/storage"
	"github.com/blockyard-ai/blockyard/internal/kv"
)

// ErrNamespaces: the tiers have as many namespaces as their slot tables hold.
var ErrNamespaces = storage.ErrNamespaces

// Retired is what the pools that Retire has closed leave behind in numbers.
type Retired struct {
	// Pools is how many there were.
	Pools uint64 `json:"pools"`
	// Committed and WriteBehind are the sums of what Stats says of them.
	Committed   uint64 `json:"committed"`
	WriteBehind uint64 `json:"write_behind"`
}

// Retired counts the pools that Retire has closed.
func (m *Manager) Retired() Retired {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.retired
}

// Unused reports whether Retire would close the pool now, and since when nobody
// has used it: a pool with a smaller number has been unused for longer. A pool is
// in use as long as it has a session, one that has ended and whose processes may
// still copy, a former one, somebody who watches its extents, a block that is kept,
// or something under way.
func (p *Pool) Unused() (since uint64, ok bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.unusedSince, p.retirableLocked()
}

func (p *Pool) retirableLocked() bool {
	return p.unusedLocked() && p.exiting == 0 && p.stuckReads == 0 && len(p.kept) == 0
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
// ErrClosed: it is closed, or about to be.
func (p *Pool) Retire() (gone <-chan struct{}, err error) {
	if gone, err = p.retire(p); err != nil {
		return nil, fmt.Errorf("retire pool %s: %w", p.id, err)
	}
	return gone, nil
}

// retire is Pool.Retire of one of the manager's pools.
func (m *Manager) retire(p *Pool) (<-chan struct{}, error) {
	here := m.occupy(p)
	if here == nil {
		return nil, ErrClosed
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
		m.countRetired(p.Stats())
	}()
	return gone, nil
}

// occupy keeps the place of an open pool until vacate; nil when it has none.
func (m *Manager) occupy(p *Pool) *place {
	m.mu.Lock()
	defer m.mu.Unlock()
	here := m.places[p.id]
	if m.closed || here == nil || here.pool != p {
		return nil
	}
	here.callers++
	return here
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
	m.retiring.Add(1)
	return nil
}

func (m *Manager) countRetired(st Stats) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.retired.Pools++
	m.retired.Committed += st.Committed
	m.retired.WriteBehind += st.WriteBehind
}

// beginRetire refuses callers from now on, if nobody uses the pool.
func (p *Pool) beginRetire() bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	if !p.retirableLocked() {
		return false
	}
	p.closing = true
	return true
}

// giveBack ends the pool's goroutines and gives its extents and its place in the
// slot tables back.
func (p *Pool) giveBack() {
	p.stopWorkers()
	p.workers.Wait()
	p.transfers.Wait()
	extents := p.takeAll()
	for _, part := range extents {
		p.broker.drop(part)
	}
	if p.host != nil {
		p.broker.host.Forget(p.host.ns)
	}
	if p.disk != nil {
		p.broker.disk.Load().Forget(p.disk.ns)
	}
	p.broker.turns.Add(1) // somebody may find room now
	p.log.Info("pool is closed, its room is free", zap.Int("extents", len(extents)))
}

// takeAll reports the removal of every block, children before parents, and takes
// the extents of a pool whose goroutines have ended.
func (p *Pool) takeAll() (extents []*part) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, t := range p.tiers() {
		if p.cfg.Sink != nil {
			for _, ref := range slices.Backward(p.byPosition(t)) {
				r := t.record(ref)
				p.cfg.Sink.BlockRemoved(p.id, t.kind, blockOf(&r))
			}
		}
		for _, part := range t.parts {
			if part != nil {
				extents = append(extents, part)
			}
		}
	}
	p.closed = true
	p.wakeQuietLocked()
	return extents
}

// ResetAlone is ResetAll for session s if no other session has the pool open;
// otherwise it leaves the pool alone. One that has ended and whose processes may
// still copy counts, and one of an earlier agent too. It reports whether s was
// alone. ErrActive: it was, but blocks are in use, and nothing has happened.
// What is being sealed or written is in use: Quiesce comes first.
func (p *Pool) ResetAlone(s SessionID) (alone bool, err error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.pauseScrubLocked()
	defer p.resumeScrubLocked()
	if _, err := p.checkLocked(s); err != nil {
		return false, fmt.Errorf("reset: %w", err)
	}
	if len(p.sessions) > 1 || len(p.formers) > 0 || p.exiting > 0 {
		return false, nil
	}
	return true, p.resetTiersLocked(p.tiers()...)
}
