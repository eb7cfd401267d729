package registry_test

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/blockyard-ai/blockyard/internal/kv"
	"github.com/blockyard-ai/blockyard/router"
	"github.com/blockyard-ai/blockyard/router/feed"
	"github.com/blockyard-ai/blockyard/router/routertest"
	"github.com/blockyard-ai/blockyard/router/source"
	"github.com/blockyard-ai/blockyard/router/source/registry"
	"github.com/blockyard-ai/blockyard/router/source/sourcetest"
)

// beside joins another test transport to the bench's, as the second source.
func beside(t *testing.T, f func(b *routertest.Bench, r *registry.Source, other *routertest.Bench)) {
	synctest.Test(t, func(t *testing.T) {
		fresh := func() *routertest.Bench {
			return &routertest.Bench{T: t, Transport: sourcetest.NewTransport()}
		}
		b, other := fresh(), fresh()
		g, err := registry.New(registry.Options{}, b.Transport, other.Transport)
		if err != nil {
			t.Fatal(err)
		}
		if b.Router, err = router.New(router.Options{}, g); err != nil {
			t.Fatal(err)
		}
		other.Router = b.Router
		ctx, cancel := context.WithCancel(t.Context())
		var running sync.WaitGroup
		running.Go(func() { _ = b.Router.Run(ctx) })
		defer running.Wait()
		defer cancel()
		defer g.Close()
		f(b, g, other)
	})
}

// TestOnlyTheSourceThatIsAwayKeepsItsWorkers: a transport that is disconnected for good
// lowers the quality of its own workers, keeps them, and neither keeps those of another
// nor makes them any worse.
func TestOnlyTheSourceThatIsAwayKeepsItsWorkers(t *testing.T) {
	beside(t, func(b *routertest.Bench, r *registry.Source, other *routertest.Bench) {
		here, there := b.Publisher(11, sourcetest.WorkerOwner(1), 0), other.Publisher(12, sourcetest.WorkerOwner(2), 0)
		b.Send(here.Announce(), here.Store(kv.TierDevice, sourcetest.Tokens(1, 2)), here.Announce())
		other.Send(there.Announce(), there.Store(kv.TierDevice, sourcetest.Tokens(3, 4)), there.Announce())
		other.Send(source.Frame{Kind: source.FrameDisconnected})
		for _, w := range b.Router.Workers() {
			if want := map[kv.WorkerID]feed.Quality{1: feed.Exact, 2: feed.Degraded}[w.Worker.ID]; w.Quality != want {
				t.Errorf("worker %s is %s, want %s", w.Worker, w.Quality, want)
			}
		}
		for range 60 {
			b.Pass(time.Second)
			b.Send(here.Announce())
		}
		b.ExpectWorkers("a minute later", "1/0 agent, 2/0 agent")
		b.Pass(time.Minute)
		b.ExpectWorkers("the one that fell silent over a transport that is there", "2/0 agent")
		if err := r.Register(routertest.SomeWorker(2), time.Hour); err != nil {
			t.Fatal(err)
		}
		b.Pass(20 * time.Second)
		b.ExpectWorkers("whose source is away is still spoken for", "2/0 agent")
		other.Send(source.Frame{Kind: source.FrameConnected}, there.Announce())
		b.Expect("back", sourcetest.Tokens(3, 4), 2, 2, feed.Exact)
		b.Pass(20 * time.Second)
		b.ExpectWorkers("silent after it", "2/0 http")
	})
}

// TestAFeedBelongsToWhereItWasAnnouncedLast: a publisher that is heard over another
// transport while the first is away is exact, and is asked there.
func TestAFeedBelongsToWhereItWasAnnouncedLast(t *testing.T) {
	beside(t, func(b *routertest.Bench, _ *registry.Source, other *routertest.Bench) {
		p := b.Publisher(11, sourcetest.WorkerOwner(1), 0)
		b.Send(p.Announce(), p.Store(kv.TierDevice, sourcetest.Tokens(1)), p.Announce(), source.Frame{Kind: source.FrameDisconnected})
		b.Expect("away", sourcetest.Tokens(1), 1, 1, feed.Degraded)
		other.Transport.Put(p)
		p.Store(kv.TierDevice, sourcetest.Tokens(1, 2)) // lost
		other.Send(p.Announce())
		b.Pass(time.Second)
		b.Expect("over the other", sourcetest.Tokens(1, 2), 1, 2, feed.Exact)
		if asked := other.Transport.Asked(); len(asked) != 1 {
			t.Errorf("asked %v, want one question", asked)
		}
		b.Pass(time.Minute)
		b.ExpectWorkers("silent over the other", "")
	})
}

