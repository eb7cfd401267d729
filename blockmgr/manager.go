package blockmgr

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"go.uber.org/zap"

	"github.com/blockyard-ai/blockyard/blockmgr/storage"
	"github.com/blockyard-ai/blockyard/blockmgr/storage/extent"
	"github.com/blockyard-ai/blockyard/internal/kv"
)

// drainTime bounds how long Close waits for blocks to reach the disk.
const drainTime = 2 * time.Second

// Manager owns the tiers of one node and hands each namespace a pool in them.
// Its methods are safe for concurrent use.
type Manager struct {
	cfg    Config
	broker *broker
	// opening counts calls of Pool that Close waits for, and resets is the goroutine
	// that serves Config.Reset.
	opening, resets sync.WaitGroup
	once            sync.Once
	resetsRefused   atomic.Uint64
	// retiring is waited for by Close: the pools in going.
	retiring sync.WaitGroup
	// diskAnswered is closed when the disk tier was opened, or could not be.
	diskAnswered chan struct{}

	// mu is never held during I/O.
	mu     sync.Mutex
	closed bool
	places map[kv.NamespaceID]*place
	// formers are the sessions of earlier agents that are not done with yet.
	formers map[SessionID]*storage.SessionRecord
	// going are the pools that are being closed by Retire, and retired counts those
	// that are: each pool is in places, in going or in retired.
	going   map[*Pool]struct{}
	retired Retired
}

// place is where a namespace's pool is, or is being made.
type place struct {
	// making is held by the one call of Pool that makes the pool or its extents, and
	// while the pool is retired.
	making sync.Mutex
	// pool is nil until it is open, callers how many calls of Pool and Retire use the
	// place. Manager.mu guards both.
	pool    *Pool
	callers int
}

// Open takes the directories into use and finds what an earlier agent left on
// disk. It fails when a field of cfg is out of range, a directory cannot be
// used, or another agent uses it. A disk that does not answer within
// Config.IODeadline is left for later: the pools join it to what they have when it
// does.
func Open(cfg Config) (*Manager, error) {
	if err := cfg.Validate(); err != nil {
		return nil, err
	}
	m := &Manager{
		cfg: cfg.withDefaults(), broker: &broker{closing: make(chan struct{})}, diskAnswered: make(chan struct{}),
		places: map[kv.NamespaceID]*place{}, formers: map[SessionID]*storage.SessionRecord{}, going: map[*Pool]struct{}{},
	}
	m.broker.pools, m.broker.diskAnswered = m.Pools, m.diskAnswered
	m.broker.health.SetLog(m.cfg.Log)
	if m.cfg.enabled() {
		if err := m.openArenas(); err != nil {
			return nil, err
		}
		for _, r := range m.broker.host.Sessions().All() {
			m.formers[SessionID(r.Session)] = &r
		}
	}
	if m.cfg.Reset != nil {
		m.resets.Go(m.serveResets)
	}
	return m, nil
}

func (m *Manager) openArenas() (err error) {
	host := storage.ArenaConfig{Dir: m.cfg.HostDir, Bytes: m.cfg.HostBytes, ExtentBytes: m.cfg.ExtentBytes, Log: m.cfg.Log}
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
		return errors.Join(err, m.broker.host.Close(nil, true))
	}
	return nil
}

