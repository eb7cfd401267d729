package blockmgr

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	"go.uber.org/zap"

	"github.com/blockyard-ai/blockyard/blockmgr/settle"
	"github.com/blockyard-ai/blockyard/blockmgr/storage"
	"github.com/blockyard-ai/blockyard/blockmgr/storage/extent"
	"github.com/blockyard-ai/blockyard/blockmgr/tenant"
	"github.com/blockyard-ai/blockyard/internal/kv"
)

// drainTime bounds how long Close waits for blocks to reach the disk.
const drainTime = 2 * time.Second

// Manager owns the tiers of one node and hands each namespace a pool in them.
// Its methods are safe for concurrent use.
type Manager struct {
	cfg    Config
	broker *broker
	// opening counts the calls of Pool, for Close to wait. retireDone counts the pools in
	// retiring.
	opening, retireDone sync.WaitGroup
	once                sync.Once
	// diskAnswered is closed when opening the disk tier has succeeded or failed.
	diskAnswered chan struct{}
	// quotas is held while limits change: SetQuota changes one of many. It comes before all other locks.
	quotas sync.Mutex

	// mu is never held during I/O.
	mu      sync.Mutex
	closed  bool
	entries map[kv.NamespaceID]*poolEntry
	// previous are the sessions of earlier agents that were neither forgotten nor resumed.
	previous map[SessionID]*storage.SessionRecord
	// Each pool is in entries until Retire closes it, in retiring until it is closed, and
	// then counted in retired.
	retiring map[*Pool]struct{}
	retired  Retired
}

// poolEntry is the entry of a namespace in Manager.entries.
type poolEntry struct {
	// transition is held while the pool is opened, is given its first extents, or is
	// retired.
	transition sync.Mutex
	// pool is nil until it is open. callers counts the calls of Pool and Retire that use
	// the entry. Manager.mu guards both.
	pool    *Pool
	callers int
}

// Open locks the directories and finds the extents of an earlier agent. It fails when a field
// of cfg is out of range, when a directory cannot be used, and when another agent uses it. Open
// waits for the disk for Config.IODeadline at most. A disk that answers later joins the pools.
func Open(cfg Config) (*Manager, error) {
	if err := cfg.Validate(); err != nil {
		return nil, err
	}
	m := &Manager{
		cfg: cfg.withDefaults(), broker: &broker{closing: make(chan struct{}), tenants: tenant.NewTable()}, diskAnswered: make(chan struct{}),
		entries: map[kv.NamespaceID]*poolEntry{}, previous: map[SessionID]*storage.SessionRecord{}, retiring: map[*Pool]struct{}{},
	}
	m.broker.log, m.broker.budget = m.cfg.Log, m.cfg.Budget
	m.broker.trimmer = settle.New(m.broker.trimTo, m.broker.warnBeyond)
	m.broker.sharer = settle.New(m.broker.shareTenants, func() {})
	m.broker.weights.Store(&m.cfg.Weights)
	m.broker.limits.Store(&map[string]Limit{})
	m.broker.pools, m.broker.diskAnswered = m.Pools, m.diskAnswered
	m.broker.health.Init(m.cfg.Log, m.cfg.now)
	if m.cfg.enabled() {
		if err := m.openArenas(); err != nil {
			return nil, err
		}
		for _, r := range m.broker.host.Sessions().All() {
			m.previous[SessionID(r.Session)] = &r
		}
	}
	return m, nil
}

// openArenas opens the host tier, and the disk tier if there is one. An arena is the storage of
// one tier: its directory, its slot table and its extents.
func (m *Manager) openArenas() (err error) {
	host := storage.ArenaConfig{Dir: m.cfg.HostDir, Bytes: m.cfg.HostBytes, ExtentBytes: m.cfg.ExtentBytes, Nodes: m.cfg.HostNodes, Log: m.cfg.Log}
	if m.cfg.HostBlocks != 0 {
		host.Bytes = 0 // each namespace is bounded by itself
	}
	if m.broker.host, err = storage.OpenHostArena(host); err != nil {
		return err
	}
	if !m.cfg.hasDisk() {
		return nil
	}
	if err := m.openDiskArena(); err != nil {
		const keepFiles = true
		return errors.Join(err, m.broker.host.Close(nil, keepFiles))
	}
	return nil
}

