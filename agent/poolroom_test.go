package agent

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"go.uber.org/zap"

	"github.com/blockyard-ai/blockyard/blockmgr"
	"github.com/blockyard-ai/blockyard/blockmgr/storage"
	"github.com/blockyard-ai/blockyard/internal/kv"
	"github.com/blockyard-ai/blockyard/internal/proto"
	"github.com/blockyard-ai/blockyard/publisher"
	"github.com/blockyard-ai/blockyard/publisher/nats"
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
func openNumber(t *testing.T, h *eventHub, from poolSource, i int) *blockmgr.Pool {
	t.Helper()
	ns := namespaceNumber(i)
	p, _, err := h.openPool(&ns, from, func(p *blockmgr.Pool) error { return p.BeginSession(blockmgr.SessionID(i + 1)) })
	if err != nil {
		t.Fatalf("namespace %d: %v", i, err)
	}
	return p
}

// A namespace is refused only as long as as many others as there may be have
// sessions; then the one that was left first makes room.
func TestNamespaceThatWasLeftFirstMakesRoom(t *testing.T) {
	if maxPools != storage.MaxNamespaces {
		t.Errorf("%d pools, but a slot table has room for %d namespaces", maxPools, storage.MaxNamespaces)
	}
	h, from := newEventHub("node", testOutputs(nil), zap.NewNop()), newRealPools(t)
	var pools []*blockmgr.Pool
	for i := range maxPools {
		pools = append(pools, openNumber(t, h, from, i))
	}
	ns := namespaceNumber(maxPools)
	_, _, err := h.openPool(&ns, from, noSession)
	if r := refusalOf(err); err == nil || r.Code != proto.CodeLimit || !r.Retryable {
		t.Errorf("one namespace too many: %v, want it refused with %s for now", err, proto.CodeLimit)
	}
	if len(h.poolStreams()) != maxPools || len(h.making) != 0 {
		t.Errorf("%d streams, %d waits", len(h.poolStreams()), len(h.making))
	}
	left := []int{7, 3, 9}
	for _, i := range left {
		pools[i].EndSession(blockmgr.SessionID(i+1), nil)
	}
	openNumber(t, h, from, 3) // it has come back, and is the last one again
	pools[3].EndSession(4, nil)
	for n := range left {
		openNumber(t, h, from, maxPools+n)
	}
	want := []kv.NamespaceID{}
	for _, i := range []int{7, 9, 3} {
		ns := namespaceNumber(i)
		want = append(want, ns.ID())
		if h.poolStream(ns.ID()) != nil {
			t.Errorf("namespace %d still has a stream", i)
		}
	}
	if !slices.Equal(from.gone, want) || len(from.Pools()) != maxPools || len(h.poolStreams()) != maxPools {
		t.Errorf("%v went, want %v; %d pools, %d streams", from.gone, want, len(from.Pools()), len(h.poolStreams()))
	}
	h.closePools()
}

// The ranks of one engine come together, and for all of them one namespace goes.
func TestSessionsOfOneNamespaceMakeRoomOnce(t *testing.T) {
	h, from := newEventHub("node", testOutputs(nil), zap.NewNop()), newRealPools(t)
	for i := range maxPools {
		openNumber(t, h, from, i).EndSession(blockmgr.SessionID(i+1), nil)
	}
	var ranks sync.WaitGroup
	for range 8 {
		ranks.Go(func() {
			ns := namespaceNumber(maxPools)
			if _, _, err := h.openPool(&ns, from, noSession); err != nil {
				t.Error(err)
			}
		})
	}
	ranks.Wait()
	if len(from.gone) != 1 || len(h.poolStreams()) != maxPools {
		t.Errorf("%d namespaces went, %d streams", len(from.gone), len(h.poolStreams()))
	}
	h.closePools()
}

// A slot table may be full of namespaces of an earlier agent whose processes live.
func TestNamespaceThatFindsNoPlaceInATableMakesRoom(t *testing.T) {
	h, from := newEventHub("node", testOutputs(nil), zap.NewNop()), newRealPools(t)
	openNumber(t, h, from, 0).EndSession(1, nil)
	from.full = 1
	openNumber(t, h, from, 1)
	first, second := namespaceNumber(0), namespaceNumber(1)
	if want := []kv.NamespaceID{second.ID(), first.ID()}; !slices.Equal(from.gone, want) {
		t.Errorf("%v were closed, want %v: the try that failed, and who made room", from.gone, want)
	}
	from.full = 1
	ns := namespaceNumber(2)
	if _, _, err := h.openPool(&ns, from, noSession); err == nil || refusalOf(err).Code != proto.CodeLimit {
		t.Errorf("with nobody to make room: %v", err)
	}
	h.closePools()
}

