package pools

import (
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"go.uber.org/zap"

	"github.com/blockyard-ai/blockyard/agent/agenttest"
	"github.com/blockyard-ai/blockyard/agent/events"
	"github.com/blockyard-ai/blockyard/blockmgr"
	"github.com/blockyard-ai/blockyard/blockmgr/storage"
	"github.com/blockyard-ai/blockyard/internal/kv"
	"github.com/blockyard-ai/blockyard/internal/proto"
)

// realPools are a manager's, which notes the namespaces that it has closed.
type realPools struct {
	*blockmgr.Manager
	mu   sync.Mutex
	gone []kv.NamespaceID
	// full has that many calls of open fail for want of a place.
	full int
}

func newRealPools(t *testing.T) *realPools {
	m, err := blockmgr.Open(blockmgr.Config{})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { m.Close() })
	return &realPools{Manager: m}
}

func (p *realPools) open(ns kv.Namespace, first bool) (*blockmgr.Pool, error) {
	if first && p.full > 0 {
		p.full--
		return nil, blockmgr.ErrNamespaces
	}
	return p.Pool(ns)
}

func (p *realPools) closed(ns kv.NamespaceID) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.gone = append(p.gone, ns)
}

// openNumber opens the pool of a namespace with a session that has its number.
func openNumber(t *testing.T, s *Set, i int) *blockmgr.Pool {
	t.Helper()
	ns := agenttest.NamespaceNumber(i)
	p, _, err := s.Open(&ns, func(p *blockmgr.Pool) error { return p.BeginSession(blockmgr.SessionID(i + 1)) })
	if err != nil {
		t.Fatalf("namespace %d: %v", i, err)
	}
	return p
}

// A namespace is refused only as long as as many others as there may be have
// sessions; then the one that was left first makes room.
func TestNamespaceThatWasLeftFirstMakesRoom(t *testing.T) {
	if MaxPools != storage.MaxNamespaces {
		t.Errorf("%d pools, but a slot table has room for %d namespaces", MaxPools, storage.MaxNamespaces)
	}
	s, from := newTestSet(t, ""), newRealPools(t)
	s.source = from
	var pools []*blockmgr.Pool
	for i := range MaxPools {
		pools = append(pools, openNumber(t, s, i))
	}
	ns := agenttest.NamespaceNumber(MaxPools)
	_, _, err := s.Open(&ns, noSession)
	if r := refused(err); err == nil || r.Code != proto.CodeLimit || !r.Retryable {
		t.Errorf("one namespace too many: %v, want it refused with %s for now", err, proto.CodeLimit)
	}
	if s.streams() != MaxPools || len(s.makingRoom) != 0 {
		t.Errorf("%d streams, %d waits", s.streams(), len(s.makingRoom))
	}
	gone := []int{7, 3, 9}
	for _, i := range gone {
		pools[i].EndSession(blockmgr.SessionID(i+1), nil)
	}
	openNumber(t, s, 3) // it has come back, and is the last one again
	pools[3].EndSession(4, nil)
	for n := range gone {
		openNumber(t, s, MaxPools+n)
	}
	want := []kv.NamespaceID{}
	for _, i := range []int{7, 9, 3} {
		ns := agenttest.NamespaceNumber(i)
		want = append(want, ns.ID())
		if s.hasStream(ns.ID()) {
			t.Errorf("namespace %d still has a stream", i)
		}
	}
	if !slices.Equal(from.gone, want) || len(from.Pools()) != MaxPools || s.streams() != MaxPools {
		t.Errorf("%v went, want %v; %d pools, %d streams", from.gone, want, len(from.Pools()), s.streams())
	}
	s.closeStreams()
}

// The ranks of one engine come together, and for all of them one namespace goes.
func TestSessionsOfOneNamespaceMakeRoomOnce(t *testing.T) {
	s, from := newTestSet(t, ""), newRealPools(t)
	s.source = from
	for i := range MaxPools {
		openNumber(t, s, i).EndSession(blockmgr.SessionID(i+1), nil)
	}
	var ranks sync.WaitGroup
	for range 8 {
		ranks.Go(func() {
			ns := agenttest.NamespaceNumber(MaxPools)
			if _, _, err := s.Open(&ns, noSession); err != nil {
				t.Error(err)
			}
		})
	}
	ranks.Wait()
	if len(from.gone) != 1 || s.streams() != MaxPools {
		t.Errorf("%d namespaces went, %d streams", len(from.gone), s.streams())
	}
	s.closeStreams()
}

