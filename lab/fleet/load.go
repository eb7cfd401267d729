package fleet

import (
	"context"
	"fmt"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"time"

	"github.com/blockyard-ai/blockyard/lab/cluster"
	"github.com/blockyard-ai/blockyard/lab/engine"
)

const (
	clients = 16
	// Prompts begin like one of documents documents of documentBlocks blocks.
	documents, documentBlocks = 24, 24
	vocabulary                = 32000
	// One of keepOdds requests stays booked until the routers were compared.
	keepOdds = 8
	maxKept  = 400
	// pause is the time between tries.
	pause = 20 * time.Millisecond
	// markPatience bounds the tries of one mark: an outage, the silence after which a router is forgotten,
	// and the start of a router, on a busy machine.
	markPatience = time.Minute
	// maxOutput bounds the output blocks that a client reports of a request.
	maxOutput = 3
)

// instance is one life of a router.
type instance struct {
	*cluster.Router
	// ended is true once the process has ended or begins to: its requests end, and marks of them may find
	// nothing.
	ended atomic.Bool
}

// ledger is what clients know: the live requests, and the router that booked each.
type ledger struct {
	mu   sync.Mutex
	live map[string]*instance
	// kept are the live requests that nobody works on.
	kept []string

	booked, freed, failed atomic.Uint64
	// unknown counts marks that a router did not find although the router of the booking lived.
	// unanswered counts marks that no router answered within markPatience.
	unknown, unanswered atomic.Uint64
	outputs             atomic.Uint64 // marks of output blocks that were answered
}

func newLedger() *ledger { return &ledger{live: make(map[string]*instance)} }

func (l *ledger) add(id string, at *instance) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.live[id] = at
	l.booked.Add(1)
}

func (l *ledger) remove(id string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	delete(l.live, id)
}

func (l *ledger) owner(id string) *instance {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.live[id]
}

// keep keeps a request booked, unless enough are.
func (l *ledger) keep(id string) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	if len(l.kept) >= maxKept {
		return false
	}
	l.kept = append(l.kept, id)
	return true
}

// takeKept returns the kept requests, which nobody keeps any longer.
func (l *ledger) takeKept() []string {
	l.mu.Lock()
	defer l.mu.Unlock()
	kept := l.kept
	l.kept = nil
	return kept
}

// requests returns the live requests whose router lives, and forgets the others.
func (l *ledger) requests() map[string]*instance {
	l.mu.Lock()
	defer l.mu.Unlock()
	out := make(map[string]*instance)
	for id, at := range l.live {
		if at.ended.Load() {
			delete(l.live, id)
			continue
		}
		out[id] = at
	}
	return out
}

// client books requests at random routers until ctx ends, and ends those that it does not keep.
func (w *world) client(ctx context.Context, n int, seed uint64) {
	rng := rand.New(rand.NewPCG(seed, uint64(n)))
	for i := 0; ctx.Err() == nil; i++ {
		id := fmt.Sprintf("%x-%d-%d", seed, n, i)
		if !w.request(ctx, rng, id) {
			_ = cluster.Wait(ctx, pause)
		}
	}
}

// request books one request and brings it to its end. It reports whether the booking succeeded.
func (w *world) request(ctx context.Context, rng *rand.Rand, id string) bool {
	tokens := w.prompt(rng)
	at := w.router(rng)
	var chosen struct {
		WorkerID uint64 `json:"worker_id"`
	}
	if err := call(at, map[string]any{"method": "new", "request_id": id, "tokens": tokens}, &chosen); err != nil {
		w.ledger.failed.Add(1)
		return false
	}
	w.ledger.add(id, at)
	if e := w.engineOf(chosen.WorkerID); e != nil {
		// An engine whose agent was killed refuses some requests. The booking stays the router's.
		_ = e.Post(ctx, "/v1/generate", engine.GenerateRequest{Tokens: tokens, OutputTokens: 1 + rng.IntN(8)}, nil)
	}
	if rng.IntN(3) > 0 {
		w.mark(rng, id, "mark_prefill")
	}
	for range rng.IntN(maxOutput + 1) {
		if w.mark(rng, id, "output_block") {
			w.ledger.outputs.Add(1)
		}
	}
	if rng.IntN(keepOdds) == 0 && w.ledger.keep(id) {
		return true
	}
	w.free(rng, id)
	return true
}

// free ends a request.
func (w *world) free(rng *rand.Rand, id string) {
	w.mark(rng, id, "mark_free")
	w.ledger.remove(id)
	w.ledger.freed.Add(1)
}

// mark reports the progress of a request at random routers until one answers, the router of the booking
// has ended, or markPatience is over. It reports whether a router answered. The outcome of a call that
// failed is not known, so that a later answer "unknown" may be right.
func (w *world) mark(rng *rand.Rand, id, method string) (answered bool) {
	certain := true
	owner := w.ledger.owner(id)
	for began := time.Now(); owner != nil && !owner.ended.Load(); {
		if time.Since(began) > markPatience {
			w.ledger.unanswered.Add(1)
			w.note("request %s: no router answers %s", id, method)
			return false
		}
		var answer struct {
			Success bool `json:"success"`
		}
		err := call(w.router(rng), map[string]any{"method": method, "request_id": id}, &answer)
		if err == nil {
			if !answer.Success && certain && !owner.ended.Load() {
				w.ledger.unknown.Add(1)
				w.note("request %s: %s found no booking", id, method)
			}
			return true
		}
		certain = false
		_ = cluster.Wait(context.Background(), pause)
	}
	return false
}

// call sends a request to a router. A client that leaves before the answer could leave a booking behind,
// so that no call ends with the load.
func call(at *instance, body, answer any) error {
	return at.Post(context.Background(), "/v1/route", body, answer)
}

// prompt returns the start of a document, of random length, and some random tokens.
func (w *world) prompt(rng *rand.Rand) []uint32 {
	doc := w.documents[rng.IntN(len(w.documents))]
	tokens := append([]uint32{}, doc[:1+rng.IntN(len(doc))]...)
	for range rng.IntN(2 * blockSize) {
		tokens = append(tokens, rng.Uint32N(vocabulary))
	}
	return tokens
}
