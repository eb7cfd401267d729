package events

import (
	"context"
	"net/http"
	"sync"
	"sync/atomic"

	"go.uber.org/zap"

	"github.com/blockyard-ai/blockyard/agent/consolidated"
	"github.com/blockyard-ai/blockyard/agent/readahead"
	"github.com/blockyard-ai/blockyard/blockmgr"
	"github.com/blockyard-ai/blockyard/consolidator/tokens"
	"github.com/blockyard-ai/blockyard/internal/kv"
	"github.com/blockyard-ai/blockyard/internal/kvevent"
	"github.com/blockyard-ai/blockyard/internal/proto"
)

// Hub holds the event streams of a node, one for each pool and one for each worker rank, and
// the outputs that publish them. It is the block manager's EventSink. No stream is called under
// mu.
type Hub struct {
	out       *outputs
	log       *zap.Logger
	evictions *evictions
	hints     *readahead.Queue

	files   *checkpoints
	flusher consolidated.Flusher // of the pools' streams
	changes atomic.Uint64        // of all pools

	mu    sync.Mutex
	pools map[kv.NamespaceID]*PoolStream
	ranks map[*Rank]struct{}
	ended Totals // of ended ranks and pools
}

// Open connects the outputs. An error leaves nothing open. Close must be called after every
// stream has ended.
func Open(ctx context.Context, cfg Config, log *zap.Logger) (*Hub, error) {
	out, err := openOutputs(ctx, &cfg, log.Named("publisher"))
	if err != nil {
		return nil, err
	}
	return newHub(out, log.Named("events")), nil
}

func newHub(out *outputs, log *zap.Logger) *Hub {
	return &Hub{
		out: out, log: log, evictions: newEvictions(), hints: readahead.New(log), files: newCheckpoints(out.cfg, log), flusher: consolidated.NewFlusher(),
		pools: make(map[kv.NamespaceID]*PoolStream),
		ranks: make(map[*Rank]struct{}),
	}
}

// Run flushes the pools' streams shortly after they change, reports every owner's load once a
// second, and begins the reads that routers' hints ask for, until ctx ends.
func (h *Hub) Run(ctx context.Context) {
	var others sync.WaitGroup
	others.Go(func() { reportLoads(ctx, h.loadSources, h.out.publishLoad) })
	others.Go(func() { h.hints.Run(ctx) })
	h.flusher.Run(ctx, h.flushPools)
	others.Wait()
}

// Close closes the outputs. The streams must have ended.
func (h *Hub) Close() error { return h.out.close() }

// RegisterHTTP adds the routes of the events over HTTP to mux.
func (h *Hub) RegisterHTTP(mux *http.ServeMux) { h.out.http.Register(mux) }

// TokenSink returns the sink of blocks' tokens; nil when no output needs tokens now.
func (h *Hub) TokenSink() tokens.Sink { return h.out.tokenSink() }

// KeepCheckpoints leaves the ranks' files for the next agent from now on, and ends every
// RemoveCheckpointAfter.
func (h *Hub) KeepCheckpoints() { h.files.stop() }

// BlockStored implements blockmgr.EventSink. The block manager holds its lock.
func (h *Hub) BlockStored(ns kv.NamespaceID, t kv.Tier, b blockmgr.Block) {
	if p := h.pool(ns); p != nil && p.placed {
		if group := p.groupOf(&b); group != 0 {
			p.stream.StoreGroup(t, group, []kv.SequenceHash{b.Seq})
			h.changed()
			return
		}
		_, hasParent := p.ancestry.Parent(b.Key, b.Parent, b.Position)
		p.stream.Store(t, b.ParentSeq, hasParent, b.Position, []kvevent.StoredBlock{{Hash: b.Seq, Local: b.Local}})
		h.changed()
	}
}

// BlockRemoved implements blockmgr.EventSink: routers and the sessions that listen to evictions
// learn that a block left a tier. Sessions hear of the primary KV group alone, because a notice
// names no group. The block manager holds its lock.
func (h *Hub) BlockRemoved(ns kv.NamespaceID, t kv.Tier, b blockmgr.Block) {
	group := uint32(0)
	if p := h.pool(ns); p != nil {
		group = p.groupOf(&b)
		if p.placed {
			p.stream.RemoveGroup(t, group, []kv.SequenceHash{b.Seq})
			h.changed()
		}
	}
	if group == 0 {
		h.evictions.add(ns, t, b.Seq)
	}
}

func (h *Hub) changed() {
	h.changes.Add(1)
	h.flusher.Changed()
}

func (h *Hub) flushPools() {
	for _, p := range h.poolStreams() {
		p.stream.Flush()
	}
}

// closeStream announces that a stream's owner is gone.
func (h *Hub) closeStream(o *ownerStream) {
	if err := o.close(); err != nil {
		h.log.Warn("feed does not close cleanly", zap.Stringer("owner", o.stream.Owner()), zap.Error(err))
	}
}

// portHolder returns the rank whose ZMQ stream or replays use a TCP port that endpoint needs.
func (h *Hub) portHolder(endpoint string) (kv.Owner, bool) {
	h.mu.Lock()
	defer h.mu.Unlock()
	for r := range h.ranks {
		for _, one := range r.outputs {
			if one.Sink != nil && portTaken(endpoint, one.Sink.Endpoint(), one.Sink.ReplayEndpoint()) {
				return r.stream.Owner(), true
			}
		}
	}
	return kv.Owner{}, false
}

// liveStreams returns the ranks and pools that have not ended, and adds the totals of the ended
// ones to sum. Both are of one moment.
func (h *Hub) liveStreams(sum *Totals) (ranks []*Rank, pools []*PoolStream) {
	h.mu.Lock()
	defer h.mu.Unlock()
	sum.add(&h.ended)
	for r := range h.ranks {
		ranks = append(ranks, r)
	}
	return ranks, h.poolStreamsLocked()
}

// loadSources returns the live ranks and open pools, with the functions that tell their load.
func (h *Hub) loadSources() []loadSource {
	h.mu.Lock()
	defer h.mu.Unlock()
	sources := make([]loadSource, 0, len(h.ranks)+len(h.pools))
	for r := range h.ranks {
		sources = append(sources, loadSource{publisher: r.publisherID(), owner: r.stream.Owner(), gauges: r.engine.Gauges, copies: r.engine.Copies})
	}
	for _, p := range h.pools {
		if pool := p.pool.Load(); pool != nil {
			sources = append(sources, loadSource{
				publisher: p.publisherID(), owner: p.stream.Owner(),
				pool: pool.Stats, slotBytes: uint64(pool.SlotBytes()), blockBytes: pool.BlockBytes(),
			})
		}
	}
	return sources
}

// Descriptors returns how many file descriptors the event streams of an engine take, at most
// MaxRankDescriptors.
func (h *Hub) Descriptors(hello *proto.Hello) int { return h.out.descriptors(hello) }
