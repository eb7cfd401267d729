package demo

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"
	"unicode/utf8"

	"github.com/blockyard-ai/blockyard/lab/cluster"
	"github.com/blockyard-ai/blockyard/lab/workload"
)

func durations(values []int64) []time.Duration {
	var ds []time.Duration
	for _, v := range values {
		ds = append(ds, time.Duration(v))
	}
	return ds
}

// testOptions run the test binary's fake children.
func testOptions(t *testing.T) (Options, *bytes.Buffer, *bytes.Buffer) {
	t.Helper()
	out, errs := new(bytes.Buffer), new(bytes.Buffer)
	o := Defaults("", 0)
	o.Programs, o.NATSURL = cluster.Programs{Product: os.Args[0], Lab: os.Args[0]}, "nats://unused"
	// t.TempDir has the test's name in it, too long for a socket's address.
	dir, err := os.MkdirTemp("", "by")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(dir) })
	o.Dir = dir
	o.Requests, o.SpeedUp, o.Seed = 40, 200, 1
	o.Report = filepath.Join(t.TempDir(), "report.json")
	o.Out, o.Err = out, errs
	return o, out, errs
}

// nothingLeft checks that a demo has removed its directories.
func nothingLeft(t *testing.T, o *Options) {
	t.Helper()
	for _, pattern := range []string{o.Dir + "/*", fmt.Sprintf("/dev/shm/blockyard-demo-host-%d*", os.Getpid())} {
		left, err := filepath.Glob(pattern)
		if err != nil || len(left) > 0 {
			t.Errorf("left behind %q (%v)", left, err)
		}
	}
}

func TestDemoRunsThreeTimesAndReports(t *testing.T) {
	o, out, errs := testOptions(t)
	if err := Run(t.Context(), o); err != nil {
		t.Fatalf("%v\n%s", err, errs)
	}
	for line := range strings.Lines(out.String()) {
		if utf8.RuneCountInString(line) > 101 || strings.Contains(line, "\x1b") {
			t.Errorf("line is too wide or coloured: %q", line)
		}
	}
	b, err := os.ReadFile(o.Report)
	if err != nil {
		t.Fatal(err)
	}
	checkReportSchema(t, b)
	nothingLeft(t, &o)
}

// checkReportSchema holds the report against what readers of it rely on.
func checkReportSchema(t *testing.T, b []byte) {
	t.Helper()
	type tokens struct{ Device, Host, Disk, Recomputed *uint64 }
	type run struct {
		Served      *tokens `json:"served_tokens"`
		InputTokens *uint64 `json:"input_tokens"`
	}
	var r struct {
		run
		Requests       *int
		ElapsedS       *float64                                   `json:"elapsed_s"`
		BlocksVerified *uint64                                    `json:"blocks_verified"`
		WrongBytes     *uint64                                    `json:"wrong_bytes"`
		Events         *struct{ In, Out, Gaps, Repaired *uint64 } `json:"events"`
		Diverged       *int
		RoutingUS      *struct{ P50, P99 *float64 } `json:"routing_us"`
		RoundRobin     *run                         `json:"round_robin"`
		NoOffload      *run                         `json:"no_offload"`
	}
	if err := json.Unmarshal(b, &r); err != nil {
		t.Fatal(err)
	}
	for name, absent := range map[string]bool{
		"requests": r.Requests == nil, "elapsed_s": r.ElapsedS == nil, "blocks_verified": r.BlocksVerified == nil,
		"wrong_bytes": r.WrongBytes == nil, "events": r.Events == nil, "diverged": r.Diverged == nil,
		"routing_us": r.RoutingUS == nil, "round_robin": r.RoundRobin == nil, "no_offload": r.NoOffload == nil,
	} {
		if absent {
			t.Fatalf("report has no %s:\n%s", name, b)
		}
	}
	if *r.Requests != 40 || *r.Events.Gaps != 4 || r.Events.In == nil || r.Events.Out == nil || r.Events.Repaired == nil || r.RoutingUS.P99 == nil {
		t.Errorf("report:\n%s", b)
	}
	for _, one := range []*run{&r.run, r.RoundRobin, r.NoOffload} {
		if sum := *one.Served.Device + *one.Served.Host + *one.Served.Disk + *one.Served.Recomputed; sum != *one.InputTokens || sum == 0 {
			t.Errorf("served tokens add up to %d of %d", sum, *one.InputTokens)
		}
	}
}

