package agent

import (
	"context"
	"crypto/sha256"
	"encoding/binary"
	"errors"
	"strings"
	"sync"
	"time"

	"go.uber.org/zap"

	"github.com/blockyard-ai/blockyard/agent/refusal"
	"github.com/blockyard-ai/blockyard/consolidator"
	"github.com/blockyard-ai/blockyard/consolidator/residency"
	"github.com/blockyard-ai/blockyard/internal/kv"
	"github.com/blockyard-ai/blockyard/internal/kvevent"
	"github.com/blockyard-ai/blockyard/internal/proto"
	"github.com/blockyard-ai/blockyard/publisher"
)

// rankStream makes one engine rank known to the routers and follows its events
// for as long as its session lives.
type rankStream struct {
	*ownerStream
	hub     *eventHub
	engine  rankEngine
	rank    *consolidator.Rank // nil when the engine publishes no events
	reaches []*reach
	file    *checkpoint // nil: none
	warning string      // what of the engine's wishes could not be fulfilled; empty for nothing
	cancel  context.CancelFunc
	wg      sync.WaitGroup
	once    sync.Once
}

// rankEngine is what the engine of a rank can be asked.
type rankEngine struct {
	// guard calls what follows the engine's events; see session.guard.
	guard func(do func() error) error
	// cached are the hashes of what it has on its device; see session.cachedHashes. Nil:
	// it cannot list them.
	cached func(context.Context) ([]kv.EngineHash, error)
	// gauges are what it said last of how it stands.
	gauges func() (engineGauges, bool)
	// copies are what its workers have copied; nil: they do not say.
	copies func() copySum
}

// startRank follows the engine that said hello, a member of the pool that pool is
// the stream of. An engine without events is announced all the same, so that routers
// credit it with the pool's blocks. stop must be called. The error is a refusal
// when the engine's endpoints are bad, and else the agent's own.
func (h *eventHub) startRank(hello *proto.Hello, pool *residency.Stream, engine rankEngine) (*rankStream, error) {
	w := kv.Worker{ID: kv.WorkerID(hello.WorkerID), Rank: kv.DPRank(hello.DPRank)}
	r := &rankStream{ownerStream: h.newStream(kv.WorkerOwner(w)), hub: h, engine: engine, cancel: func() {}}
	opened := false
	defer func() {
		if !opened { // an error or a panic
			r.closeOutputs()
		}
	}()
	if err := r.open(w, hello, pool); err != nil {
		return nil, err
	}
	opened = true
	h.mu.Lock()
	h.ranks[r] = struct{}{}
	h.mu.Unlock()
	if r.rank != nil {
		var ctx context.Context
		ctx, r.cancel = context.WithCancel(context.Background())
		r.wg.Go(func() {
			if err := engine.guard(func() error { return r.rank.Run(ctx) }); err != nil && ctx.Err() == nil {
				h.log.Error("the engine's events cannot be followed", zap.Stringer("worker", w),
					zap.String("endpoint", hello.EventsEndpoint), zap.Error(err))
			}
		})
	}
	return r, nil
}

// open makes the rank and what tells of it.
func (r *rankStream) open(w kv.Worker, hello *proto.Hello, pool *residency.Stream) error {
	out := r.hub.out
	toDynamo, dynamoErr := out.reachDynamo(w, r.stream, pool)
	toZMQ, zmqErr := out.reachZMQ(w, hello, r.hub.bound)
	if toZMQ != nil {
		if err := toZMQ.join(out, r.stream, pool); err != nil {
			toZMQ.close()
			toZMQ, zmqErr = nil, err
		}
	}
	for _, one := range []*reach{toDynamo, toZMQ} {
		if one != nil {
			r.reaches = append(r.reaches, one)
		}
	}
	if err := errors.Join(dynamoErr, zmqErr); err != nil {
		text := err.Error()
		r.warning = strings.ToValidUTF8(text[:min(len(text), proto.MaxTextLen)], "")
	}
	ns := &hello.Namespace
	var err error
	if hello.EventsEndpoint != "" {
		r.file = r.hub.files.begin(w)
		cfg := consolidator.RankConfig{
			Worker: w, BlockSize: int(ns.BlockSize),
			EventsEndpoint: hello.EventsEndpoint, ReplayEndpoint: hello.ReplayEndpoint, Topic: hello.EventsTopic,
			FullReports: out.cfg.Events.FullReports, Checkpoint: r.file.file(), Identity: identityOf(hello),
			Cached: r.engine.cached, ListTimeout: listTimeout + time.Second, // its own error first
			Tokens: toZMQ.tokenSink(out), Raw: toZMQ.raw(), Log: r.hub.log,
		}
		if r.rank, err = consolidator.NewRank(cfg, r.stream); err != nil {
			return refusal.New(proto.CodeRange, "HELLO events_endpoint %q, replay_endpoint %q: %w", hello.EventsEndpoint, hello.ReplayEndpoint, err)
		}
	}
	return r.attach(out, publisher.Meta{
		Pool: pool.Owner().ID, Namespace: ns.ID(), Model: ns.Model, BlockSize: ns.BlockSize,
		Card: kvevent.ModelCard{
			Endpoint: hello.ServingEndpoint, Ranks: hello.Ranks, DeviceBlocks: hello.DeviceBlocks,
			MaxBatchedTokens: hello.MaxBatchedTokens, Taints: out.cfg.Events.WorkerTaints,
			Incarnation: hello.Incarnation, Silent: hello.EventsEndpoint == "",
		},
	})
}