// footprint is what an agent of this process has.
type footprint struct{ files, goroutines, extents int }

func (a *testAgent) footprint(t *testing.T) (f footprint) {
	t.Helper()
	fds, err := os.ReadDir("/proc/self/fd")
	if err != nil {
		t.Fatal(err)
	}
	for _, dir := range []string{a.cfg.HostDir, a.cfg.DiskDir} {
		names, err := filepath.Glob(filepath.Join(dir, "extent-*"))
		if err != nil {
			t.Fatal(err)
		}
		f.extents += len(names)
	}
	f.files, f.goroutines = len(fds), runtime.NumGoroutine()
	return f
}

// checkSlots checks that each tier of each pool has every one of its slots in one
// state, and that together they are within the sizes.
func (a *testAgent) checkSlots(t *testing.T) {
	t.Helper()
	var host, disk uint64
	for _, p := range a.Stats().Pools {
		for _, ts := range []blockmgr.TierStats{p.Host, p.Disk} {
			if sum := ts.Free + ts.Granted + ts.Staging + ts.Receiving + ts.Quarantined + ts.Active + ts.Inactive; sum != ts.Capacity {
				t.Errorf("pool %d: %d slots of %d have a state", p.Pool, sum, ts.Capacity)
			}
		}
		host, disk = host+uint64(p.Host.Capacity), disk+uint64(p.Disk.Capacity)
	}
	if host*4096 > a.cfg.HostBytes || disk*4096 > a.cfg.DiskBytes {
		t.Errorf("%d host slots and %d disk slots are more than the tiers have", host, disk)
	}
}

// Weights that are updated in place give an engine one namespace after the other,
// for as long as it lives.
func TestNamespacesComeAndGo(t *testing.T) {
	const rounds, settled = 300, 100
	cfg := testConfig(t)
	a := startAgent(t, cfg)
	first := a.scheduler(t, 1)
	storePrompt(t, first, proto.RequestID{ID: 1}, 1, 3)
	visit := func(i int) {
		h := helloOf(2)
		h.Namespace = namespaceNumber(i)
		c, err := a.dialWith(t, h)
		if err != nil {
			t.Fatalf("namespace %d: %v", i, err)
		}
		storePrompt(t, c, proto.RequestID{ID: 1}, i, 3)
		if err := c.Bye(t.Context(), "new weights"); err != nil {
			t.Fatal(err)
		}
		c.Close()
	}
	var before footprint
	for i := range rounds {
		visit(i)
		if i == settled {
			eventually(t, "quiet", func() bool { return a.Stats().Quiet })
			before = a.footprint(t)
		}
	}
	eventually(t, "quiet", func() bool { return a.Stats().Quiet })
	a.checkSlots(t)
	after := a.footprint(t)
	if after.files > before.files+8 || after.goroutines > before.goroutines+16 || after.extents > int((cfg.HostBytes+cfg.DiskBytes)/cfg.ExtentBytes) {
		t.Errorf("after %d namespaces %+v, after %d %+v", settled, before, rounds, after)
	}
	s := a.Stats()
	if len(s.Pools) != maxPools || len(s.Streams) != maxPools+1 || s.Totals.Streams.Blocks == 0 {
		t.Errorf("%d pools and %d streams, want %d and one more", len(s.Pools), len(s.Streams), maxPools)
	}
	if _, got := a.manager.Census(); got.Pools != rounds+1-maxPools || got.Committed != 3*got.Pools {
		t.Errorf("retired %+v", got)
	}
	a.room.mu.Lock()
	if n := len(a.room.admitted); n != maxPools || len(a.room.refused) != 0 {
		t.Errorf("%d namespaces are admitted", n)
	}
	a.room.mu.Unlock()
	wantFound(t, first, 3)
	last := helloOf(2)
	last.Namespace = namespaceNumber(0) // it went long ago
	c, err := a.dialWith(t, last)
	if err != nil {
		t.Fatal(err)
	}
	storePrompt(t, c, proto.RequestID{ID: 1}, 0, 3)
}

