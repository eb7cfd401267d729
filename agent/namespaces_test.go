package agent_test

import (
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"testing"

	"github.com/blockyard-ai/blockyard/agent/agenttest"
	"github.com/blockyard-ai/blockyard/agent/pools"
	"github.com/blockyard-ai/blockyard/blockmgr"
	"github.com/blockyard-ai/blockyard/internal/kv"
	"github.com/blockyard-ai/blockyard/internal/proto"
)

// footprint is what an agent of this process has.
type footprint struct{ files, goroutines, extents int }

func (a *testAgent) footprint(t *testing.T) (f footprint) {
	t.Helper()
	fds, err := os.ReadDir("/proc/self/fd")
	if err != nil {
		t.Fatal(err)
	}
	for _, dir := range []string{a.cfg.Tiers.HostDir, a.cfg.Tiers.DiskDir} {
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
	if host*4096 > a.cfg.Tiers.HostBytes || disk*4096 > a.cfg.Tiers.DiskBytes {
		t.Errorf("%d host slots and %d disk slots are more than the tiers have", host, disk)
	}
}

// Weights that are updated in place give an engine one namespace after the other,
// for as long as it lives.
func TestNamespacesComeAndGo(t *testing.T) {
	const rounds, settled = 300, 100
	cfg := testConfig(t)
	a := startAgent(t, cfg)
	first := a.Scheduler(t, 1)
	agenttest.StorePrompt(t, first, proto.RequestID{ID: 1}, 1, 3)
	visit := func(i int) {
		h := agenttest.Hello(2)
		h.Namespace = agenttest.NamespaceNumber(i)
		c, err := a.DialWith(t, h)
		if err != nil {
			t.Fatalf("namespace %d: %v", i, err)
		}
		agenttest.StorePrompt(t, c, proto.RequestID{ID: 1}, i, 3)
		agenttest.Bye(t, c)
		c.Close()
	}
	var before footprint
	for i := range rounds {
		visit(i)
		if i == settled {
			agenttest.Eventually(t, "quiet", func() bool { return a.Stats().Quiet })
			before = a.footprint(t)
		}
	}
	agenttest.Eventually(t, "quiet", func() bool { return a.Stats().Quiet })
	a.checkSlots(t)
	after := a.footprint(t)
	if after.files > before.files+8 || after.goroutines > before.goroutines+16 || after.extents > int((cfg.Tiers.HostBytes+cfg.Tiers.DiskBytes)/cfg.Tiers.ExtentBytes) {
		t.Errorf("after %d namespaces %+v, after %d %+v", settled, before, rounds, after)
	}
	s := a.Stats()
	if len(s.Pools) != pools.MaxPools || len(s.Streams) != pools.MaxPools+1 || s.Totals.Streams.Blocks == 0 {
		t.Errorf("%d pools and %d streams, want %d and one more", len(s.Pools), len(s.Streams), pools.MaxPools)
	}
	if _, got := a.Manager().Census(); got.Pools != rounds+1-pools.MaxPools || got.Committed != 3*got.Pools {
		t.Errorf("retired %+v", got)
	}
	agenttest.WantReady(t, first, 3)
	last := agenttest.Hello(2)
	last.Namespace = agenttest.NamespaceNumber(0) // it went long ago
	c := a.Connect(t, last)
	agenttest.StorePrompt(t, c, proto.RequestID{ID: 1}, 0, 3)
}

func TestRefusedNamespaceLeavesNothing(t *testing.T) {
	a := startAgent(t, testConfig(t))
	h := agenttest.Hello(1)
	h.Namespace.Layout = "layer_separate"
	_, err := proto.DialScheduler(t.Context(), proto.ClientOptions{Socket: string(a.Socket), Hello: h})
	agenttest.WantRefused(t, err, proto.CodeNamespace)
	if err != nil && !strings.Contains(err.Error(), `layout "layer_separate"`) {
		t.Errorf("error %v does not name the layout", err)
	}
	a.Manager().Close() // from now on no pool opens
	for i := range 5 {
		h := agenttest.Hello(1)
		h.Namespace = agenttest.NamespaceNumber(i)
		_, err := proto.DialScheduler(t.Context(), proto.ClientOptions{Socket: string(a.Socket), Hello: h})
		agenttest.WantRefused(t, err, proto.CodeInternal)
	}
	if s := a.Stats(); len(s.Streams) != 0 || s.Sessions != 0 {
		t.Errorf("%d streams and %d sessions, want none", len(s.Streams), s.Sessions)
	}
}

func TestNamespaceFindsRoomOnceTheOthersHaveLeft(t *testing.T) {
	cfg := testConfig(t)
	cfg.Tiers.HostBytes, cfg.Tiers.DiskBytes = cfg.Tiers.ExtentBytes, 0
	a := startAgent(t, cfg)
	dial := func(worker uint64, ns kv.Namespace) *proto.SchedulerClient {
		h := agenttest.Hello(worker)
		h.Namespace = ns
		c, err := proto.DialScheduler(t.Context(), proto.ClientOptions{Socket: string(a.Socket), Hello: h})
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { c.Close() })
		return c
	}
	granted := func(c *proto.SchedulerClient, id uint64) int {
		r := proto.RequestID{ID: id}
		agenttest.Open(t, c, r, 1, 2)
		got, err := c.Store(t.Context(), r, 0, 2)
		if err != nil {
			t.Fatal(err)
		}
		agenttest.CloseRequest(t, c, r)
		return len(got.Grants)
	}
	first, second := dial(1, agenttest.NamespaceNumber(1)), dial(2, agenttest.NamespaceNumber(2))
	if one, two := granted(first, 1), granted(second, 1); one != 2 || two != 0 {
		t.Errorf("grants: %d and %d, want 2 for the first alone", one, two)
	}
	agenttest.Bye(t, first)
	next := uint64(1)
	agenttest.Eventually(t, "the connected second namespace finds room when the first has left", func() bool {
		next++
		return granted(second, next) == 2
	})
}

