package agent

import (
	"fmt"
	"strings"
	"testing"

	"github.com/blockyard-ai/blockyard/agent/agenttest"
	"github.com/blockyard-ai/blockyard/agent/pools"
	"github.com/blockyard-ai/blockyard/internal/proto"
)

// crowded is an agent of which all namespaces but one are in use.
func crowded(t *testing.T) *testAgent {
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
	a := crowded(t)
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
		if err := c.Bye(t.Context(), "new weights"); err != nil {
			t.Fatal(err)
		}
	}
}

// Namespaces that an engine has emptied make room before one whose engine has only
// left.
func TestEmptyPoolsMakeRoomFirst(t *testing.T) {
	a := startAgent(t, testConfig(t))
	c := a.Scheduler(t, 1)
	agenttest.StorePrompt(t, c, proto.RequestID{ID: 1}, 1, 3)
	if err := c.Bye(t.Context(), "restart"); err != nil {
		t.Fatal(err)
	}
	for i := range pools.MaxPools + 2 {
		h := agenttest.Hello(2)
		h.Namespace = agenttest.NamespaceNumber(i)
		c, err := a.DialWith(t, h)
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
		c, err := a.DialWith(t, h)
		if err != nil {
			t.Fatal(err)
		}
		agenttest.StorePrompt(t, c, proto.RequestID{ID: 1}, i, 3)
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
