package prom_test

import (
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promhttp"

	"github.com/blockyard-ai/blockyard/internal/metric"
	"github.com/blockyard-ai/blockyard/internal/metric/prom"
)

type stats struct {
	Frames  uint64 `json:"frames" help:"Frames received."`
	Waiting int    `json:"waiting" help:"Frames in the queue."`
}

type collector func(ch chan<- prometheus.Metric)

func (c collector) Describe(chan<- *prometheus.Desc)    {}
func (c collector) Collect(ch chan<- prometheus.Metric) { c(ch) }

func TestFamiliesSendsAFamilyForEachNumber(t *testing.T) {
	c := collector(func(ch chan<- prometheus.Metric) { prom.Families(ch, "blockyard_", &stats{Frames: 3, Waiting: 2}) })
	want := `# HELP blockyard_frames_total Frames received.
# TYPE blockyard_frames_total counter
blockyard_frames_total 3
# HELP blockyard_waiting Frames in the queue.
# TYPE blockyard_waiting gauge
blockyard_waiting 2
`
	if got := scrape(t, c); got != want {
		t.Errorf("got\n%s\nwant\n%s", got, want)
	}
}

func TestFamiliesByAddsALabel(t *testing.T) {
	c := collector(func(ch chan<- prometheus.Metric) {
		prom.FamiliesBy(ch, "queue_", "model", "a", &stats{Frames: 3, Waiting: 2})
		prom.FamiliesBy(ch, "queue_", "model", "b", &stats{Waiting: 1})
	})
	want := `# HELP queue_frames_total Frames received.
# TYPE queue_frames_total counter
queue_frames_total{model="a"} 3
queue_frames_total{model="b"} 0
# HELP queue_waiting Frames in the queue.
# TYPE queue_waiting gauge
queue_waiting{model="a"} 2
queue_waiting{model="b"} 1
`
	if got := scrape(t, c); got != want {
		t.Errorf("got\n%s\nwant\n%s", got, want)
	}
}

func TestKindsLabelsNumbersWithTheirNames(t *testing.T) {
	counters := prometheus.NewDesc("parts_total", "Counters.", []string{"part", "kind"}, nil)
	c := collector(func(ch chan<- prometheus.Metric) {
		prom.Kinds(ch, counters, nil, &stats{Frames: 3, Waiting: 2}, "zmq")
	})
	want := `# HELP parts_total Counters.
# TYPE parts_total counter
parts_total{kind="frames",part="zmq"} 3
`
	if got := scrape(t, c); got != want {
		t.Errorf("got\n%s\nwant\n%s", got, want)
	}
}

func TestHistogramsAreCumulative(t *testing.T) {
	family := prometheus.NewDesc("path_seconds", "Time by path.", []string{"path"}, nil)
	var s struct {
		Read metric.Durations `metric:"read"`
	}
	s.Read.Observe(3 * time.Microsecond)
	s.Read.Observe(time.Minute)
	got := scrape(t, collector(func(ch chan<- prometheus.Metric) { prom.Histograms(ch, family, &s) }))
	for _, line := range []string{
		"# TYPE path_seconds histogram", `path_seconds_bucket{path="read",le="2e-06"} 0`, `path_seconds_bucket{path="read",le="4e-06"} 1`,
		`path_seconds_bucket{path="read",le="+Inf"} 2`, `path_seconds_sum{path="read"} 60.000003`, `path_seconds_count{path="read"} 2`,
	} {
		if !strings.Contains(got, line+"\n") {
			t.Errorf("the scrape lacks %s:\n%s", line, got)
		}
	}
}

// scrape returns what an HTTP scrape of c answers.
func scrape(t *testing.T, c prometheus.Collector) string {
	t.Helper()
	r := prometheus.NewRegistry()
	r.MustRegister(c)
	w := httptest.NewRecorder()
	promhttp.HandlerFor(r, promhttp.HandlerOpts{}).ServeHTTP(w, httptest.NewRequest("GET", "/metrics", nil))
	return w.Body.String()
}
