package decide

import (
	"fmt"
	"slices"
	"time"

	"go.uber.org/zap"

	"github.com/blockyard-ai/blockyard/internal/kv"
	"github.com/blockyard-ai/blockyard/router/index"
	"github.com/blockyard-ai/blockyard/router/schedule"
)

// AddRequest books a request that the caller has sent to a worker. cachedTokens of the prompt
// need no computing. A failure is logged and counted: the request runs without being counted
// as load. The error is ErrNoContextID, ErrNoWorkers, one of package load, or a *QueryError.
func (r *Router) AddRequest(q *Query, worker kv.Worker, cachedTokens int) error {
	err := r.add(q, worker, cachedTokens)
	if err != nil {
		r.unbooked.Add(1)
		r.log.Warn("a request is not booked", zap.String("request", q.ID), zap.Stringer("worker", worker), zap.Error(err))
	}
	return err
}

// Unbooked returns the number of requests that AddRequest could not book.
func (r *Router) Unbooked() uint64 { return r.unbooked.Load() }

// add books a request that the caller has sent to a worker. cachedTokens of its prompt need
// no computing. The error is as in AddRequest, which counts and logs it.
func (r *Router) add(q *Query, worker kv.Worker, cachedTokens int) error {
	if q.ID == "" {
		return ErrNoContextID
	}
	blockSize, err := r.check(q)
	if err != nil {
		return err
	}
	w := r.scratch.Get().(*scratch)
	defer r.scratch.Put(w)
	w.blocks.hash(q, blockSize, r.hashesPairs())
	request := r.request(w, q, blockSize, r.trackedSequence(w, q, blockSize))
	cached := min(max(0, cachedTokens), q.Len())
	if err := r.scheduler.Add(&request, worker, cached); err != nil {
		return err
	}
	r.observer.Added(q, worker, blockSize, cached/blockSize)
	return nil
}

// PrefillDuration returns the predicted duration of a prefill of effectiveISL tokens after
// prefix cached tokens. It returns 0 without tokens, without an estimator, or after an error,
// which is logged. It is meant for schedule.Options.PrefillDuration.
func (r *Router) PrefillDuration(effectiveISL, prefix int) time.Duration {
	if r.estimator == nil || effectiveISL <= 0 {
		return 0
	}
	d, err := r.estimator.PredictPrefillDuration(1, effectiveISL, prefix)
	if err != nil || d < 0 {
		r.log.Warn("prefill duration is not predicted; the load stays until the prefill is marked complete",
			zap.Int("effective_isl", effectiveISL), zap.Int("prefix", prefix), zap.Duration("predicted", d), zap.Error(err))
		return 0
	}
	return d
}

// MarkPrefillCompleted removes a request's prompt from its worker's prefill load.
// Further calls keep a long request from expiring. The error is
// load.ErrUnknownRequest.
func (r *Router) MarkPrefillCompleted(id string) error {
	err := r.scheduler.MarkPrefillCompleted(id)
	if err == nil {
		r.observer.PrefillCompleted(id)
	}
	return err
}

// Unfollow tells the estimator that nobody will see the first token of a booked request. The request
// stays in the account of loads.
func (r *Router) Unfollow(id string) { r.observer.Freed(id) }

// EndPrefill is MarkPrefillCompleted for a request whose first token nobody saw. The estimator learns
// nothing of its time.
func (r *Router) EndPrefill(id string) error {
	r.Unfollow(id)
	return r.scheduler.MarkPrefillCompleted(id)
}

// AddOutputBlock records that a request has filled another block of output. decay, 0 to 1, is
// the new weight of the blocks that only this request uses; nil keeps their weight. Without
// router_track_output_blocks the call only shows that the request is alive. The error is
// load.ErrUnknownRequest, or says that decay is out of range.
func (r *Router) AddOutputBlock(id string, decay *float64) error {
	if decay != nil && !(*decay >= 0 && *decay <= 1) {
		return &QueryError{fmt.Errorf("decay fraction: %v is not in 0..1", *decay)}
	}
	var err error
	if r.config.RouterTrackOutputBlocks {
		err = r.scheduler.AddOutputBlock(id, decay)
	} else {
		err = r.scheduler.Touch(id)
	}
	if err == nil {
		r.observer.OutputBlock(id)
	}
	return err
}

