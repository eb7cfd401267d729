package router_test

import (
	"fmt"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/blockyard-ai/blockyard/internal/kv"
	"github.com/blockyard-ai/blockyard/internal/kvevent"
	"github.com/blockyard-ai/blockyard/router"
	"github.com/blockyard-ai/blockyard/router/decide"
	"github.com/blockyard-ai/blockyard/router/routertest"
	"github.com/blockyard-ai/blockyard/router/source/sourcetest"
)

const size = sourcetest.BlockSize

// onDisk publishes worker 1 with one block of the prompt on its device and its pool 77 with the first
// three blocks, the last two on disk alone.
func onDisk(b *routertest.Bench, prompt []uint32) {
	w := b.Publisher(11, sourcetest.WorkerOwner(1), 77)
	pool := b.Publisher(13, kv.PoolOwner(77), 0)
	b.Send(w.Announce(), pool.Announce())
	b.Send(w.Store(kv.TierDevice, prompt[:size]), pool.Store(kv.TierDisk, prompt[:3*size]))
}

func book(b *routertest.Bench, q router.Request) {
	b.T.Helper()
	q.UpdateStates = true
	if _, err := b.Router.FindBestMatch(b.T.Context(), &q); err != nil {
		b.T.Fatal(err)
	}
}

// TestADecisionSendsAHint: the pool of the chosen worker is told the prompt up to the last block that
// the worker has. Decisions that book nothing, and prompts that an agent cannot name, send none.
func TestADecisionSendsAHint(t *testing.T) {
	prompt := sourcetest.Tokens(1, 2, 3, 4)
	routertest.OnBench(t, router.Options{}, func(b *routertest.Bench) {
		onDisk(b, prompt)
		if m := b.Best(prompt); m.Hits[kv.TierDevice] != 1 || m.Hits[kv.TierDisk] != 2 {
			t.Fatalf("hits %v, want 1 on the device and 2 on disk", m.Hits)
		}
		book(b, router.Request{ID: "other prompt", Tokens: sourcetest.Tokens(9)})
		book(b, router.Request{ID: "short prompt", Tokens: prompt[:size+1]})
		byHashes := &decide.Hashed{Tokens: len(prompt), Locals: (&router.Request{Tokens: prompt}).Locals(size, false)}
		book(b, router.Request{ID: "hashes", Hashed: byHashes})
		b.Pass(0)
		if hints := b.Transport.Hints(); len(hints) != 0 {
			t.Fatalf("%d hints, want none", len(hints))
		}
		book(b, router.Request{ID: "prompt", Tokens: prompt})
		b.Pass(0)
		want := []sourcetest.Hint{{Publisher: 13, Data: kvevent.AppendReadAhead(nil, &kvevent.ReadAhead{Tokens: prompt[:3*size]})}}
		if diff := cmp.Diff(want, b.Transport.Hints()); diff != "" {
			t.Errorf("(-want +got)\n%s", diff)
		}
		if got := b.Router.Stats().ReadAhead; got != (router.ReadAheadStats{Sent: 1}) {
			t.Errorf("got %+v, want 1 sent", got)
		}
	})
}

// TestHintsThatCannotBeSentAreDropped: agents that do not answer hold up no decision, and the hints
// that wait for them are bounded.
func TestHintsThatCannotBeSentAreDropped(t *testing.T) {
	prompt := sourcetest.Tokens(1, 2, 3)
	const requests = 100
	// 68 hints are sent by four senders, and each takes its time limit of a second.
	const maxHintSeconds = 68/4 + 1
	routertest.OnBench(t, router.Options{}, func(b *routertest.Bench) {
		onDisk(b, prompt)
		b.Transport.HoldQueries(true)
		for i := range requests {
			book(b, router.Request{ID: fmt.Sprint(i), Tokens: prompt})
		}
		b.Pass(0)
		inFlight, s := len(b.Transport.Hints()), b.Router.Stats().ReadAhead
		if inFlight != 4 || s.Sent+s.Failed != 0 || s.Dropped < requests-64-4 {
			t.Errorf("%d hints in flight, %+v; want 4, and at most 64 waiting", inFlight, s)
		}
		b.Pass(maxHintSeconds * time.Second)
		if end := b.Router.Stats().ReadAhead; end.Failed != requests-s.Dropped || end.Sent != 0 {
			t.Errorf("got %+v, want every hint that waited failed", end)
		}
		b.Transport.HoldQueries(false)
	})
}