func TestOnlyOursLeavesTheOthersOut(t *testing.T) {
	o, _, errs := testOptions(t)
	o.OnlyOurs = true
	if err := Run(t.Context(), o); err != nil {
		t.Fatalf("%v\n%s", err, errs)
	}
	b, err := os.ReadFile(o.Report)
	if err != nil {
		t.Fatal(err)
	}
	if bytes.Contains(b, []byte("round_robin")) || bytes.Contains(b, []byte("no_offload")) {
		t.Errorf("report:\n%s", b)
	}
}

func TestWrongByteFailsTheDemo(t *testing.T) {
	t.Setenv(misbehaveVariable, "sim-engine=wrong byte")
	o, _, errs := testOptions(t)
	o.OnlyOurs = true
	err := Run(t.Context(), o)
	if !errors.Is(err, ErrFailed) {
		t.Errorf("error %v", err)
	}
	if !strings.Contains(errs.String(), "ours: 4 wrong bytes in 80 verified blocks\n") {
		t.Errorf("reasons:\n%s", errs)
	}
	b, err := os.ReadFile(o.Report)
	if err != nil || !bytes.Contains(b, []byte(`"wrong_bytes": 4`)) || !bytes.Contains(b, []byte(`"passed": false`)) {
		t.Errorf("report (%v):\n%s", err, b)
	}
}

// What goes wrong in a run to compare with fails the demo as well.
func TestMisdeedFailsTheDemoInWhicheverRunItHappens(t *testing.T) {
	for misdeed, want := range map[string]string{
		"sim-engine=wrong byte@round_robin": "round_robin: 4 wrong bytes in 80 verified blocks\n",
		"sim-engine=talk less@no_offload":   "no_offload: 40 of 40 requests failed\n",
		"sim-engine=load@no_offload":        "though these tiers are off\n",
		"sim-engine=verify nothing@ours":    "ours: 0 blocks of 16 tokens were verified, but 1280 tokens were loaded\n",
		"sim-engine=miscount@round_robin":   "; 40 requests differ\n",
		"router=favour@round_robin":         "round_robin: requests were not given out in turn: one engine answered 0 of them, another one 40\n",
		"agent=unrepaired gap@no_offload":   "no_offload: 2 of 4 gaps were repaired\n",
	} {
		t.Run(misdeed, func(t *testing.T) {
			t.Setenv(misbehaveVariable, misdeed)
			o, _, errs := testOptions(t)
			if err := Run(t.Context(), o); !errors.Is(err, ErrFailed) {
				t.Errorf("error %v", err)
			}
			if !strings.Contains(errs.String(), want) {
				t.Errorf("reasons:\n%swant %q", errs, want)
			}
		})
	}
}

// What does not come right in the end is waited for, and then said.
func TestWhatStaysWrongInTheEndFailsTheDemo(t *testing.T) {
	for misdeed, want := range map[string]string{
		"sim-engine=lose a block@round_robin": "round_robin: 4 of 8 (owner, block, tier) triples differ between the router and their owners\n",
		"agent=degraded stream":               "ours: node-1: the stream of worker 1/0 is degraded\n",
		"router=wrong digest":                 "ours: router: the digest of worker 2/0 differs\n",
	} {
		t.Run(misdeed, func(t *testing.T) {
			t.Setenv(misbehaveVariable, misdeed)
			o, _, errs := testOptions(t)
			o.OnlyOurs = !strings.Contains(misdeed, "@")
			o.limits.settle = 200 * time.Millisecond
			if err := Run(t.Context(), o); !errors.Is(err, ErrFailed) {
				t.Errorf("error %v", err)
			}
			if !strings.Contains(errs.String(), want) {
				t.Errorf("reasons:\n%swant %q", errs, want)
			}
		})
	}
}

