package kvbm

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"go.uber.org/zap"

	"github.com/blockyard-ai/blockyard/blockmgr"
	"github.com/blockyard-ai/blockyard/blockmgr/config"
	"github.com/blockyard-ai/blockyard/blockmgr/node"
	"github.com/blockyard-ai/blockyard/internal/kv"
	"github.com/blockyard-ai/blockyard/layout"
)

// tendInterval is the time between two reports of metrics, and two looks at the sessions of
// dead programs.
const tendInterval = time.Second

// Manager is a block manager for one model. New makes it from a config.Config.
type Manager struct {
	log      *zap.Logger
	core     *blockmgr.Manager
	pool     *blockmgr.Pool
	sharding layout.Sharding
	tiers    tiers
	// offload is the filter of device_layout; nil: every block may leave the device.
	offload      config.OffloadFilter
	consolidator Consolidator // nil: none
	metrics      *metricsFeed

	// cancel ends the manager. tasks are the goroutines that it waits for.
	cancel context.CancelFunc
	tasks  sync.WaitGroup
	// done is closed when everything has ended; err is set before that.
	done chan struct{}
	err  error
}

// New opens a manager for one model. place says where the bytes lie and which model it is. The
// manager lives until Close, or until ctx or cfg.Runtime.Cancellation ends. The error names the
// first bad field, its value and what is allowed, or says why a tier cannot be opened.
func New(ctx context.Context, cfg config.Config, place Place) (*Manager, error) {
	if err := cfg.Validate(); err != nil {
		return nil, err
	}
	sh, err := place.shape(&cfg)
	if err != nil {
		return nil, err
	}
	place.Log = cmp.Or(place.Log, zap.NewNop()).With(zap.Uint64("worker_id", uint64(cfg.Runtime.WorkerID)))
	metrics, err := newMetricsFeed(&cfg)
	if err != nil {
		return nil, err
	}
	t, err := findTiers(&cfg, &place, sh.slotBytes)
	if err != nil {
		return nil, err
	}
	m := &Manager{
		log: place.Log, sharding: sh.sharding, tiers: t, metrics: metrics, done: make(chan struct{}),
	}
	if cfg.DeviceLayout != nil {
		m.offload = cfg.DeviceLayout.OffloadFilter
	}
	if err := m.open(&cfg, &place, sh.namespace); err != nil {
		return nil, errors.Join(err, m.closeConsolidator(), t.close())
	}
	m.warn(&cfg, &place)
	m.start(ctx, &cfg)
	return m, nil
}

// open opens the block manager and the pool of the model, whose namespace is ns. It returns when the
// listener knows every block that an earlier manager left. The caller closes m's consolidator and
// tiers after an error.
func (m *Manager) open(cfg *config.Config, place *Place, ns kv.Namespace) error {
	var err error
	t := m.tiers.node(cfg, place)
	if t.Sink, err = m.listener(cfg, place); err != nil {
		return err
	}
	if m.core, _, err = node.Open(&t, m.log); err != nil {
		return fmt.Errorf("block manager: %w", err)
	}
	m.forgetGone() // before Pool, so that their slots are free at once
	if m.pool, err = m.core.Pool(ns); err != nil {
		return errors.Join(fmt.Errorf("block manager: %w", err), m.core.Close())
	}
	// Until the blocks of an earlier manager are announced.
	return m.pool.Quiesce(context.Background())
}

// listener returns who hears of every change of residency: Events, else the consolidator,
// else nobody.
func (m *Manager) listener(cfg *config.Config, place *Place) (blockmgr.EventSink, error) {
	switch {
	case cfg.Events != nil:
		return sink{cfg.Events}, nil
	case cfg.Consolidator == nil || place.Consolidate == nil:
		return nil, nil
	}
	var err error
	m.consolidator, err = place.Consolidate(Consolidation{
		Consolidator: *cfg.Consolidator, WorkerID: cfg.Runtime.WorkerID,
		BlockTokens: uint32(cfg.Model.PageSize), Log: m.log,
	})
	if err != nil {
		return nil, fmt.Errorf("consolidator: %w", err)
	}
	return m.consolidator, nil
}

