package stress

import (
	"bytes"
	"context"
	"errors"
	"regexp"
	"strings"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/blockyard-ai/blockyard/blockmgr/storage/storagetest"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// shortRun returns one stream under every configuration, after the negative control.
func shortRun(t *testing.T, o Options) (Result, string, error) {
	t.Helper()
	var out bytes.Buffer
	o.Duration, o.Dir, o.Out = time.Nanosecond, t.TempDir(), &out
	res, err := Run(t.Context(), o)
	return res, out.String(), err
}

func TestEveryBlockServedUnderFaultsHasItsBytes(t *testing.T) {
	res, out, err := shortRun(t, Options{Seed: 7, Ops: 700})
	if err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	if res.WrongBytes != 0 || res.Verified <= res.Ops/10 || res.Torn == 0 || res.Evicted == 0 || res.Retired == 0 || res.Resumed == 0 || res.Checked == 0 {
		t.Errorf("the run saw too little: %+v", res.Totals)
	}
	for _, v := range variants() {
		if c := res.Configs[v.name]; c.Ops != 700 || c.Verified == 0 || c.Restarts == 0 || c.PowerLosses == 0 {
			t.Errorf("configuration %s saw too little: %+v", v.name, c)
		}
	}
	if res.Control.Flipped < 100 || res.Control.Seen != res.Control.Flipped {
		t.Errorf("%d wrong bytes seen, %d bits flipped, want at least 100 and all of them", res.Control.Seen, res.Control.Flipped)
	}
	for _, fault := range faultKinds() {
		if fault == storagetest.FaultStall {
			continue // rare, and what follows one depends on time; it has the test below
		}
		if res.Faults[fault.String()] == 0 {
			t.Errorf("fault %s never happened: %v", fault, res.Faults)
		}
	}
	if res.Faults["spoiled"] == 0 {
		t.Error("no bit was flipped while no agent ran")
	}
	lines := strings.Split(strings.TrimSpace(out), "\n")
	want := regexp.MustCompile(`^stress \(bits flipped\): flipped=[1-9]\d* wrong_bytes=[1-9]\d*
stress: ops=\d+ verified=\d+ restarts=\d+ powerlosses=\d+ torn_seen=\d+ evicted=\d+ wrong_bytes=0$`)
	if last := strings.Join(lines[len(lines)-2:], "\n"); !want.MatchString(last) {
		t.Errorf("the report ends with\n%s", last)
	}
}

func TestOneConfigurationRunsAloneWithoutTheNegativeControl(t *testing.T) {
	res, out, err := shortRun(t, Options{Seed: 3, Ops: 200, Config: "host"})
	if err != nil || res.Ops != 200 || len(res.Configs) != 1 || strings.Contains(out, "bits flipped") {
		t.Errorf("%+v, %v\n%s", res, err, out)
	}
}

func TestDiskThatStallsIsLeftAloneAndTheRunGoesOn(t *testing.T) {
	v := variant{
		name: "test", namespaces: 1, host: 8, disk: 48, extent: 8, deadline: 50 * time.Millisecond,
		rates: storagetest.FaultRates{storagetest.OpRead: {storagetest.FaultStall: 0.3}, storagetest.OpWrite: {storagetest.FaultStall: 0.05}},
	}
	w, err := newWorld(v, 1, t.TempDir(), t.TempDir(), false, nil)
	if err != nil {
		t.Fatal(err)
	}
	for _, o := range stream(1, 400) {
		if err := w.apply(&o); errors.Is(err, errLockedOut) {
			break
		} else if err != nil {
			t.Error(err)
			break
		}
	}
	if err := w.close(); err != nil {
		t.Error(err)
	}
	if w.total.Trips == 0 || w.total.Faults["stall"] == 0 || w.total.Verified == 0 {
		t.Errorf("%+v", w.total)
	}
}

func TestCancelledRunEndsAndCleansUp(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	dir := t.TempDir()
	var out bytes.Buffer
	if _, err := Run(ctx, Options{Dir: dir, HostDir: dir, Out: &out}); !errors.Is(err, context.Canceled) {
		t.Errorf("%v\n%s", err, out.String())
	}
	left, err := usedNames(dir)
	if err != nil || len(left) > 0 {
		t.Errorf("%v left, %v", left, err)
	}
}

func TestRunThatSawTooLittleFails(t *testing.T) {
	good := Result{Seed: 5, Totals: Totals{Ops: 100, Verified: 11, Torn: 1}, Control: Totals{Flipped: 2, Seen: 2}}
	for name, c := range map[string]struct {
		change func(*Result)
		want   string
	}{
		"wrong byte":      {func(r *Result) { r.WrongBytes = 1 }, "1 wrong bytes"},
		"nothing flipped": {func(r *Result) { r.Control = Totals{} }, "the run is blind"},
		"flip not seen":   {func(r *Result) { r.Control.Seen = 1 }, "the run is blind"},
		"few verified":    {func(r *Result) { r.Verified = 10 }, "10 blocks verified in 100 operations"},
		"nothing torn":    {func(r *Result) { r.Torn = 0 }, "no torn, dropped or flipped block"},
		"nothing wrong":   {func(*Result) {}, ""},
	} {
		res := good
		c.change(&res)
		err := new(Options).judge(&res)
		if (err == nil) != (c.want == "") || err != nil && !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: %v", name, err)
		}
	}
}
