package agent

import (
	"context"
	"crypto/sha256"
	"encoding/binary"
	"sync"
	"sync/atomic"
	"time"

	"go.uber.org/zap"

	"github.com/blockyard-ai/blockyard/blockmgr"
	"github.com/blockyard-ai/blockyard/consolidator/residency"
	"github.com/blockyard-ai/blockyard/internal/kv"
	"github.com/blockyard-ai/blockyard/internal/kvevent"
)

// flushDelay is how long a pool's changes may wait for company, so that the
// blocks of one COMMIT or eviction travel in one event.
const flushDelay = 2 * time.Millisecond

// poolID is the id under which a node publishes its pool of one namespace: the
// first 8 bytes, big-endian, of the SHA-256 of the node's name and the
// namespace's id, cut to 53 bits so that every JSON reader keeps it exact.
func poolID(node string, ns kv.NamespaceID) uint64 {
	h := sha256.New()
	h.Write([]byte(node))
	h.Write(ns[:])
	return binary.BigEndian.Uint64(h.Sum(nil)) & (1<<53 - 1)
}

// eventHub holds the streams of the node: one per pool, one per worker rank. It
// is the block manager's EventSink.
type eventHub struct {
	node string
	out  *outputs
	log  *zap.Logger

	files *checkpoints
	dirty chan struct{} // room for one: some pool's stream has changes
	pool  atomic.Uint64 // changes that pools reported

	mu    sync.Mutex
	pools map[kv.NamespaceID]*poolEntry
	// making has a channel for each namespace for which a pool is being closed; it is
	// closed when that is done.
	making map[kv.NamespaceID]chan struct{}
	ranks  map[*rankStream]struct{}
	ended  EventTotals // of the ranks and pools that have ended
}

func newEventHub(node string, out *outputs, log *zap.Logger) *eventHub {
	return &eventHub{
		node: node, out: out, log: log, files: newCheckpoints(out.cfg, log), dirty: make(chan struct{}, 1),
		pools:  make(map[kv.NamespaceID]*poolEntry),
		making: make(map[kv.NamespaceID]chan struct{}),
		ranks:  make(map[*rankStream]struct{}),
	}
}

func (h *eventHub) newStream(owner kv.Owner) *ownerStream {
	return &ownerStream{stream: residency.NewStream(owner, nil)}
}

// BlockStored implements blockmgr.EventSink. It is called under the block
// manager's lock.
func (h *eventHub) BlockStored(ns kv.NamespaceID, t kv.Tier, b blockmgr.Block) {
	if o := h.poolStream(ns); o != nil {
		o.stream.Store(t, b.ParentSeq, b.Position > 0, b.Position, []kvevent.StoredBlock{{Hash: b.Seq, Local: b.Local}})
		h.changed()
	}
}

// BlockRemoved implements blockmgr.EventSink. It is called under the block
// manager's lock.
func (h *eventHub) BlockRemoved(ns kv.NamespaceID, t kv.Tier, b blockmgr.Block) {
	if o := h.poolStream(ns); o != nil {
		o.stream.Remove(t, []kv.SequenceHash{b.Seq})
		h.changed()
	}
}

func (h *eventHub) changed() {
	h.pool.Add(1)
	select {
	case h.dirty <- struct{}{}:
	default: // a flush is due already
	}
}

// run flushes the pools' streams shortly after they change, until ctx ends.
func (h *eventHub) run(ctx context.Context) {
	timer := time.NewTimer(flushDelay)
	timer.Stop()
	for {
		select {
		case <-h.dirty:
			timer.Reset(flushDelay)
		case <-ctx.Done():
			timer.Stop()
			h.flushPools()
			return
		}
		select {
		case <-timer.C:
		case <-ctx.Done():
		}
		h.flushPools()
	}
}

func (h *eventHub) flushPools() {
	for _, o := range h.poolStreams() {
		o.stream.Flush()
	}
}