// openDiskArena waits for the disk for as long as an operation there may take. One
// that does not answer is taken in when it does.
func (m *Manager) openDiskArena() error {
	cfg := storage.ArenaConfig{
		Dir: m.cfg.DiskDir, Bytes: m.cfg.DiskBytes, ExtentBytes: m.cfg.ExtentBytes, Log: m.cfg.Log,
		Disk: extent.DiskOptions{
			Direct: m.cfg.DirectIO, OpenDirect: m.cfg.OpenDirect, ZeroFill: m.cfg.ZeroFill, Wrap: m.cfg.WrapDisk,
		},
	}
	if m.cfg.DiskBlocks != 0 {
		cfg.Bytes = 0
	}
	m.cfg.Log.Info("disk tier", zap.String("dir", cfg.Dir), zap.Int("queue_depth", m.cfg.Transfers))
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

// takeDisk takes the disk's arena into use, unless the manager has closed
// meanwhile.
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

// HostExtents is how many host extents there are, those included that an earlier
// agent made and nobody has asked for yet.
func (m *Manager) HostExtents() int {
	if m.broker.host == nil {
		return 0
	}
	return m.broker.host.Extents()
}

// Pool returns the namespace's pool, which it opens when there is none yet:
// with its first extent of each tier, the host's populated. A disk that does not
// answer holds it up for no longer than Config.IODeadline: then the pool opens
// without its disk tier, or with a part of it, and the rest joins when the disk
// answers (see Stats.DiskJoining). Where a tier's size
// is used up, a pool without sessions gives an extent up; when none can, the
// pool opens with that tier empty (see Enabled and Stats.GrowRefused), and the
// next call tries again. The blocks that an earlier agent left are announced to the
// sink in the background, a few at a time, and Quiesce waits for that; the sink must
// know the namespace when Pool is called. ErrNamespace means that no agent could serve it.
func (m *Manager) Pool(ns kv.Namespace) (*Pool, error) {
	l, err := blockLayout(&ns)
	if err != nil {
		return nil, err
	}
	id := ns.ID()
	here, err := m.enter(id)
	if err != nil {
		return nil, err
	}
	defer m.leave(id, here)
	here.making.Lock()
	defer here.making.Unlock()
	m.mu.Lock()
	p := here.pool
	m.mu.Unlock()
	if p != nil {
		p.findRoom()
		return p, nil
	}
	if p, err = m.newPool(ns, l); err != nil {
		return nil, fmt.Errorf("pool of namespace %s: %w", id, err)
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	here.pool = p
	return p, nil
}

// enter finds the namespace's place and keeps it until leave.
func (m *Manager) enter(id kv.NamespaceID) (*place, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.closed {
		return nil, ErrClosed
	}
	here, ok := m.places[id]
	if !ok {
		here = &place{}
		m.places[id] = here
	}
	here.callers++
	m.opening.Add(1)
	return here, nil
}

// leave forgets a place that nobody else waits for and that got no pool.
func (m *Manager) leave(id kv.NamespaceID, here *place) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.leaveLocked(id, here)
	m.opening.Done()
}

func (m *Manager) leaveLocked(id kv.NamespaceID, here *place) {
	if here.callers--; here.callers == 0 && here.pool == nil {
		delete(m.places, id)
	}
}

// Pools are the pools that are open, in order of their namespaces' ids.
func (m *Manager) Pools() []*Pool {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.poolsLocked()
}

func (m *Manager) poolsLocked() []*Pool {
	pools := make([]*Pool, 0, len(m.places))
	for _, here := range m.places {
		if here.pool != nil {
			pools = append(pools, here.pool)
		}
	}
	slices.SortFunc(pools, func(a, b *Pool) int { return slices.Compare(a.id[:], b.id[:]) })
	return pools
}

// Close refuses new work, waits for pools that are being opened, up to two seconds
// for blocks that are on their way to disk and up to Config.IODeadline for
// operations there, ends the sessions that are
// left, whose callers must not touch a slot any more, and the pools. Both tiers
// stay for the next Open; with Config.DiscardHost the host files go.
// When an operation on the disk does not end, the error says so, and the arenas
// stay locked until the process ends. Calling it again waits for the first call
// and does nothing.
func (m *Manager) Close() error {
	var err error
	m.once.Do(func() { err = m.close() })
	return err
}

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
		// The locks stay: the next agent must not use memory that a read of this one
		// may still change.
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

// diskEnded reports whether nobody is opening the disk any more.
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

// finishClose closes all pools at once, for which each of them has as long as an
// operation on the disk may take, and returns their extents.
func (m *Manager) finishClose(pools []*Pool, flush bool) (host []storage.HostPart, disk []storage.DiskPart, err error) {
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

// awaitRetiring waits for the pools that are giving their room back, for as long
// as an operation on the disk may take.
func (m *Manager) awaitRetiring() error {
	ctx, cancel := context.WithTimeout(context.Background(), m.cfg.IODeadline)
	defer cancel()
	if !endsBefore(ctx, m.retiring.Wait) {
		return fmt.Errorf("a pool that was closed before: %w", errStuck)
	}
	return nil
}

// beginClose refuses callers and returns the pools, all of which are open.
func (m *Manager) beginClose() []*Pool {
	m.mu.Lock()
	m.closed = true
	m.mu.Unlock()
	close(m.broker.closing)
	m.resets.Wait()
	m.opening.Wait()
	pools := m.Pools()
	for _, p := range pools {
		p.beginClose()
	}
	return pools
}

// Abandon ends the manager as kill -9 would: nothing that is under way is
// finished, nothing is flushed, and files stay as they are. It is for fault
// tests; use Close.
func (m *Manager) Abandon() {
	m.once.Do(func() {
		host, disk, _ := m.finishClose(m.beginClose(), false) // flushes nothing, so that nothing fails
		m.retiring.Wait()
		if arena := m.broker.disk.Load(); arena != nil {
			arena.Abandon(disk)
		}
		if m.broker.host != nil {
			m.broker.host.Abandon(host)
		}
	})
}
