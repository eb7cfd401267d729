package routertest

import (
	"cmp"
	"context"
	"fmt"
	"io"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/blockyard-ai/blockyard/internal/kv"
	"github.com/blockyard-ai/blockyard/router"
	"github.com/blockyard-ai/blockyard/router/config"
	"github.com/blockyard-ai/blockyard/router/feed"
	"github.com/blockyard-ai/blockyard/router/schedule"
	"github.com/blockyard-ai/blockyard/router/source"
	"github.com/blockyard-ai/blockyard/router/source/sourcetest"
)

// Bench is a router that runs in a bubble of synctest on a testTransport.
type Bench struct {
	T         *testing.T
	Router    *router.Router
	Transport *sourcetest.Transport
}

// OnBench runs f with a router. Time passes only when f lets it.
func OnBench(t *testing.T, o router.Options, f func(b *Bench)) {
	synctest.Test(t, func(t *testing.T) {
		b := &Bench{T: t, Transport: sourcetest.NewTransport()}
		b.run(o, b.Transport, f)
	})
}

// run runs f with a router on a transport.
func (b *Bench) run(o router.Options, transport source.Transport, f func(b *Bench)) {
	var err error
	if b.Router, err = router.New(o, transport); err != nil {
		b.T.Fatal(err)
	}
	ctx, cancel := context.WithCancel(b.T.Context())
	var running sync.WaitGroup
	running.Go(func() {
		if err := b.Router.Run(ctx); err != nil {
			b.T.Errorf("run: %v", err)
		}
	})
	defer running.Wait()
	defer cancel()
	f(b)
}

// Publisher makes a publisher that the transport can query.
func (b *Bench) Publisher(id uint64, owner kv.Owner, pool uint64) *sourcetest.Publisher {
	return b.Transport.Publisher(id, owner, pool)
}

// Send delivers frames and waits until all that follows from them has happened.
func (b *Bench) Send(frames ...source.Frame) {
	b.Transport.Send(frames...)
	synctest.Wait()
}

// Pass lets time pass.
func (b *Bench) Pass(d time.Duration) {
	<-time.After(d)
	synctest.Wait()
}

// Best returns the best match of a prompt.
func (b *Bench) Best(tokens []uint32) router.Match {
	b.T.Helper()
	m, err := b.Router.FindBestMatch(b.T.Context(), &router.Request{Tokens: tokens})
	if err != nil {
		b.T.Fatal(err)
	}
	return m
}

// Expect checks the device hits and the quality of a prompt's best match.
func (b *Bench) Expect(when string, tokens []uint32, worker kv.WorkerID, device uint32, q feed.Quality) {
	b.T.Helper()
	m := b.Best(tokens)
	if m.Worker.ID != worker || m.Hits[kv.TierDevice] != device || m.Quality != q {
		b.T.Errorf("%s: worker %s with %d device blocks, %s; want worker %d with %d, %s",
			when, m.Worker, m.Hits[kv.TierDevice], m.Quality, worker, device, q)
	}
}

// Names lists the workers as "id/rank source".
func (b *Bench) names() string {
	var all []string
	for _, w := range b.Router.Workers() {
		source := cmp.Or(w.Card.Source, "agent")
		all = append(all, fmt.Sprintf("%s %s", w.Worker, source))
	}
	return strings.Join(all, ", ")
}

// ExpectWorkers checks the workers and who vouches for each.
func (b *Bench) ExpectWorkers(when, want string) {
	b.T.Helper()
	if got := b.names(); got != want {
		b.T.Errorf("%s: workers %q, want %q", when, got, want)
	}
}

// Every sends an announcement of each publisher once a second.
func (b *Bench) Every(seconds int, publishers ...*sourcetest.Publisher) {
	for range seconds {
		for _, p := range publishers {
			b.Send(p.Announce())
		}
		b.Pass(time.Second)
	}
}

// RunOn runs a router on a transport until the test ends.
func RunOn(t testing.TB, o router.Options, transport source.Transport) *router.Router {
	t.Helper()
	r, err := router.New(o, transport)
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

// DeviceHits is how many blocks of a prompt the best worker has on its device; 0 without a worker.
func DeviceHits(r *router.Router, tokens []uint32) uint32 {
	m, err := r.FindBestMatch(context.Background(), &router.Request{Tokens: tokens})
	if err != nil {
		return 0
	}
	return m.Hits[kv.TierDevice]
}

// RunRouter runs a router until the test ends, and then closes its transport.
func RunRouter(t *testing.T, o router.Options, transport interface {
	source.Transport
	io.Closer
}) *router.Router {
	t.Helper()
	t.Cleanup(func() {
		for range 2 {
			if err := transport.Close(); err != nil {
				t.Errorf("close: %v", err)
			}
		}
	})
	return RunOn(t, o, transport)
}

// Configured is the default configuration with a change.
func Configured(change func(*config.Config)) *config.Config {
	c := config.Default()
	change(&c)
	return &c
}

// FirstOfEqual makes choices repeatable.
func FirstOfEqual() *config.Config {
	return Configured(func(c *config.Config) { c.FirstOfEqual = true })
}

// AddRequest books a request that was sent without asking.
func (b *Bench) AddRequest(q *router.Request, w kv.Worker, cachedTokens int) error {
	m, err := b.Router.Model(q.Model)
	if err != nil {
		return err
	}
	return m.Decide().AddRequest(q, w, cachedTokens)
}

// PotentialLoads is what workers would have to do with a request.
func (b *Bench) PotentialLoads(q *router.Request) ([]schedule.PotentialLoad, error) {
	m, err := b.Router.Model(q.Model)
	if err != nil {
		return nil, err
	}
	return m.Decide().GetPotentialLoads(q)
}

// Model is the model of a router that serves one.
func (b *Bench) Model() *router.Model {
	b.T.Helper()
	m, err := b.Router.Model("")
	if err != nil {
		b.T.Fatal(err)
	}
	return m
}
