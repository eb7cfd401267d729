package events

import (
	"context"
	"crypto/sha256"
	"encoding/binary"
	"errors"
	"strings"
	"sync"
	"time"

	"go.uber.org/zap"

	"github.com/blockyard-ai/blockyard/agent/consolidated"
	"github.com/blockyard-ai/blockyard/agent/refusal"
	"github.com/blockyard-ai/blockyard/consolidator"
	"github.com/blockyard-ai/blockyard/consolidator/residency"
	"github.com/blockyard-ai/blockyard/internal/kv"
	"github.com/blockyard-ai/blockyard/internal/kvevent"
	"github.com/blockyard-ai/blockyard/internal/proto"
	"github.com/blockyard-ai/blockyard/publisher"
)

// Rank publishes the blocks of one engine rank and follows the engine's events, from
// StartRank to Stop.
type Rank struct {
	*ownerStream
	hub     *Hub
	engine  Engine
	rank    *consolidator.Rank // nil: the engine publishes no events
	outputs []*rankOutput
	file    *checkpoint // nil: no checkpoint
	warning string      // names the outputs that could not be opened
	cancel  context.CancelFunc
	wg      sync.WaitGroup
	once    sync.Once
}

// Engine has the functions with which a rank asks the session of its engine. Any goroutine may
// call them, until Stop has returned.
type Engine struct {
	// Guard calls do. It returns a panic of do as an error, after it has closed the engine's
	// connection.
	Guard func(do func() error) error
	// Cached returns the hashes in the device's prefix cache, within ListTimeout; nil: the
	// engine cannot list them.
	Cached      func(context.Context) ([]kv.EngineHash, error)
	ListTimeout time.Duration
	// Gauges returns the last gauges that the engine reported, false before the first.
	Gauges func() (EngineGauges, bool)
	// Copies returns the sums of the workers' copies; nil when the workers report none.
	Copies func() CopySum
}

// StartRank publishes the engine that said HELLO and follows its events. pool is the stream of
// its pool. An engine without events is published too, so that routers credit it with the
// pool's blocks. Stop must be called. The error is a refusal when the engine's endpoints are
// bad.
func (h *Hub) StartRank(hello *proto.Hello, pool *residency.Stream, engine Engine) (*Rank, error) {
	w := kv.Worker{ID: kv.WorkerID(hello.WorkerID), Rank: kv.DPRank(hello.DPRank)}
	r := &Rank{ownerStream: newOwnerStream(kv.WorkerOwner(w)), hub: h, engine: engine, cancel: func() {}}
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
			if err := engine.Guard(func() error { return r.rank.Run(ctx) }); err != nil && ctx.Err() == nil {
				h.log.Error("the engine's events cannot be followed", zap.Stringer("worker", w),
					zap.String("endpoint", hello.EventsEndpoint), zap.Error(err))
			}
		})
	}
	return r, nil
}

// open opens the rank's outputs, prepares to follow the engine's events and publishes the rank, in
// this order: a sink must be added before the stream has a block. pool is the stream of the
// rank's pool. After an error the caller closes the outputs.
func (r *Rank) open(w kv.Worker, hello *proto.Hello, pool *residency.Stream) error {
	out := r.hub.out
	zmq := r.openWorkerOutputs(w, hello, pool)
	if hello.EventsEndpoint != "" {
		if err := r.follow(w, hello, zmq); err != nil {
			return err
		}
	}
	ns := &hello.Namespace
	groups, _ := kvevent.NewGroups(ns.KVGroups())
	return r.attach(out, publisher.Meta{
		Pool: pool.Owner().ID, Namespace: ns.ID(), Model: ns.Model, BlockSize: ns.BlockSize,
		Card: kvevent.ModelCard{
			Endpoint: hello.ServingEndpoint, Ranks: hello.Ranks, DeviceBlocks: hello.DeviceBlocks,
			MaxBatchedTokens: hello.MaxBatchedTokens, Taints: out.cfg.WorkerTaints,
			Incarnation: hello.Incarnation, Silent: hello.EventsEndpoint == "", Groups: groups,
		},
	})
}