func TestDemoThatHangsEndsWithItsLogs(t *testing.T) {
	t.Setenv(misbehaveVariable, "sim-engine=hang")
	o, _, errs := testOptions(t)
	o.limits.whole = 2 * time.Second
	err := Run(t.Context(), o)
	if err == nil || err.Error() != "demo: not done within 2s: something hangs" {
		t.Errorf("error %v", err)
	}
	if !strings.Contains(errs.String(), "logs: "+o.Dir) {
		t.Errorf("messages:\n%s", errs)
	}
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

func TestChildThatDoesNotStartIsExplained(t *testing.T) {
	t.Setenv(misbehaveVariable, "router=die")
	o, _, errs := testOptions(t)
	err := Run(t.Context(), o)
	if err == nil || !strings.Contains(err.Error(), "start router: it ended before it was ready: exit status 5 (log: ") {
		t.Errorf("error %v", err)
	}
	if !strings.Contains(errs.String(), "  | no room for router\n") || !strings.Contains(errs.String(), "logs: "+o.Dir) {
		t.Errorf("messages:\n%s", errs)
	}
}

func TestInterruptEndsWithinFiveSecondsAndLeavesNothing(t *testing.T) {
	t.Setenv(misbehaveVariable, "sim-engine=hang")
	o, out, errs := testOptions(t)
	watched := &notifyingWriter{to: out, want: fmt.Sprintf("/%d", o.Requests), seen: make(chan struct{})}
	o.Out, o.Terminal = watched, true
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	done := make(chan error, 1)
	go func() { done <- Run(ctx, o) }()
	// The first line of progress: requests are under way.
	select {
	case <-watched.seen:
	case err := <-done:
		t.Fatalf("ended before the interrupt: %v", err)
	}
	start := time.Now()
	cancel()
	if err := <-done; !errors.Is(err, context.Canceled) {
		t.Errorf("error %v", err)
	}
	if took := time.Since(start); took > 5*time.Second {
		t.Errorf("took %s", took)
	}
	if strings.Contains(errs.String(), "logs:") {
		t.Errorf("messages:\n%s", errs)
	}
	nothingLeft(t, &o)
}

// notifyingWriter closes seen when progress is first shown.
type notifyingWriter struct {
	to   io.Writer
	want string
	seen chan struct{}
	done bool
}

func (w *notifyingWriter) Write(b []byte) (int, error) {
	if !w.done && bytes.Contains(b, []byte(w.want)) {
		w.done = true
		close(w.seen)
	}
	return w.to.Write(b)
}

func TestBadOptionIsOneLineWithFlagAndValue(t *testing.T) {
	for _, c := range []struct {
		spoil func(*Options)
		want  string
	}{
		{func(o *Options) { o.BlockSize = 0 }, "--block-size 0: want 1..4096"},
		{func(o *Options) { o.DeviceBlocks = 0 }, "--device-blocks 0: want 1..16777216"},
		{func(o *Options) { o.Nodes = 0 }, "--nodes 0: want 1..16"},
		{func(o *Options) { o.Engines = 1 }, "--engines 1: want 2..64"},
		{func(o *Options) { o.Requests = -1 }, "--requests -1: want 1..1000000"},
		{func(o *Options) { o.SpeedUp = -2 }, "--speed-up -2: want 0.01..1000"},
		{func(o *Options) { o.HostBytes = 0 }, "--host-size 0: want "},
		{func(o *Options) { o.DiskBytes = 4096 }, "--disk-size 4096: want "},
		{func(o *Options) { o.DropFrames = -1 }, "--drop-frames -1: want 0..1000"},
		{func(o *Options) { o.Dir = "/proc/nowhere" }, "--dir: "},
		{func(o *Options) { o.Report = "/proc/nowhere/r.json" }, "--report: open /proc/nowhere/r.json: "},
		{func(o *Options) { o.Trace = "testdata/absent.jsonl" }, "--trace: open testdata/absent.jsonl: "},
		{func(o *Options) { o.DeviceBlocks = 20 }, "--device-blocks 20: the longest request needs "},
	} {
		o, _, _ := testOptions(t)
		c.spoil(&o)
		err := Run(t.Context(), o)
		if err == nil || !strings.HasPrefix(err.Error(), c.want) || strings.Contains(err.Error(), "\n") {
			t.Errorf("error %v, want %q", err, c.want)
		}
		if _, err := os.Stat(o.Report); err == nil {
			t.Error("a report was left behind")
		}
	}
}
