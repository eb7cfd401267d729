package router

import (
	"fmt"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/blockyard-ai/blockyard/internal/kv"
	"github.com/blockyard-ai/blockyard/router/config"
)

// A worker that starts anew has nothing of what was sent to it before, also where that is
// all that is known.
func TestApproximateModeForgetsARestartedWorker(t *testing.T) {
	c := configured(func(c *config.Config) { c.UseKVEvents, c.FirstOfEqual = false, true })
	onBench(t, Options{Config: c}, func(b *bench) {
		first, second := b.publisher(0x11, workerOwner(1), 0), b.publisher(0x99, workerOwner(1), 0)
		first.meta.Card.Incarnation, second.meta.Card.Incarnation = 1, 2
		b.send(first.announce())
		h := b.router.Handler()
		b.route(h, "r", newBody("", 1, 2))
		b.route(h, "r", `{"method":"mark_free"}`)
		if got := text(t, call(t, b.router.ControlHandler(), "GET", "/v1/dump", "", "")); strings.Count(got, `"block_hash":`) != 2 {
			t.Errorf("the dump does not show the two blocks that are expected: %s", got)
		}
		b.send(second.announce())
		for _, want := range []string{`"overlap_blocks":0`, `"overlap_blocks":2`} {
			if _, got := b.route(h, "r", newBody("", 1, 2)); !strings.Contains(got, want) {
				t.Errorf("after the restart: %s, want %s", got, want)
			}
			b.route(h, "r", `{"method":"mark_free"}`)
		}
	})
}

// A worker that an embedder registers with the facade can be routed to when the block size
// is configured, and the router is ready.
func TestFacadeWorkersAreRoutedTo(t *testing.T) {
	size := uint32(testBlockSize)
	onBench(t, Options{Config: configured(func(c *config.Config) { c.KVCacheBlockSize = &size })}, func(b *bench) {
		if b.router.Ready() == nil {
			t.Error("ready without workers")
		}
		f, err := b.router.Facade("")
		if err != nil {
			t.Fatal(err)
		}
		if err := f.RegisterWorkers(map[kv.WorkerID]struct{}{7: {}}); err != nil {
			t.Fatal(err)
		}
		if m := b.best(promptTokens(1)); m.Worker.ID != 7 || b.router.Ready() != nil {
			t.Errorf("%+v; ready: %v", m.Worker, b.router.Ready())
		}
	})
}

// What somebody else sent to a worker is measured like what was sent from here.
func TestAddedRequestsAreMeasured(t *testing.T) {
	onBench(t, Options{Config: configured(func(c *config.Config) { c.Score = config.ScoreCost })}, func(b *bench) {
		p := b.publisher(0x11, workerOwner(1), 0)
		for i := range 12 {
			b.send(p.announce())
			q := &Request{ID: fmt.Sprint(i), Tokens: make([]uint32, 4000)}
			if err := b.router.AddRequest(q, kv.Worker{ID: 1}, 0); err != nil {
				t.Fatal(err)
			}
			b.pass(time.Second)
			if err := b.router.MarkPrefillCompleted(q.ID); err != nil {
				t.Fatal(err)
			}
			b.router.Free(q.ID)
		}
		if got := text(t, call(t, b.router.Handler(), "GET", "/v1/workers", "", "")); !strings.Contains(got, `"source":"measured","samples":12`) {
			t.Errorf("workers %s", got)
		}
	})
}

// The quality of a request that waited is not better than at either end of the wait.
func TestQualityCoversTheWait(t *testing.T) {
	onBench(t, Options{Config: halfAStep()}, func(b *bench) {
		p := b.publisher(0x11, workerOwner(1), 0)
		p.meta.Card.MaxBatchedTokens = testBlockSize
		b.send(p.announce())
		h := b.router.Handler()
		b.route(h, "r1", newBody("", 1))
		quality := make(chan Quality, 1)
		go func() {
			m, err := b.router.FindBestMatch(b.t.Context(), &Request{Tokens: promptTokens(2)})
			if err != nil {
				t.Error(err)
			}
			quality <- m.Quality
		}()
		synctest.Wait()
		if q := b.router.Quality(); q != QualityExact {
			t.Fatalf("quality %s before the end of the wait", q)
		}
		b.transport.send(Frame{Kind: FrameDisconnected})
		b.pass(time.Second)
		b.route(h, "r1", `{"method":"mark_free"}`)
		if q := <-quality; q != QualityDegraded {
			t.Errorf("quality %s of a decision made while disconnected", q)
		}
	})
}
