package decide

import (
	"fmt"
	"sync"
	"sync/atomic"

	"go.uber.org/zap"

	"github.com/blockyard-ai/blockyard/internal/kv"
	"github.com/blockyard-ai/blockyard/internal/metric"
	"github.com/blockyard-ai/blockyard/router/approx"
	"github.com/blockyard-ai/blockyard/router/index"
)

// openPredictions makes the predictors that the configuration asks for. A predictor derives
// what workers hold from past decisions. r.allWorkers covers all workers: until their events
// come, or without events. r.silentWorkers covers the workers that publish no events.
func (r *Router) openPredictions() (err error) {
	options, _ := r.config.Predicted()
	if !r.config.UseKVEvents { // without events nothing confirms predictions: router_ttl_secs ends them
		options = r.config.Approx()
	}
	if r.config.Guesses() {
		if r.allWorkers, err = newPredictor(options); err != nil {
			return fmt.Errorf("decide: %w", err)
		}
	}
	if options, ok := r.config.PredictedSilent(); ok && r.isSilent != nil {
		if r.silentWorkers, err = newPredictor(options); err != nil {
			return fmt.Errorf("decide: %w", err)
		}
	}
	return nil
}

// predictorOf returns the predictor that records decisions for a worker: the one of silent
// workers, which publish no events, or the predictor of all workers. nil means none.
func (r *Router) predictorOf(worker kv.Worker) *predictor {
	if r.silentWorkers != nil && r.isSilent(worker) {
		return r.silentWorkers
	}
	return r.allWorkers
}

// predictors returns the predictors that have recorded a decision, in all[:n]. The array
// saves an allocation for each decision.
func (r *Router) predictors() (all [2]*predictor, n int) {
	for _, p := range [...]*predictor{r.allWorkers, r.silentWorkers} {
		if p != nil && p.used.Load() {
			all[n] = p
			n++
		}
	}
	return all, n
}

// addPredictions raises each worker's device hits in w.matches to the number of leading
// blocks that the worker is predicted to hold.
func (r *Router) addPredictions(w *scratch) {
	all, n := r.predictors()
	for _, p := range all[:n] {
		r.syncMembers(p)
		// The only error is approx.ErrClosed: then there are no predictions.
		if err := p.approx.Match(&w.predicted, w.blocks.locals); err == nil {
			approx.MergeMax(&w.matches, &w.predicted)
		}
	}
}

// predictor predicts from decisions what workers hold.
type predictor struct {
	approx *approx.Index
	// used is true once a decision was recorded.
	used atomic.Bool
	// mu is held while the workers of approx change. members are the workers of the index that approx
	// was last compared with.
	mu      sync.Mutex
	members atomic.Pointer[index.Members]
}

func newPredictor(o approx.Options) (*predictor, error) {
	x, err := approx.New(o)
	if err != nil {
		return nil, err
	}
	p := &predictor{approx: x}
	p.members.Store(&index.Members{})
	return p, nil
}

