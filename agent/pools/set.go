package pools

import (
	"context"
	"crypto/sha256"
	"encoding/binary"
	"errors"
	"fmt"
	"sync"

	"go.uber.org/zap"

	"github.com/blockyard-ai/blockyard/agent/events"
	"github.com/blockyard-ai/blockyard/blockmgr"
	"github.com/blockyard-ai/blockyard/blockmgr/storage"
	"github.com/blockyard-ai/blockyard/internal/kv"
	"github.com/blockyard-ai/blockyard/internal/kvevent"
)

// Set holds the pools of a node and the block manager that they are of.
type Set struct {
	node    string
	card    kvevent.ModelCard // the sizes of the tiers
	hub     *events.Hub
	room    *room
	manager *blockmgr.Manager
	from    source
	log     *zap.Logger

	mu      sync.Mutex
	entries map[kv.NamespaceID]*entry
	// making has a channel for each namespace for which a pool is being closed; it is
	// closed when that is done.
	making map[kv.NamespaceID]chan struct{}
}

// Open compares the tiers with what the node has and opens the block manager, which locks
// their directories. hub is told what the pools hold. Close must be called.
func Open(cfg Config, hub *events.Hub, log *zap.Logger) (*Set, error) {
	if !cfg.hostOn() && !cfg.diskOn() {
		log.Warn("NO TIER IS ON: nothing is stored and nothing is found; set the size of a host tier, of a disk tier or of both")
	}
	r := newRoom(&cfg, log)
	if err := r.checkStart(); err != nil {
		return nil, err
	}
	tiers := cfg.Tiers
	tiers.Sink, tiers.Log = hub, log.Named("blockmgr")
	manager, err := blockmgr.Open(tiers)
	if err != nil {
		return nil, err
	}
	s := newSet(cfg.Node, hub, nodePools{r, manager}, log)
	s.room, s.manager = r, manager
	s.card = kvevent.ModelCard{HostBytes: cfg.Tiers.HostBytes, DiskBytes: cfg.Tiers.DiskBytes}
	log.Info("tiers",
		zap.String("host_dir", tiers.HostDir), zap.Uint64("host_bytes", tiers.HostBytes), zap.Uint64("host_blocks", tiers.HostBlocks),
		zap.String("disk_dir", tiers.DiskDir), zap.Uint64("disk_bytes", tiers.DiskBytes), zap.Uint64("disk_blocks", tiers.DiskBlocks))
	if err := s.logTakeover(); err != nil {
		return nil, errors.Join(err, manager.Close())
	}
	return s, nil
}

func newSet(node string, hub *events.Hub, from source, log *zap.Logger) *Set {
	return &Set{
		node: node, hub: hub, from: from, log: log,
		entries: make(map[kv.NamespaceID]*entry),
		making:  make(map[kv.NamespaceID]chan struct{}),
	}
}

// logTakeover says what of an earlier agent's host tier is left, after what does
// not fit any more is gone.
func (s *Set) logTakeover() error {
	extents, sessions := s.manager.HostExtents(), len(s.manager.Former())
	if !s.manager.Warm() || extents+sessions == 0 {
		return nil
	}
	held, err := storage.HeldBytes(s.room.cfg.Tiers.HostDir)
	if err != nil {
		return fmt.Errorf("host directory: %w", err)
	}
	s.log.Info("the host tier of an earlier agent is taken over",
		zap.Uint64("host_bytes", held), zap.Int("extents", extents), zap.Int("sessions", sessions))
	return nil
}

// Manager is the block manager of all pools.
func (s *Set) Manager() *blockmgr.Manager { return s.manager }

// ID is the id under which the node publishes its pool of a namespace.
func (s *Set) ID(ns kv.NamespaceID) uint64 { return ID(s.node, ns) }

// ID is the id under which a node publishes its pool of one namespace: the
// first 8 bytes, big-endian, of the SHA-256 of the node's name and the
// namespace's id, cut to 53 bits so that every JSON reader keeps it exact.
func ID(node string, ns kv.NamespaceID) uint64 {
	h := sha256.New()
	h.Write([]byte(node))
	h.Write(ns[:])
	return binary.BigEndian.Uint64(h.Sum(nil)) & (1<<53 - 1)
}

// Run looks at the file systems of the tiers now and then, until ctx ends.
func (s *Set) Run(ctx context.Context) { s.room.run(ctx) }

// Space is what the node has for the agent, as of the last look of Run.
func (s *Set) Space() SpaceStats { return *s.room.stats.Load() }

// Close announces that the pools are gone and closes the block manager. Sessions must have
// ended.
func (s *Set) Close() error {
	s.closeStreams()
	return s.manager.Close()
}