// identityOf tells one start of an engine, with one namespace, from every other: only to the
// same one does a checkpoint apply. 0, which tells nothing, has probability 2^-64.
func identityOf(h *proto.Hello) uint64 {
	id := h.Namespace.ID()
	sum := sha256.Sum256(binary.BigEndian.AppendUint64(id[:], h.Incarnation))
	return binary.BigEndian.Uint64(sum[:])
}

// stats are the rank's counters; zero for an engine without events.
func (r *rankStream) stats() consolidator.RankStats {
	if r.rank == nil {
		return consolidator.RankStats{}
	}
	return r.rank.Stats()
}

// stop ends the rank: it stops following the engine, takes back everything the
// engine held and announces that it is gone. Further calls do nothing.
func (r *rankStream) stop() {
	r.once.Do(func() {
		r.cancel()
		r.wg.Wait()
		r.stream.Clear()
		r.stream.Flush()
		r.closeOutputs()
		r.hub.forget(r)
	})
}

func (r *rankStream) closeOutputs() {
	r.file.end()
	for _, one := range r.reaches {
		one.close()
	}
	r.hub.closeStream(r.ownerStream)
}

// forget keeps the totals of a rank that has ended.
func (h *eventHub) forget(r *rankStream) {
	t := EventTotals{Ranks: r.stats()}
	t.addStream(r.ownerStream)
	t.addReaches(r.reaches)
	t.ended()
	h.mu.Lock()
	defer h.mu.Unlock()
	delete(h.ranks, r)
	h.ended.add(&t)
}

// bound is the rank whose stream in the engines' format holds a TCP port of endpoint's, or the
// port of its replays.
func (h *eventHub) bound(endpoint string) (kv.Owner, bool) {
	h.mu.Lock()
	defer h.mu.Unlock()
	for r := range h.ranks {
		for _, one := range r.reaches {
			if one.zmq != nil && clash(endpoint, one.zmq.Endpoint(), one.zmq.ReplayEndpoint()) {
				return r.stream.Owner(), true
			}
		}
	}
	return kv.Owner{}, false
}

// live are the ranks and the pools' streams that have not ended, as of one moment;
// the totals of the others are added to sum.
func (h *eventHub) live(sum *EventTotals) (ranks []*rankStream, pools []*ownerStream) {
	h.mu.Lock()
	defer h.mu.Unlock()
	sum.add(&h.ended)
	for r := range h.ranks {
		ranks = append(ranks, r)
	}
	return ranks, h.poolStreamsLocked()
}

// loadSources are the owners whose load can be told.
func (h *eventHub) loadSources() []loadSource {
	h.mu.Lock()
	defer h.mu.Unlock()
	sources := make([]loadSource, 0, len(h.ranks)+len(h.pools))
	for r := range h.ranks {
		sources = append(sources, loadSource{publisher: r.publisherID(), owner: r.stream.Owner(), gauges: r.engine.gauges, copies: r.engine.copies})
	}
	for _, e := range h.pools {
		select {
		case <-e.opened:
		default:
			continue
		}
		if e.pool != nil {
			sources = append(sources, loadSource{
				publisher: e.publisherID(), owner: e.stream.Owner(),
				pool: e.pool.Stats, slotBytes: uint64(e.pool.SlotBytes()), blockBytes: e.pool.BlockBytes(),
			})
		}
	}
	return sources
}
