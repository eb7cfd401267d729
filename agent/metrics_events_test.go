package agent

import (
	"fmt"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"go.uber.org/zap"

	"github.com/blockyard-ai/blockyard/consolidator/residency"
	"github.com/blockyard-ai/blockyard/consolidator/tokens"
	"github.com/blockyard-ai/blockyard/internal/kv"
	"github.com/blockyard-ai/blockyard/internal/kvevent"
	"github.com/blockyard-ai/blockyard/internal/metric"
	"github.com/blockyard-ai/blockyard/publisher/dynamo"
	"github.com/blockyard-ai/blockyard/publisher/zmqsink"
)

// Counters of what ended stay in the totals, gauges of it do not: a counter that
// falls is taken for a restart.
func TestTotalsKeepWhatEndedOutputsCounted(t *testing.T) {
	h := newEventHub("node", testOutputs(nil), zap.NewNop())
	pool := residency.NewStream(kv.PoolOwner(1), nil)
	hello := helloOf(7)
	hello.ConsolidatedEndpoint = fmt.Sprintf("tcp://127.0.0.1:%d", freePort(t))
	r, err := h.startRank(&hello, pool, rankEngine{guard: func(do func() error) error { return do() }, gauges: func() (engineGauges, bool) { return engineGauges{}, false }})
	if err != nil {
		t.Fatal(err)
	}
	r.reaches[0].zmq.Publish([]kvevent.RouterEvent{{Owner: kv.PoolOwner(9)}})
	before := eventTotals(h)
	r.stop()
	after := eventTotals(h)
	if before.ZMQ.Foreign == 0 {
		t.Fatal("the sink counted nothing; the test shows nothing")
	}
	counted := map[string]float64{}
	metric.Each(&after.ZMQ, func(f *metric.Field, v float64) { counted[f.Name] = v })
	metric.Each(&before.ZMQ, func(f *metric.Field, v float64) {
		if f.Kind == metric.Counter && counted[f.Name] < v {
			t.Errorf("%s fell from %v to %v when the rank ended", f.Name, v, counted[f.Name])
		}
	})
	if after.ZMQ.Said != 0 || after.ZMQ.Subscribers != 0 {
		t.Errorf("an ended sink has said %d blocks to %d subscribers", after.ZMQ.Said, after.ZMQ.Subscribers)
	}
}

func eventTotals(h *eventHub) EventTotals {
	var s Stats
	h.snapshot(&s)
	return s.Totals
}

// A scrape has each name with each label once, or Prometheus gets nothing at all.
func TestScrapeOfAllOutputs(t *testing.T) {
	s := Stats{Outputs: OutputStats{
		Dynamo: &dynamo.PlaneStats{RivalSources: 3}, Tokens: &tokens.Stats{Misses: 4}, Capped: 5,
		Ranks: []RankOutputStats{
			{Owner: "worker 7/0", Blocks: 6, ZMQ: &zmqsink.Stats{}},
			{Owner: "worker 7/0", Blocks: 7, Dynamo: &dynamo.SourceStats{}},
		},
	}}
	s.Totals.Ranks.Parked = 8
	answer := httptest.NewRecorder()
	metricsHandler(func() Stats { return s }).ServeHTTP(answer, httptest.NewRequest(http.MethodGet, "/metrics", nil))
	if answer.Code != http.StatusOK {
		t.Fatalf("status %d: %s", answer.Code, answer.Body)
	}
	for _, line := range []string{
		`blockyard_event_path_state{kind="rival_sources",part="dynamo_plane"} 3`,
		`blockyard_event_path_total{kind="misses",part="tokens"} 4`,
		`blockyard_event_path_total{kind="capped",part="outputs"} 5`,
		`blockyard_output_blocks{output="zmq",owner="worker 7/0"} 6`,
		`blockyard_output_blocks{output="dynamo",owner="worker 7/0"} 7`,
		`blockyard_event_path_total{kind="parked",part="rank"} 8`,
	} {
		if !strings.Contains(answer.Body.String(), line+"\n") {
			t.Errorf("the scrape lacks %s", line)
		}
	}
}
