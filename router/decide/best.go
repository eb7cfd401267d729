package decide

import (
	"context"
	"math"
	"time"

	"github.com/blockyard-ai/blockyard/internal/kv"
	"github.com/blockyard-ai/blockyard/router/schedule"
)

// Match is the worker for a request.
type Match struct {
	schedule.Result
	// Shared says what the shared cache has, nil when none was asked or it failed.
	Shared *SharedUse
}

// OverlapBlocks returns the effective overlap, rounded.
func (m *Match) OverlapBlocks() uint32 { return uint32(math.Round(m.Effective)) }

// SharedUse is what a shared cache has of a prompt: Hits blocks, Beyond of them
// behind what the chosen worker has.
type SharedUse struct{ Hits, Beyond int }

// FindBestMatchDetails chooses the worker for a request. It waits in the
// scheduler's queue until ctx ends. The error is ErrNoContextID, ErrNoWorkers, that
// of ctx, one of packages schedule or load, or a *QueryError.
func (r *Router) FindBestMatchDetails(ctx context.Context, q *Query) (Match, error) {
	if q.UpdateStates && q.ID == "" {
		return Match{}, ErrNoContextID
	}
	blockSize, err := r.check(q)
	if err != nil {
		return Match{}, err
	}
	w := r.work.Get().(*work)
	defer r.work.Put(w)
	d := Decision{Query: q, BlockSize: blockSize}
	t := &d.Timings
	begin := time.Now()
	w.blocks.hash(q, blockSize, r.eagle())
	hashed := time.Now()
	w.explain.input(r.log, q, blockSize, w.blocks.locals)
	sequence := r.track(w, q, blockSize)
	tracked := time.Now()
	hits := r.find(ctx, w, q, blockSize, t)
	found := time.Now()

	request := r.request(w, q, blockSize, sequence)
	request.SharedHits = hits
	w.explain.attach(&request)
	result, err := r.scheduler.Schedule(ctx, &request)
	if err != nil {
		return Match{}, err
	}
	w.explain.choice(r.log, q.ID, result.Worker)
	m := Match{Result: result}
	if hits != nil {
		m.Shared = &SharedUse{Hits: hits.TotalHits(), Beyond: hits.Beyond(int(m.OverlapBlocks()))}
	}
	if q.UpdateStates {
		r.predict(w, result.Worker)
	}
	end := time.Now()
	t.BlockHashing, t.SequenceHashing = hashed.Sub(begin), tracked.Sub(hashed)
	t.Scheduling, t.Total = end.Sub(found), end.Sub(begin)
	d.Match, d.Blocks = &m, len(w.blocks.locals)
	r.observer.Decided(&d)
	return m, nil
}

// check returns the block size, or the error of a query.
func (r *Router) check(q *Query) (blockSize int, err error) {
	if blockSize = r.blockSize(); blockSize <= 0 {
		return 0, ErrNoWorkers
	}
	if err := q.Validate(blockSize); err != nil {
		return 0, &QueryError{err}
	}
	return blockSize, nil
}

// track returns the sequence that counts as active while the request runs, nil for
// none.
func (r *Router) track(w *work, q *Query, blockSize int) []kv.SequenceHash {
	sequence, ok := r.config.SequenceHashesForTracking(q.Tokens, blockSize, q.Override, q.LoRA, q.Salt, w.blocks.locals)
	if !ok {
		return nil
	}
	return sequence
}

// find fills w.matches and asks the shared cache meanwhile. The result is nil when
// there is no shared cache, when it fails, or when the choice ignores its answer.
func (r *Router) find(ctx context.Context, w *work, q *Query, blockSize int, t *Timings) *schedule.SharedHits {
	if r.shared == nil || q.LoRA != "" || q.hasObjects() || !r.scheduler.ReadsShared(q.Pinned, q.Override.Schedule()) {
		t.FindMatches = r.match(w)
		return nil
	}
	answer := r.shared.ask(ctx, q, blockSize)
	t.FindMatches = r.match(w)
	a := answer()
	t.SharedCache = a.took
	return r.sharedHits(&a)
}

// match fills w.matches with what workers have of w.blocks.
func (r *Router) match(w *work) time.Duration {
	begin := time.Now()
	r.index.Match(&w.matches, w.blocks.locals, r.reading)
	r.addPredictions(w)
	return time.Since(begin)
}

func (r *Router) request(w *work, q *Query, blockSize int, sequence []kv.SequenceHash) schedule.Request {
	return schedule.Request{
		ID: q.ID, Book: q.UpdateStates,
		Tokens: len(q.Tokens), BlockSize: blockSize, Sequence: sequence, Locals: w.blocks.locals,
		Members: w.matches.Members, Hits: w.matches.Hits,
		TrackPrefill: r.config.TrackPrefillTokens(q.Override), Override: q.Override.Schedule(),
		StrictPriority: q.StrictPriority, PriorityJump: q.PriorityJump,
		ExpectedOutput: q.ExpectedOutput,
		Pinned:         q.Pinned, Allowed: q.Allowed,
		RequiredTaints: q.RequiredTaints, PreferredTaints: q.PreferredTaints,
		Provisional: q.Provisional, Waits: q.Waits,
	}
}

// Refresh sets Members and Hits of a request that has waited to what workers have
// now, in new memory. It is meant for schedule.Options.Refresh.
func (r *Router) Refresh(request *schedule.Request) {
	var w work
	w.blocks.locals = request.Locals
	r.match(&w)
	request.Members, request.Hits = w.matches.Members, w.matches.Hits
}