// syncMembers makes the workers of predictor p those of the index, if the index has changed
// its list. The predictions of workers that left are forgotten.
func (r *Router) syncMembers(p *predictor) {
	if p.members.Load() == r.index.Members() {
		return
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	r.syncMembersLocked(p)
}

// syncMembersLocked makes the workers of predictor p those of the index. It drops the
// predictions of workers that left. The caller holds p.mu.
func (r *Router) syncMembersLocked(p *predictor) {
	// Read the list under the lock, so that no older list replaces a newer one.
	now := r.index.Members()
	for _, m := range p.approx.Members().List {
		if _, stays := now.Find(m.Worker); !stays {
			r.logUnrecorded("forget", m.Worker, p.approx.RemoveWorker(m.Worker))
		}
	}
	if p == r.allWorkers {
		// The predictions are merged with the matches of the index, so both lists of members
		// must have the same numbers.
		for _, m := range now.List {
			if _, known := p.approx.Members().Find(m.Worker); !known {
				r.logUnrecorded("know", m.Worker, p.approx.SetMember(m.Worker, 0, true))
			}
		}
	}
	p.members.Store(now)
}

// ForgetWorker drops the predictions of a worker. Call it when a worker has left or
// restarted, after the index has changed. A restarted worker must not keep the predictions of
// its earlier run.
func (r *Router) ForgetWorker(worker kv.Worker) {
	r.forget(r.allWorkers, worker)
	r.forget(r.silentWorkers, worker)
}

// EventsBegin drops the predictions that stood in for a worker's events. Call it when a
// worker that Options.Silent named publishes events.
func (r *Router) EventsBegin(worker kv.Worker) { r.forget(r.silentWorkers, worker) }

// forget drops what predictor p predicts of a worker, which may stay a worker of p. p may be
// nil.
func (r *Router) forget(p *predictor, worker kv.Worker) {
	if p == nil || !p.used.Load() {
		return
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	r.syncMembersLocked(p)
	if _, known := p.approx.Members().Find(worker); known {
		// The worker has restarted and is a member again, or publishes events now.
		r.logUnrecorded("forget", worker, p.approx.RemoveWorker(worker))
		r.logUnrecorded("know", worker, p.approx.SetMember(worker, 0, true))
	}
}

// predict records that the prompt of w goes to a worker.
func (r *Router) predict(w *scratch, worker kv.Worker) {
	if p := r.predictorOf(worker); p != nil {
		r.logUnrecorded("remember", worker, r.record(p, w, worker))
	}
}

// record makes predictor p predict that a worker holds the prompt of w. The error is
// ErrUnknownWorker if the worker has left or has another predictor now, or one of package
// approx.
func (r *Router) record(p *predictor, w *scratch, worker kv.Worker) error {
	w.sequence = kv.AppendSequence(w.sequence[:0], w.blocks.locals)
	p.mu.Lock()
	defer p.mu.Unlock()
	// Before the checks below: a forget at the same time waits for the lock, or its cause
	// shows in these checks. So a worker that leaves or publishes events keeps no prediction.
	p.used.Store(true)
	if p.members.Load() != r.index.Members() {
		r.syncMembersLocked(p)
	}
	if _, known := p.members.Load().Find(worker); !known || r.predictorOf(worker) != p {
		return ErrUnknownWorker
	}
	// The predictor of silent workers learns of a worker at its first decision.
	if _, known := p.approx.Members().Find(worker); !known {
		if err := p.approx.SetMember(worker, 0, true); err != nil {
			return err
		}
	}
	return p.approx.Record(worker, w.blocks.locals, w.sequence)
}

// logUnrecorded counts and logs a failed change of the predictions; nil is no failure. The
// decision does not fail.
func (r *Router) logUnrecorded(what string, worker kv.Worker, err error) {
	if err != nil {
		r.notRecorded.Add(1)
		r.log.Debug("predictions are not updated", zap.String("step", what), zap.Stringer("worker", worker), zap.Error(err))
	}
}

// RecordRoutingDecision records that the prompt of q was sent to a worker, for callers that
// decide without UpdateStates. The error is ErrNotRecorded, ErrNoWorkers, ErrUnknownWorker,
// approx.ErrClosed, index.ErrFull, or a *QueryError.
func (r *Router) RecordRoutingDecision(q *Query, worker kv.Worker) error {
	p := r.predictorOf(worker)
	if p == nil {
		return ErrNotRecorded
	}
	blockSize, err := r.check(q)
	if err != nil {
		return err
	}
	w := r.scratch.Get().(*scratch)
	defer r.scratch.Put(w)
	w.blocks.hash(q, blockSize, r.hashesPairs())
	return r.record(p, w, worker)
}

// Tick expires predictions, drops those of workers that have left, and ticks the scheduler.
// Call it a few times a second.
func (r *Router) Tick() {
	r.scheduler.Tick()
	all, n := r.predictors()
	for _, p := range all[:n] {
		r.syncMembers(p)
		p.approx.Tick()
	}
}

// closePredictions forgets all predictions.
func (r *Router) closePredictions() {
	for _, p := range [...]*predictor{r.allWorkers, r.silentWorkers} {
		if p != nil {
			p.approx.Close()
		}
	}
}

// Unremembered returns how many predictions could not be recorded, because the worker had
// left or the index of predictions had no room.
func (r *Router) Unremembered() uint64 { return r.notRecorded.Load() }

// Guessed returns how many blocks a worker is predicted to hold from past decisions. The
// worker is member number at of m, which may be any list of members. Guessed takes no lock.
func (r *Router) Guessed(m *index.Members, at int) (blocks uint64) {
	all, n := r.predictors()
	for _, p := range all[:n] {
		blocks += p.approx.Held(m, at)
	}
	return blocks
}

// GuessStats returns the sums of the predictors' counters. ok is false if the configuration
// asks for no predictions.
func (r *Router) GuessStats() (s approx.Stats, ok bool) {
	for _, p := range [...]*predictor{r.allWorkers, r.silentWorkers} {
		if p != nil {
			one := p.approx.Stats()
			metric.Add(&s, &one)
			ok = true
		}
	}
	return s, ok
}
