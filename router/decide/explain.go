package decide

import (
	"cmp"
	"slices"
	"time"

	"go.uber.org/zap"

	"github.com/blockyard-ai/blockyard/internal/kv"
	"github.com/blockyard-ai/blockyard/router/schedule"
)

// explainInterval is the least time between two decisions that are logged at info level.
const explainInterval = time.Second

// explanation collects the costs of a decision's workers. At debug level they are logged, with
// the blocks of the prompt.
type explanation struct {
	candidates []schedule.Candidate
	// on is true at debug level.
	on bool
}

// input begins the explanation of a decision. At debug level it logs the query with the
// prompt's local hashes, and makes attach and logChoice explain every worker.
func (e *explanation) input(log *zap.Logger, q *Query, blockSize int, locals []kv.LocalHash) {
	e.on = log.Core().Enabled(zap.DebugLevel)
	if !e.on {
		return
	}
	hashes := make([]uint64, len(locals))
	for i, l := range locals {
		hashes[i] = uint64(l)
	}
	log.Debug("[ROUTING_INPUT] request local hashes", zap.String("request", q.ID), zap.Int("isl_tokens", q.Len()),
		zap.Int("block_size", blockSize), zap.Int("num_blocks", len(locals)), zap.Uint64s("local_hashes", hashes))
}

// attach makes the scheduler collect the costs of all workers for a request, in e.candidates,
// if the caller wants them or the log is at debug level.
func (e *explanation) attach(request *schedule.Request, wanted bool) {
	e.candidates = e.candidates[:0]
	if e.on || wanted {
		request.Explain = func(c *schedule.Candidate) { e.candidates = append(e.candidates, *c) }
	}
}

// sorted returns a copy of the compared workers by ascending cost, and by worker among
// equals. It returns nil without any. e itself is reused by the next decision.
func (e *explanation) sorted() []schedule.Candidate {
	if len(e.candidates) == 0 {
		return nil
	}
	all := slices.Clone(e.candidates)
	slices.SortFunc(all, func(a, b schedule.Candidate) int {
		return cmp.Or(cmp.Compare(a.Cost, b.Cost), a.Worker.Compare(b.Worker))
	})
	return all
}

// logChoice logs one line per worker at debug level. At info level it logs the line of the
// chosen worker, at most once in explainInterval.
func (r *Router) logChoice(w *scratch, id string, chosen *schedule.Result) {
	if w.explain.on {
		for i := range w.explain.candidates {
			c := &w.explain.candidates[i]
			r.log.Debug(c.Formula(), zap.String("request", id), zap.Bool("chosen", c.Worker == chosen.Worker))
		}
		return
	}
	if chosen.Mode == "" || !r.log.Core().Enabled(zap.InfoLevel) {
		return
	}
	// Of several decisions at once, the one whose swap succeeds is logged.
	last, now := r.lastExplained.Load(), int64(time.Since(r.start))
	if now-last >= int64(explainInterval) && r.lastExplained.CompareAndSwap(last, now) {
		r.log.Info(formula(chosen), zap.String("request", id))
	}
}
