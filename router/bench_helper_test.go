package router

import (
	"context"
	"fmt"
	"io"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/blockyard-ai/blockyard/internal/kv"
	"github.com/blockyard-ai/blockyard/router/config"
)

// bench is a router that runs in a bubble of synctest on a testTransport.
type bench struct {
	t         *testing.T
	router    *Router
	transport *testTransport
}

// onBench runs f with a router; time passes only when f lets it.
func onBench(t *testing.T, o Options, f func(b *bench)) {
	synctest.Test(t, func(t *testing.T) {
		b := &bench{t: t, transport: newTestTransport()}
		var err error
		if b.router, err = New(o, b.transport); err != nil {
			t.Fatal(err)
		}
		ctx, cancel := context.WithCancel(t.Context())
		var running sync.WaitGroup
		running.Go(func() {
			if err := b.router.Run(ctx); err != nil {
				t.Errorf("run: %v", err)
			}
		})
		defer running.Wait()
		defer cancel()
		f(b)
	})
}

// publisher makes a publisher that the transport can query.
func (b *bench) publisher(id uint64, owner kv.Owner, pool uint64) *testPublisher {
	return b.transport.publisher(id, owner, pool)
}

// send delivers frames and waits until all that follows from them has happened.
func (b *bench) send(frames ...Frame) {
	b.transport.send(frames...)
	synctest.Wait()
}

// pass lets time pass.
func (b *bench) pass(d time.Duration) {
	<-time.After(d)
	synctest.Wait()
}

func (b *bench) best(tokens []uint32) Match {
	b.t.Helper()
	m, err := b.router.FindBestMatch(b.t.Context(), &Request{Tokens: tokens})
	if err != nil {
		b.t.Fatal(err)
	}
	return m
}

// expect checks the device hits and the quality of a prompt's best match.
func (b *bench) expect(when string, tokens []uint32, worker kv.WorkerID, device uint32, q Quality) {
	b.t.Helper()
	m := b.best(tokens)
	if m.Worker.ID != worker || m.Hits[kv.TierDevice] != device || m.Quality != q {
		b.t.Errorf("%s: worker %s with %d device blocks, %s; want worker %d with %d, %s",
			when, m.Worker, m.Hits[kv.TierDevice], m.Quality, worker, device, q)
	}
}

// names lists the workers as "id/rank source".
func (b *bench) names() string {
	var all []string
	for _, w := range b.router.Workers() {
		source := w.Card.Source
		if source == "" {
			source = "agent"
		}
		all = append(all, fmt.Sprintf("%s %s", w.Worker, source))
	}
	return strings.Join(all, ", ")
}

func (b *bench) expectWorkers(when, want string) {
	b.t.Helper()
	if got := b.names(); got != want {
		b.t.Errorf("%s: workers %q, want %q", when, got, want)
	}
}

// every sends an announcement of each publisher once a second.
func (b *bench) every(seconds int, publishers ...*testPublisher) {
	for range seconds {
		for _, p := range publishers {
			b.send(p.announce())
		}
		b.pass(time.Second)
	}
}

// runOn runs a router on a transport until the test ends.
func runOn(t *testing.T, o Options, transport Transport) *Router {
	t.Helper()
	r, err := New(o, transport)
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	var running sync.WaitGroup
	running.Go(func() {
		if err := r.Run(ctx); err != nil {
			t.Errorf("run: %v", err)
		}
	})
	t.Cleanup(func() {
		cancel()
		running.Wait()
	})
	return r
}

func deviceHits(r *Router, tokens []uint32) uint32 {
	m, err := r.FindBestMatch(context.Background(), &Request{Tokens: tokens})
	if err != nil {
		return 0
	}
	return m.Hits[kv.TierDevice]
}

// runRouter runs a router on a transport that it closes when the test ends.
func runRouter(t *testing.T, o Options, transport interface {
	Transport
	io.Closer
}) *Router {
	t.Helper()
	r, err := New(o, transport)
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	var running sync.WaitGroup
	running.Go(func() {
		if err := r.Run(ctx); err != nil {
			t.Errorf("run: %v", err)
		}
	})
	t.Cleanup(func() {
		cancel()
		running.Wait()
		for range 2 {
			if err := transport.Close(); err != nil {
				t.Errorf("close: %v", err)
			}
		}
	})
	return r
}

// configured is the default configuration with a change.
func configured(change func(*config.Config)) *config.Config {
	c := config.Default()
	change(&c)
	return &c
}

// firstOfEqual makes choices repeatable.
func firstOfEqual() *config.Config {
	return configured(func(c *config.Config) { c.FirstOfEqual = true })
}
