package index

import (
	"errors"
	"fmt"
	"time"

	"github.com/blockyard-ai/blockyard/internal/kv"
	"github.com/blockyard-ai/blockyard/internal/kvevent"
	"github.com/blockyard-ai/blockyard/lab/index/oplog"
	"github.com/blockyard-ai/blockyard/router/index"
)

// replay is a log in the form that an index takes.
type replay struct {
	log     *oplog.Log
	events  []kvevent.RouterEvent
	queries [][]kv.LocalHash
	// order is the order of the log: the number of an event, or ^ the number of a
	// query.
	order []int32
}

// openReplay opens the log at path. The caller closes its log.
func openReplay(path string) (*replay, error) {
	l, err := oplog.Open(path)
	if err != nil {
		return nil, err
	}
	return newReplay(l), nil
}

// newReplay returns the events and queries of a log, decoded before any measurement.
func newReplay(l *oplog.Log) *replay {
	h := l.Header()
	r := &replay{
		log: l, events: make([]kvevent.RouterEvent, 0, h.Records-h.Queries),
		queries: make([][]kv.LocalHash, 0, h.Queries), order: make([]int32, 0, h.Records),
	}
	ids := make([]uint64, h.Engines)
	for _, rec := range l.Records() {
		if rec.Op == oplog.Query {
			r.order = append(r.order, ^int32(len(r.queries)))
			r.queries = append(r.queries, rec.Locals)
			continue
		}
		ids[rec.Engine]++
		r.order = append(r.order, int32(len(r.events)))
		r.events = append(r.events, eventOf(rec, ids[rec.Engine]))
	}
	return r
}

// worker returns the worker that stands for an engine; worker 0 does not exist.
func worker(engine int) kv.Worker { return kv.Worker{ID: kv.WorkerID(engine + 1)} }

// eventOf returns the router event, with this id, of a record that is not a query. Its slices are
// the log's memory.
func eventOf(r *oplog.Record, id uint64) kvevent.RouterEvent {
	e := kvevent.RouterEvent{Owner: kv.WorkerOwner(worker(int(r.Engine))), Tier: kv.TierDevice, ID: id}
	if r.Op == oplog.Removed {
		e.Kind, e.Removed = kvevent.Removed, r.Removed
		return e
	}
	e.Kind, e.Blocks, e.Parent, e.HasParent = kvevent.Stored, r.Blocks, r.Parent, r.Parent != 0
	return e
}

// newIndex returns an empty index that knows every engine of a log as a worker.
func newIndex(engines int) (*index.Index, error) {
	x, err := index.New(index.Options{})
	if err != nil {
		return nil, err
	}
	for i := range engines {
		if err := x.SetMember(worker(i), 0, true); err != nil {
			return nil, err
		}
	}
	return x, nil
}

// drain completes the deferred work of an index.
func drain(x *index.Index) {
	for x.Sweep(1 << 16) {
	}
}

// messageBlocks is the most blocks of a message: what an engine computes in a step.
const messageBlocks = 128

// message returns the number of leading events that a router would get in one message: those of one engine, with
// messageBlocks blocks at most.
func message(events []kvevent.RouterEvent) int {
	n, blocks := 1, events[0].NumBlocks()
	for ; n < len(events) && events[n].Owner == events[0].Owner; n++ {
		if blocks += events[n].NumBlocks(); blocks > messageBlocks {
			break
		}
	}
	return n
}

// apply applies events to the index, message by message as a router does. The error is that of the first event that
// the index refuses.
func apply(x *index.Index, events []kvevent.RouterEvent) error {
	for len(events) > 0 {
		n := message(events)
		if _, err := x.ApplyAll(events[:n]); err != nil {
			return err
		}
		events = events[n:]
	}
	return nil
}

// inOrder applies the events of the log and calls ask for each query, in the order of the log.
func (r *replay) inOrder(x *index.Index, ask func(query int32)) error {
	for i := 0; i < len(r.order); {
		if n := r.order[i]; n < 0 {
			ask(^n)
			i++
			continue
		}
		first := i
		for ; i < len(r.order) && r.order[i] >= 0; i++ {
		}
		// Events between two queries have consecutive numbers.
		if err := apply(x, r.events[r.order[first]:int(r.order[first])+i-first]); err != nil {
			return err
		}
	}
	return nil
}

// sums of answers.
type sums struct{ score, best uint64 }

// add adds the answer to one query: the hits of all engines together, and those of the best.
func (s *sums) add(m *index.Matches) {
	best := uint32(0)
	for i := range m.Hits {
		n := m.Hits[i].Hits.Total()
		s.score += uint64(n)
		best = max(best, n)
	}
	s.best += uint64(best)
}

// check compares with the sums of a log.
func (s sums) check(what string, score, best uint64) error {
	if s.score != score || s.best != best {
		return fmt.Errorf("%s: the answers add up to %d and the best of each to %d, want %d and %d", what, s.score, s.best, score, best)
	}
	return nil
}

