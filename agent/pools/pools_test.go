package pools

import (
	"errors"
	"slices"
	"sync"
	"testing"

	"go.uber.org/zap"
	"go.uber.org/zap/zaptest/observer"

	"github.com/blockyard-ai/blockyard/agent/agenttest"
	"github.com/blockyard-ai/blockyard/agent/events"
	"github.com/blockyard-ai/blockyard/agent/refusal"
	"github.com/blockyard-ai/blockyard/blockmgr"
	"github.com/blockyard-ai/blockyard/blockmgr/node"
	"github.com/blockyard-ai/blockyard/internal/kv"
)

// noSession opens a pool for nobody.
func noSession(*blockmgr.Pool) error { return nil }

// fakePools is a source of pools that nobody retires.
type fakePools func(kv.Namespace) (*blockmgr.Pool, error)

func (f fakePools) open(ns kv.Namespace, _ bool) (*blockmgr.Pool, error) { return f(ns) }
func (fakePools) closed(kv.NamespaceID)                                  {}

// newTestSet is a set whose pools come from a source that the test sets. Events go to
// NATS, if there is a URL.
func newTestSet(t *testing.T, url string) *Set {
	t.Helper()
	return newSet("node", newTestHub(t, url), nil, zap.NewNop())
}

// newTestHub opens a hub without read-ahead: fakePools make pools without tiers.
func newTestHub(t *testing.T, url string) *events.Hub {
	t.Helper()
	hub, err := events.Open(t.Context(), events.Config{NATSURL: url, Cluster: "test", NoReadAhead: true}, zap.NewNop())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := hub.Close(); err != nil {
			t.Error(err)
		}
	})
	return hub
}

func TestStartSaysThatTheHostIsBypassed(t *testing.T) {
	for _, hostBytes := range []uint64{0, 1 << 20} {
		logs, seen := observer.New(zap.InfoLevel)
		tiers := blockmgr.Config{HostDir: t.TempDir(), HostBytes: hostBytes, DiskDir: t.TempDir(), DiskBytes: 1 << 20}
		s, err := Open("node", node.Tiers{Config: tiers}, newTestHub(t, ""), zap.New(logs))
		if err != nil {
			t.Fatal(err)
		}
		if err := s.Close(); err != nil {
			t.Error(err)
		}
		if n := seen.FilterMessageSnippet("host tier is bypassed").Len(); (n == 1) != (hostBytes == 0) {
			t.Errorf("host of %d bytes: said %d times", hostBytes, n)
		}
	}
}

// streams is the number of streams that s publishes.
func (s *Set) streams() int { return len(s.hub.Snapshot().Streams) }

// hasStream reports whether a namespace's pool has a stream.
func (s *Set) hasStream(ns kv.NamespaceID) bool {
	owner := kv.PoolOwner(s.ID(ns)).String()
	return slices.ContainsFunc(s.hub.Snapshot().Streams, func(st events.StreamStats) bool { return st.Owner == owner })
}

// refused is how an engine is refused with err; the zero value for another error.
func refused(err error) (r refusal.Error) {
	if found := new(refusal.Error); errors.As(err, &found) {
		r = *found
	}
	return r
}

func TestPoolThatCannotBeOpenedLeavesNoStream(t *testing.T) {
	s := newTestSet(t, "")
	ns, broken := agenttest.NamespaceNumber(1), errors.New("no room")
	s.source = fakePools(func(kv.Namespace) (*blockmgr.Pool, error) {
		// What a pool recovers before it fails is still taken.
		s.hub.BlockStored(ns.ID(), kv.TierDisk, blockmgr.Block{Seq: 1})
		return nil, broken
	})
	_, _, err := s.Open(&ns, noSession)
	if !errors.Is(err, broken) || s.streams() != 0 {
		t.Errorf("error %v, %d streams: want %v and none", err, s.streams(), broken)
	}
	s.hub.BlockRemoved(ns.ID(), kv.TierDisk, blockmgr.Block{Seq: 1})
	s.source = fakePools(func(kv.Namespace) (*blockmgr.Pool, error) { return new(blockmgr.Pool), nil })
	if _, _, err := s.Open(&ns, noSession); err != nil {
		t.Errorf("the next try: %v", err)
	}
	s.closeStreams()
}

// A session of a namespace whose pool another session is opening waits for that,
// and shares its fate.
func TestSessionsThatComeTogetherShareAPool(t *testing.T) {
	for _, want := range []error{nil, errors.New("no room")} {
		s := newTestSet(t, "")
		ns, began, goOn := agenttest.NamespaceNumber(1), make(chan struct{}), make(chan struct{})
		s.source = fakePools(func(kv.Namespace) (*blockmgr.Pool, error) {
			close(began)
			<-goOn
			return new(blockmgr.Pool), want
		})
		var sessions sync.WaitGroup
		sessions.Go(func() {
			_, _, err := s.Open(&ns, noSession)
			if !errors.Is(err, want) {
				t.Errorf("got error %v, want %v", err, want)
			}
		})
		<-began
		e, made, _ := s.entry(ns.ID())
		if made {
			t.Error("the second session made an entry of its own")
		}
		select {
		case <-e.opened:
			t.Error("the second session does not wait")
		default:
		}
		close(goOn)
		<-e.opened
		if !errors.Is(e.err, want) {
			t.Errorf("the second session got error %v, want %v", e.err, want)
		}
		sessions.Wait()
	}
}

// A pool without room, or one that gave its room up, looks for some whenever a
// session begins.
func TestEverySessionAsksForItsPool(t *testing.T) {
	s := newTestSet(t, "")
	ns, asked, pool := agenttest.NamespaceNumber(1), 0, new(blockmgr.Pool)
	s.source = fakePools(func(kv.Namespace) (*blockmgr.Pool, error) { asked++; return pool, nil })
	for range 3 {
		got, stream, err := s.Open(&ns, noSession)
		if err != nil {
			t.Fatal(err)
		}
		if id := stream.Owner().ID; got != pool || id != ID("node", ns.ID()) {
			t.Errorf("got pool %p with id %d", got, id)
		}
	}
	if asked != 3 || s.streams() != 1 {
		t.Errorf("the pool was asked for %d times and has %d streams, want 3 and 1", asked, s.streams())
	}
}
