package load

import (
	"fmt"
	"math"
	"time"

	"github.com/blockyard-ai/blockyard/internal/kv"
)

// Request is a request to be put on the account of a worker.
type Request struct {
	// ID names the request in later calls. It is not empty.
	ID     string
	Worker kv.Worker
	// Sequence are the prompt's blocks that count as active; nil tracks none. It
	// is copied.
	Sequence []kv.SequenceHash
	// PrefillTokens are prompt tokens still to be computed; 0 when prefill is not
	// tracked. PrefillDuration is how long that is expected to take; with 0 the
	// tokens stay until the prefill is marked complete.
	PrefillTokens   int
	PrefillDuration time.Duration
	// ExpectedOutput is the expected number of tokens to be generated, 0 when
	// unknown, and BlockSize the tokens of an output block. With both, each output
	// block lets what the request alone keeps fade: see AddOutputBlock.
	ExpectedOutput, BlockSize int
	// Provisional says that it is not certain that the request was sent to the
	// worker: until something is heard of it, it expires sooner.
	Provisional bool
}

// maxNameBytes bounds the memory that a request's strings take.
const maxNameBytes = 4096

func (r *Request) validate() error {
	if r.ID == "" || len(r.ID) > maxNameBytes {
		return fmt.Errorf("request id: %d bytes are not in 1..%d", len(r.ID), maxNameBytes)
	}
	for _, f := range []struct {
		name  string
		value int
	}{
		{"prefill tokens", r.PrefillTokens},
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
	on *workload
	// end is where the tracked blocks end in the trie, nil without any.
	end *node

	tracked, expected  int32
	outputs, blockSize int32
	// number tells this booking from another one of the same id.
	number uint64
	// outputWeight is the sum of the weights of the output blocks.
	outputWeight int64
	// prefill is 0 from the completion of the prefill on.
	prefill  int64
	duration time.Duration

	heard time.Duration
	// provisional is set until something is heard of a provisional request.
	provisional bool
	// phantom is set when the engine turned out not to have the request, until
	// something is heard of it.
	phantom bool
	in      [numOrders]link
}

// remainingOutput is the part of the expected output that is not generated yet; nil
// when none is expected.
func (r *request) remainingOutput() *float64 {
	if r.expected == 0 || r.blockSize == 0 {
		return nil
	}
	generated := float64(r.outputs) * float64(r.blockSize)
	return new(max(0, 1-generated/float64(r.expected)))
}

// order is one of the lists that a request is in.
type order uint8

const (
	// byArrival: the requests of one worker, the oldest first.
	byArrival order = iota
	// bySilence: all requests that are provisional, or all others, the one not heard
	// of for longest first.
	bySilence
	numOrders
)

type link struct{ prev, next *request }

// list is a list of requests that needs no memory of its own.
type list struct {
	first, last *request
	n           int
}

func (l *list) push(o order, r *request) {
	r.in[o] = link{prev: l.last}
	if l.last == nil {
		l.first = r
	} else {
		l.last.in[o].next = r
	}
	l.last = r
	l.n++
}

func (l *list) remove(o order, r *request) {
	at := r.in[o]
	if at.prev == nil {
		l.first = at.next
	} else {
		at.prev.in[o].next = at.next
	}
	if at.next == nil {
		l.last = at.prev
	} else {
		at.next.in[o].prev = at.prev
	}
	r.in[o] = link{}
	l.n--
}