// openDiskArena opens the disk tier. It waits for the disk for Config.IODeadline; a disk
// that answers later is taken into use then.
func (m *Manager) openDiskArena() error {
	cfg := storage.ArenaConfig{
		Dir: m.cfg.DiskDir, Bytes: m.cfg.DiskBytes, ExtentBytes: m.cfg.ExtentBytes, Log: m.cfg.Log,
		Key: m.cfg.DiskKey, KeyReset: m.cfg.DiskKeyReset,
		Disk: extent.DiskOptions{
			Direct: m.cfg.DirectIO, OpenDirect: m.cfg.OpenDirect, ZeroFill: m.cfg.ZeroFill, Wrap: m.cfg.WrapDisk,
		},
	}
	if m.cfg.DiskBlocks != 0 {
		cfg.Bytes = 0 // each namespace is bounded by itself
	}
	m.cfg.Log.Info("disk tier is open", zap.String("dir", cfg.Dir), zap.Int("queue_depth", m.cfg.Transfers))
	opened := make(chan error, 1)
	go func() { // ends when the disk answers
		defer close(m.diskAnswered)
		arena, err := storage.OpenDiskArena(cfg)
		if err == nil {
			err = m.takeDisk(arena)
		}
		opened <- err
	}()
	late := time.NewTimer(m.cfg.IODeadline)
	defer late.Stop()
	select {
	case err := <-opened:
		return err
	case <-late.C:
		m.broker.health.All.Stalled()
		m.cfg.Log.Warn("opening without the disk tier, which joins when the disk answers", zap.String("dir", cfg.Dir))
		go func() { // ends when the disk answers
			if err := <-opened; err != nil {
				m.cfg.Log.Error("there is no disk tier until the next start", zap.Error(err))
			}
		}()
		return nil
	}
}

// takeDisk adds the disk's arena, or closes it when the manager has closed first.
func (m *Manager) takeDisk(arena *storage.DiskArena) error {
	m.mu.Lock()
	closed := m.closed
	if !closed {
		m.broker.disk.Store(arena)
	}
	m.mu.Unlock()
	if closed {
		return errors.Join(ErrClosed, arena.Close(nil))
	}
	m.broker.health.All.Succeeded()
	return nil
}

// Warm reports whether host extents of an earlier agent were found.
func (m *Manager) Warm() bool { return m.broker.host != nil && m.broker.host.Warm() }

// HostExtents returns the number of host extents, also those of an earlier agent that wait for a pool.
func (m *Manager) HostExtents() int {
	if m.broker.host == nil {
		return 0
	}
	return m.broker.host.Extents()
}

// Pool returns the namespace's pool and opens it when there is none yet. A new pool has
// an extent of each tier, and its host extent is populated.
//
// A tier whose size is used up takes an extent from another pool. When no pool can give an
// extent the tier stays empty (see Enabled and Stats.GrowRefused), and the next call tries
// again. Pool waits for the disk for Config.IODeadline at most. A disk that answers later joins
// the pool (see Stats.DiskJoining).
//
// The blocks that an earlier agent left are announced to the sink in the background, and
// Quiesce waits for that. The sink must know the namespace when Pool is called.
// ErrNamespace means that no agent could serve the namespace.
func (m *Manager) Pool(ns kv.Namespace) (*Pool, error) {
	if err := checkNamespace(&ns); err != nil {
		return nil, err
	}
	id := ns.ID()
	entry, err := m.enterEntry(id)
	if err != nil {
		return nil, err
	}
	defer m.leaveEntry(id, entry)
	entry.transition.Lock()
	defer entry.transition.Unlock()
	m.mu.Lock()
	p := entry.pool
	m.mu.Unlock()
	if p != nil {
		p.findRoom() // a tier that found no room earlier tries again
		return p, nil
	}
	if p, err = m.newPool(ns); err != nil {
		return nil, fmt.Errorf("pool of namespace %s: %w", id, err)
	}
	m.mu.Lock()
	entry.pool = p
	m.mu.Unlock()
	m.broker.trimIfLimited()
	return p, nil
}

// enterEntry returns the namespace's entry in m.entries, and makes a missing one. It counts the
// caller until leaveEntry, so that the entry stays and Close waits for the caller.
func (m *Manager) enterEntry(id kv.NamespaceID) (*poolEntry, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.closed {
		return nil, ErrClosed
	}
	entry, ok := m.entries[id]
	if !ok {
		entry = &poolEntry{}
		m.entries[id] = entry
	}
	entry.callers++
	m.opening.Add(1)
	return entry, nil
}

// leaveEntry ends enterEntry. It removes an entry without a pool and without other callers.
func (m *Manager) leaveEntry(id kv.NamespaceID, entry *poolEntry) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.leaveEntryLocked(id, entry)
	m.opening.Done()
}

func (m *Manager) leaveEntryLocked(id kv.NamespaceID, entry *poolEntry) {
	if entry.callers--; entry.callers == 0 && entry.pool == nil {
		delete(m.entries, id)
	}
}