// Free ends a request and reports whether the request was active.
func (r *Router) Free(id string) bool {
	active := r.scheduler.Free(id)
	if active {
		r.observer.Freed(id)
	}
	return active
}

// FreeBooking ends one booking of request id: number is Match.Booking. Another booking of
// the id, such as that of a retry, stays. It reports whether the booking was there.
func (r *Router) FreeBooking(id string, number uint64) bool {
	active := r.scheduler.FreeBooking(id, number)
	if active {
		r.observer.Freed(id)
	}
	return active
}

// Overlap is one worker's overlap with a prompt: blocks by tier, their weighted number, and
// the same in tokens.
type Overlap struct {
	Worker       kv.Worker
	Hits         index.Hits
	Effective    float64
	CachedTokens int
}

// Overlaps returns each worker's overlap with a prompt, ordered by worker. Workers without a
// block are included. The error is ErrNoWorkers or a *QueryError.
func (r *Router) Overlaps(q *Query) ([]Overlap, error) {
	out, _, err := r.QualifiedOverlaps(q)
	return out, err
}

// QualifiedOverlaps is Overlaps with index.Matches.Quality of the hits.
func (r *Router) QualifiedOverlaps(q *Query) (out []Overlap, indexQuality string, err error) {
	w, blockSize, err := r.matched(q, q.PrimaryGroup)
	if err != nil {
		return nil, "", err
	}
	defer r.scratch.Put(w)
	out = make([]Overlap, 0, len(w.matches.Members.List))
	next := w.matches.Hits
	for i, m := range w.matches.Members.List {
		var hits index.Hits
		if len(next) > 0 && next[0].Member == int32(i) {
			hits, next = next[0].Hits, next[1:]
		}
		out = append(out, r.overlap(m.Worker, hits, blockSize))
	}
	return out, w.matches.Quality, nil
}

// overlap returns the Overlap of a worker that has these blocks of a prompt, by tier.
func (r *Router) overlap(worker kv.Worker, hits index.Hits, blockSize int) Overlap {
	effective := r.weights.Effective(hits)
	return Overlap{Worker: worker, Hits: hits, Effective: effective, CachedTokens: schedule.CachedTokens(effective, blockSize)}
}

// matched returns the blocks of a prompt that each worker has, in w.matches, and the block
// size in tokens. w comes from the pool r.scratch, and the caller puts it back. The error is
// ErrNoWorkers or a *QueryError.
func (r *Router) matched(q *Query, primaryGroup bool) (w *scratch, blockSize int, err error) {
	if blockSize, err = r.check(q); err != nil {
		return nil, 0, err
	}
	w = r.scratch.Get().(*scratch)
	w.blocks.hash(q, blockSize, r.hashesPairs())
	w.tokens = q.Len()
	w.matches.PrimaryGroup = primaryGroup
	r.match(w)
	w.matches.PrimaryGroup = false // w is reused
	return w, blockSize, nil
}

// GetPotentialLoads returns the load that each worker would have with the request booked on
// it, ordered by worker. It books nothing. The error is ErrNoWorkers or a *QueryError.
func (r *Router) GetPotentialLoads(q *Query) ([]schedule.PotentialLoad, error) {
	w, blockSize, err := r.matched(q, false)
	if err != nil {
		return nil, err
	}
	defer r.scratch.Put(w)
	request := r.request(w, q, blockSize, r.trackedSequence(w, q, blockSize))
	return r.scheduler.PotentialLoads(nil, &request)
}

// ranks returns the data-parallel ranks of a worker, each a member of the index, in order.
// The result is empty for an unknown worker.
func (r *Router) ranks(id kv.WorkerID) []index.Member {
	list := r.index.Members().List // ordered by worker id and rank
	first, _ := slices.BinarySearchFunc(list, id, func(m index.Member, id kv.WorkerID) int {
		if m.Worker.ID < id {
			return -1
		}
		return 1 // never equal, so the search finds the first of several ranks
	})
	end := first
	for end < len(list) && list[end].Worker.ID == id {
		end++
	}
	return list[first:end]
}
