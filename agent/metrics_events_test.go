package agent_test

import (
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/blockyard-ai/blockyard/agent"
	"github.com/blockyard-ai/blockyard/agent/events"
	"github.com/blockyard-ai/blockyard/blockmgr/policy"
	"github.com/blockyard-ai/blockyard/consolidator/tokens"
	"github.com/blockyard-ai/blockyard/internal/smart"
	"github.com/blockyard-ai/blockyard/publisher/dynamo"
	"github.com/blockyard-ai/blockyard/publisher/nats"
	"github.com/blockyard-ai/blockyard/publisher/zmqsink"
)

// A scrape has each name with each label once, or Prometheus gets nothing at all.
func TestScrapeOfAllOutputs(t *testing.T) {
	s := agent.Stats{Filter: &policy.FrequencyStats{Entries: 1, Pruned: 2}, Writes: &policy.WriteBudgetStats{DayBytes: 11, Exhausted: 12}, Outputs: events.OutputStats{
		NATS:   &nats.Stats{Reconnects: 9, NameClaims: 10},
		Dynamo: &dynamo.PlaneStats{RivalSources: 3}, Tokens: &tokens.Stats{Misses: 4}, Capped: 5,
		Ranks: []events.RankOutputStats{
			{Owner: "worker 7/0", Blocks: 6, ZMQ: &zmqsink.Stats{}},
			{Owner: "worker 7/0", Blocks: 7, Dynamo: &dynamo.SourceStats{}},
		},
	}}
	s.Totals.Ranks.Parked = 8
	s.Space.Devices = []smart.Device{{Name: "nvme0n1", Used: 0.25, Written: 13}, {Name: "sda", Problem: "not readable"}}
	s.Retired.LookupTime.Observe(time.Millisecond)
	s.Pools = []agent.PoolStats{{Pool: 1}}
	s.Pools[0].LookupTime.Observe(time.Second)
	s.Pools[0].SealTime.Observe(time.Microsecond)
	answer := httptest.NewRecorder()
	agent.MetricsHandler(func() agent.Stats { return s }, "v1").ServeHTTP(answer, httptest.NewRequest(http.MethodGet, "/metrics", nil))
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
		`blockyard_event_path_total{kind="reconnects",part="nats"} 9`,
		`blockyard_event_path_total{kind="name_claims",part="nats"} 10`,
		`blockyard_disk_filter_state{kind="entries"} 1`,
		`blockyard_disk_filter_total{kind="pruned"} 2`,
		`blockyard_disk_write_budget_bytes{kind="last_day"} 11`,
		`blockyard_disk_write_budget_total{kind="exhausted"} 12`,
		`blockyard_disk_wear_ratio{device="nvme0n1"} 0.25`,
		`blockyard_disk_device_written_bytes_total{device="nvme0n1"} 13`,
		`blockyard_path_seconds_sum{path="lookup"} 1.001`, `blockyard_path_seconds_count{path="lookup"} 2`,
		`blockyard_path_seconds_bucket{path="seal",le="1e-06"} 1`, `blockyard_path_seconds_count{path="disk_read"} 0`,
	} {
		if !strings.Contains(answer.Body.String(), line+"\n") {
			t.Errorf("the scrape lacks %s", line)
		}
	}
}
