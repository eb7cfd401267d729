package events

import (
	"sync/atomic"

	"go.uber.org/zap"

	"github.com/blockyard-ai/blockyard/blockmgr"
	"github.com/blockyard-ai/blockyard/blockmgr/tier"
	"github.com/blockyard-ai/blockyard/consolidator/residency"
	"github.com/blockyard-ai/blockyard/internal/kv"
	"github.com/blockyard-ai/blockyard/internal/kvevent"
	"github.com/blockyard-ai/blockyard/publisher"
)

// PoolStream is a pool's stream and the feeds that publish it.
type PoolStream struct {
	*ownerStream
	hub *Hub
	ns  kv.NamespaceID
	// ancestry has the number of the primary KV group. groups has the number in events of each group
	// of the namespace; nil without groups.
	ancestry tier.Ancestry
	groups   []uint32
	// placed is true when a block of the primary group is one chain block. Larger blocks leave out
	// the chain blocks inside of them, so that events could not place them.
	placed bool
	// pool is nil until the pool is open.
	pool atomic.Pointer[blockmgr.Pool]
}

// OpenPool publishes the pool of namespace ns under owner, with card. Until End the block manager's
// reports of the namespace go to this stream, also those of blocks that the pool recovers
// while it opens. A namespace has one stream at a time. An error or a panic leaves nothing
// behind.
func (h *Hub) OpenPool(owner kv.Owner, ns *kv.Namespace, card kvevent.ModelCard) (*PoolStream, error) {
	p := &PoolStream{ownerStream: newOwnerStream(owner), hub: h, ns: ns.ID(), ancestry: tier.AncestryOf(ns)}
	card.Groups, p.groups = kvevent.NewGroups(ns.KVGroups())
	list := card.Groups.List()
	if p.placed = len(list) == 0 || list[0].BlockSize == ns.BlockSize; !p.placed {
		h.log.Warn("routers get no blocks of a model: a block of its full attention is larger than the namespace's page",
			zap.String("model", ns.Model), zap.Uint32("block_size", list[0].BlockSize), zap.Uint32("page_size", ns.BlockSize))
	}
	h.mu.Lock()
	h.pools[p.ns] = p
	h.mu.Unlock()
	opened := false
	defer func() {
		if !opened {
			p.End()
		}
	}()
	meta := publisher.Meta{Namespace: p.ns, Model: ns.Model, BlockSize: ns.BlockSize, Card: card}
	if err := p.attach(h.out, meta); err != nil {
		return nil, err
	}
	opened = true
	return p, nil
}

// groupOf returns the number of a block's KV group in events.
func (p *PoolStream) groupOf(b *blockmgr.Block) uint32 {
	if group := b.Key.Group(); int(group) < len(p.groups) {
		return p.groups[group]
	}
	return 0
}

// Opened starts the load reports of pool, and the reads that routers' hints ask for.
func (p *PoolStream) Opened(pool *blockmgr.Pool) {
	p.pool.Store(pool)
	p.takeHints(pool)
}

// takeHints lets routers' hints begin reads of the pool, if the pool reads from disk. With KV groups
// only FIT says which blocks are worth a read.
func (p *PoolStream) takeHints(pool *blockmgr.Pool) {
	ns := pool.Namespace()
	if p.hub.out.cfg.NoReadAhead || !pool.Promotes() || ns.KVGroups() != nil {
		return
	}
	take := func(data []byte) { p.hub.hints.Add(pool, data) }
	if f := p.http.Load(); f != nil {
		f.TakeHints(take)
	}
	if f := p.nats.Load(); f != nil {
		if err := f.TakeHints(take); err != nil {
			p.hub.log.Warn("a pool takes no read-ahead hints over NATS", zap.Stringer("owner", p.stream.Owner()), zap.Error(err))
		}
	}
}

// Stream returns the pool's stream, for the ranks of the namespace.
func (p *PoolStream) Stream() *residency.Stream { return p.stream }

// End publishes the last events and announces that the pool is gone. The hub's totals keep the
// stream's counters.
func (p *PoolStream) End() {
	p.stream.Flush()
	p.hub.closeStream(p.ownerStream)
	var t Totals
	t.addStream(p.ownerStream)
	p.hub.mu.Lock()
	defer p.hub.mu.Unlock()
	delete(p.hub.pools, p.ns)
	p.hub.ended.add(&t)
}

// ClosePools announces that all pools are gone. The ranks must have ended.
func (h *Hub) ClosePools() {
	for _, p := range h.poolStreams() {
		h.closeStream(p.ownerStream)
	}
}

// pool returns the stream of a namespace's pool; nil without one.
func (h *Hub) pool(ns kv.NamespaceID) *PoolStream {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.pools[ns]
}

func (h *Hub) poolStreams() []*PoolStream {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.poolStreamsLocked()
}

func (h *Hub) poolStreamsLocked() []*PoolStream {
	streams := make([]*PoolStream, 0, len(h.pools))
	for _, p := range h.pools {
		streams = append(streams, p)
	}
	return streams
}
