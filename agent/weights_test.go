package agent

import (
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"go.uber.org/zap"

	"github.com/blockyard-ai/blockyard/blockmgr"
	"github.com/blockyard-ai/blockyard/internal/kv"
	"github.com/blockyard-ai/blockyard/internal/proto"
)

// crowded is an agent of which all namespaces but one are in use.
func crowded(t *testing.T) *testAgent {
	a := startAgent(t, testConfig(t))
	for i := range maxPools - 1 {
		h := helloOf(uint64(100 + i))
		h.Namespace = namespaceNumber(i)
		if _, err := a.dialWith(t, h); err != nil {
			t.Fatal(err)
		}
	}
	return a
}

// An engine that says BYE and comes back with other weights gets the place of its old
// ones, although nobody else has one to give: its workers have let go of it by then.
func TestEngineThatChangesWeightsFindsItsOwnPlace(t *testing.T) {
	a := crowded(t)
	for i := range 25 {
		h := helloOf(1)
		h.Namespace = namespaceNumber(1000 + i)
		c, err := a.dialWith(t, h)
		if err != nil {
			t.Fatalf("weights %d: %v", i, err)
		}
		for range 8 {
			if _, err := a.dialWorker(t, proto.Hello{WorkerID: 1}); err != nil {
				t.Fatal(err)
			}
		}
		if err := c.Bye(t.Context(), "new weights"); err != nil {
			t.Fatal(err)
		}
	}
}

// BYE has no answer while a worker's link still watches the pool.
func TestByeWaitsUntilWorkersHaveLetGoOfThePool(t *testing.T) {
	a := startAgent(t, testConfig(t))
	c := a.scheduler(t, 1)
	a.server.mu.Lock()
	sess := a.server.byOwner[kv.Worker{ID: 1}]
	a.server.mu.Unlock()
	sess.mu.Lock() // as join has it
	sess.links.Add(1)
	sess.mu.Unlock()
	said := make(chan error, 1)
	go func() { said <- c.Bye(t.Context(), "test") }()
	select {
	case err := <-said:
		t.Errorf("answered at once: %v", err)
	case <-time.After(20 * time.Millisecond): // too short to see it on a busy machine: then the test sees less
	}
	sess.links.Done()
	if err := <-said; err != nil {
		t.Error(err)
	}
	if _, _, unused := sess.pool.Unused(); !unused && !sess.pool.Draining() {
		t.Error("the pool is in use after OK")
	}
}

// dialWorker connects a worker that ends with the test.
func (a *testAgent) dialWorker(t *testing.T, h proto.Hello) (*proto.WorkerClient, error) {
	w, err := proto.DialWorker(t.Context(), proto.ClientOptions{Socket: a.cfg.Socket, Hello: h}, proto.Register{DeviceBlocks: 64, BlockBytes: 4096})
	if err == nil {
		t.Cleanup(func() { w.Close() })
	}
	return w, err
}

// Namespaces that an engine has emptied make room before one whose engine has only
// left.
func TestEmptyPoolsMakeRoomFirst(t *testing.T) {
	a := startAgent(t, testConfig(t))
	c := a.scheduler(t, 1)
	storePrompt(t, c, proto.RequestID{ID: 1}, 1, 3)
	if err := c.Bye(t.Context(), "restart"); err != nil {
		t.Fatal(err)
	}
	for i := range maxPools + 2 {
		h := helloOf(2)
		h.Namespace = namespaceNumber(i)
		c, err := a.dialWith(t, h)
		if err != nil {
			t.Fatal(err)
		}
		if err := c.Reset(t.Context()); err != nil {
			t.Fatal(err)
		}
		if err := c.Bye(t.Context(), "new weights"); err != nil {
			t.Fatal(err)
		}
	}
	wantFound(t, a.scheduler(t, 1), 3)
}

// A pool that has been opened for a session makes no room before that has begun.
func TestPoolWhoseSessionIsAboutToBeginDoesNotMakeRoom(t *testing.T) {
	h, from := newEventHub("node", testOutputs(nil), zap.NewNop()), newRealPools(t)
	for i := range maxPools - 1 {
		openNumber(t, h, from, i)
	}
	ns, other := namespaceNumber(maxPools), namespaceNumber(maxPools+1)
	_, _, err := h.openPool(&ns, from, func(p *blockmgr.Pool) error {
		if _, _, err := h.openPool(&other, from, noSession); err == nil || refusalOf(err).Code != proto.CodeLimit {
			t.Errorf("another namespace: %v", err)
		}
		return p.BeginSession(1000)
	})
	if err != nil {
		t.Error(err)
	}
	h.closePools()
}