// openWorkerOutputs opens the outputs that know workers and no pools, Dynamo's and ZMQ: they merge
// the rank's blocks with its pool's. It returns the ZMQ stream, which also gets tokens and
// payloads; nil for none. An output that cannot be opened becomes r.warning, for the engine.
func (r *Rank) openWorkerOutputs(w kv.Worker, hello *proto.Hello, pool *residency.Stream) *consolidated.Output {
	out := r.hub.out
	toDynamo, dynamoErr := out.openDynamo(w, r.stream, pool)
	toZMQ, zmqErr := out.openZMQ(w, hello, r.hub.portHolder)
	if toZMQ != nil {
		if err := toZMQ.follow(out, r.stream, pool); err != nil {
			toZMQ.close()
			toZMQ, zmqErr = nil, err
		}
	}
	for _, one := range []*rankOutput{toDynamo, toZMQ} {
		if one != nil {
			r.outputs = append(r.outputs, one)
		}
	}
	if err := errors.Join(dynamoErr, zmqErr); err != nil {
		text := err.Error()
		r.warning = strings.ToValidUTF8(text[:min(len(text), proto.MaxTextLen)], "")
	}
	if toZMQ == nil {
		return nil
	}
	return toZMQ.Output
}

// follow sets r.rank to a consolidator.Rank that will read the engine's events into r.stream,
// beginning from the last checkpoint. StartRank runs it. zmq, which may be nil, gets the tokens
// and payloads. The error is a refusal of the endpoints in HELLO.
func (r *Rank) follow(w kv.Worker, hello *proto.Hello, zmq *consolidated.Output) (err error) {
	r.file = r.hub.files.begin(w)
	r.rank, err = consolidator.NewRank(consolidator.RankConfig{
		Worker: w, BlockSize: int(hello.Namespace.BlockSize), Groups: hello.Namespace.KVGroups(),
		EventsEndpoint: hello.EventsEndpoint, ReplayEndpoint: hello.ReplayEndpoint, Topic: hello.EventsTopic,
		FullReports: r.hub.out.cfg.FullReports, Checkpoint: r.file.file(), Identity: identityOf(hello),
		Cached: r.engine.Cached, ListTimeout: r.engine.ListTimeout + time.Second, // so that the engine's own error comes first
		Tokens: zmq.Tokens(), Raw: zmq.Raw(), Log: r.hub.log,
	}, r.stream)
	if err != nil {
		return refusal.New(proto.CodeRange, "HELLO events_endpoint %q, replay_endpoint %q: %w", hello.EventsEndpoint, hello.ReplayEndpoint, err)
	}
	return nil
}

// identityOf identifies one start of an engine with one namespace. A checkpoint applies to the
// same identity only. 0, which means none, has probability 2^-64.
func identityOf(h *proto.Hello) uint64 {
	id := h.Namespace.ID()
	sum := sha256.Sum256(binary.BigEndian.AppendUint64(id[:], h.Incarnation))
	return binary.BigEndian.Uint64(sum[:])
}

// stats returns the rank's counters; zero without events.
func (r *Rank) stats() consolidator.RankStats {
	if r.rank == nil {
		return consolidator.RankStats{}
	}
	return r.rank.Stats()
}

// Warning names the outputs that could not be opened; empty for none.
func (r *Rank) Warning() string { return r.warning }

// RemoveCheckpoint removes the checkpoint of the rank. The caller knows that the engine will
// not come back.
func (r *Rank) RemoveCheckpoint() { r.file.remove() }

// RemoveCheckpointAfter calls RemoveCheckpoint when every channel of exited is closed. It
// returns earlier when another session of the rank begins, and after KeepCheckpoints.
func (r *Rank) RemoveCheckpointAfter(exited []<-chan struct{}) { r.file.removeAfter(exited) }

// Stop stops following the engine, removes all its blocks from the stream and announces that
// the rank is gone. Further calls do nothing.
func (r *Rank) Stop() {
	r.once.Do(func() {
		r.cancel()
		r.wg.Wait()
		r.stream.Clear()
		r.stream.Flush()
		r.closeOutputs()
		r.hub.addEnded(r)
	})
}

// closeOutputs ends the checkpoint file, the outputs and the owner's stream.
func (r *Rank) closeOutputs() {
	r.file.end()
	for _, one := range r.outputs {
		one.close()
	}
	r.hub.closeStream(r.ownerStream)
}

// addEnded adds the totals of an ended rank to the hub's.
func (h *Hub) addEnded(r *Rank) {
	t := Totals{Ranks: r.stats()}
	t.addStream(r.ownerStream)
	t.addOutputs(r.outputs)
	t.ended()
	h.mu.Lock()
	defer h.mu.Unlock()
	delete(h.ranks, r)
	h.ended.add(&t)
}