// Pools returns the pools that are open, in order of their namespaces' ids.
func (m *Manager) Pools() []*Pool {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.poolsLocked()
}

func (m *Manager) poolsLocked() []*Pool {
	pools := make([]*Pool, 0, len(m.entries))
	for _, entry := range m.entries {
		if entry.pool != nil {
			pools = append(pools, entry.pool)
		}
	}
	slices.SortFunc(pools, func(a, b *Pool) int { return slices.Compare(a.id[:], b.id[:]) })
	return pools
}

// Close refuses new work, ends the remaining sessions and closes the pools. Callers must not
// use a slot any more. Close waits up to two seconds for blocks on their way to disk, and up to
// Config.IODeadline for operations of the disk.
//
// Both tiers stay for the next Open. Config.DiscardHost deletes the host files. When an
// operation on the disk does not end, the error says so, and the arenas stay locked
// until the process ends. A second call waits for the first one and does nothing.
func (m *Manager) Close() error {
	var err error
	m.once.Do(func() { err = m.close() })
	return err
}

// close is the first call of Close. Blocks get drainTime to reach the disk, then the pools end,
// and then the arenas.
func (m *Manager) close() error {
	pools := m.beginClose()
	ctx, cancel := context.WithTimeout(context.Background(), drainTime)
	defer cancel()
	for _, p := range pools {
		if err := p.Quiesce(ctx); err != nil {
			m.cfg.Log.Warn("closing before everything is on disk", zap.Error(err))
		}
		p.endSessions()
	}
	host, disk, err := m.finishClose(pools, true)
	err = errors.Join(err, m.awaitRetiring())
	if errors.Is(err, errStuck) {
		// The locks stay: a read of this agent may still change memory that the next agent
		// would use.
		return err
	}
	if arena := m.broker.disk.Load(); arena != nil {
		err = errors.Join(err, arena.Close(disk))
	} else if !m.diskEnded() {
		err = errors.Join(err, fmt.Errorf("disk directory %q is still being opened: %w", m.cfg.DiskDir, errStuck))
	}
	if m.broker.host != nil {
		err = errors.Join(err, m.broker.host.Close(host, !m.cfg.DiscardHost))
	}
	return err
}

// diskEnded reports whether opening the disk has ended.
func (m *Manager) diskEnded() bool {
	if !m.cfg.hasDisk() {
		return true
	}
	select {
	case <-m.diskAnswered:
		return true
	default:
		return false
	}
}

// finishClose closes all pools at once, within Config.IODeadline, and returns their extents, for
// the caller to close. With flush the pools first write the records that have changed.
func (m *Manager) finishClose(pools []*Pool, flush bool) (host []storage.HostExtent, disk []storage.DiskExtent, err error) {
	ctx, cancel := context.WithTimeout(context.Background(), m.cfg.IODeadline)
	defer cancel()
	var wg sync.WaitGroup
	var mu sync.Mutex
	for _, p := range pools {
		wg.Go(func() {
			h, d, closed := p.finishClose(ctx, flush)
			mu.Lock()
			defer mu.Unlock()
			host, disk, err = append(host, h...), append(disk, d...), errors.Join(err, closed)
		})
	}
	wg.Wait()
	return host, disk, err
}

// awaitRetiring waits for the pools that Retire closes, up to Config.IODeadline.
func (m *Manager) awaitRetiring() error {
	ctx, cancel := context.WithTimeout(context.Background(), m.cfg.IODeadline)
	defer cancel()
	if !endsBefore(ctx, m.retireDone.Wait) {
		return fmt.Errorf("a pool that was closed before: %w", errStuck)
	}
	return nil
}

// beginClose makes the manager and its pools refuse callers. It waits for pools that are being
// opened, and returns all open pools.
func (m *Manager) beginClose() []*Pool {
	m.mu.Lock()
	m.closed = true
	m.mu.Unlock()
	close(m.broker.closing)
	m.opening.Wait()
	m.broker.trimmer.Close()
	m.broker.sharer.Close()
	pools := m.Pools()
	for _, p := range pools {
		p.beginClose()
	}
	return pools
}

// Abandon ends the manager as kill -9 would: it finishes no operation, flushes nothing and
// leaves the files as they are. It is for fault tests; use Close.
func (m *Manager) Abandon() {
	m.once.Do(func() {
		host, disk, _ := m.finishClose(m.beginClose(), false) // flushes nothing, so that nothing fails
		m.retireDone.Wait()
		if arena := m.broker.disk.Load(); arena != nil {
			arena.Abandon(disk)
		}
		if m.broker.host != nil {
			m.broker.host.Abandon(host)
		}
	})
}
