package zmq

import (
	"context"
	"math"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"go.uber.org/zap"

	"github.com/blockyard-ai/blockyard/consolidator"
	"github.com/blockyard-ai/blockyard/consolidator/residency"
	"github.com/blockyard-ai/blockyard/internal/backoff"
	"github.com/blockyard-ai/blockyard/internal/kv"
	"github.com/blockyard-ai/blockyard/internal/kvevent"
	"github.com/blockyard-ai/blockyard/internal/kvgroup"
	"github.com/blockyard-ai/blockyard/publisher"
	"github.com/blockyard-ai/blockyard/router/source"
)

// Bounds of the pause before the sockets of a rank are opened again after a failure.
const firstReopen, lastReopen = 250 * time.Millisecond, 30 * time.Second

// engine is an engine that is followed. source.Engine.Card is its first card.
type engine struct {
	source.Engine
	card  atomic.Pointer[kvevent.ModelCard]
	ranks []*rank
	// cancel ends the engine. done is closed when it has said goodbye.
	cancel context.CancelFunc
	done   chan struct{}
}

// rank is one rank of an engine, and the publisher.Transport of its feed.
type rank struct {
	s      *Source
	engine *engine
	cfg    consolidator.RankConfig
	stream *residency.Stream
	feed   *publisher.Feed
	// groups are the engine's KV groups, as far as its events have told.
	groups atomic.Pointer[kvevent.Groups]
	// current is the follower that runs; nil for none. mu guards ended and reopened.
	current  atomic.Pointer[consolidator.Rank]
	mu       sync.Mutex
	ended    consolidator.RankStats // of followers that ended
	reopened uint64
}

var _ publisher.Transport = (*rank)(nil)

// sameEvents reports whether e and o differ in their cards at most.
func (e *engine) sameEvents(o *source.Engine) bool {
	return e.Model == o.Model && e.BlockSize == o.BlockSize && e.Namespace == o.Namespace && slices.Equal(e.Ranks, o.Ranks)
}

// setCard replaces the model card and announces it for every rank. An equal card does nothing.
func (e *engine) setCard(card kvevent.ModelCard) {
	if *e.card.Load() == card {
		return
	}
	e.card.Store(&card)
	for _, r := range e.ranks {
		r.feed.Announce()
	}
}

// beginLocked begins to follow an engine, in a goroutine for each of its ranks. An engine of the
// same worker that is still leaving says goodbye first. The caller holds s.mu.
func (s *Source) beginLocked(what source.Engine) {
	e := &engine{Engine: what, done: make(chan struct{})}
	e.card.Store(&what.Card)
	var ctx context.Context
	ctx, e.cancel = context.WithCancel(s.ctx)
	for i := range what.Ranks {
		r := s.newRank(e, &what.Ranks[i])
		e.ranks = append(e.ranks, r)
		s.publishers[r.feed.PublisherID()] = r
	}
	s.engines[what.Worker] = e
	previous := s.leaving[what.Worker]
	s.running.Go(func() {
		defer s.endEngine(e)
		if previous != nil {
			<-previous.done
		}
		var following sync.WaitGroup
		for _, r := range e.ranks {
			following.Go(func() { r.run(ctx) })
		}
		following.Wait()
	})
}

// leaveLocked makes the ranks of an engine say goodbye. endEngine follows when they have. The caller
// holds s.mu.
func (s *Source) leaveLocked(e *engine) {
	delete(s.engines, e.Worker)
	s.leaving[e.Worker] = e
	e.cancel()
}

// endEngine forgets an engine whose ranks no longer run, adds their counters to s.ended, and lets
// the next engine of the worker begin (e.done).
func (s *Source) endEngine(e *engine) {
	e.cancel()
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, r := range e.ranks {
		delete(s.publishers, r.feed.PublisherID())
		s.ended.addRank(r)
	}
	if s.leaving[e.Worker] == e {
		delete(s.leaving, e.Worker)
	}
	if s.engines[e.Worker] == e { // the Source closes: leaveLocked has not moved e to leaving
		delete(s.engines, e.Worker)
	}
	close(e.done)
}

