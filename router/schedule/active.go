package schedule

import (
	"container/list"
	"errors"
	"fmt"
	"sort"
	"time"

	"github.com/blockyard-ai/blockyard/internal/kv"
)

// Errors that callers tell apart with errors.Is.
var (
	// ErrNoCandidates: there is no worker to choose from.
	ErrNoCandidates = errors.New("no workers")
	// ErrDuplicateRequest: a request of that id is active.
	ErrDuplicateRequest = errors.New("request is active already")
	// ErrUnknownRequest: no request of that id is active.
	ErrUnknownRequest = errors.New("request is not active")
	// ErrTooManyRequests: no further request can be booked.
	ErrTooManyRequests = errors.New("too many active requests")
)

// active is the account of running requests. It has no lock of its own.
type active struct {
	requests map[string]*booking
	// byAge holds *booking, the longest silent one in front.
	byAge   list.List
	workers map[kv.Worker]*workload
	// blocks is the sum of the lengths of all booked sequences.
	blocks                 int
	maxRequests, maxBlocks int
}

// booking is one running request.
type booking struct {
	id       string
	worker   kv.Worker
	sequence []kv.SequenceHash
	// prefill is how many prompt tokens are not computed yet.
	prefill int
	heard   time.Time
	age     *list.Element
}

// workload is what runs on one worker.
type workload struct {
	// blocks counts the requests that use each prompt block. A SequenceHash
	// stands for its whole prefix, so the keys are closed under prefixes.
	blocks   map[kv.SequenceHash]uint32
	prefill  int
	requests int
}

func newActive(maxRequests, maxBlocks int) active {
	return active{
		requests:    make(map[string]*booking),
		workers:     make(map[kv.Worker]*workload),
		maxRequests: maxRequests,
		maxBlocks:   maxBlocks,
	}
}

// add books a request; it keeps sequence.
func (a *active) add(b booking, now time.Time) error {
	if _, ok := a.requests[b.id]; ok {
		return fmt.Errorf("request %q: %w", b.id, ErrDuplicateRequest)
	}
	if len(a.requests) >= a.maxRequests || a.blocks+len(b.sequence) > a.maxBlocks {
		return fmt.Errorf("request %q: %w: %d requests of %d, %d blocks of %d",
			b.id, ErrTooManyRequests, len(a.requests), a.maxRequests, a.blocks, a.maxBlocks)
	}
	w := a.workers[b.worker]
	if w == nil {
		w = &workload{blocks: make(map[kv.SequenceHash]uint32)}
		a.workers[b.worker] = w
	}
	for _, h := range b.sequence {
		w.blocks[h]++
	}
	w.prefill += b.prefill
	w.requests++
	a.blocks += len(b.sequence)
	b.heard = now
	b.age = a.byAge.PushBack(&b)
	a.requests[b.id] = &b
	return nil
}

// prefillCompleted takes the request's tokens off its worker's prefill load.
// Said again it only shows that the request is alive.
func (a *active) prefillCompleted(id string, now time.Time) error {
	b := a.requests[id]
	if b == nil {
		return fmt.Errorf("request %q: %w", id, ErrUnknownRequest)
	}
	a.workers[b.worker].prefill -= b.prefill
	b.prefill = 0
	b.heard = now
	a.byAge.MoveToBack(b.age)
	return nil
}

// free ends a request; it reports whether there was one.
func (a *active) free(id string) bool {
	b := a.requests[id]
	if b == nil {
		return false
	}
	delete(a.requests, id)
	a.byAge.Remove(b.age)
	a.blocks -= len(b.sequence)
	w := a.workers[b.worker]
	for _, h := range b.sequence {
		if w.blocks[h]--; w.blocks[h] == 0 {
			delete(w.blocks, h)
		}
	}
	w.prefill -= b.prefill
	if w.requests--; w.requests == 0 {
		delete(a.workers, b.worker)
	}
	return true
}

// expire frees every request that was last heard of before the given time.
func (a *active) expire(before time.Time) int {
	n := 0
	for e := a.byAge.Front(); e != nil && e.Value.(*booking).heard.Before(before); e = a.byAge.Front() {
		a.free(e.Value.(*booking).id)
		n++
	}
	return n
}

// removeWorker frees every request of a worker.
func (a *active) removeWorker(w kv.Worker) int {
	if a.workers[w] == nil {
		return 0
	}
	n := 0
	for e := a.byAge.Front(); e != nil; {
		b := e.Value.(*booking)
		e = e.Next()
		if b.worker == w {
			a.free(b.id)
			n++
		}
	}
	return n
}

// load is what worker has to do, and how many blocks sequence would add.
func (a *active) load(worker kv.Worker, sequence []kv.SequenceHash) Load {
	w := a.workers[worker]
	if w == nil {
		return Load{NewBlocks: len(sequence)}
	}
	// Prefixes are closed: past the first block that is not active none is.
	shared := sort.Search(len(sequence), func(i int) bool { return w.blocks[sequence[i]] == 0 })
	return Load{
		PrefillTokens: w.prefill,
		ActiveBlocks:  len(w.blocks),
		NewBlocks:     len(sequence) - shared,
		Requests:      w.requests,
	}
}
