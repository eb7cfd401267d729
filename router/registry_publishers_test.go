package router

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
)

// beside joins another test transport to the bench's, as the second source.
func beside(t *testing.T, f func(b *bench, r *Registry, other *bench)) {
	synctest.Test(t, func(t *testing.T) {
		fresh := func() *bench {
			return &bench{t: t, transport: newTestTransport()}
		}
		b, other := fresh(), fresh()
		g, err := NewRegistry(RegistryOptions{}, b.transport, other.transport)
		if err != nil {
			t.Fatal(err)
		}
		if b.router, err = New(Options{}, g); err != nil {
			t.Fatal(err)
		}
		other.router = b.router
		ctx, cancel := context.WithCancel(t.Context())
		var running sync.WaitGroup
		running.Go(func() { _ = b.router.Run(ctx) })
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
	beside(t, func(b *bench, r *Registry, other *bench) {
		here, there := b.publisher(11, workerOwner(1), 0), other.publisher(12, workerOwner(2), 0)
		b.send(here.announce(), here.store(kv.TierDevice, promptTokens(1, 2)), here.announce())
		other.send(there.announce(), there.store(kv.TierDevice, promptTokens(3, 4)), there.announce())
		other.send(Frame{Kind: FrameDisconnected})
		for _, w := range b.router.Workers() {
			if want := map[kv.WorkerID]Quality{1: QualityExact, 2: QualityDegraded}[w.Worker.ID]; w.Quality != want {
				t.Errorf("worker %s is %s, want %s", w.Worker, w.Quality, want)
			}
		}
		for range 60 {
			b.pass(time.Second)
			b.send(here.announce())
		}
		b.expectWorkers("a minute later", "1/0 agent, 2/0 agent")
		b.pass(time.Minute)
		b.expectWorkers("the one that fell silent over a transport that is there", "2/0 agent")
		if err := r.Register(someWorker(2), time.Hour); err != nil {
			t.Fatal(err)
		}
		b.pass(20 * time.Second)
		b.expectWorkers("whose source is away is still spoken for", "2/0 agent")
		other.send(Frame{Kind: FrameConnected}, there.announce())
		b.expect("back", promptTokens(3, 4), 2, 2, QualityExact)
		b.pass(20 * time.Second)
		b.expectWorkers("silent after it", "2/0 http")
	})
}

// TestAFeedBelongsToWhereItWasAnnouncedLast: a publisher that is heard over another
// transport while the first is away is exact, and is asked there.
func TestAFeedBelongsToWhereItWasAnnouncedLast(t *testing.T) {
	beside(t, func(b *bench, _ *Registry, other *bench) {
		p := b.publisher(11, workerOwner(1), 0)
		b.send(p.announce(), p.store(kv.TierDevice, promptTokens(1)), p.announce(), Frame{Kind: FrameDisconnected})
		b.expect("away", promptTokens(1), 1, 1, QualityDegraded)
		other.transport.put(p)
		p.store(kv.TierDevice, promptTokens(1, 2)) // lost
		other.send(p.announce())
		b.pass(time.Second)
		b.expect("over the other", promptTokens(1, 2), 1, 2, QualityExact)
		if asked := other.transport.asked(); len(asked) != 1 {
			t.Errorf("asked %v, want one question", asked)
		}
		b.pass(time.Minute)
		b.expectWorkers("silent over the other", "")
	})
}

// TestAMistakeInARegistrationTakesNoRequests: a worker that was registered with another
// block size or model keeps nobody out, and gets no request that does not name it while
// there is a publisher.
func TestAMistakeInARegistrationTakesNoRequests(t *testing.T) {
	onRegistry(t, RegistryOptions{}, func(b *bench, r *Registry) {
		wrongSize, wrongModel := someWorker(98), someWorker(99)
		wrongSize.BlockSize, wrongModel.Model = 32, "n"
		for _, g := range []*Registration{wrongSize, wrongModel} {
			if err := r.Register(g, time.Hour); err != nil {
				t.Fatal(err)
			}
		}
		b.pass(2 * time.Second)
		b.expectWorkers("alone", "98/0 http, 99/0 http")
		if _, err := b.router.FindBestMatch(t.Context(), &Request{Tokens: promptTokens(1)}); !errors.Is(err, ErrModelRequired) {
			t.Errorf("two models that are registered: %v", err)
		}
		p := b.publisher(11, workerOwner(1), 0)
		b.send(p.announce(), p.store(kv.TierDevice, promptTokens(1)))
		b.expectWorkers("with a publisher", "1/0 agent, 98/0 http, 99/0 http")
		for range 20 {
			b.expect("no model is named", promptTokens(7), 1, 0, QualityExact)
		}
		if m, err := b.router.FindBestMatch(t.Context(), &Request{Model: "m", Tokens: promptTokens(7)}); err != nil || m.Worker.ID != 1 {
			t.Errorf("the publisher's model is named: %+v, %v", m.Worker, err)
		}
		if m, err := b.router.FindBestMatch(t.Context(), &Request{Model: "n", Tokens: promptTokens(7)}); err != nil || m.Worker.ID != 99 {
			t.Errorf("the other model is named: %+v, %v", m.Worker, err)
		}
		r.Unregister(99)
		b.send(p.goodbye())
		b.pass(3 * time.Second)
		if m := b.best(promptTokens(7)); m.Worker.ID != 98 {
			t.Errorf("the publisher has gone: worker %s", m.Worker)
		}
	})
}

// TestAPublisherDisplacesARegistration: who registered a worker with another model than
// its publisher serves is told by a counter.
func TestAPublisherDisplacesARegistration(t *testing.T) {
	onRegistry(t, RegistryOptions{}, func(b *bench, r *Registry) {
		wrong := someWorker(5)
		wrong.Model = "n"
		if err := r.Register(wrong, time.Hour); err != nil {
			t.Fatal(err)
		}
		b.pass(2 * time.Second)
		p := b.publisher(11, workerOwner(5), 0)
		for range 5 {
			b.send(p.announce())
			b.pass(time.Second)
		}
		b.expectWorkers("with a publisher", "5/0 agent")
		if s := b.router.Stats().Feeds; s.Displaced != 1 {
			t.Errorf("stats %+v, want one displaced", s)
		}
		if m := b.best(promptTokens(1)); m.Worker.ID != 5 {
			t.Errorf("worker %s", m.Worker)
		}
	})
}

// TestARefusedPublisherSpeaksForNobody: it does not silence the registered worker whose
// owner it claims.
func TestARefusedPublisherSpeaksForNobody(t *testing.T) {
	onRegistry(t, RegistryOptions{}, func(b *bench, r *Registry) {
		good, bad := b.publisher(11, workerOwner(1), 0), b.publisher(12, workerOwner(5), 0)
		bad.meta.BlockSize = 0
		b.send(good.announce())
		for _, id := range []uint64{5, 6} {
			if err := r.Register(someWorker(id), time.Hour); err != nil {
				t.Fatal(err)
			}
		}
		b.pass(2 * time.Second)
		if _, err := b.router.FindBestMatch(t.Context(), &Request{ID: "r", Tokens: promptTokens(1), UpdateStates: true}); err != nil {
			t.Fatal(err)
		}
		for range 40 {
			b.send(bad.announce(), good.announce())
			b.pass(time.Second)
		}
		b.expectWorkers("a publisher that is refused", "1/0 agent, 5/0 http, 6/0 http")
		for range 20 {
			if err := r.Register(someWorker(7), time.Hour); err != nil {
				t.Fatal(err)
			}
		}
		if s := b.router.Stats(); s.Feeds.Refused != 1 || s.Feeds.Fenced != 0 || s.Requests.Load.Abandoned != 0 {
			t.Errorf("stats %+v", s)
		}
		if s := r.RegistryStats(); s.Spoken != 0 {
			t.Errorf("%+v: a refused publisher speaks for a worker", s)
		}
	})
}

// TestAFencedPublisherDoesNotTakeOverQueries: the one that was followed by another
// goes on to announce, and the other is asked all the same.
func TestAFencedPublisherDoesNotTakeOverQueries(t *testing.T) {
	onRegistry(t, RegistryOptions{}, func(b *bench, _ *Registry) {
		old, fresh := b.publisher(11, workerOwner(1), 0), b.publisher(12, workerOwner(1), 0)
		b.send(old.announce(), fresh.announce(), old.announce())
		fresh.store(kv.TierDevice, promptTokens(1)) // lost
		b.send(fresh.store(kv.TierDevice, promptTokens(2)), old.announce())
		b.expect("repaired", promptTokens(1), 1, 1, QualityExact)
		if s := b.router.Stats().Feeds; s.Fenced != 2 || s.QueryFailures != 0 {
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
	writeFile(t, large, "{}")
	if err := os.Truncate(large, 16<<20+1); err != nil {
		t.Fatal(err)
	}
	for file, want := range map[string]string{
		pipe: "not a regular file", dir: "not a regular file", "/dev/zero": "not a regular file", large: "more than",
	} {
		if _, err := ReadWorkersFile(file); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: error %v, want %s", file, err, want)
		}
	}
}

// TestARegistrationAnnouncesItsOwnRanksOnly: with many workers known a call costs what
// it changes.
func TestARegistrationAnnouncesItsOwnRanksOnly(t *testing.T) {
	onRegistry(t, RegistryOptions{AnnounceEvery: time.Hour}, func(b *bench, r *Registry) {
		many := someWorker(1)
		many.Ranks = 1024
		if err := r.Register(many, time.Hour); err != nil {
			t.Fatal(err)
		}
		few := someWorker(5)
		few.Ranks = 2
		if err := r.Register(few, time.Hour); err != nil {
			t.Fatal(err)
		}
		r.Announce(5)
		synctest.Wait()
		b.expectWorkers("one registered", "5/0 http, 5/1 http")
		if !r.Unregister(5) {
			t.Error("it was not registered")
		}
		r.Announce(5)
		synctest.Wait()
		b.expectWorkers("and unregistered", "")
	})
}
