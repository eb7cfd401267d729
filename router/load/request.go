package load

import (
	"fmt"
	"math"
	"time"

	"github.com/blockyard-ai/blockyard/internal/kv"
)

// Request is a request to book on a worker.
type Request struct {
	// ID names the request in later calls. ID is not empty.
	ID     string
	Worker kv.Worker
	// Sequence are the prompt blocks that count as active; nil tracks none.
	// Sequence is copied.
	Sequence []kv.SequenceHash
	// PrefillTokens are the prompt tokens to compute; 0 tracks no prefill.
	// PrefillDuration is the expected time for that. With 0 the tokens stay until
	// the prefill is marked complete.
	PrefillTokens   int
	PrefillDuration time.Duration
	// Awaited are the blocks of Sequence that another request of the worker computes.
	Awaited Awaited
	// ExpectedOutput is the expected number of generated tokens, 0 when unknown.
	// BlockSize is the number of tokens in a block. With both, each output
	// block reduces the weights: see AddOutputBlock.
	ExpectedOutput, BlockSize int
	// Provisional says that the request may not have been sent to the worker. It expires
	// sooner until the first call for it.
	Provisional bool
}

// maxNameBytes bounds the id.
const maxNameBytes = 4096

// validate returns an error that names the first field out of range.
func (r *Request) validate() error {
	if r.ID == "" || len(r.ID) > maxNameBytes {
		return fmt.Errorf("request id: %d bytes are not in 1..%d", len(r.ID), maxNameBytes)
	}
	for _, f := range []struct {
		name  string
		value int
	}{
		{"prefill tokens", r.PrefillTokens},
		{"awaited from", int(r.Awaited.From)},
		{"awaited to", int(r.Awaited.To)},
		{"expected output tokens", r.ExpectedOutput},
		{"block size", r.BlockSize},
	} {
		if f.value < 0 || f.value > math.MaxInt32 {
			return fmt.Errorf("request %q %s: %d is not in 0..%d", r.ID, f.name, f.value, math.MaxInt32)
		}
	}
	if r.PrefillDuration < 0 {
		return fmt.Errorf("request %q prefill duration: %v is negative", r.ID, r.PrefillDuration)
	}
	return nil
}

// request is an active request.
type request struct {
	id string
	// workload is that of the request's worker.
	workload *workload
	// lastNode is the trie node where the tracked blocks end, nil without any.
	lastNode *node

	// trackedBlocks counts the prompt blocks and outputBlocks the generated blocks.
	// expectedTokens is the expected output, and blockSize is in tokens.
	trackedBlocks, expectedTokens int32
	outputBlocks, blockSize       int32
	// bookingNumber distinguishes this booking from others of the same id. router is the router
	// that made a foreign booking, which numbered it foreignNumber there; 0 is this router.
	bookingNumber         uint64
	router, foreignNumber uint64
	// ended is true for an ended request in journal.ordered.
	ended bool
	// promptWeight is the last weight that weighPrompt was called with; one is a whole block.
	promptWeight int32
	// outputWeight is the sum of the weights of the output blocks.
	outputWeight int64
	// prefillTokens are the prompt tokens to compute, 0 once the prefill is complete.
	// prefillDuration is the expected time for them, 0 when unknown.
	prefillTokens   int64
	prefillDuration time.Duration
	awaited         Awaited
	// movedTokens is Progress.MovedTokens.
	movedTokens int64

	// lastHeard is the time, by Account.clock, of the last call for the request.
	lastHeard time.Duration
	// provisional is true for a provisional request until the first call for it.
	provisional bool
	// phantomChanges is odd from when Reconcile finds the request a phantom until a call for it. See
	// Progress.
	phantomChanges uint32
	// suspected is true for a foreign request that Reconcile found to be a phantom, until its router
	// tells of progress.
	suspected bool
	// links are the request's neighbours in each list that it is in.
	links [numOrders]link
}

// remainingOutput returns the fraction of the expected output that is not generated
// yet, nil when none is expected.
func (r *request) remainingOutput() *float64 {
	if r.expectedTokens == 0 || r.blockSize == 0 {
		return nil
	}
	generated := float64(r.outputBlocks) * float64(r.blockSize)
	return new(max(0, 1-generated/float64(r.expectedTokens)))
}

// order names one of the lists that a request is in.
type order uint8

const (
	// byArrival orders the requests of one worker, oldest first.
	byArrival order = iota
	// bySilence orders all provisional requests, or all others, by silence, longest
	// first.
	bySilence
	numOrders
)

type link struct{ prev, next *request }

// list is a linked list of requests that allocates nothing.
type list struct {
	first, last *request
	n           int
}

// push appends r, which is in no list of order o.
func (l *list) push(o order, r *request) {
	r.links[o] = link{prev: l.last}
	if l.last == nil {
		l.first = r
	} else {
		l.last.links[o].next = r
	}
	l.last = r
	l.n++
}

// remove removes r from the list, whose order is o. r must be in the list.
func (l *list) remove(o order, r *request) {
	at := r.links[o]
	if at.prev == nil {
		l.first = at.next
	} else {
		at.prev.links[o].next = at.next
	}
	if at.next == nil {
		l.last = at.prev
	} else {
		at.next.links[o].prev = at.prev
	}
	r.links[o] = link{}
	l.n--
}