// held is the digest and the number of blocks of one engine at the end of a log.
type held struct{ digest, pairs uint64 }

// heldInTheEnd returns the blocks that each engine holds after all records, as a digest and a
// number. It only adds up, which is right for logs that store no held block and remove no absent
// one; the log's totals confirm that.
func (r *replay) heldInTheEnd() []held {
	all := make([]held, r.log.Header().Engines)
	for _, rec := range r.log.Records() {
		h := &all[rec.Engine]
		for _, b := range rec.Blocks {
			h.digest += kv.Digest(b.Hash, kv.TierDevice)
		}
		for _, s := range rec.Removed {
			h.digest -= kv.Digest(s, kv.TierDevice)
		}
		h.pairs += uint64(len(rec.Blocks)) - uint64(len(rec.Removed))
	}
	return all
}

// checkHeld compares an index after all events with the log: digest and pairs of each
// engine, and the totals of the header.
func (r *replay) checkHeld(x *index.Index) error {
	var errs []error
	total := uint64(0)
	for i, want := range r.heldInTheEnd() {
		sum, pairs := x.Digest(kv.WorkerOwner(worker(i)))
		if sum != want.digest || pairs != want.pairs {
			errs = append(errs, fmt.Errorf("engine %d: digest %#x of %d blocks, want %#x of %d", i, sum, pairs, want.digest, want.pairs))
		}
		total += want.pairs
	}
	a, s := r.log.Header().Answers, x.Stats()
	if total != a.Memberships {
		errs = append(errs, fmt.Errorf("op log: word 8 (memberships) is %d, but its records leave %d", a.Memberships, total))
	}
	if uint64(s.Memberships) != a.Memberships || uint64(s.Blocks) != a.Distinct {
		errs = append(errs, fmt.Errorf("the index holds %d pairs of %d blocks, want %d of %d", s.Memberships, s.Blocks, a.Memberships, a.Distinct))
	}
	return errors.Join(errs...)
}

// measureEvents measures how fast the index applies all events of the log, deferred work
// included. It then checks the contents.
func (r *replay) measureEvents() (Figures, error) {
	h := r.log.Header()
	x, err := newIndex(h.Engines)
	if err != nil {
		return nil, err
	}
	m := begin()
	if err := apply(x, r.events); err != nil {
		return nil, err
	}
	drain(x)
	f := m.end()
	f[figMops] = float64(h.Stored+h.Removed) / f[figSeconds] / 1e6
	return f, r.checkHeld(x)
}

// measureMixed measures how fast the index applies events and answers queries in the order of the
// log. It checks the answers.
func (r *replay) measureMixed() (Figures, error) {
	h := r.log.Header()
	x, err := newIndex(h.Engines)
	if err != nil {
		return nil, err
	}
	var matches index.Matches
	var got sums
	m := begin()
	err = r.inOrder(x, func(query int32) {
		x.Match(&matches, r.queries[query], index.Continuation)
		got.add(&matches)
	})
	if err != nil {
		return nil, err
	}
	drain(x)
	f := m.end()
	f[figMops] = float64(h.Stored+h.Removed+h.Queried) / f[figSeconds] / 1e6
	return f, got.check("queries in order", h.Answers.Score, h.Answers.Best)
}

// measureLookups returns the quantiles of the times of single queries: in the order of the log,
// and then all on the last state. It checks the answers.
func (r *replay) measureLookups() (Figures, error) {
	h := r.log.Header()
	x, err := newIndex(h.Engines)
	if err != nil {
		return nil, err
	}
	var matches index.Matches
	var got sums
	ns := make([]uint32, 0, len(r.queries))
	ask := func(query int32) {
		start := time.Now()
		x.Match(&matches, r.queries[query], index.Continuation)
		ns = append(ns, since(start))
		got.add(&matches)
	}
	m := begin()
	if err := r.inOrder(x, ask); err != nil {
		return nil, err
	}
	f := m.end()
	if err := got.check("timed queries in order", h.Answers.Score, h.Answers.Best); err != nil {
		return nil, err
	}
	f.latencies("", ns)
	got, ns = sums{}, ns[:0]
	for i := range r.queries {
		ask(int32(i))
	}
	f.latencies("final_", ns)
	return f, got.check("queries after the last record", h.Answers.FinalScore, h.Answers.FinalBest)
}

// Names of figures of some parts.
const (
	figMops = "mops" // millions of blocks named by events and queries, a second
	figP50  = "p50_us"
	figP99  = "p99_us"
	figMost = "max_us"
	figN    = "n" // how many times were measured
)

// latencies adds the quantiles of ns, which it sorts. Names begin with prefix.
func (f Figures) latencies(prefix string, ns []uint32) {
	q := quantiles(ns, 0.5, 0.99, 1)
	f[prefix+figP50], f[prefix+figP99], f[prefix+figMost], f[prefix+figN] = q[0], q[1], q[2], float64(len(ns))
}