// newRank returns the rank of engine e whose endpoints are in where. It does nothing before run,
// and is degraded.
func (s *Source) newRank(e *engine, where *source.EngineRank) *rank {
	r := &rank{s: s, engine: e, cfg: rankConfig(&e.Engine, where)}
	r.cfg.Log = s.log
	r.cfg.Learned = r.learned
	owner := kv.WorkerOwner(r.cfg.Worker)
	r.stream = residency.NewStream(owner, nil)
	// Nothing is known before the engine was reached.
	r.stream.Update(func(tx *residency.Tx) { tx.SetHealth(kvevent.HealthDegraded) })
	r.feed = publisher.NewFeed(publisher.FeedOptions{
		ID: kv.RandomID(), Owner: owner, AnnounceEvery: s.opt.AnnounceEvery, Transport: r,
		Meta: publisher.Meta{Namespace: e.Namespace, Model: e.Model, BlockSize: e.BlockSize},
	})
	return r
}

// run announces the rank to the router and follows its engine's events until ctx ends. Then the
// feed announces that the rank is gone. When the sockets fail it opens them again, after a growing
// pause.
func (r *rank) run(ctx context.Context) {
	defer r.feed.Close()
	if ctx.Err() != nil {
		return // a rank that was never announced
	}
	if err := r.stream.AddSink(r.feed); err != nil {
		panic("BUG: a new stream takes no sink: " + err.Error())
	}
	if err := r.feed.Attach(r.stream); err != nil {
		panic("BUG: a new feed takes no source: " + err.Error())
	}
	pauses := backoff.Jittered(firstReopen, lastReopen)
	for ctx.Err() == nil {
		began := time.Now()
		err := r.follow(ctx)
		if err == nil {
			return
		}
		r.s.log.Error("the engine's events cannot be followed; trying again", zap.Stringer("worker", r.cfg.Worker),
			zap.String("events", r.cfg.EventsEndpoint), zap.Error(err))
		if time.Since(began) > lastReopen {
			pauses.Reset()
		}
		pause := time.NewTimer(pauses.NextBackOff())
		select {
		case <-pause.C:
		case <-ctx.Done():
			pause.Stop()
		}
	}
}

// follow opens the rank's sockets and applies the engine's events to the rank's stream. It returns
// nil when ctx ends, or the error of the sockets. r.current is set meanwhile; r.ended sums the
// counters of the calls that have returned.
func (r *rank) follow(ctx context.Context) error {
	follower, err := consolidator.NewRank(r.cfg, r.stream)
	if err != nil {
		return err
	}
	r.current.Store(follower)
	err = follower.Run(ctx)
	r.mu.Lock()
	defer r.mu.Unlock()
	r.current.Store(nil)
	r.ended.Add(follower.Stats())
	if err != nil {
		r.reopened++
	}
	return err
}

// Gate implements publisher.Transport.
func (r *rank) Gate() publisher.Gate { return publisher.GateOpen }

// MaxMessage implements publisher.Transport. Events and blocks alone bound a message.
func (r *rank) MaxMessage() int { return math.MaxInt }

// SendEvents implements publisher.Transport.
func (r *rank) SendEvents(e *kvevent.Envelope) bool {
	return r.s.send(source.Frame{Kind: source.FrameEvents, Data: kvevent.AppendEnvelope(nil, e)})
}

// learned announces the KV groups that the engine's events tell. The router then credits the worker
// with what all groups can serve.
func (r *rank) learned(engine kvgroup.Groups) {
	groups, _ := kvevent.NewGroups(engine)
	if old := r.groups.Swap(&groups); old == nil || *old != groups {
		r.feed.Announce()
	}
}

// SendAnnouncement implements publisher.Transport. The announcement has the present card and the KV
// groups that are known.
func (r *rank) SendAnnouncement(a *kvevent.Announcement) bool {
	a.Card = *r.engine.card.Load()
	if groups := r.groups.Load(); groups != nil {
		a.Card.Groups = *groups
	}
	return r.s.send(source.Frame{Kind: source.FrameAnnouncement, Data: kvevent.AppendAnnouncement(nil, a)})
}