// A slot table may be full of namespaces of an earlier agent whose processes live.
func TestNamespaceThatFindsNoPlaceInATableMakesRoom(t *testing.T) {
	s, from := newTestSet(t, ""), newRealPools(t)
	s.source = from
	openNumber(t, s, 0).EndSession(1, nil)
	from.full = 1
	openNumber(t, s, 1)
	first, second := agenttest.NamespaceNumber(0), agenttest.NamespaceNumber(1)
	if want := []kv.NamespaceID{second.ID(), first.ID()}; !slices.Equal(from.gone, want) {
		t.Errorf("%v were closed, want %v: the try that failed, and who made room", from.gone, want)
	}
	from.full = 1
	ns := agenttest.NamespaceNumber(2)
	if _, _, err := s.Open(&ns, noSession); err == nil || refused(err).Code != proto.CodeLimit {
		t.Errorf("with nobody to make room: %v", err)
	}
	s.closeStreams()
}

// A pool that makes room is gone for the routers too, and its totals stay.
func TestStreamOfAPoolThatMadeRoomHasEnded(t *testing.T) {
	s, from := newTestSet(t, ""), newRealPools(t)
	s.source = from
	for i := range MaxPools {
		openNumber(t, s, i).EndSession(blockmgr.SessionID(i+1), nil)
	}
	ns := agenttest.NamespaceNumber(0)
	s.hub.BlockStored(ns.ID(), kv.TierHost, blockmgr.Block{Seq: 1})
	s.hub.BlockRemoved(ns.ID(), kv.TierHost, blockmgr.Block{Seq: 1})
	openNumber(t, s, MaxPools)
	if s.hasStream(ns.ID()) {
		t.Error("it still has a stream")
	}
	if sum := s.hub.Snapshot().Totals; sum.Streams.Blocks == 0 {
		t.Errorf("totals of what has ended: %+v", sum)
	}
	s.closeStreams()
}

// A pool whose disk does not answer keeps its place: who waits for it is told so,
// and the agent stops all the same.
func TestPoolThatDoesNotGoIsNotWaitedForForLong(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s, from := newTestSet(t, ""), newRealPools(t)
		s.source = from
		for i := range MaxPools {
			openNumber(t, s, i)
		}
		stuck := agenttest.NamespaceNumber(0)
		s.entries[stuck.ID()].retiring = make(chan struct{})
		for _, i := range []int{0, MaxPools} {
			ns, began := agenttest.NamespaceNumber(i), time.Now()
			_, _, err := s.Open(&ns, noSession)
			if r := refused(err); err == nil || r.Code != proto.CodeLimit || !r.Retryable || time.Since(began) != retireTimeout {
				t.Errorf("namespace %d: %v after %v", i, err, time.Since(began))
			}
		}
		began := time.Now()
		s.closeStreams()
		if took := time.Since(began); took != retireTimeout {
			t.Errorf("the end took %v", took)
		}
	})
}

// A pool that has been opened for a session makes no room before that has begun.
func TestPoolWhoseSessionIsAboutToBeginDoesNotMakeRoom(t *testing.T) {
	s, from := newTestSet(t, ""), newRealPools(t)
	s.source = from
	for i := range MaxPools - 1 {
		openNumber(t, s, i)
	}
	ns, other := agenttest.NamespaceNumber(MaxPools), agenttest.NamespaceNumber(MaxPools+1)
	_, _, err := s.Open(&ns, func(p *blockmgr.Pool) error {
		if _, _, err := s.Open(&other, noSession); err == nil || refused(err).Code != proto.CodeLimit {
			t.Errorf("another namespace: %v", err)
		}
		return p.BeginSession(1000)
	})
	if err != nil {
		t.Error(err)
	}
	s.closeStreams()
}

// A place in the slot tables that does not become free costs one namespace its blocks,
// not all of them.
func TestTablesThatStayFullCostOneNamespace(t *testing.T) {
	s, from := newTestSet(t, ""), newRealPools(t)
	s.source = from
	for i := range 3 {
		openNumber(t, s, i).EndSession(blockmgr.SessionID(i+1), nil)
	}
	from.full = 1000
	ns := agenttest.NamespaceNumber(10)
	_, _, err := s.Open(&ns, noSession)
	if r := refused(err); err == nil || r.Code != proto.CodeLimit || !r.Retryable {
		t.Errorf("got %v, want it refused for now", err)
	}
	if n := len(from.Pools()); n != 2 {
		t.Errorf("%d of 3 pools are gone, want 2", n)
	}
	s.closeStreams()
}

// A namespace that has made room is not admitted any more.
func TestNamespaceThatMadeRoomIsForgotten(t *testing.T) {
	hub, err := events.Open(t.Context(), events.Config{Cluster: "test"}, zap.NewNop())
	if err != nil {
		t.Fatal(err)
	}
	defer hub.Close()
	s, err := Open("test-node", testTiers(t), hub, zap.NewNop())
	if err != nil {
		t.Fatal(err)
	}
	for i := range MaxPools + 2 {
		p := openNumber(t, s, i)
		p.EndSession(blockmgr.SessionID(i+1), nil)
	}
	if n := len(s.admission.admitted); n != MaxPools || len(s.admission.refused) != 0 {
		t.Errorf("%d namespaces are admitted, want %d", n, MaxPools)
	}
	if err := s.Close(); err != nil {
		t.Error(err)
	}
}