// TestAMistakeInARegistrationTakesNoRequests: a worker that was registered with another
// block size or model keeps nobody out, and gets no request that does not name it while
// there is a publisher.
func TestAMistakeInARegistrationTakesNoRequests(t *testing.T) {
	routertest.OnRegistry(t, registry.Options{}, func(b *routertest.Bench, r *registry.Source) {
		wrongSize, wrongModel := routertest.SomeWorker(98), routertest.SomeWorker(99)
		wrongSize.BlockSize, wrongModel.Model = 32, "n"
		for _, g := range []*registry.Registration{wrongSize, wrongModel} {
			if err := r.Register(g, time.Hour); err != nil {
				t.Fatal(err)
			}
		}
		b.Pass(2 * time.Second)
		b.ExpectWorkers("alone", "98/0 http, 99/0 http")
		if _, err := b.Router.FindBestMatch(t.Context(), &router.Request{Tokens: sourcetest.Tokens(1)}); !errors.Is(err, router.ErrModelRequired) {
			t.Errorf("two models that are registered: %v", err)
		}
		p := b.Publisher(11, sourcetest.WorkerOwner(1), 0)
		b.Send(p.Announce(), p.Store(kv.TierDevice, sourcetest.Tokens(1)))
		b.ExpectWorkers("with a publisher", "1/0 agent, 98/0 http, 99/0 http")
		for range 20 {
			b.Expect("no model is named", sourcetest.Tokens(7), 1, 0, feed.Exact)
		}
		if m, err := b.Router.FindBestMatch(t.Context(), &router.Request{Model: "m", Tokens: sourcetest.Tokens(7)}); err != nil || m.Worker.ID != 1 {
			t.Errorf("the publisher's model is named: %+v, %v", m.Worker, err)
		}
		if m, err := b.Router.FindBestMatch(t.Context(), &router.Request{Model: "n", Tokens: sourcetest.Tokens(7)}); err != nil || m.Worker.ID != 99 {
			t.Errorf("the other model is named: %+v, %v", m.Worker, err)
		}
		r.Unregister(99)
		b.Send(p.Goodbye())
		b.Pass(3 * time.Second)
		if m := b.Best(sourcetest.Tokens(7)); m.Worker.ID != 98 {
			t.Errorf("the publisher has gone: worker %s", m.Worker)
		}
	})
}

// TestAPublisherDisplacesARegistration: who registered a worker with another model than
// its publisher serves is told by a counter.
func TestAPublisherDisplacesARegistration(t *testing.T) {
	routertest.OnRegistry(t, registry.Options{}, func(b *routertest.Bench, r *registry.Source) {
		wrong := routertest.SomeWorker(5)
		wrong.Model = "n"
		if err := r.Register(wrong, time.Hour); err != nil {
			t.Fatal(err)
		}
		b.Pass(2 * time.Second)
		p := b.Publisher(11, sourcetest.WorkerOwner(5), 0)
		for range 5 {
			b.Send(p.Announce())
			b.Pass(time.Second)
		}
		b.ExpectWorkers("with a publisher", "5/0 agent")
		if s := b.Router.Stats().Feeds; s.Displaced != 1 {
			t.Errorf("stats %+v, want one displaced", s)
		}
		if m := b.Best(sourcetest.Tokens(1)); m.Worker.ID != 5 {
			t.Errorf("worker %s", m.Worker)
		}
	})
}

