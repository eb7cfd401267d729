package agent

import (
	"fmt"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"testing"

	"go.uber.org/zap"

	"github.com/blockyard-ai/blockyard/consolidator"
	"github.com/blockyard-ai/blockyard/consolidator/tokens"
	"github.com/blockyard-ai/blockyard/internal/kv"
	"github.com/blockyard-ai/blockyard/internal/kvevent"
	"github.com/blockyard-ai/blockyard/publisher/dynamo"
	"github.com/blockyard-ai/blockyard/publisher/httpfeed"
	"github.com/blockyard-ai/blockyard/publisher/nats"
	"github.com/blockyard-ai/blockyard/publisher/zmqsink"
)

func (p pathPart) all() []named { return slices.Concat(p.counters, p.gauges) }

// Every drop, retry and repair on the way of events can be seen.
func TestEveryNumberOfTheEventPathIsAMetric(t *testing.T) {
	// What EventStats has is shown by that name.
	wantShown[consolidator.RankStats](t, rankPart(new(consolidator.RankStats)).all(),
		"events", "gaps", "repaired", "lost", "bad_frames", "bad_events", "restarts")
	wantShown[consolidator.StreamStats](t, streamPart(new(consolidator.StreamStats)).all(), "events")
	wantShown[nats.FeedStats](t, feedPart(new(nats.FeedStats)).all())
	wantShown[httpfeed.FeedStats](t, httpCounters(new(httpfeed.Stats)))
	// The sum of the numbers of next batches says nothing.
	wantShown[zmqsink.Stats](t, sinkPart(new(zmqsink.Stats)).all(), "next")
	wantShown[dynamo.SourceStats](t, sourcePart(new(dynamo.SourceStats)).all())
	wantShown[dynamo.PlaneStats](t, planePart(new(dynamo.PlaneStats)).all())
	wantShown[tokens.Stats](t, tokenPart(new(tokens.Stats)).all())
	var outputs pathPart
	for _, p := range pathParts(new(Stats)) {
		if p.name == "outputs" {
			outputs = p
		}
	}
	wantShown[OutputStats](t, outputs.all())
}

// A sum of sinks has every number of each.
func TestSumOfSinksLeavesNothingOut(t *testing.T) {
	o := zmqsink.Stats{
		Batches: 1, Events: 1, Blocks: 1, Bytes: 1, Raw: 1, Subscriptions: 1, Subscribers: 1, Reannounced: 1, Overflows: 1,
		Gaps: 1, Dropped: 1, DroppedRaw: 1, Held: 1, Missed: 1, UnknownTokens: 1, Retries: 1, Recovered: 1, Unkept: 1, Unwanted: 1, Left: 1, Orphans: 1, IgnoredRemoves: 1, Foreign: 1, AfterClose: 1,
		Replays: 1, Replayed: 1, BadRequests: 1, SendErrors: 1, Said: 1, Next: 1,
	}
	var s zmqsink.Stats
	addSink(&s, &o)
	addSink(&s, &o)
	for _, n := range sinkPart(&s).all() {
		if n.value != 2 {
			t.Errorf("%s: 1 + 1 = %d", n.name, n.value)
		}
	}
}

// Counters of what ended stay in the totals, gauges of it do not: a counter that
// falls is taken for a restart.
func TestTotalsKeepWhatEndedOutputsCounted(t *testing.T) {
	h := newEventHub("node", testOutputs(nil), zap.NewNop())
	pool := consolidator.NewStream(kv.PoolOwner(1), nil)
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
	counted := map[string]uint64{}
	for _, n := range sinkPart(&after.ZMQ).counters {
		counted[n.name] = n.value
	}
	for _, n := range sinkPart(&before.ZMQ).counters {
		if counted[n.name] < n.value {
			t.Errorf("%s fell from %d to %d when the rank ended", n.name, n.value, counted[n.name])
		}
	}
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