// wantFound checks that the prompt of seed 1 is found, with its bytes.
func wantFound(t *testing.T, c *proto.SchedulerClient, n int) {
	t.Helper()
	r := proto.RequestID{ID: 2}
	if err := c.Open(r, "", "", "", prompt(1, n)); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
	defer cancel()
	hit, err := c.Lookup(ctx, r, 0, n, 5*time.Second)
	if err != nil || int(hit.Ready) != n {
		t.Errorf("found %+v, %v, want %d blocks", hit, err, n)
	}
	if err := c.CloseRequest(r); err != nil {
		t.Fatal(err)
	}
}

// A pool that makes room is gone for the routers too, and its totals stay.
func TestStreamOfAPoolThatMadeRoomHasEnded(t *testing.T) {
	server, err := nats.StartEmbedded(nats.EmbeddedOptions{})
	if err != nil {
		t.Fatal(err)
	}
	defer server.Close()
	n, err := nats.Connect(t.Context(), nats.Options{URL: server.URL()})
	if err != nil {
		t.Fatal(err)
	}
	defer n.Close()
	h, from := newEventHub("node", testOutputs(n), zap.NewNop()), newRealPools(t)
	for i := range maxPools {
		openNumber(t, h, from, i).EndSession(blockmgr.SessionID(i+1), nil)
	}
	ns := namespaceNumber(0)
	o := h.poolStream(ns.ID())
	h.BlockStored(ns.ID(), kv.TierHost, blockmgr.Block{Seq: 1})
	h.BlockRemoved(ns.ID(), kv.TierHost, blockmgr.Block{Seq: 1})
	openNumber(t, h, from, maxPools)
	if err := o.nats.Load().Attach(statusSource{o.stream}); !errors.Is(err, publisher.ErrClosed) {
		t.Errorf("its feed: %v, want %v", err, publisher.ErrClosed)
	}
	if h.ended.Streams.Blocks == 0 || h.ended.Feeds.Announcements == 0 {
		t.Errorf("totals of what has ended: %+v", h.ended)
	}
	h.closePools()
}

// A kept block holds its pool, which is not closed for others.
func TestPoolWithAKeptBlockDoesNotMakeRoom(t *testing.T) {
	a := startAgent(t, testConfig(t))
	c := a.scheduler(t, 1)
	storePrompt(t, c, proto.RequestID{ID: 1}, 1, 3)
	ns := testNamespace()
	if kept, err := a.keep(keepRequest{Namespace: ns.ID().String(), Tokens: prompt(1, 3), TTL: 600}); err != nil || kept.Kept != 3 {
		t.Fatalf("kept %+v, %v", kept, err)
	}
	if err := c.Bye(t.Context(), "test"); err != nil {
		t.Fatal(err)
	}
	for i := range maxPools + 2 {
		h := helloOf(2)
		h.Namespace = namespaceNumber(i)
		c, err := a.dialWith(t, h)
		if err != nil {
			t.Fatal(err)
		}
		if err := c.Bye(t.Context(), "test"); err != nil {
			t.Fatal(err)
		}
	}
	var open []string
	for _, p := range a.Stats().Pools {
		open = append(open, p.Namespace)
	}
	if !slices.Contains(open, ns.ID().String()) {
		t.Errorf("the pool with kept blocks is not among %s", strings.Join(open, " "))
	}
}

// A pool whose disk does not answer keeps its place: who waits for it is told so,
// and the agent stops all the same.
func TestPoolThatDoesNotGoIsNotWaitedForForLong(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h, from := newEventHub("node", testOutputs(nil), zap.NewNop()), newRealPools(t)
		for i := range maxPools {
			openNumber(t, h, from, i)
		}
		stuck := namespaceNumber(0)
		h.pools[stuck.ID()].left = make(chan struct{})
		for _, i := range []int{0, maxPools} {
			ns, began := namespaceNumber(i), time.Now()
			_, _, err := h.openPool(&ns, from, noSession)
			if r := refusalOf(err); err == nil || r.Code != proto.CodeLimit || !r.Retryable || time.Since(began) != poolRoomTimeout {
				t.Errorf("namespace %d: %v after %v", i, err, time.Since(began))
			}
		}
		began := time.Now()
		h.closePools()
		if took := time.Since(began); took != poolRoomTimeout {
			t.Errorf("the end took %v", took)
		}
	})
}
