package agent_test

import (
	"cmp"
	"strings"
	"testing"

	"go.uber.org/zap"

	"github.com/blockyard-ai/blockyard/agent/agenttest"
	"github.com/blockyard-ai/blockyard/internal/proto"
)

// What a connector says of itself can be seen by worker, rank and role, and stays
// when its connection has ended.
func TestConnectorsCountersAreShownByWorker(t *testing.T) {
	a := startAgent(t, testConfig(t))
	for connection := range uint64(2) {
		c := a.Scheduler(t, 7)
		w := a.Worker(t, c, 7)
		agenttest.NoError(t, c.Report(proto.Stats{Lookups: 3 + connection, HitBlocks: 10}))
		agenttest.NoError(t, w.Report(proto.Stats{CopiedBytes: 1 << 20, CopyMicros: 50}))
		for _, bye := range []error{w.Bye(t.Context(), "test"), c.Bye(t.Context(), "test")} {
			if bye != nil {
				t.Fatal(bye)
			}
		}
	}
	got := a.Stats().Connectors
	if len(got) != 2 || got[0].Role != "scheduler" || got[1].Role != "worker" {
		t.Fatalf("got %+v, want a scheduler and a worker", got)
	}
	if s := got[0]; s.Worker != "7" || s.Rank != 0 || s.Connected != 0 || s.Lookups != 7 || s.HitBlocks != 20 {
		t.Errorf("the scheduler's sums are %+v", s)
	}
	if s := got[1]; s.CopiedBytes != 2<<20 || s.CopyMicros != 100 {
		t.Errorf("the worker's sums are %+v", s)
	}
	_, text := getFrom(t, a.AdminAddr(), "/metrics")
	for _, line := range []string{
		`blockyard_connector_lookups_total{rank="0",role="scheduler",worker="7"} 7`,
		`blockyard_connector_copied_bytes_total{rank="0",role="worker",worker="7"} 2.097152e+06`,
	} {
		if !strings.Contains(text, line) {
			t.Errorf("the metrics lack %s", line)
		}
	}
}

// The processes of an engine may have different connectors installed.
func TestEachRolesConnectorIsShownAndTheSchedulersLogged(t *testing.T) {
	log, logs := logged(zap.InfoLevel)
	a := startLoggedAgent(t, testConfig(t), log)
	h := agenttest.Hello(7)
	h.Connector = "blockyard 1.2.3"
	c := a.Connect(t, h)
	h.Connector = "blockyard 1.2.2"
	w, err := a.DialWorker(t, h)
	if err != nil {
		t.Fatal(err)
	}
	agenttest.NoError(t, cmp.Or(c.Report(proto.Stats{Lookups: 1}), w.Report(proto.Stats{CopiedBytes: 1}), w.Bye(t.Context(), "test"), c.Bye(t.Context(), "test")))
	got := a.Stats().Connectors
	if len(got) != 2 || got[0].Connector != "blockyard 1.2.3" || got[1].Connector != "blockyard 1.2.2" {
		t.Errorf("got %+v, want the scheduler's connector and the worker's", got)
	}
	began := logs.FilterMessage("session began").All()
	if len(began) != 1 || began[0].ContextMap()["connector"] != "blockyard 1.2.3" {
		t.Errorf("the log has %v, want one session with its connector", began)
	}
}

func TestReportsThatGoBackAreRefused(t *testing.T) {
	a := startAgent(t, testConfig(t))
	c := a.RawScheduler(t, 1)
	agenttest.Send(t, c, proto.TypeStats, 0, &proto.Stats{Loads: 5, Errors: 1})
	agenttest.Send(t, c, proto.TypeStats, 0, &proto.Stats{Loads: 4, Errors: 2})
	if e := agenttest.WantError(t, c, 0, proto.CodeRange); !strings.Contains(e.Text, "STATS loads: 4") {
		t.Errorf("the text is %q", e.Text)
	}
	agenttest.Send(t, c, proto.TypeStats, 9, &proto.Stats{})
	agenttest.WantError(t, c, 9, proto.CodeRange) // it wants no answer
	if s := a.Stats().Connectors; len(s) != 1 || s[0].Loads != 5 || s[0].Errors != 1 || s[0].Connected != 1 {
		t.Errorf("got %+v, want the first report alone", s)
	}
}
