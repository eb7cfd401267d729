package blockmgr

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	"go.uber.org/zap"

	"github.com/blockyard-ai/blockyard/blockmgr/storage"
	"github.com/blockyard-ai/blockyard/internal/kv"
)

// drainTime bounds how long Close waits for blocks to reach the disk.
const drainTime = 2 * time.Second

// Manager owns the tiers of one node and hands each namespace a pool in them.
// Its methods are safe for concurrent use.
type Manager struct {
	cfg  Config
	host *storage.HostArena
	disk *storage.DiskArena

	mu     sync.Mutex
	closed bool
	pools  map[kv.NamespaceID]*Pool
}

// Open takes the directories into use and finds what an earlier agent left on
// disk. It fails when a field of cfg is out of range, a directory cannot be
// used, or another agent uses it.
func Open(cfg Config) (*Manager, error) {
	if err := cfg.Validate(); err != nil {
		return nil, err
	}
	m := &Manager{cfg: cfg.withDefaults(), pools: map[kv.NamespaceID]*Pool{}}
	if !m.cfg.enabled() {
		return m, nil
	}
	var err error
	host := storage.ArenaConfig{Dir: m.cfg.HostDir, Bytes: m.cfg.HostBytes, ExtentBytes: m.cfg.ExtentBytes, Log: m.cfg.Log}
	if m.cfg.HostBytes == 0 {
		// One staging extent for each namespace, however many there are.
		host.Bytes = storage.MaxNamespaces * MaxExtentBytes
	}
	if m.host, err = storage.OpenHostArena(host); err != nil {
		return nil, err
	}
	if m.cfg.DiskBytes == 0 {
		return m, nil
	}
	m.disk, err = storage.OpenDiskArena(storage.ArenaConfig{
		Dir: m.cfg.DiskDir, Bytes: m.cfg.DiskBytes, ExtentBytes: m.cfg.ExtentBytes, Log: m.cfg.Log,
		Disk: storage.DiskOptions{Direct: m.cfg.DirectIO, Wrap: m.cfg.wrapFile},
	})
	if err != nil {
		return nil, errors.Join(err, m.host.Close(nil))
	}
	return m, nil
}

// Pool returns the namespace's pool, which it opens when there is none yet:
// with its first host extent populated. The blocks that an earlier agent left
// on disk are announced to the sink before Pool returns, so the sink must know
// the namespace by then.
func (m *Manager) Pool(ns kv.Namespace) (*Pool, error) {
	if err := ns.Validate(); err != nil {
		return nil, err
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.closed {
		return nil, ErrClosed
	}
	id := ns.ID()
	if p, ok := m.pools[id]; ok {
		return p, nil
	}
	p, err := m.newPool(ns)
	if err != nil {
		return nil, fmt.Errorf("pool of namespace %s: %w", id, err)
	}
	m.pools[id] = p
	return p, nil
}

// Pools are the pools that are open, in order of their namespaces' ids.
func (m *Manager) Pools() []*Pool {
	m.mu.Lock()
	defer m.mu.Unlock()
	pools := make([]*Pool, 0, len(m.pools))
	for _, p := range m.pools {
		pools = append(pools, p)
	}
	slices.SortFunc(pools, func(a, b *Pool) int { return slices.Compare(a.id[:], b.id[:]) })
	return pools
}

// Close refuses new work, waits up to two seconds for blocks that are on their
// way to disk, and ends the pools. Host files are unlinked; the disk tier stays
// for the next Open. Calling it again does nothing.
func (m *Manager) Close() error {
	pools := m.Pools()
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.closed {
		return nil
	}
	m.closed = true
	ctx, cancel := context.WithTimeout(context.Background(), drainTime)
	defer cancel()
	for _, p := range pools {
		p.beginClose()
	}
	var errs []error
	var host []storage.HostPart
	var disk []storage.DiskPart
	for _, p := range pools {
		if err := p.Quiesce(ctx); err != nil {
			m.cfg.Log.Warn("closing before everything is on disk", zap.Error(err))
		}
		h, d, err := p.finishClose()
		host, disk, errs = append(host, h...), append(disk, d...), append(errs, err)
	}
	if m.disk != nil {
		errs = append(errs, m.disk.Close(disk))
	}
	if m.host != nil {
		errs = append(errs, m.host.Close(host))
	}
	return errors.Join(errs...)
}
