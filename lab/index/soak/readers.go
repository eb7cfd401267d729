package soak

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"sync/atomic"
	"time"

	"github.com/blockyard-ai/blockyard/internal/kv"
	"github.com/blockyard-ai/blockyard/router/index"
	"github.com/blockyard-ai/blockyard/router/load"
	"github.com/blockyard-ai/blockyard/router/schedule"
)

const (
	blockTokens = 16
	// One lookup in decideEvery is a decision. running requests run at a time.
	decideEvery, running = 10, 500
	// readTick is the time between two batches of lookups, sweepTick that between two
	// sweeps of at most sweepRuns runs.
	readTick, sweepTick = time.Millisecond, 100 * time.Millisecond
	sweepRuns           = 4096
)

// reader looks up prompts and sends some to workers.
type reader struct {
	w       *world
	rng     *rand.Rand
	matches index.Matches
	locals  []kv.LocalHash
	seq     []kv.SequenceHash
	// ids are the names of running requests, as a ring.
	ids    [running]string
	next   int
	booked schedule.Request

	lookups, decisions atomic.Uint64
}

// run looks up recent prompts at o.Lookups per second until ctx ends. For every decideEvery-th it
// also makes a decision.
func (r *reader) run(ctx context.Context) error {
	tick := time.NewTicker(readTick)
	defer tick.Stop()
	start := time.Now()
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-tick.C:
		}
		due := uint64(time.Since(start).Seconds() * float64(r.w.o.Lookups))
		for n := r.lookups.Load(); n < due && ctx.Err() == nil; n++ {
			if err := r.look(ctx, n%decideEvery == 0); err != nil {
				return err
			}
			r.lookups.Store(n + 1)
		}
	}
}

// look looks up a recent prompt in the index and checks that the answer is possible. With send it
// also has the scheduler book the prompt.
func (r *reader) look(ctx context.Context, send bool) error {
	r.locals = r.w.prompt(r.locals[:0], r.rng)
	locals := r.locals
	r.w.index.Match(&r.matches, locals, index.Continuation)
	for i := range r.matches.Hits {
		if n := r.matches.Hits[i].Hits.Total(); n == 0 || int(n) > len(locals) {
			return fmt.Errorf("lookup: %d hits of a prompt of %d blocks", n, len(locals))
		}
	}
	if !send || len(locals) == 0 {
		return nil
	}
	return r.send(ctx, locals)
}

// send has the scheduler choose a worker for the prompt that was looked up last, and book it. The
// oldest request ends first, so that their number stays the same.
func (r *reader) send(ctx context.Context, locals []kv.LocalHash) error {
	r.seq = kv.AppendSequence(r.seq[:0], locals)
	id := &r.ids[r.next%running]
	if *id != "" {
		r.w.scheduler.Free(*id) // absent when its worker has left
	}
	*id = fmt.Sprint("request ", r.next)
	r.next++
	r.booked = schedule.Request{
		ID: *id, Book: true, Tokens: len(locals) * blockTokens, BlockSize: blockTokens, Sequence: r.seq,
		Members: r.matches.Members, Hits: r.matches.Hits, TrackPrefill: true,
	}
	if _, err := r.w.scheduler.Schedule(ctx, &r.booked); ctx.Err() != nil {
		return nil
	} else if err != nil {
		return err
	}
	r.decisions.Add(1)
	if before := r.ids[(r.next+running/2)%running]; before != "" {
		if err := r.w.scheduler.MarkPrefillCompleted(before); err != nil && !errors.Is(err, load.ErrUnknownRequest) {
			return err
		}
	}
	return nil
}

// sweep does the deferred work of the index and the scheduler at intervals until ctx ends.
func (w *world) sweep(ctx context.Context) error {
	tick := time.NewTicker(sweepTick)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-tick.C:
			for w.index.Sweep(sweepRuns) && ctx.Err() == nil {
			}
			w.scheduler.Tick()
		}
	}
}