// closeConsolidator closes the consolidator that listener started, if any.
func (m *Manager) closeConsolidator() error {
	if m.consolidator == nil {
		return nil
	}
	return m.consolidator.Close()
}

// warn logs settings that are allowed and probably a mistake.
func (m *Manager) warn(cfg *config.Config, place *Place) {
	warnings := cfg.Warnings()
	if cfg.HostLayout == nil && cfg.DiskLayout == nil {
		warnings = append(warnings, "host_layout and disk_layout are not set: no block is kept")
	}
	if cfg.Consolidator != nil && cfg.Events == nil && place.Consolidate == nil {
		warnings = append(warnings, "consolidator is set, but neither events nor the place's consolidate: nobody merges the engine's events with the manager's")
	}
	for _, w := range warnings {
		m.log.Warn("configuration", zap.String("warning", w))
	}
}

// start starts the goroutines: resets, the work of every second, and the one that closes m when ctx
// or cfg's cancellation ends. All end before m.done is closed.
func (m *Manager) start(ctx context.Context, cfg *config.Config) {
	ctx, m.cancel = cfg.Runtime.Context(ctx)
	m.tasks.Go(func() { cfg.ServeResets(ctx, m.Reset, m.resetRefused) })
	m.tasks.Go(func() { m.tend(ctx) })
	go func() { // Close waits for it, by done
		defer close(m.done)
		<-ctx.Done()
		m.tasks.Wait()
		m.err = m.end()
	}()
}

// tend does the work of every second until ctx ends.
func (m *Manager) tend(ctx context.Context) {
	ticker := time.NewTicker(tendInterval)
	defer ticker.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-ticker.C:
			m.metrics.send(m.pool.Stats())
			m.forgetGone()
		}
	}
}

// end closes what New opened, once, and logs its error. It sends the last metrics after the core has
// closed: they include the blocks that reached the disk meanwhile.
func (m *Manager) end() error {
	err := m.core.Close()
	m.metrics.send(m.pool.Stats())
	if err = errors.Join(err, m.closeConsolidator(), m.tiers.close()); err != nil {
		m.log.Error("block manager ends with an error", zap.Error(err))
	}
	return err
}

// Close ends the manager. Blocks on their way to disk have two seconds to arrive. Sessions
// end: nobody may touch their slots any more. Both tiers stay for the next manager. Every
// call returns the error of the end, if there was one.
func (m *Manager) Close() error {
	m.cancel()
	<-m.done
	return m.err
}

// Done is closed when the manager has ended. Close then returns at once.
func (m *Manager) Done() <-chan struct{} { return m.done }

// Pool returns the pool of the model's blocks, which ends with the manager.
func (m *Manager) Pool() *blockmgr.Pool { return m.pool }

// Sharding returns which part of a slot belongs to which rank. Rank 0 is Place.FirstRank.
func (m *Manager) Sharding() layout.Sharding { return m.sharding }

// ShouldStore asks the offload filter of device_layout whether to store a block. Call it
// before the block is copied. Without a filter every block is stored. It is safe for
// concurrent use if the filter is.
func (m *Manager) ShouldStore(hash kv.SequenceHash) bool {
	return m.offload == nil || m.offload.ShouldOffload(hash)
}

// sink passes the pool's events to an EventManager, in the pool's order: the pool calls with
// its lock held.
type sink struct{ to config.EventManager }

// BlockStored implements blockmgr.EventSink.
func (s sink) BlockStored(_ kv.NamespaceID, t kv.Tier, b blockmgr.Block) {
	parent, hasParent := b.ParentSeq, b.Position > 0
	if !hasParent {
		parent = 0
	}
	s.to.BlockStored(t, b.Seq, parent, hasParent)
}

// BlockRemoved implements blockmgr.EventSink.
func (s sink) BlockRemoved(_ kv.NamespaceID, t kv.Tier, b blockmgr.Block) {
	s.to.BlockRemoved(t, b.Seq)
}
