package router_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/blockyard-ai/blockyard/internal/kv"
	"github.com/blockyard-ai/blockyard/router"
	"github.com/blockyard-ai/blockyard/router/api"
	"github.com/blockyard-ai/blockyard/router/feed"
	"github.com/blockyard-ai/blockyard/router/routertest"
	"github.com/blockyard-ai/blockyard/router/source"
	"github.com/blockyard-ai/blockyard/router/source/sourcetest"
)

// memoryStore is a SnapshotStore.
type memoryStore struct {
	mu   sync.Mutex
	data []byte
	fail error
}

func (m *memoryStore) SaveSnapshot(_ context.Context, _ uint64, write func(io.Writer) error) error {
	var out bytes.Buffer
	if err := write(&out); err != nil {
		return err
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.fail != nil {
		return m.fail
	}
	m.data = out.Bytes()
	return nil
}

func (m *memoryStore) LoadSnapshot(_ context.Context, read func(io.Reader) error) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	switch {
	case m.data == nil:
		return source.ErrNoSnapshot
	case m.fail != nil:
		// As a store does that finds the damage at the end.
		return errors.Join(read(bytes.NewReader(m.data)), m.fail)
	}
	return read(bytes.NewReader(m.data))
}

func (m *memoryStore) ForgetSnapshot(context.Context) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.data = nil
	return nil
}

// snapshotStory is a router that knew worker 1 with ten blocks and worker 2 with
// one, and was stopped; then is a router that starts after it.
func snapshotStory(t *testing.T, o router.Options, between func(m *memoryStore), then func(b *routertest.Bench, one, two *sourcetest.Publisher)) {
	store := &memoryStore{}
	one, two := sourcetest.NewPublisher(11, sourcetest.WorkerOwner(1), 0), sourcetest.NewPublisher(12, sourcetest.WorkerOwner(2), 0)
	routertest.OnBench(t, router.Options{Snapshots: store, SnapshotThreshold: o.SnapshotThreshold}, func(b *routertest.Bench) {
		b.Transport.Put(one, two)
		b.Send(one.Announce(), two.Announce())
		for i := range uint32(10) {
			b.Send(one.Store(kv.TierDevice, sourcetest.Tokens(100+i)))
		}
		b.Send(two.Store(kv.TierHost, sourcetest.Tokens(500)))
	})
	if store.data == nil && o.SnapshotThreshold != router.NoSnapshots {
		t.Fatal("nothing was saved at the end")
	}
	if between != nil {
		between(store)
	}
	o.Snapshots = store
	routertest.OnBench(t, o, func(b *routertest.Bench) {
		b.Transport.Put(one, two)
		synctest.Wait()
		then(b, one, two)
	})
}

// TestRouterBeginsWithItsSnapshot: blocks are there at once, nobody is a candidate
// before its publisher is heard of, and who missed nothing is asked nothing.
func TestRouterBeginsWithItsSnapshot(t *testing.T) {
	snapshotStory(t, router.Options{}, nil, func(b *routertest.Bench, one, two *sourcetest.Publisher) {
		if s := b.Router.Stats(); s.Index.Memberships != 11 || s.Workers != 0 || s.Snapshots.Loaded != 1 {
			t.Errorf("at the start: %+v", s)
		}
		if _, err := b.Router.FindBestMatch(t.Context(), &router.Request{Tokens: sourcetest.Tokens(100)}); !errors.Is(err, router.ErrNoWorkers) {
			t.Errorf("a request before anybody is heard of: %v", err)
		}
		b.Send(one.Announce())
		b.Expect("worker 1 is back", sourcetest.Tokens(100), 1, 1, feed.Exact)
		two.Store(kv.TierHost, sourcetest.Tokens(501)) // lost
		b.Send(two.Announce())
		if got := b.Transport.Asked(); !slices.Equal(got, []string{"12 from 2"}) {
			t.Errorf("asked %v, want only what worker 2 did since", got)
		}
		m := b.Best(sourcetest.Tokens(501))
		if m.Worker.ID != 2 || m.Hits[kv.TierHost] != 1 || m.Quality != feed.Exact {
			t.Errorf("match %+v, want what worker 2 stored since", m)
		}
		if s := b.Router.Stats(); s.Feeds.Resumed != 2 || s.Feeds.Gaps != 0 || s.Feeds.Dumps != 0 {
			t.Errorf("stats %+v", s.Feeds)
		}
	})
}

