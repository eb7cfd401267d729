package router

import (
	"slices"
	"testing"
	"time"

	"github.com/blockyard-ai/blockyard/internal/kv"
	"github.com/blockyard-ai/blockyard/internal/kvevent"
	"github.com/blockyard-ai/blockyard/router/config"
)

// clear makes an event after which the owner holds nothing.
func (p *testPublisher) clear() Frame {
	p.mu.Lock()
	defer p.mu.Unlock()
	clear(p.held)
	e := kvevent.RouterEvent{Owner: p.meta.Owner, Kind: kvevent.Cleared, ID: uint64(len(p.events) + 1)}
	p.events = append(p.events, e)
	p.sequence++
	return Frame{Kind: FrameEvents, Data: kvevent.AppendEnvelope(nil, &kvevent.Envelope{PublisherID: p.meta.PublisherID,
		Sequence: p.sequence, Topic: kvevent.Topic, Events: []kvevent.RouterEvent{e}})}
}

// expectNoLies checks that the index has all that workers said to be exact hold, and
// reports how many are not.
func (b *bench) expectNoLies(when string, publishers ...*testPublisher) (degraded int) {
	b.t.Helper()
	for _, w := range b.router.Workers() {
		if w.Quality != QualityExact {
			degraded++
			continue
		}
		at := slices.IndexFunc(publishers, func(p *testPublisher) bool { return p.meta.Owner == kv.WorkerOwner(w.Worker) })
		kept, held := 0, len(publishers[at].held)
		onlyModel(b.t, b.router.models).index.DumpOwner(kv.WorkerOwner(w.Worker), func(e *kvevent.RouterEvent) bool {
			kept += len(e.Blocks)
			return true
		})
		if kept != held {
			b.t.Errorf("%s: worker %s is said to be exact with %d of its %d blocks", when, w.Worker, kept, held)
		}
	}
	if want := QualityExact; degraded == 0 && b.router.Quality() != want {
		b.t.Errorf("%s: quality %s, want %s as of all workers", when, b.router.Quality(), want)
	}
	if want := QualityDegraded; degraded > 0 && b.router.Quality() != want {
		b.t.Errorf("%s: quality %s, want %s as of %d workers", when, b.router.Quality(), want, degraded)
	}
	return degraded
}

// TestWorkersWhoseBlocksDoNotFitAreDegraded: a worker is exact only while the index
// keeps all that it holds, whether its own blocks had no room or others' took the
// room; nobody is asked for what would not fit again; and who lets go of its blocks
// is exact again.
func TestWorkersWhoseBlocksDoNotFitAreDegraded(t *testing.T) {
	small := configured(func(c *config.Config) { c.IndexMemoryBytes = 1 << 20 })
	onBench(t, Options{Config: small}, func(b *bench) {
		one, two := b.publisher(11, workerOwner(1), 0), b.publisher(12, workerOwner(2), 0)
		b.send(one.announce(), two.announce())
		fill := func(p *testPublisher, from, prompts int) {
			for n := range prompts {
				var ids []uint32
				for i := range 100 {
					ids = append(ids, uint32(from+n*100+i))
				}
				b.send(p.store(kv.TierDevice, promptTokens(ids...)))
			}
		}
		fill(one, 0, 20)
		b.send(one.announce(), two.announce())
		if n := b.expectNoLies("with room", one, two); n != 0 {
			t.Fatalf("%d workers are degraded with room for all", n)
		}
		fill(two, 1<<20, 1000)
		for range 3 {
			b.send(one.announce(), two.announce())
			b.pass(time.Second)
		}
		if n := b.expectNoLies("without room", one, two); n == 0 {
			t.Error("100,000 blocks in 1 MiB leave every worker exact")
		}
		for _, f := range b.router.Feeds() {
			if short := f.Lost > 0; short == f.DigestOK || short == (f.Health == kvevent.HealthExact) {
				t.Errorf("feed %+v, want what is lost to show", f)
			}
		}
		if asked := b.transport.asked(); len(asked) != 0 {
			t.Errorf("asked %v, want nothing asked for that would not fit", asked)
		}
		b.send(one.clear(), two.clear(), one.announce(), two.announce())
		if n := b.expectNoLies("after they let go", one, two); n != 0 {
			t.Errorf("%d workers are degraded that hold nothing", n)
		}
	})
}