// A place in the slot tables that does not become free costs one namespace its blocks,
// not all of them.
func TestTablesThatStayFullCostOneNamespace(t *testing.T) {
	h, from := newEventHub("node", testOutputs(nil), zap.NewNop()), newRealPools(t)
	for i := range 3 {
		openNumber(t, h, from, i).EndSession(blockmgr.SessionID(i+1), nil)
	}
	from.full = 1000
	ns := namespaceNumber(10)
	_, _, err := h.openPool(&ns, from, noSession)
	if r := refusalOf(err); err == nil || r.Code != proto.CodeLimit || !r.Retryable {
		t.Errorf("got %v, want it refused for now", err)
	}
	if n := len(from.Pools()); n != 2 {
		t.Errorf("%d of 3 pools are left, want 2", n)
	}
	h.closePools()
}

// What all pools have counted together, those included that make room, never gets less.
func TestTotalsDoNotFallWhilePoolsMakeRoom(t *testing.T) {
	a := startAgent(t, testConfig(t))
	stop, watched := make(chan struct{}), make(chan int)
	go func() {
		falls := 0
		var committed, events uint64
		for {
			s := a.Stats()
			sum := s.Retired.Committed
			for i := range s.Pools {
				sum += s.Pools[i].Committed
			}
			if sum < committed || s.Totals.Streams.Blocks < events {
				falls++
			}
			committed, events = sum, s.Totals.Streams.Blocks
			select {
			case <-stop:
				watched <- falls
				return
			default:
			}
		}
	}()
	const rounds = maxPools + 40
	for i := range rounds {
		h := helloOf(2)
		h.Namespace = namespaceNumber(i)
		c, err := a.dialWith(t, h)
		if err != nil {
			t.Fatal(err)
		}
		storePrompt(t, c, proto.RequestID{ID: 1}, i, 3)
		if err := c.Bye(t.Context(), "new weights"); err != nil {
			t.Fatal(err)
		}
	}
	close(stop)
	if falls := <-watched; falls > 0 {
		t.Errorf("they fell %d times", falls)
	}
	_, text := getFrom(t, a.AdminAddr(), "/metrics")
	total := 0.0
	for line := range strings.Lines(text) {
		if name, value, _ := strings.Cut(strings.TrimSpace(line), " "); strings.HasPrefix(name, `blockyard_pool_operations_total{kind="committed"`) {
			var v float64
			if _, err := fmt.Sscan(value, &v); err != nil {
				t.Fatal(err)
			}
			total += v
		}
	}
	if total != 3*rounds {
		t.Errorf("the metrics have %v committed blocks, want %d", total, 3*rounds)
	}
}

// Where each namespace has a number of blocks of its own, room is made for one more
// too, but only if that gives it enough.
func TestIdleNamespaceMakesRoomWhereNumbersOfBlocksDo(t *testing.T) {
	cfg := testConfig(t)
	n, err := newTierRoom(&cfg, zap.NewNop()).lookAtNode()
	if err != nil {
		t.Fatal(err)
	}
	cfg.HostBytes, cfg.DiskBytes, cfg.DiskDir = 0, 0, ""
	cfg.Tuning.HostBlocks = min(n.host.Free/4096/7*2, uint64(blockmgr.MaxBlocks)) // room for three at most
	r := newTierRoom(&cfg, zap.NewNop())
	var idle []kv.NamespaceID
	unused := func() []kv.NamespaceID { return idle }
	admit := func(i int) error {
		ns := namespaceNumber(i)
		return r.admit(&ns, unused)
	}
	last := 0
	for err = admit(0); err == nil && last < 10; err = admit(last) {
		last++
	}
	if r := refusalOf(err); err == nil || errors.Is(err, errNoRoom) || r.Code != proto.CodeLimit || !r.Retryable {
		t.Fatalf("namespace %d, with all in use: %v", last, err)
	}
	ns := namespaceNumber(0)
	idle = append(idle, ns.ID())
	if err := admit(last); !errors.Is(err, errNoRoom) {
		t.Errorf("with one that could go: %v", err)
	}
	r.forget(ns.ID())
	if err := admit(last); err != nil {
		t.Errorf("when it has gone: %v", err)
	}
}
