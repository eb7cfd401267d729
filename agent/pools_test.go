package agent

import (
	"strings"
	"testing"

	"github.com/blockyard-ai/blockyard/agent/agenttest"
	"github.com/blockyard-ai/blockyard/internal/kv"
	"github.com/blockyard-ai/blockyard/internal/proto"
)

func TestRefusedNamespaceLeavesNothing(t *testing.T) {
	a := startAgent(t, testConfig(t))
	h := agenttest.Hello(1)
	h.Namespace.Layout = "layer_separate"
	_, err := proto.DialScheduler(t.Context(), proto.ClientOptions{Socket: string(a.Socket), Hello: h})
	agenttest.WantRefused(t, err, proto.CodeNamespace)
	if err != nil && !strings.Contains(err.Error(), `layout "layer_separate"`) {
		t.Errorf("error %v does not name the layout", err)
	}
	a.pools.Manager().Close() // from now on no pool opens
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
		if err := c.Open(r, "", "", "", agenttest.Prompt(1, 2)); err != nil {
			t.Fatal(err)
		}
		got, err := c.Store(t.Context(), r, 0, 2)
		if err != nil {
			t.Fatal(err)
		}
		if err := c.CloseRequest(r); err != nil {
			t.Fatal(err)
		}
		return len(got.Grants)
	}
	first, second := dial(1, agenttest.NamespaceNumber(1)), dial(2, agenttest.NamespaceNumber(2))
	if one, two := granted(first, 1), granted(second, 1); one != 2 || two != 0 {
		t.Errorf("grants: %d and %d, want 2 for the first alone", one, two)
	}
	if err := first.Bye(t.Context(), "test"); err != nil {
		t.Fatal(err)
	}
	next := uint64(1)
	agenttest.Eventually(t, "the connected second namespace finds room when the first has left", func() bool {
		next++
		return granted(second, next) == 2
	})
}
