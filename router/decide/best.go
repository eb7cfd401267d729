package decide

import (
	"cmp"
	"context"
	"math"
	"time"

	"github.com/blockyard-ai/blockyard/internal/kv"
	"github.com/blockyard-ai/blockyard/router/miss"
	"github.com/blockyard-ai/blockyard/router/schedule"
)

// Match is the worker for a request.
type Match struct {
	schedule.Result
	// IndexQuality is index.Matches.Quality of the hits.
	IndexQuality string
	// Shared counts the hits of the shared cache. It is nil without a cache or an answer.
	Shared *SharedUse
	// Candidates are the compared workers by ascending cost, and by worker among equals. Nil
	// without Query.Explain, and from a selector that compares no costs.
	Candidates []schedule.Candidate
	// Prompt is what the decision knew of the prompt, to explain misses. Nil without Query.Misses.
	Prompt *miss.Prompt
}

// OverlapBlocks returns the effective overlap, rounded.
func (m *Match) OverlapBlocks() uint32 { return uint32(math.Round(m.Effective)) }

// formula returns a line that shows how the chosen worker's cost was computed, for the log.
// It is empty from a selector that compares no costs.
func formula(r *schedule.Result) string {
	if r.Mode == "" {
		return ""
	}
	c := schedule.Candidate{Worker: r.Worker, Hits: r.Hits, Cost: r.Cost, Prefill: r.Prefill, Decode: r.Decode,
		Weight: r.Weight, TaintFactor: r.TaintFactor, Price: r.Price, Mode: r.Mode}
	return c.Formula()
}

// SharedUse counts the blocks of a prompt in a shared cache. Beyond are the hits after the
// chosen worker's overlap.
type SharedUse struct{ Hits, Beyond int }

// FindBestMatchDetails chooses the worker for a request: it hashes the prompt into blocks,
// finds the workers that have them, and lets the scheduler choose. With q.UpdateStates the
// request is booked on the worker until Free. It waits while the request is queued, until
// ctx ends. The error is ErrNoContextID, ErrNoWorkers, the error of ctx, one of packages
// schedule or load, or a *QueryError.
func (r *Router) FindBestMatchDetails(ctx context.Context, q *Query) (Match, error) {
	if q.UpdateStates && q.ID == "" {
		return Match{}, ErrNoContextID
	}
	blockSize, err := r.check(q)
	if err != nil {
		return Match{}, err
	}
	w := r.scratch.Get().(*scratch)
	defer r.scratch.Put(w)
	d := Decision{Query: q, BlockSize: blockSize}
	t := &d.Timings
	begin := time.Now()
	w.blocks.hash(q, blockSize, r.hashesPairs())
	w.tokens = q.Len()
	hashed := time.Now()
	w.explain.input(r.log, q, blockSize, w.blocks.locals)
	sequence := r.trackedSequence(w, q, blockSize)
	tracked := time.Now()
	hits := r.findHits(ctx, w, q, blockSize, t)
	found := time.Now()

	request := r.request(w, q, blockSize, sequence)
	request.SharedHits = hits
	w.explain.attach(&request, q.Explain)
	result, err := r.scheduler.Schedule(ctx, &request)
	if err != nil {
		return Match{}, err
	}
	r.logChoice(w, q.ID, &result)
	m := Match{Result: result, IndexQuality: w.matches.Quality}
	if q.Explain {
		m.Candidates = w.explain.sorted()
	}
	if q.Misses {
		m.Prompt = promptOf(w, &request, &result, found)
	}
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

// check validates a query and returns the block size in tokens. The error is ErrNoWorkers
// while no block size is known, or a *QueryError.
func (r *Router) check(q *Query) (blockSize int, err error) {
	if blockSize = r.blockSize(); blockSize <= 0 {
		return 0, ErrNoWorkers
	}
	if err := cmp.Or(q.Validate(blockSize), r.config.CheckOverride(q.Override)); err != nil {
		return 0, &QueryError{err}
	}
	return blockSize, nil
}

// trackedSequence returns the sequence hashes of the prompt's blocks, which count as the worker's load
// while the request runs. The result is nil if the router does not track blocks. w has the
// prompt's local hashes.
func (r *Router) trackedSequence(w *scratch, q *Query, blockSize int) []kv.SequenceHash {
	if q.Hashed != nil && q.Hashed.Sequence != nil && r.config.RouterTrackActiveBlocks {
		return q.Hashed.Sequence
	}
	sequence, ok := r.config.SequenceHashesForTracking(q.Tokens, blockSize, q.Override, q.LoRA, q.Salt, w.blocks.locals)
	if !ok {
		return nil
	}
	return sequence
}

// findHits fills w.matches with the blocks of the prompt that each worker has. At the same time
// it asks the shared cache, and returns the blocks that the cache has. The result is nil
// without a shared cache, after its failure, or when the choice does not use its answer.
// findHits sets the durations of both in t.
func (r *Router) findHits(ctx context.Context, w *scratch, q *Query, blockSize int, t *Timings) *schedule.SharedHits {
	// The shared cache looks blocks up by tokens. It knows neither adapters nor objects.
	if r.sharedCache == nil || len(q.Tokens) == 0 || q.LoRA != "" || q.HasObjects() || !r.scheduler.ReadsShared(q.Pinned, q.Override.Schedule()) {
		t.FindMatches = r.match(w)
		return nil
	}
	answer := r.sharedCache.ask(ctx, q, blockSize)
	t.FindMatches = r.match(w)
	a := answer()
	t.SharedCache = a.took
	return r.sharedHits(&a)
}

// match fills w.matches with the blocks of the prompt w.blocks that each worker has,
// predictions included. It returns the time that this took.
func (r *Router) match(w *scratch) time.Duration {
	begin := time.Now()
	w.matches.MaxTokens = max(0, w.tokens-1)
	r.index.Match(&w.matches, w.blocks.locals, r.reading)
	r.addPredictions(w)
	return time.Since(begin)
}

// request returns the scheduler's request for a query. w has the prompt's hashes and hits,
// and must not be reused before the scheduler is done. sequence are the blocks to track.
func (r *Router) request(w *scratch, q *Query, blockSize int, sequence []kv.SequenceHash) schedule.Request {
	return schedule.Request{
		ID: q.ID, Book: q.UpdateStates,
		Tokens: q.Len(), BlockSize: blockSize, Sequence: sequence, Locals: w.blocks.locals,
		Members: w.matches.Members, Hits: w.matches.Hits,
		TrackPrefill: r.config.TrackPrefillTokens(q.Override), Override: q.Override.Schedule(),
		StrictPriority: q.StrictPriority, PriorityJump: q.PriorityJump, PolicyClass: q.PolicyClass, Deadline: q.Deadline,
		ExpectedOutput: q.ExpectedOutput, HandedOver: q.HandedOver,
		Pinned: q.Pinned, Allowed: q.Allowed,
		RequiredTaints: q.RequiredTaints, PreferredTaints: q.PreferredTaints,
		Provisional: q.Provisional, Waits: q.Waits,
	}
}

// Refresh looks up Members and Hits of a waiting request again, in new memory. It is meant
// for schedule.Options.Refresh.
func (r *Router) Refresh(request *schedule.Request) {
	var w scratch
	w.blocks.locals, w.tokens = request.Locals, request.Tokens
	r.match(&w)
	request.Members, request.Hits = w.matches.Members, w.matches.Hits
}