// TestRestoredFeedsTakeEvents: events that come before the first announcement, as
// a stream that is read on delivers them, are applied.
func TestRestoredFeedsTakeEvents(t *testing.T) {
	snapshotStory(t, router.Options{}, nil, func(b *routertest.Bench, one, two *sourcetest.Publisher) {
		b.Send(one.Store(kv.TierDevice, sourcetest.Tokens(300)), one.Announce())
		b.Expect("an event before the announcement", sourcetest.Tokens(300), 1, 1, feed.Exact)
		if got := b.Transport.Asked(); len(got) != 0 {
			t.Errorf("asked %v, want nothing", got)
		}
	})
}

// TestRestoredFeedsEnd: what a snapshot has of owners that are gone, silent, or
// followed by another publisher is dropped.
func TestRestoredFeedsEnd(t *testing.T) {
	snapshotStory(t, router.Options{}, nil, func(b *routertest.Bench, one, two *sourcetest.Publisher) {
		b.Send(one.Goodbye())
		if got := b.Router.Stats().Index.Memberships; got != 1 {
			t.Errorf("%d memberships after a goodbye, want 1", got)
		}
		again := b.Publisher(22, sourcetest.WorkerOwner(2), 0)
		b.Send(again.Announce())
		if got := b.Router.Stats().Index.Memberships; got != 0 {
			t.Errorf("%d memberships after a new publisher, want 0", got)
		}
		b.Expect("a new epoch", sourcetest.Tokens(500), 2, 0, feed.Exact)
	})
	snapshotStory(t, router.Options{FeedTimeout: 5 * time.Second}, nil, func(b *routertest.Bench, one, two *sourcetest.Publisher) {
		b.Send(source.Frame{Kind: source.FrameDisconnected})
		b.Pass(10 * time.Second)
		if got := b.Router.Stats().Index.Memberships; got != 11 {
			t.Errorf("%d memberships while disconnected, want 11", got)
		}
		b.Send(source.Frame{Kind: source.FrameConnected})
		b.Pass(4 * time.Second)
		b.Send(one.Announce())
		b.Pass(2 * time.Second)
		if got := b.Router.Stats().Index.Memberships; got != 10 {
			t.Errorf("%d memberships after the silence of worker 2, want 10", got)
		}
	})
}

// TestSnapshotsThatAreNotUsed: a reset and a damaged snapshot make the router
// begin with nothing, and it recovers as it does without any.
func TestSnapshotsThatAreNotUsed(t *testing.T) {
	for name, tc := range map[string]struct {
		o       router.Options
		between func(m *memoryStore)
		failed  uint64
	}{
		"reset":           {router.Options{ResetStates: true}, nil, 0},
		"none is stored":  {router.Options{SnapshotThreshold: router.NoSnapshots}, nil, 0},
		"damaged":         {router.Options{}, func(m *memoryStore) { m.data[len(m.data)-20] ^= 1 }, 1},
		"a later version": {router.Options{}, func(m *memoryStore) { m.data[4]++ }, 1},
		"version 1":       {router.Options{}, func(m *memoryStore) { m.data[4] = 1 }, 0},
		"cut":             {router.Options{}, func(m *memoryStore) { m.data = m.data[:len(m.data)-1] }, 1},
		"bad at the end":  {router.Options{}, func(m *memoryStore) { m.fail = io.ErrUnexpectedEOF }, 1},
	} {
		t.Run(name, func(t *testing.T) {
			snapshotStory(t, tc.o, tc.between, func(b *routertest.Bench, one, two *sourcetest.Publisher) {
				if s := b.Router.Stats(); s.Index.Memberships != 0 || s.Snapshots.Loaded != 0 || s.Snapshots.Failed != tc.failed {
					t.Errorf("at the start: %d memberships, %+v", s.Index.Memberships, s.Snapshots)
				}
				b.Send(one.Announce())
				b.Expect("recovered", sourcetest.Tokens(100), 1, 1, feed.Exact)
				if got := fmt.Sprint(b.Transport.Asked()); got != "[11 from 0]" {
					t.Errorf("asked %s, want everything", got)
				}
			})
		})
	}
}

