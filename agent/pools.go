package agent

import (
	"go.uber.org/zap"

	"github.com/blockyard-ai/blockyard/blockmgr"
	"github.com/blockyard-ai/blockyard/internal/kv"
	"github.com/blockyard-ai/blockyard/internal/proto"
	"github.com/blockyard-ai/blockyard/publisher"
)

// maxPools bounds the namespaces that a node has pools of. It is the number that
// the slot tables of the block manager have room for. A pool stays, sessions or
// not, until the agent stops.
const maxPools = 64

// poolEntry is the pool of one namespace and its stream.
type poolEntry struct {
	*ownerStream
	// opened is closed when the pool has been opened or, with err, could not be.
	opened chan struct{}
	err    error
}

// openPool returns the pool of ns, by way of open, and the id that it is
// published under. Before its first use the pool is made known to the routers:
// what it recovers from disk is published as it is found. When open fails then,
// everything is taken back, so that a refused namespace leaves nothing behind.
// Later calls ask open too: a pool that has no room tries to get some.
func (h *eventHub) openPool(ns *kv.Namespace, open func(kv.Namespace) (*blockmgr.Pool, error)) (*blockmgr.Pool, uint64, error) {
	e, made, err := h.poolEntry(ns.ID())
	if err != nil {
		return nil, 0, err
	}
	id := e.stream.Owner().ID
	if made {
		pool, err := h.fill(e, ns, open)
		return pool, id, err
	}
	<-e.opened // another session may be opening it
	if e.err != nil {
		return nil, 0, e.err
	}
	pool, err := open(*ns)
	return pool, id, err
}

// poolEntry is the entry of a namespace, made when there is none. Who made it
// must fill it.
func (h *eventHub) poolEntry(ns kv.NamespaceID) (e *poolEntry, made bool, err error) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if e := h.pools[ns]; e != nil {
		return e, false, nil
	}
	if len(h.pools) >= maxPools {
		return nil, false, refuse(proto.CodeLimit, "HELLO namespace: the agent has pools of %d namespaces, the most it can have", len(h.pools))
	}
	e = &poolEntry{ownerStream: h.newStream(kv.PoolOwner(poolID(h.node, ns))), opened: make(chan struct{})}
	h.pools[ns] = e
	return e, true, nil
}

// fill opens the pool of a new entry, or drops the entry.
func (h *eventHub) fill(e *poolEntry, ns *kv.Namespace, open func(kv.Namespace) (*blockmgr.Pool, error)) (pool *blockmgr.Pool, err error) {
	defer close(e.opened)
	if h.nats != nil {
		err = e.attach(h.nats, publisher.Meta{Namespace: ns.ID(), Model: ns.Model, BlockSize: ns.BlockSize})
	}
	if err == nil {
		pool, err = open(*ns)
	}
	if err == nil {
		return pool, nil
	}
	e.err = err
	h.mu.Lock()
	delete(h.pools, ns.ID())
	h.mu.Unlock()
	h.closeStream(e.ownerStream)
	return nil, err
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
	streams := make([]*ownerStream, 0, len(h.pools))
	for _, e := range h.pools {
		streams = append(streams, e.ownerStream)
	}
	return streams
}

// closePools announces that the pools are gone. The ranks must have ended.
func (h *eventHub) closePools() {
	for _, o := range h.poolStreams() {
		h.closeStream(o)
	}
}

// closeStream announces that a stream's owner is gone.
func (h *eventHub) closeStream(o *ownerStream) {
	if err := o.close(); err != nil {
		h.log.Warn("close feed", zap.Stringer("owner", o.stream.Owner()), zap.Error(err))
	}
}