// TestARefusedPublisherSpeaksForNobody: it does not silence the registered worker whose
// owner it claims.
func TestARefusedPublisherSpeaksForNobody(t *testing.T) {
	routertest.OnRegistry(t, registry.Options{}, func(b *routertest.Bench, r *registry.Source) {
		good, bad := b.Publisher(11, sourcetest.WorkerOwner(1), 0), b.Publisher(12, sourcetest.WorkerOwner(5), 0)
		bad.Meta.BlockSize = 0
		b.Send(good.Announce())
		for _, id := range []uint64{5, 6} {
			if err := r.Register(routertest.SomeWorker(id), time.Hour); err != nil {
				t.Fatal(err)
			}
		}
		b.Pass(2 * time.Second)
		if _, err := b.Router.FindBestMatch(t.Context(), &router.Request{ID: "r", Tokens: sourcetest.Tokens(1), UpdateStates: true}); err != nil {
			t.Fatal(err)
		}
		for range 40 {
			b.Send(bad.Announce(), good.Announce())
			b.Pass(time.Second)
		}
		b.ExpectWorkers("a publisher that is refused", "1/0 agent, 5/0 http, 6/0 http")
		for range 20 {
			if err := r.Register(routertest.SomeWorker(7), time.Hour); err != nil {
				t.Fatal(err)
			}
		}
		if s := b.Router.Stats(); s.Feeds.Refused != 1 || s.Feeds.Fenced != 0 || s.Requests.Load.Abandoned != 0 {
			t.Errorf("stats %+v", s)
		}
		if s := r.Counters(); s.Announced != 0 {
			t.Errorf("%+v: a refused publisher speaks for a worker", s)
		}
	})
}

// TestAFencedPublisherDoesNotTakeOverQueries: the one that was followed by another
// goes on to announce, and the other is asked all the same.
func TestAFencedPublisherDoesNotTakeOverQueries(t *testing.T) {
	routertest.OnRegistry(t, registry.Options{}, func(b *routertest.Bench, _ *registry.Source) {
		old, fresh := b.Publisher(11, sourcetest.WorkerOwner(1), 0), b.Publisher(12, sourcetest.WorkerOwner(1), 0)
		b.Send(old.Announce(), fresh.Announce(), old.Announce())
		fresh.Store(kv.TierDevice, sourcetest.Tokens(1)) // lost
		b.Send(fresh.Store(kv.TierDevice, sourcetest.Tokens(2)), old.Announce())
		b.Expect("repaired", sourcetest.Tokens(1), 1, 1, feed.Exact)
		if s := b.Router.Stats().Feeds; s.Fenced != 2 || s.QueryFailures != 0 {
			t.Errorf("stats %+v", s)
		}
	})
}

// TestWorkersFileIsARegularFileOfBoundedSize: nothing that is named can hold the
// router up or fill its memory.
func TestWorkersFileIsARegularFileOfBoundedSize(t *testing.T) {
	dir := t.TempDir()
	pipe, large := filepath.Join(dir, "pipe"), filepath.Join(dir, "large")
	if err := syscall.Mkfifo(pipe, 0o600); err != nil {
		t.Fatal(err)
	}
	routertest.WriteFile(t, large, "{}")
	if err := os.Truncate(large, 16<<20+1); err != nil {
		t.Fatal(err)
	}
	for file, want := range map[string]string{
		pipe: "not a regular file", dir: "not a regular file", "/dev/zero": "not a regular file", large: "more than",
	} {
		if _, err := registry.ReadWorkersFile(file); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: error %v, want %s", file, err, want)
		}
	}
}

// TestARegistrationAnnouncesItsOwnRanksOnly: with many workers known a call costs what
// it changes.
func TestARegistrationAnnouncesItsOwnRanksOnly(t *testing.T) {
	routertest.OnRegistry(t, registry.Options{AnnounceEvery: time.Hour}, func(b *routertest.Bench, r *registry.Source) {
		many := routertest.SomeWorker(1)
		many.Ranks = 1024
		if err := r.Register(many, time.Hour); err != nil {
			t.Fatal(err)
		}
		few := routertest.SomeWorker(5)
		few.Ranks = 2
		if err := r.Register(few, time.Hour); err != nil {
			t.Fatal(err)
		}
		r.Announce(5)
		synctest.Wait()
		b.ExpectWorkers("one registered", "5/0 http, 5/1 http")
		if !r.Unregister(5) {
			t.Error("it was not registered")
		}
		r.Announce(5)
		synctest.Wait()
		b.ExpectWorkers("and unregistered", "")
	})
}
