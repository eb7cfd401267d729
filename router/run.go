package router

import (
	"context"
	"sync"
	"sync/atomic"
	"time"

	"go.uber.org/zap"
	"golang.org/x/sync/errgroup"

	"github.com/blockyard-ai/blockyard/router/feed"
	"github.com/blockyard-ai/blockyard/router/index"
	"github.com/blockyard-ai/blockyard/router/remote"
	"github.com/blockyard-ai/blockyard/router/source"
)

// queryResult is the answer to a query, or its error.
type queryResult struct {
	query  feed.Query
	answer *source.Answer
	err    error
}

// tickInterval is the period of the router's timed work.
const tickInterval = 100 * time.Millisecond

// sweepRuns is how many runs of each index one tick checks for blocks of owners that left.
// At this rate a million blocks take a second or two.
const sweepRuns = 4096

// Run restores the stored snapshot and applies the transport's messages until ctx ends. Then
// it waits for the queries in flight and saves the last snapshot. The error says that bookings cannot
// be shared with other routers, or that the index cannot be served. Without the settings for that it is nil.
func (r *Router) Run(ctx context.Context) error { return r.RunSharing(ctx, ctx) }

// RunSharing is Run for a router whose requests outlive ctx. With router_replica_sync it shares bookings
// until sharing ends. Then it tells the other routers that this router's bookings have ended.
func (r *Router) RunSharing(ctx, sharing context.Context) error {
	sharing, stopSharing := context.WithCancel(sharing)
	defer stopSharing()
	g, ctx := errgroup.WithContext(ctx)
	if r.replicas != nil {
		g.Go(func() error { return r.replicas.Run(sharing) })
	}
	if r.indexers != nil {
		g.Go(func() error {
			err := r.serveIndex(ctx)
			if err != nil {
				stopSharing()
			}
			return err
		})
	}
	g.Go(func() error { r.run(ctx); return nil })
	return g.Wait()
}

const (
	// joinTime is the least time between the first worker and the first answer to another router. Publishers
	// announce themselves every second.
	joinTime = 2 * time.Second
	// joinLimit is when a router answers although its index lacks blocks. Its answers say so.
	joinLimit = 30 * time.Second
)

// serveIndex answers questions of other routers about this router's index, from when the index has the
// blocks of all workers until ctx ends. Without feeds the index would be stale. The error says that the bus
// takes no subscription.
func (r *Router) serveIndex(ctx context.Context) error {
	if !r.join(ctx) {
		return nil
	}
	served, err := remote.Serve(r.indexers, r.lookup)
	if err != nil {
		return err
	}
	defer served.Stop()
	r.served.Store(served)
	<-ctx.Done()
	return nil
}

// join waits until the index has the blocks of all workers, for at most joinLimit after the first worker.
// The result is false when ctx has ended before.
func (r *Router) join(ctx context.Context) bool {
	ticker := time.NewTicker(tickInterval)
	defer ticker.Stop()
	var ready time.Time
	for {
		select {
		case <-ctx.Done():
			return false
		case now := <-ticker.C:
			if r.Ready() != nil {
				ready = time.Time{}
				continue
			}
			if ready.IsZero() {
				ready = now
			}
			if age := now.Sub(ready); age >= joinLimit || age >= joinTime && r.Quality() == feed.Exact {
				return true
			}
		}
	}
}

// lookup answers a question of another router about this router's index.
func (r *Router) lookup(dst *index.Matches, q *remote.Query) (quality feed.Quality, ok bool) {
	for _, m := range r.Models(q.Model) {
		if m.key.Name == q.Model && m.key.BlockSize == q.BlockSize {
			before := m.Quality()
			m.index.Match(dst, q.Locals, q.Reading)
			return worse(before, m.Quality()), true
		}
	}
	return feed.Fallback, false
}

// run restores the stored snapshot and applies the transport's messages until ctx ends: see Run.
func (r *Router) run(ctx context.Context) {
	position := r.snapshots.Start(ctx)
	if t, ok := r.transport.(source.Resumer); ok {
		t.Resume(position)
	}
	defer r.snapshots.Finish()
	// Operators search for these texts of Dynamo's.
	r.log.Info("KV Routing initialized")
	defer r.log.Info("Dropping KvRouter - cancelling background tasks")
	if r.shared != nil {
		defer r.shared.Close()
	}
	var queries sync.WaitGroup
	defer queries.Wait()
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	queries.Go(func() { r.hints.run(ctx) })
	queries.Go(func() { r.history.Run(ctx) })
	ask := func(due []feed.Query) { // package feed bounds the queries in flight
		for _, q := range due {
			queries.Go(func() { r.query(ctx, q) })
		}
	}
	var asking atomic.Bool
	ticker := time.NewTicker(tickInterval)
	defer ticker.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case fr := <-r.transport.Frames():
			ask(r.feeds.Frame(fr, time.Now()))
		case a := <-r.results:
			ask(r.feeds.Answered(&a.query, a.answer, a.err, time.Now()))
		case <-ticker.C:
			now := time.Now() // the time of the tick is old after a pause of the process
			for _, m := range r.models.all() {
				m.tick()
			}
			r.models.balance(now)
			r.snapshots.Keep(ctx)
			r.feeds.NoteDrops(r.transport.Stats().Dropped, now)
			ask(r.feeds.Tick(now))
			if asking.CompareAndSwap(false, true) {
				queries.Go(func() { r.askStrangers(now); asking.Store(false) })
			}
		}
	}
}

// askStrangers asks agents for the announcements that the router lacks. Without an answer they come by
// themselves within seconds.
func (r *Router) askStrangers(now time.Time) {
	t, ok := r.transport.(source.Asker)
	if !ok {
		return
	}
	for _, one := range r.feeds.TakeStrangers(nil, now) {
		if err := t.AskAnnouncements(one.Source, one.Agent); err != nil {
			r.log.Debug("an agent is not asked", zap.Error(err))
		}
	}
}

// query asks a publisher for missed events or a dump, and passes the answer or the error to
// Run. It runs in a goroutine of its own, for at most r.timeout, and ends with ctx.
func (r *Router) query(ctx context.Context, q feed.Query) {
	queryCtx, cancel := context.WithTimeout(ctx, r.timeout)
	defer cancel()
	result := &queryResult{query: q}
	result.answer, result.err = r.transport.Query(queryCtx, q.Publisher, q.Request)
	select {
	case r.results <- result:
	case <-ctx.Done():
	}
}
