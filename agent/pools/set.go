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
	"github.com/blockyard-ai/blockyard/blockmgr/node"
	"github.com/blockyard-ai/blockyard/blockmgr/storage"
	"github.com/blockyard-ai/blockyard/internal/kv"
	"github.com/blockyard-ai/blockyard/internal/kvevent"
)

// Set holds the pools of a node and their block manager. Any goroutine may call its methods.
type Set struct {
	node      string
	card      kvevent.ModelCard // the sizes of the tiers
	hub       *events.Hub
	admission *admission
	manager   *blockmgr.Manager
	source    source // opens the pools
	log       *zap.Logger

	mu      sync.Mutex
	entries map[kv.NamespaceID]*entry
	// makingRoom has the namespaces for which retireIdle runs. retireIdle closes the channel
	// when it returns.
	makingRoom map[kv.NamespaceID]chan struct{}
}

// Open opens the block manager of the node whose name is nodeName, which the ids of pools are made
// from; see node.Open. It sets the sink and the log of tiers. Changes of the pools go to hub.
// Close must be called.
func Open(nodeName string, tiers node.Tiers, hub *events.Hub, log *zap.Logger) (*Set, error) {
	tiers.Sink, tiers.Log = hub, log.Named("blockmgr")
	if sizes := tiers.Sizes(); !sizes[0].On() && !sizes[1].On() {
		log.Warn("NO TIER IS ON: the agent stores and finds no block; set the size of a host tier or of a disk tier")
	}
	manager, space, err := node.Open(&tiers, log)
	if err != nil {
		return nil, err
	}
	a := newAdmission(&tiers, space, log)
	a.measureSpaces()
	s := newSet(nodeName, hub, nodePools{a, manager}, log)
	s.admission, s.manager = a, manager
	s.card = kvevent.ModelCard{HostBytes: tiers.HostBytes, DiskBytes: tiers.DiskBytes}
	if err := s.logTakeover(); err != nil {
		return nil, errors.Join(err, manager.Close())
	}
	return s, nil
}

func newSet(nodeName string, hub *events.Hub, source source, log *zap.Logger) *Set {
	return &Set{
		node: nodeName, hub: hub, source: source, log: log,
		entries:    make(map[kv.NamespaceID]*entry),
		makingRoom: make(map[kv.NamespaceID]chan struct{}),
	}
}

// logTakeover logs the bytes, extents and sessions that a previous agent left in the host tier.
func (s *Set) logTakeover() error {
	extents, sessions := s.manager.HostExtents(), len(s.manager.Previous())
	if !s.manager.Warm() || extents+sessions == 0 {
		return nil
	}
	held, err := storage.HeldBytes(s.admission.tiers.Load().HostDir)
	if err != nil {
		return fmt.Errorf("host directory: %w", err)
	}
	s.log.Info("the host tier of an earlier agent is taken over",
		zap.Uint64("host_bytes", held), zap.Int("extents", extents), zap.Int("sessions", sessions))
	return nil
}

// Manager returns the block manager of all pools.
func (s *Set) Manager() *blockmgr.Manager { return s.manager }

// ID returns the id under which the node publishes its pool of a namespace.
func (s *Set) ID(ns kv.NamespaceID) uint64 { return ID(s.node, ns) }

// ID returns the id of a node's pool of one namespace: the first 8 bytes, big-endian, of
// SHA-256(node name ‖ namespace id). It has 53 bits, so that every JSON reader keeps it exact.
func ID(nodeName string, ns kv.NamespaceID) uint64 {
	h := sha256.New()
	h.Write([]byte(nodeName))
	h.Write(ns[:])
	return binary.BigEndian.Uint64(h.Sum(nil)) & (1<<53 - 1)
}

// Run measures the tiers' file systems every ten seconds until ctx ends.
func (s *Set) Run(ctx context.Context) { s.admission.run(ctx) }

// Space returns the last measurement of Run.
func (s *Set) Space() SpaceStats { return *s.admission.stats.Load() }

// Close announces that the pools are gone and closes the block manager. All sessions must have
// ended.
func (s *Set) Close() error {
	s.closeStreams()
	return s.manager.Close()
}
