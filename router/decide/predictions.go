package decide

import (
	"fmt"

	"go.uber.org/zap"

	"github.com/blockyard-ai/blockyard/internal/kv"
	"github.com/blockyard-ai/blockyard/router/approx"
	"github.com/blockyard-ai/blockyard/router/index"
)

// openPredictions makes the index of predictions, if the configuration asks for
// one.
func (r *Router) openPredictions() (err error) {
	// Without credit nothing uses device hits.
	if !r.config.Guesses() {
		return nil
	}
	options, _ := r.config.Predicted()
	if !r.config.UseKVEvents {
		options = r.config.Approx()
	}
	if r.predictions, err = approx.New(options); err != nil {
		return fmt.Errorf("decide: %w", err)
	}
	r.predictedMembers.Store(&index.Members{})
	return nil
}

// addPredictions raises the device hits of w.matches to the predicted ones.
func (r *Router) addPredictions(w *work) {
	if r.predictions == nil {
		return
	}
	r.syncMembers()
	// The error is approx.ErrClosed: no predictions.
	if err := r.predictions.Match(&w.predicted, w.blocks.locals); err == nil {
		approx.MergeMax(&w.matches, &w.predicted)
	}
}

// syncMembers tells the predictions which workers there are, if that has changed.
func (r *Router) syncMembers() {
	if r.predictedMembers.Load() == r.index.Members() {
		return
	}
	r.predictionsMu.Lock()
	defer r.predictionsMu.Unlock()
	r.syncMembersLocked()
}

func (r *Router) syncMembersLocked() {
	// Under the lock, so that no older list replaces a newer one.
	before, now := r.predictedMembers.Load(), r.index.Members()
	for _, m := range before.List {
		if _, stays := now.Find(m.Worker); !stays {
			r.logUnremembered("forget", m.Worker, r.predictions.RemoveWorker(m.Worker))
		}
	}
	for _, m := range now.List {
		if _, known := before.Find(m.Worker); !known {
			r.logUnremembered("know", m.Worker, r.predictions.SetMember(m.Worker, 0, true))
		}
	}
	r.predictedMembers.Store(now)
}

// ForgetWorker drops the predictions of a worker. Call it when a worker has gone or
// started again, after the index was told. Otherwise a worker that is back at once
// would keep the predictions of its earlier run.
func (r *Router) ForgetWorker(worker kv.Worker) {
	if r.predictions == nil {
		return
	}
	r.predictionsMu.Lock()
	defer r.predictionsMu.Unlock()
	r.syncMembersLocked()
	if _, known := r.predictedMembers.Load().Find(worker); known {
		// The worker is back already.
		r.logUnremembered("forget", worker, r.predictions.RemoveWorker(worker))
		r.logUnremembered("know", worker, r.predictions.SetMember(worker, 0, true))
	}
}

// predict records that the prompt of w goes to a worker.
func (r *Router) predict(w *work, worker kv.Worker) {
	if r.predictions != nil {
		r.logUnremembered("remember", worker, r.record(w, worker))
	}
}

func (r *Router) record(w *work, worker kv.Worker) error {
	w.sequence = kv.AppendSequence(w.sequence[:0], w.blocks.locals)
	r.predictionsMu.Lock()
	defer r.predictionsMu.Unlock()
	// Under the lock, so that a worker that leaves meanwhile keeps no prediction.
	if r.predictedMembers.Load() != r.index.Members() {
		r.syncMembersLocked()
	}
	if _, known := r.predictedMembers.Load().Find(worker); !known {
		return ErrUnknownWorker
	}
	return r.predictions.Record(worker, w.blocks.locals, w.sequence)
}

// logUnremembered counts and logs a prediction that could not be recorded. The
// decision does not fail for it.
func (r *Router) logUnremembered(what string, worker kv.Worker, err error) {
	if err != nil {
		r.notRecorded.Add(1)
		r.log.Debug("a routing decision is not remembered", zap.String("step", what), zap.Stringer("worker", worker), zap.Error(err))
	}
}

// RecordRoutingDecision predicts from a decision that the prompt of q was sent to a
// worker, for callers that decide without UpdateStates. The error is
// ErrNotRecorded, ErrNoWorkers, ErrUnknownWorker, approx.ErrClosed, index.ErrFull,
// or a *QueryError.
func (r *Router) RecordRoutingDecision(q *Query, worker kv.Worker) error {
	if r.predictions == nil {
		return ErrNotRecorded
	}
	blockSize, err := r.check(q)
	if err != nil {
		return err
	}
	w := r.work.Get().(*work)
	defer r.work.Put(w)
	w.blocks.hash(q, blockSize, r.eagle())
	return r.record(w, worker)
}

// Tick expires predictions, forgets workers that have left, and ticks the
// scheduler. Call it a few times a second.
func (r *Router) Tick() {
	r.scheduler.Tick()
	if r.predictions != nil {
		r.syncMembers()
		r.predictions.Tick()
	}
}

// Unremembered returns how many predictions could not be recorded, because the
// worker had left or there was no room.
func (r *Router) Unremembered() uint64 { return r.notRecorded.Load() }

// Guessed returns how many blocks a member is predicted to hold. m is any list of
// members, at the member's number in it. Guessed takes no lock.
func (r *Router) Guessed(m *index.Members, at int) uint64 {
	if r.predictions == nil {
		return 0
	}
	return r.predictions.Held(m, at)
}

// GuessStats returns the counters of the predictions. ok is false without
// predictions.
func (r *Router) GuessStats() (s approx.Stats, ok bool) {
	if r.predictions == nil {
		return s, false
	}
	return r.predictions.Stats(), true
}
