package agent

import (
	"context"
	"errors"
	"time"

	"go.uber.org/zap"

	"github.com/blockyard-ai/blockyard/agent/refusal"
	"github.com/blockyard-ai/blockyard/blockmgr"
	"github.com/blockyard-ai/blockyard/consolidator/residency"
	"github.com/blockyard-ai/blockyard/internal/kv"
	"github.com/blockyard-ai/blockyard/internal/kvevent"
	"github.com/blockyard-ai/blockyard/internal/proto"
	"github.com/blockyard-ai/blockyard/publisher"
)

const (
	// maxPools bounds the namespaces that a node has pools of at a time. It is the
	// number that the slot tables of the block manager have room for.
	maxPools = 64
	// poolRoomTimeout is how long a namespace waits for the end of a pool that makes
	// room for it, or of one of its own.
	poolRoomTimeout = 2 * time.Second
)

// poolSource is where pools come from.
type poolSource interface {
	// open opens the pool of a namespace, or finds the one that is open and gives it
	// room. first says that the node has none of the namespace. An error that is
	// errNoRoom or blockmgr.ErrNamespaces says that a pool which nobody uses is in
	// the way.
	open(ns kv.Namespace, first bool) (*blockmgr.Pool, error)
	// closed says that the pool of a namespace is gone, or that there is none after
	// all.
	closed(ns kv.NamespaceID)
}

// nodePools are the block manager's pools, each with a share of what the node has.
type nodePools struct {
	room    *tierRoom
	manager *blockmgr.Manager
}

func (p nodePools) open(ns kv.Namespace, first bool) (*blockmgr.Pool, error) {
	if first {
		if err := p.room.admit(&ns, p.unused); err != nil {
			return nil, err
		}
	}
	return p.manager.Pool(ns)
}

// unused are the namespaces whose pools could make room.
func (p nodePools) unused() (ids []kv.NamespaceID) {
	for _, pool := range p.manager.Pools() {
		if _, _, ok := pool.Unused(); ok {
			ids = append(ids, pool.NamespaceID())
		}
	}
	return ids
}

func (p nodePools) closed(ns kv.NamespaceID) { p.room.forget(ns) }

// poolEntry is the pool of one namespace and its stream.
type poolEntry struct {
	*ownerStream
	ns kv.NamespaceID
	// opened is closed when the pool has been opened or, with err, could not be.
	// pool and err are set by then and do not change.
	opened chan struct{}
	pool   *blockmgr.Pool
	err    error

	// eventHub.mu guards what follows. callers are the calls of openPool that use the
	// entry. left is nil unless the pool makes room for another one, and is closed
	// when the entry has gone, or stays after all.
	callers int
	left    chan struct{}
}

// openPool returns the pool of ns, by way of from, and the stream that it is
// published as, after begin has begun a session in it: until then it makes room
// for nobody. Before its first use the pool is made known to the routers:
// what it recovers from disk is published as it is found. When it cannot be opened
// then, everything is taken back, so that a refused namespace leaves nothing behind.
// Later calls ask from too: a pool that has no room tries to get some. Where there
// are as many pools as there may be, or these have all the room, one that nobody uses
// makes room.
func (h *eventHub) openPool(ns *kv.Namespace, from poolSource, begin func(*blockmgr.Pool) error) (*blockmgr.Pool, *residency.Stream, error) {
	ctx, cancel := context.WithTimeout(context.Background(), poolRoomTimeout)
	defer cancel()
	for placed := false; ; {
		e, pool, err := h.tryPool(ctx, ns, from, begin)
		// Namespaces of an earlier agent whose sessions live take places in the tables
		// too. One that cannot be given back frees none, and is the last that goes.
		full := errors.Is(err, blockmgr.ErrNamespaces)
		switch {
		case err == nil:
			return pool, e.stream, nil
		case full && placed:
			return nil, nil, refusal.Retry(proto.CodeLimit, "HELLO namespace: %w", err)
		case !full && !errors.Is(err, errNoRoom):
			return nil, nil, err
		}
		placed = placed || full
		if err := h.makeRoom(ctx, ns.ID(), from); err != nil {
			return nil, nil, err
		}
	}
}

// tryPool is one try of openPool, for which no other pool has to go but for want of
// an entry.
func (h *eventHub) tryPool(ctx context.Context, ns *kv.Namespace, from poolSource, begin func(*blockmgr.Pool) error) (e *poolEntry, pool *blockmgr.Pool, err error) {
	e, made, err := h.takeEntry(ctx, ns.ID(), from)
	if err != nil {
		return nil, nil, err
	}
	defer h.leaveEntry(e)
	if made {
		pool, err = h.fill(e, ns, from)
	} else {
		<-e.opened // another session may be opening it
		if err = e.err; err == nil {
			pool, err = from.open(*ns, false)
		}
	}
	if err == nil {
		err = begin(pool)
	}
	return e, pool, err
}

