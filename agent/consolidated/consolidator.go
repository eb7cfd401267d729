package consolidated

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"sync"

	"go.uber.org/zap"

	"github.com/blockyard-ai/blockyard/blockmgr"
	"github.com/blockyard-ai/blockyard/blockmgr/kvbm"
	"github.com/blockyard-ai/blockyard/consolidator"
	"github.com/blockyard-ai/blockyard/consolidator/residency"
	"github.com/blockyard-ai/blockyard/consolidator/tokens"
	"github.com/blockyard-ai/blockyard/internal/kv"
	"github.com/blockyard-ai/blockyard/internal/kvevent"
	"github.com/blockyard-ai/blockyard/publisher/zmqsink"
)

// Consolidator merges one engine's events with those of its block manager, whose
// EventSink it is. Start makes it.
type Consolidator struct {
	out       *Output
	own, pool *residency.Stream
	flusher   Flusher
	cancel    context.CancelFunc
	tasks     sync.WaitGroup
	failed    error // of the engine's events; set before tasks end
}

// Start binds the consolidated endpoint and follows the engine's, until Close. It is a
// kvbm.Place's Consolidate. The engine is rank 0 of the worker. It need not run yet.
func Start(c kvbm.Consolidation) (kvbm.Consolidator, error) {
	if err := c.Validate(); err != nil {
		return nil, err
	}
	log := cmp.Or(c.Log, zap.NewNop())
	worker := kv.Worker{ID: c.WorkerID}
	table := tokens.New(0)
	opt := zmqsink.Options{Bind: c.ConsolidatedEventEndpoint, Worker: worker, BlockSize: c.BlockTokens, Log: log}
	out, err := Open(opt, c.Mode.String(), table)
	if err != nil {
		return nil, fmt.Errorf("consolidated_event_endpoint %q: %w", c.ConsolidatedEventEndpoint, err)
	}
	m := &Consolidator{
		out: out, flusher: NewFlusher(),
		own: residency.NewStream(kv.WorkerOwner(worker), nil), pool: residency.NewStream(kv.PoolOwner(uint64(c.WorkerID)), nil),
	}
	rank, err := consolidator.NewRank(consolidator.RankConfig{
		Worker: worker, BlockSize: int(c.BlockTokens), EventsEndpoint: c.EngineEventEndpoint,
		Tokens: out.Tokens(), Raw: out.Raw(), Log: log,
	}, m.own)
	if err == nil {
		err = errors.Join(out.Follow(m.own), out.FollowPool(m.pool))
	}
	if err != nil {
		out.Close()
		return nil, err
	}
	var ctx context.Context
	ctx, m.cancel = context.WithCancel(context.Background())
	m.tasks.Go(func() { m.flusher.Run(ctx, m.pool.Flush) })
	m.tasks.Go(func() {
		if m.failed = rank.Run(ctx); m.failed != nil {
			log.Error("the engine's events cannot be followed", zap.String("endpoint", c.EngineEventEndpoint), zap.Error(m.failed))
		}
	})
	log.Info("consolidated events", zap.Stringer("worker", worker), zap.Stringer("mode", c.Mode),
		zap.String("engine", c.EngineEventEndpoint), zap.String("endpoint", out.Sink.Endpoint()))
	return m, nil
}

// BlockStored implements blockmgr.EventSink.
func (m *Consolidator) BlockStored(_ kv.NamespaceID, t kv.Tier, b blockmgr.Block) {
	m.pool.Store(t, b.ParentSeq, b.Position > 0, b.Position, []kvevent.StoredBlock{{Hash: b.Seq, Local: b.Local}})
	m.flusher.Changed()
}

// BlockRemoved implements blockmgr.EventSink.
func (m *Consolidator) BlockRemoved(_ kv.NamespaceID, t kv.Tier, b blockmgr.Block) {
	m.pool.Remove(t, []kv.SequenceHash{b.Seq})
	m.flusher.Changed()
}

// Close stops following the engine and unbinds the consolidated endpoint. It returns why
// the engine's events could not be followed. It may be called once.
func (m *Consolidator) Close() error {
	m.cancel()
	m.tasks.Wait()
	m.out.Close()
	return m.failed
}
