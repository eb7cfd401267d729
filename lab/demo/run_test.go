package demo

import (
	"bytes"
	"io"
	"path/filepath"
	"testing"
	"time"

	"github.com/blockyard-ai/blockyard/lab/cluster"
	"github.com/blockyard-ai/blockyard/lab/workload"
)

// testOptions returns options that Run accepts. Nothing is started with them.
func testOptions(t *testing.T) (o Options, errs *bytes.Buffer) {
	t.Helper()
	o, errs = Defaults("", 0), new(bytes.Buffer)
	o.Programs, o.NATSURL = cluster.Programs{Product: "/nowhere", Lab: "/nowhere"}, "nats://unused"
	o.Dir, o.Report = t.TempDir(), filepath.Join(t.TempDir(), "report.json")
	o.Out, o.Err = io.Discard, errs
	return o, errs
}

func durations(values []int64) []time.Duration {
	var ds []time.Duration
	for _, v := range values {
		ds = append(ds, time.Duration(v))
	}
	return ds
}

func TestLimitsGrowWithTheWorkload(t *testing.T) {
	o := Defaults("", 0)
	o.PrefillRate, o.SpeedUp = 100, 2
	if got, want := limitsFor(&o, nil), (limits{10 * time.Second, time.Minute, 15 * time.Second, 15 * time.Minute}); got != want {
		t.Errorf("without requests: %+v, want %+v", got, want)
	}
	requests := []workload.Request{
		{Session: 1, Pieces: []workload.Piece{{Tokens: 1000}}, OutputTokens: 100},
		{Session: 1, At: time.Minute, Pieces: []workload.Piece{{Tokens: 100}}, OutputTokens: 10},
	}
	// 2,200 tokens at 100 per second and 100 steps of 20 ms: 24 s.
	l := limitsFor(&o, requests)
	if want := time.Minute + 12*time.Second; l.generate != want {
		t.Errorf("limit of an answer %s, want %s", l.generate, want)
	}
	if want := 15*time.Minute + 9*(24+60)*time.Second/2; l.whole != want {
		t.Errorf("limit of the demo %s, want %s", l.whole, want)
	}
	o.SpeedUp = 1e-300
	if l := limitsFor(&o, requests); l.generate != time.Minute+maxWorkloadTime || l.whole != 15*time.Minute+maxWorkloadTime {
		t.Errorf("limits of an endless workload: %+v", l)
	}
}