// takeEntry is the entry of a namespace, which stays until leaveEntry. Who made it
// must fill it.
func (h *eventHub) takeEntry(ctx context.Context, ns kv.NamespaceID, from poolSource) (e *poolEntry, made bool, err error) {
	for {
		e, made, left := h.poolEntry(ns)
		switch {
		case left != nil:
			err = awaitRoom(ctx, left)
		case e == nil:
			err = h.makeRoom(ctx, ns, from)
		default:
			return e, made, nil
		}
		if err != nil {
			return nil, false, err
		}
	}
}

// poolEntry is the entry of a namespace, made when there is none; nil when there is
// no place for it. left says that there is one which is about to go.
func (h *eventHub) poolEntry(ns kv.NamespaceID) (e *poolEntry, made bool, left <-chan struct{}) {
	h.mu.Lock()
	defer h.mu.Unlock()
	switch e = h.pools[ns]; {
	case e != nil && e.left != nil:
		return nil, false, e.left
	case e == nil && len(h.pools) >= maxPools:
		return nil, false, nil
	case e == nil:
		e = &poolEntry{ownerStream: h.newStream(kv.PoolOwner(poolID(h.node, ns))), ns: ns, opened: make(chan struct{})}
		h.pools[ns], made = e, true
	}
	e.callers++
	return e, made, nil
}

func (h *eventHub) leaveEntry(e *poolEntry) {
	h.mu.Lock()
	defer h.mu.Unlock()
	e.callers--
}

// fill opens the pool of a new entry, or drops the entry, which has no feed any more
// by then: the next one of the namespace has the same id.
func (h *eventHub) fill(e *poolEntry, ns *kv.Namespace, from poolSource) (pool *blockmgr.Pool, err error) {
	defer close(e.opened)
	defer func() {
		if e.pool != nil {
			return
		}
		if e.err = err; err == nil {
			e.err = errors.New("opening the pool panicked")
		}
		defer h.forgetPool(e)
		defer h.closeStream(e.ownerStream)
		from.closed(e.ns)
	}()
	err = e.attach(h.out, publisher.Meta{
		Namespace: ns.ID(), Model: ns.Model, BlockSize: ns.BlockSize,
		Card: kvevent.ModelCard{HostBytes: h.out.cfg.HostBytes, DiskBytes: h.out.cfg.DiskBytes},
	})
	if err != nil {
		return nil, err
	}
	if pool, err = from.open(*ns, true); err != nil {
		return nil, err
	}
	e.pool = pool
	return pool, nil
}

// poolStream is the stream of a namespace's pool; nil for one that could not be
// opened, whose last events nobody needs.
func (h *eventHub) poolStream(ns kv.NamespaceID) *ownerStream {
	h.mu.Lock()
	defer h.mu.Unlock()
	if e := h.pools[ns]; e != nil {
		return e.ownerStream
	}
	return nil
}

// poolStreams are the streams of all pools.
func (h *eventHub) poolStreams() []*ownerStream {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.poolStreamsLocked()
}

func (h *eventHub) poolStreamsLocked() []*ownerStream {
	streams := make([]*ownerStream, 0, len(h.pools))
	for _, e := range h.pools {
		streams = append(streams, e.ownerStream)
	}
	return streams
}

// closePools announces that the pools are gone. The ranks must have ended. Pools
// that make room are waited for, but not for long: a disk may not answer.
func (h *eventHub) closePools() {
	timeout := time.NewTimer(poolRoomTimeout)
	defer timeout.Stop()
	for _, left := range h.leaving() {
		select {
		case <-left:
			continue
		case <-timeout.C:
		}
		break
	}
	for _, o := range h.poolStreams() {
		h.closeStream(o)
	}
}

// leaving are the pools that make room.
func (h *eventHub) leaving() (left []<-chan struct{}) {
	h.mu.Lock()
	defer h.mu.Unlock()
	for _, e := range h.pools {
		if e.left != nil {
			left = append(left, e.left)
		}
	}
	return left
}

// closeStream announces that a stream's owner is gone.
func (h *eventHub) closeStream(o *ownerStream) {
	if err := o.close(); err != nil {
		h.log.Warn("close feed", zap.Stringer("owner", o.stream.Owner()), zap.Error(err))
	}
}
