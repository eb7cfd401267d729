package router

import (
	"context"
	"sync"
	"time"

	"github.com/blockyard-ai/blockyard/internal/kvevent"
	"github.com/blockyard-ai/blockyard/router/source"
)

// queryResult is what came of a question to a publisher.
type queryResult struct {
	feed   *feedState
	number uint64
	answer *source.Answer
	err    error
}

// tickInterval is how often silent feeds and due queries are looked for.
const tickInterval = 100 * time.Millisecond

// maxAsked is how many of the feeds that wait for room are asked when an answer has come.
const maxAsked = 4

// sweepRuns is how much of each index is looked at in each tick for what owners
// left that are gone: all of a million blocks in a second or two.
const sweepRuns = 4096

// Run begins with the stored snapshot, if there is one, and applies what the
// transport brings until ctx ends. Then it waits for the queries in flight and
// saves the last snapshot. It always returns nil.
func (r *Router) Run(ctx context.Context) error {
	position := r.snapshots.start(ctx)
	if t, ok := r.transport.(source.Resumer); ok {
		t.Resume(position)
	}
	defer r.snapshots.finish()
	if r.shared != nil {
		defer r.shared.Close()
	}
	var queries sync.WaitGroup
	defer queries.Wait()
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	inFlight := 0
	ask := func(f *feedState) {
		if f == nil || inFlight == r.slots {
			return
		}
		if q, number, due := r.feeds.nextQuery(f, time.Now()); due {
			inFlight++
			publisher := f.announcement.PublisherID
			queries.Go(func() { r.query(ctx, f, publisher, number, q) })
		}
	}
	ticker := time.NewTicker(tickInterval)
	defer ticker.Stop()
	for {
		select {
		case <-ctx.Done():
			return nil
		case fr := <-r.transport.Frames():
			if fr.Kind == source.FrameLoad {
				r.loads.take(fr.Data, time.Now())
				continue
			}
			ask(r.feeds.frame(fr, time.Now()))
		case result := <-r.results:
			inFlight--
			r.feeds.answered(result, time.Now())
			ask(result.feed)
			// The answers that wait for room may be smaller than the one that has come.
			for range maxAsked {
				ask(r.feeds.refusedFirst())
			}
		case <-ticker.C:
			now := time.Now() // The tick may have waited while the router stood still.
			for _, m := range r.models.all() {
				m.tick()
			}
			r.models.balance(now)
			r.snapshots.keep(ctx)
			r.feeds.heardOfDrops(r.transport.Stats().Dropped, now)
			for _, f := range r.feeds.tick(now) {
				ask(f)
			}
		}
	}
}

// query asks a publisher and hands the result to Run.
func (r *Router) query(ctx context.Context, f *feedState, publisher, number uint64, q kvevent.QueryRequest) {
	asking, cancel := context.WithTimeout(ctx, r.timeout)
	defer cancel()
	result := &queryResult{feed: f, number: number}
	result.answer, result.err = r.transport.Query(asking, publisher, q)
	select {
	case r.results <- result:
	case <-ctx.Done():
	}
}