// fullAgent is an agent of which all namespaces but one are in use.
func fullAgent(t *testing.T) *testAgent {
	a := startAgent(t, testConfig(t))
	for i := range pools.MaxPools - 1 {
		h := agenttest.Hello(uint64(100 + i))
		h.Namespace = agenttest.NamespaceNumber(i)
		if _, err := a.DialWith(t, h); err != nil {
			t.Fatal(err)
		}
	}
	return a
}

// An engine that says BYE and comes back with other weights gets the place of its old
// ones, although nobody else has one to give: its workers have let go of it by then.
func TestEngineThatChangesWeightsFindsItsOwnPlace(t *testing.T) {
	a := fullAgent(t)
	for i := range 25 {
		h := agenttest.Hello(1)
		h.Namespace = agenttest.NamespaceNumber(1000 + i)
		c, err := a.DialWith(t, h)
		if err != nil {
			t.Fatalf("weights %d: %v", i, err)
		}
		for range 8 {
			if _, err := a.DialWorker(t, proto.Hello{WorkerID: 1}); err != nil {
				t.Fatal(err)
			}
		}
		agenttest.Bye(t, c)
	}
}

// Namespaces that an engine has emptied make room before one whose engine has only
// left.
func TestEmptyPoolsMakeRoomFirst(t *testing.T) {
	a := startAgent(t, testConfig(t))
	c := a.Scheduler(t, 1)
	agenttest.StorePrompt(t, c, proto.RequestID{ID: 1}, 1, 3)
	agenttest.Bye(t, c)
	for i := range pools.MaxPools + 2 {
		h := agenttest.Hello(2)
		h.Namespace = agenttest.NamespaceNumber(i)
		c := a.Connect(t, h)
		agenttest.NoError(t, c.Reset(t.Context()))
		agenttest.Bye(t, c)
	}
	agenttest.WantReady(t, a.Scheduler(t, 1), 3)
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
	const rounds = pools.MaxPools + 40
	for i := range rounds {
		h := agenttest.Hello(2)
		h.Namespace = agenttest.NamespaceNumber(i)
		c := a.Connect(t, h)
		agenttest.StorePrompt(t, c, proto.RequestID{ID: 1}, i, 3)
		agenttest.Bye(t, c)
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
