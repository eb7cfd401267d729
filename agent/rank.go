package agent

import (
	"context"
	"sync"

	"go.uber.org/zap"

	"github.com/blockyard-ai/blockyard/consolidator"
	"github.com/blockyard-ai/blockyard/internal/kv"
	"github.com/blockyard-ai/blockyard/internal/proto"
	"github.com/blockyard-ai/blockyard/publisher"
)

// rankStream makes one engine rank known to the routers and follows its events
// for as long as its session lives.
type rankStream struct {
	*ownerStream
	hub    *eventHub
	rank   *consolidator.Rank // nil when the engine publishes no events
	cancel context.CancelFunc
	wg     sync.WaitGroup
	once   sync.Once
}

// startRank follows the engine that said hello, a member of the pool with id
// pool. An engine without events is announced all the same, so that routers
// credit it with the pool's blocks. stop must be called. The error is a refusal
// when the engine's endpoints are bad, and else the agent's own.
func (h *eventHub) startRank(hello *proto.Hello, pool uint64) (*rankStream, error) {
	w := kv.Worker{ID: kv.WorkerID(hello.WorkerID), Rank: kv.DPRank(hello.DPRank)}
	log := h.log.With(zap.Stringer("worker", w))
	r := &rankStream{ownerStream: h.newStream(kv.WorkerOwner(w)), hub: h, cancel: func() {}}
	if hello.EventsEndpoint != "" {
		var err error
		r.rank, err = consolidator.NewRank(consolidator.RankConfig{
			Worker: w, BlockSize: int(hello.Namespace.BlockSize),
			EventsEndpoint: hello.EventsEndpoint, ReplayEndpoint: hello.ReplayEndpoint, Topic: hello.EventsTopic,
			Log: log,
		}, r.stream)
		if err != nil {
			return nil, refuse(proto.CodeRange, "HELLO events_endpoint %q, replay_endpoint %q: %w", hello.EventsEndpoint, hello.ReplayEndpoint, err)
		}
	}
	if h.nats != nil {
		ns := &hello.Namespace
		meta := publisher.Meta{Pool: pool, Namespace: ns.ID(), Model: ns.Model, BlockSize: ns.BlockSize}
		if err := r.attach(h.nats, meta); err != nil {
			return nil, err
		}
	}
	h.mu.Lock()
	h.ranks[r] = struct{}{}
	h.mu.Unlock()
	if r.rank != nil {
		var ctx context.Context
		ctx, r.cancel = context.WithCancel(context.Background())
		r.wg.Go(func() {
			if err := r.rank.Run(ctx); err != nil && ctx.Err() == nil {
				log.Error("the engine's events cannot be followed", zap.String("endpoint", hello.EventsEndpoint), zap.Error(err))
			}
		})
	}
	return r, nil
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
		r.hub.closeStream(r.ownerStream)
		r.hub.forget(r)
	})
}

// forget keeps the totals of a rank that has ended.
func (h *eventHub) forget(r *rankStream) {
	t := EventTotals{Ranks: r.stats()}
	t.addStream(r.ownerStream)
	h.mu.Lock()
	defer h.mu.Unlock()
	delete(h.ranks, r)
	h.ended.add(&t)
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
