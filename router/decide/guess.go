package decide

import (
	"fmt"

	"go.uber.org/zap"

	"github.com/blockyard-ai/blockyard/internal/kv"
	"github.com/blockyard-ai/blockyard/router/approx"
	"github.com/blockyard-ai/blockyard/router/index"
)

// openGuess makes the index of remembered decisions, where there is to be one.
func (r *Router) openGuess() (err error) {
	// Without credit nothing looks at device hits.
	if !r.config.Guesses() {
		return nil
	}
	options, _ := r.config.Predicted()
	if !r.config.UseKVEvents {
		options = r.config.Approx()
	}
	if r.guess, err = approx.New(options); err != nil {
		return fmt.Errorf("decide: %w", err)
	}
	r.guessed.Store(&index.Members{})
	return nil
}

// guessInto raises the device hits of w.matches to what decisions let expect.
func (r *Router) guessInto(w *work) {
	if r.guess == nil {
		return
	}
	r.keepMembers()
	// Closed, it has nothing to say.
	if err := r.guess.Match(&w.guess, w.blocks.locals); err == nil {
		approx.MergeMax(&w.matches, &w.guess)
	}
}

// keepMembers tells the guess which workers there are, when that has changed.
func (r *Router) keepMembers() {
	if r.guessed.Load() == r.index.Members() {
		return
	}
	r.guessing.Lock()
	defer r.guessing.Unlock()
	r.keepMembersLocked()
}

func (r *Router) keepMembersLocked() {
	// Under the lock, so that nobody puts an older list after a newer one.
	before, now := r.guessed.Load(), r.index.Members()
	for _, m := range before.List {
		if _, stays := now.Find(m.Worker); !stays {
			r.guessError("forget", m.Worker, r.guess.RemoveWorker(m.Worker))
		}
	}
	for _, m := range now.List {
		if _, known := before.Find(m.Worker); !known {
			r.guessError("know", m.Worker, r.guess.SetMember(m.Worker, 0, true))
		}
	}
	r.guessed.Store(now)
}

// ForgetWorker drops what was remembered of a worker: call it when one has gone or
// started anew, after the index was told, as one that is back at once would otherwise
// keep the guesses of its former life.
func (r *Router) ForgetWorker(worker kv.Worker) {
	if r.guess == nil {
		return
	}
	r.guessing.Lock()
	defer r.guessing.Unlock()
	r.keepMembersLocked()
	if _, known := r.guessed.Load().Find(worker); known {
		// It is back already.
		r.guessError("forget", worker, r.guess.RemoveWorker(worker))
		r.guessError("know", worker, r.guess.SetMember(worker, 0, true))
	}
}

// remember takes in that the prompt of w goes to a worker.
func (r *Router) remember(w *work, worker kv.Worker) {
	if r.guess != nil {
		r.guessError("remember", worker, r.record(w, worker))
	}
}

func (r *Router) record(w *work, worker kv.Worker) error {
	w.sequence = kv.AppendSequence(w.sequence[:0], w.blocks.locals)
	r.guessing.Lock()
	defer r.guessing.Unlock()
	// Under the lock, so that a worker that goes meanwhile leaves nothing behind.
	if r.guessed.Load() != r.index.Members() {
		r.keepMembersLocked()
	}
	if _, known := r.guessed.Load().Find(worker); !known {
		return ErrUnknownWorker
	}
	return r.guess.Record(worker, w.blocks.locals, w.sequence)
}

// guessError logs what the decision that is being made need not know.
func (r *Router) guessError(what string, worker kv.Worker, err error) {
	if err != nil {
		r.unremembered.Add(1)
		r.log.Debug("a routing decision is not remembered", zap.String("step", what), zap.Stringer("worker", worker), zap.Error(err))
	}
}

// RecordRoutingDecision remembers that the prompt of q was sent to a worker, for who
// decides without UpdateStates. The error is ErrNotRecorded, ErrNoWorkers,
// ErrUnknownWorker, approx.ErrClosed or index.ErrFull, or a *QueryError.
func (r *Router) RecordRoutingDecision(q *Query, worker kv.Worker) error {
	if r.guess == nil {
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

// Tick lets time pass: remembered decisions expire, workers that are gone are
// forgotten, and the scheduler looks at what expires or waits there. Call it a few
// times a second.
func (r *Router) Tick() {
	r.scheduler.Tick()
	if r.guess != nil {
		r.keepMembers()
		r.guess.Tick()
	}
}

// Unremembered counts the decisions that could not be remembered, because their worker
// had gone or there was no room, and the workers that the guess could not be told of.
func (r *Router) Unremembered() uint64 { return r.unremembered.Load() }

// Guessed is how many blocks the member at a place of m is expected to hold because of
// remembered decisions. It never waits.
func (r *Router) Guessed(m *index.Members, at int) uint64 {
	if r.guess == nil {
		return 0
	}
	return r.guess.Held(m, at)
}

// GuessStats are the counters of the remembered decisions; ok is false where none
// are remembered.
func (r *Router) GuessStats() (s approx.Stats, ok bool) {
	if r.guess == nil {
		return s, false
	}
	return r.guess.Stats(), true
}