// TestSnapshotEveryThreshold: snapshots are saved while the router runs, and one
// that cannot be saved is counted.
func TestSnapshotEveryThreshold(t *testing.T) {
	store := &memoryStore{}
	p := sourcetest.NewPublisher(11, sourcetest.WorkerOwner(1), 0)
	routertest.OnBench(t, router.Options{Snapshots: store, SnapshotThreshold: 5}, func(b *routertest.Bench) {
		b.Transport.Put(p)
		b.Send(p.Announce())
		for want := range uint64(3) {
			for i := range uint32(5) {
				b.Send(p.Store(kv.TierDevice, sourcetest.Tokens(uint32(want)*10+i+1)))
			}
			b.Pass(time.Second)
			if got := b.Router.Stats().Snapshots.Saved; got != want+1 {
				t.Fatalf("%d snapshots after %d events, want %d", got, 5*(want+1), want+1)
			}
		}
		b.Send(p.Store(kv.TierDevice, sourcetest.Tokens(90)))
		b.Pass(time.Second)
		if got := b.Router.Stats().Snapshots.Saved; got != 3 {
			t.Errorf("%d snapshots after one more event, want 3", got)
		}
		store.mu.Lock()
		store.fail = errors.New("no room")
		store.mu.Unlock()
		for i := range uint32(5) {
			b.Send(p.Store(kv.TierDevice, sourcetest.Tokens(91+i)))
		}
		b.Pass(time.Second)
		if got := b.Router.Stats().Snapshots; got.Failed != 1 || got.Saved != 3 {
			t.Errorf("without room: %+v", got)
		}
	})
	store.fail = nil
	routertest.OnBench(t, router.Options{Snapshots: store}, func(b *routertest.Bench) {
		b.Transport.Put(p)
		b.Send(p.Announce())
		if asked := b.Transport.Asked(); len(asked) != 1 || asked[0] != "11 from 16" {
			t.Errorf("asked %v by who begins with the last snapshot, want the events after 15", asked)
		}
	})
}

// TestLastSnapshotIsTriedAgain: a save that failed, with no event after it, does not
// keep the router from saving when it stops.
func TestLastSnapshotIsTriedAgain(t *testing.T) {
	store := &memoryStore{fail: errors.New("broken")}
	routertest.OnBench(t, router.Options{Snapshots: store, SnapshotThreshold: 1}, func(b *routertest.Bench) {
		p := b.Publisher(1, sourcetest.WorkerOwner(1), 0)
		b.Send(p.Announce(), p.Store(0, sourcetest.Tokens(1)), p.Announce())
		b.Pass(2 * time.Second)
		if s := b.Router.Stats().Snapshots; s.Failed == 0 {
			t.Errorf("%+v", s)
		}
		store.mu.Lock()
		store.fail = nil
		store.mu.Unlock()
	})
	if store.data == nil {
		t.Error("nothing was saved at the end")
	}
}

// TestOperatorsHaveASnapshotSaved: POST /v1/snapshot at the control listener saves one at the next
// tick, also where none is saved by the number of events. A dry run saves none, and clients may not ask.
func TestOperatorsHaveASnapshotSaved(t *testing.T) {
	store := &memoryStore{}
	routertest.OnBench(t, router.Options{Snapshots: store, SnapshotThreshold: router.NoSnapshots}, func(b *routertest.Bench) {
		one := sourcetest.NewPublisher(11, sourcetest.WorkerOwner(1), 0)
		b.Transport.Put(one)
		b.Send(one.Announce(), one.Store(kv.TierDevice, sourcetest.Tokens(100)))
		a := api.New(b.Router, api.Options{})
		saved := func() bool {
			b.Pass(2 * time.Second)
			store.mu.Lock()
			defer store.mu.Unlock()
			return store.data != nil
		}
		if got := routertest.Call(t, a.Handler(), "POST", "/v1/snapshot", "", ""); got.StatusCode != http.StatusForbidden || saved() {
			t.Errorf("a client: %s", got.Status)
		}
		for query, want := range map[string]string{
			"?dry_run=true": `{"begun":false,"dry_run":true,"saved":0,"failed":0}`,
			"?dry_run=x":    `{"error":"dry_run: \"x\", want true or false"}`,
		} {
			if got := routertest.Text(t, routertest.Call(t, a.ControlHandler(), "POST", "/v1/snapshot"+query, "", "")); strings.TrimSpace(got) != want || saved() {
				t.Errorf("%s: %s, want %s", query, got, want)
			}
		}
		if got := routertest.Text(t, routertest.Call(t, a.ControlHandler(), "POST", "/v1/snapshot", "", "")); strings.TrimSpace(got) != `{"begun":true,"dry_run":false,"saved":0,"failed":0}` || !saved() {
			t.Errorf("no snapshot is saved: %s", got)
		}
		if s := b.Router.Snapshots().Stats(); s.Saved != 1 {
			t.Errorf("%+v, want one saved", s)
		}
	})
}
