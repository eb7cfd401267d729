package agent

import (
	"cmp"
	"fmt"
	"math"
	"strings"
	"testing"
	"time"

	"go.uber.org/zap"

	"github.com/blockyard-ai/blockyard/internal/kv"
	"github.com/blockyard-ai/blockyard/internal/proto"
)

// What a connector says of itself can be seen by worker, rank and role, and stays
// when its connection has ended.
func TestConnectorsCountersAreShownByWorker(t *testing.T) {
	a := startAgent(t, testConfig(t))
	for connection := range uint64(2) {
		c := a.scheduler(t, 7)
		w := a.worker(t, c, 7)
		if err := c.Report(proto.Stats{Lookups: 3 + connection, HitBlocks: 10}); err != nil {
			t.Fatal(err)
		}
		if err := w.Report(proto.Stats{CopiedBytes: 1 << 20, CopyMicros: 50}); err != nil {
			t.Fatal(err)
		}
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
	h := helloOf(7)
	h.Connector = "blockyard 1.2.3"
	c, err := a.dialWith(t, h)
	if err != nil {
		t.Fatal(err)
	}
	h.Connector = "blockyard 1.2.2"
	w, err := a.dialWorker(t, h)
	if err != nil {
		t.Fatal(err)
	}
	if err := cmp.Or(c.Report(proto.Stats{Lookups: 1}), w.Report(proto.Stats{CopiedBytes: 1}), w.Bye(t.Context(), "test"), c.Bye(t.Context(), "test")); err != nil {
		t.Fatal(err)
	}
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
	c := a.rawScheduler(t, 1)
	send(t, c, proto.TypeStats, 0, &proto.Stats{Loads: 5, Errors: 1})
	send(t, c, proto.TypeStats, 0, &proto.Stats{Loads: 4, Errors: 2})
	if e := wantError(t, c, 0, proto.CodeRange); !strings.Contains(e.Text, "STATS loads: 4") {
		t.Errorf("the text is %q", e.Text)
	}
	send(t, c, proto.TypeStats, 9, &proto.Stats{})
	wantError(t, c, 9, proto.CodeRange) // it wants no answer
	if s := a.Stats().Connectors; len(s) != 1 || s[0].Loads != 5 || s[0].Errors != 1 || s[0].Connected != 1 {
		t.Errorf("got %+v, want the first report alone", s)
	}
}

func TestReportsCountOnceASecondAndTheOneBeforeByeToo(t *testing.T) {
	c := newConnectorReports()
	r := c.reporter(kv.Worker{ID: 1}, &proto.Hello{Role: string(proto.RoleWorker)})
	start := time.Now()
	for n, s := range []struct {
		after   time.Duration
		counted uint64 // what the sum is then
	}{
		{0, 1}, {0, 2}, {0, 2}, {900 * time.Millisecond, 2}, // two at once
		{1100 * time.Millisecond, 5}, {1900 * time.Millisecond, 5}, {2050 * time.Millisecond, 7}, // then one a second
		{time.Minute, 8}, {time.Minute, 9}, {time.Minute, 9}, // a pause earns no more
	} {
		if err := r.take(&proto.Stats{Loads: uint64(n + 1)}, start.Add(s.after)); err != nil {
			t.Fatal(err)
		}
		if list, _, _ := c.snapshot(); list[0].Loads != s.counted {
			t.Errorf("after report %d the sum is %d, want %d", n+1, list[0].Loads, s.counted)
		}
	}
	if _, ignored, _ := c.snapshot(); ignored != 4 {
		t.Errorf("%d reports were ignored, want 4", ignored)
	}
}

func TestSumsOfConnectorsAreBoundedAndThoseOfLiveOnesStay(t *testing.T) {
	c := newConnectorReports()
	now := time.Now()
	live := c.reporter(kv.Worker{ID: math.MaxUint64}, &proto.Hello{Role: string(proto.RoleWorker)})
	if err := live.take(&proto.Stats{Loads: math.MaxUint64}, now); err != nil {
		t.Fatal(err)
	}
	for i := range uint64(2 * maxConnectors) {
		r := c.reporter(kv.Worker{ID: kv.WorkerID(i + 1)}, &proto.Hello{Role: string(proto.RoleScheduler)})
		if err := r.take(&proto.Stats{Lookups: 1}, now.Add(time.Duration(i+1)*time.Second)); err != nil {
			t.Fatal(err)
		}
		r.close()
	}
	list, _, forgotten := c.snapshot()
	if len(list) != maxConnectors || forgotten != maxConnectors+1 {
		t.Errorf("%d sums and %d forgotten, want %d and %d", len(list), forgotten, maxConnectors, maxConnectors+1)
	}
	last := list[len(list)-1]
	if last.Worker != fmt.Sprint(uint64(math.MaxUint64)) || last.Connected != 1 || last.Loads != math.MaxUint64 {
		t.Errorf("the live one's sum is %+v", last)
	}
}

// A counter may not go back behind a report that came too soon to count either.
func TestReportBelowAnIgnoredOneIsRefused(t *testing.T) {
	c := newConnectorReports()
	r := c.reporter(kv.Worker{ID: 1}, &proto.Hello{Role: string(proto.RoleScheduler)})
	now := time.Now()
	for _, n := range []uint64{1, 2, 9} { // the third is ignored
		if err := r.take(&proto.Stats{Loads: n}, now); err != nil {
			t.Fatal(err)
		}
	}
	if err := r.take(&proto.Stats{Loads: 3}, now); err == nil {
		t.Error("3 after 9 was taken")
	}
	if err := r.take(&proto.Stats{Loads: 10}, now.Add(time.Minute)); err != nil {
		t.Error(err)
	}
	if list, _, _ := c.snapshot(); list[0].Loads != 10 {
		t.Errorf("the sum is %d, want 10", list[0].Loads)
	}
}

// Where more connectors live than sums are kept, each that reports is seen again.
func TestReportsOfALiveConnectorAreNotLost(t *testing.T) {
	c := newConnectorReports()
	now := time.Now()
	var all []*reporter
	for i := range uint64(maxConnectors + 1) {
		r := c.reporter(kv.Worker{ID: kv.WorkerID(i + 1)}, &proto.Hello{Role: string(proto.RoleScheduler)})
		if err := r.take(&proto.Stats{Lookups: 1}, now.Add(time.Duration(i)*time.Millisecond)); err != nil {
			t.Fatal(err)
		}
		all = append(all, r)
	}
	if err := all[0].take(&proto.Stats{Lookups: 5}, now.Add(time.Minute)); err != nil {
		t.Fatal(err)
	}
	if list, _, forgotten := c.snapshot(); list[0].Worker != "1" || list[0].Lookups != 5 || list[0].Connected != 1 || forgotten != 2 {
		t.Errorf("the first is %+v, %d are forgotten", list[0], forgotten)
	}
	for _, r := range all {
		r.close()
	}
	list, _, _ := c.snapshot()
	for i := range list {
		if list[i].Connected != 0 {
			t.Errorf("worker %s has %d connections after the end", list[i].Worker, list[i].Connected)
		}
	}
}
