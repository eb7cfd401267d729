package demo

import (
	"strings"
	"testing"

	"go.uber.org/goleak"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// goodRun returns a run with nothing to complain about: ours, goodExpectation.
func goodRun() RunReport {
	return RunReport{
		Requests: 10, InputTokens: 100, Served: Served{Device: 40, Host: 32, Disk: 8, Recomputed: 20},
		ByEngine: map[uint64]int{1: 3, 2: 7}, BlocksVerified: 5, Events: EventCounts{In: 9, Out: 9, Gaps: 3, Repaired: 3},
		FramesDropped: 4, Resets: 1, Compared: 50, Settled: true,
	}
}

func goodExpectation() expectation {
	return expectation{name: "ours", offload: true, everyTier: true, engines: 2, blockSize: 8, dropped: 4}
}

func TestGoodRunHasNoReasons(t *testing.T) {
	for _, c := range []struct {
		name   string
		change func(*expectation, *RunReport)
	}{
		{"ours", func(*expectation, *RunReport) {}},
		{"a block was loaded twice", func(_ *expectation, r *RunReport) { r.BlocksVerified++ }},
		{"no offload", func(e *expectation, r *RunReport) {
			e.offload, e.everyTier = false, false
			r.Served, r.BlocksVerified = Served{Device: 80, Recomputed: 20}, 0
		}},
		{"in turn, one tier", func(e *expectation, r *RunReport) {
			e.inTurn, e.everyTier = true, false
			r.Served = Served{Host: 40, Recomputed: 60}
			r.Requests, r.ByEngine = 11, map[uint64]int{1: 5, 2: 6}
		}},
		{"in turn, fewer requests than engines", func(e *expectation, r *RunReport) {
			e.inTurn, e.engines = true, 4
			r.Requests, r.ByEngine = 3, map[uint64]int{1: 1, 2: 1, 4: 1}
		}},
		{"a hybrid model", func(e *expectation, r *RunReport) {
			e.hybrid = true
			hybridRun(r)
		}},
		{"no frames left out", func(e *expectation, r *RunReport) {
			e.dropped, r.FramesDropped, r.Events.Gaps, r.Events.Repaired = 0, 0, 0, 0
		}},
	} {
		e, r := goodExpectation(), goodRun()
		c.change(&e, &r)
		if reasons, notes := verdict(e, &r); len(reasons)+len(notes) != 0 {
			t.Errorf("%s: reasons %q, notes %q", c.name, reasons, notes)
		}
	}
}

// hybridRun adds the figures of a hybrid model to those of a good run.
func hybridRun(r *RunReport) {
	r.CreditCompared, r.CreditBlocks, r.CreditWithoutWindow, r.CreditStored, r.Promises = 40, 20, 50, 8, 4
}

func TestTheCreditOfAHybridModelIsJudged(t *testing.T) {
	for want, spoil := range map[string]func(*RunReport){
		"differs from what engines find or serve for 3 of 44": func(r *RunReport) { r.CreditDiverged = 3 },
		"no engine finds a block":                             func(r *RunReport) { r.CreditBlocks = 0 },
		"the window shows nothing":                            func(r *RunReport) { r.CreditWithoutWindow = r.CreditBlocks },
		"FIT shows nothing":                                   func(r *RunReport) { r.CreditStored = 0 },
		"no prompt was sent":                                  func(r *RunReport) { r.Promises = 0 },
	} {
		e, r := goodExpectation(), goodRun()
		e.hybrid = true
		hybridRun(&r)
		spoil(&r)
		if reasons, _ := verdict(e, &r); len(reasons) != 1 || !strings.Contains(reasons[0], want) {
			t.Errorf("%q: reasons %q", want, reasons)
		}
	}
}

func TestEachFailureIsAReason(t *testing.T) {
	for _, c := range []struct {
		spoil func(*RunReport)
		want  string
	}{
		{func(r *RunReport) { r.Failed = 2 }, "2 of 10 requests failed"},
		{func(r *RunReport) { r.Requests = 0 }, "no request was sent"},
		{func(r *RunReport) { r.InputTokens = 101 }, "served tokens add up to 100, the prompts that were sent to 101; 0 requests differ"},
		{func(r *RunReport) { r.misserved = 2 }, "served tokens add up to 100, the prompts that were sent to 100; 2 requests differ"},
		{func(r *RunReport) { r.WrongBytes = 1 }, "1 wrong bytes in 5 verified blocks"},
		{func(r *RunReport) { r.BlocksVerified = 4 }, "4 blocks of 8 tokens were verified, but 40 tokens were loaded"},
		{func(r *RunReport) { r.Served.Device, r.Served.Host = 0, 72; r.BlocksVerified = 10 }, "no token was served from the device tier"},
		{func(r *RunReport) { r.Served.Device, r.Served.Host = 72, 0 }, "no token was served from the host tier"},
		{func(r *RunReport) { r.Served.Device, r.Served.Disk = 48, 0 }, "no token was served from the disk tier"},
		{func(r *RunReport) { r.Events.In = 0 }, "the agents took in 0 events and published 9"},
		{func(r *RunReport) { r.Events.Out = 0 }, "the agents took in 9 events and published 0"},
		{func(r *RunReport) { r.FramesDropped = 2 }, "2 event frames were left out, want at least 3"},
		{func(r *RunReport) { r.Events.Gaps, r.Events.Repaired = 0, 0 }, "4 event frames were left out and no gap was found"},
		{func(r *RunReport) { r.Events.Repaired = 2 }, "2 of 3 gaps were repaired"},
		{func(r *RunReport) { r.Events.Lost = 1 }, "1 gaps were lost"},
		{func(r *RunReport) { r.Resets = 0 }, "no engine cache was reset"},
		{func(r *RunReport) { r.Settled, r.unsettled = false, "engine-2 is busy" }, "did not come to rest: engine-2 is busy"},
		{func(r *RunReport) { r.Unsound = []string{"router: the digest of pool 1 differs"} }, "router: the digest of pool 1 differs"},
		{func(r *RunReport) { r.Diverged = 1 }, "1 of 50 (owner, block, tier) triples differ between the router and their owners"},
		{func(r *RunReport) { r.Compared = 0 }, "no block was compared between the router and its owner"},
		{func(r *RunReport) { r.Unclean = []string{"router: signal: killed"} }, "router: signal: killed"},
	} {
		r := goodRun()
		c.spoil(&r)
		wantOnly(t, goodExpectation(), &r, "ours: "+c.want)
	}
}

func wantOnly(t *testing.T, e expectation, r *RunReport, want string) {
	t.Helper()
	reasons, _ := verdict(e, r)
	if len(reasons) != 1 || reasons[0] != want {
		t.Errorf("reasons %q, want only %q", reasons, want)
	}
}

// TestTierThatATraceNeverNeededIsANote: a trace decides what it needs. The demo's own
// requests are made to need every tier.
func TestTierThatATraceNeverNeededIsANote(t *testing.T) {
	e, r := goodExpectation(), goodRun()
	e.traced = true
	r.Served.Device, r.Served.Disk = 48, 0
	reasons, notes := verdict(e, &r)
	if want := "ours: the trace never needed the disk tier"; len(reasons) != 0 || len(notes) != 1 || notes[0] != want {
		t.Errorf("reasons %q, notes %q; want no reason and %q", reasons, notes, want)
	}
	text := renderReport(&Report{RunReport: r, Passed: true, Notes: notes}, false)
	if !strings.Contains(text, notes[0]) || !strings.Contains(text, "PASSED") {
		t.Errorf("the report does not say the note and that it passed:\n%s", text)
	}
}

func TestComparisonRunThatIsNotWhatItClaimsFails(t *testing.T) {
	e, r := goodExpectation(), goodRun()
	e.everyTier, e.offload = false, false
	wantOnly(t, e, &r, "ours: 40 tokens served from host and disk and 5 blocks loaded, though these tiers are off")

	r.Served, r.BlocksVerified = Served{Device: 80, Recomputed: 20}, 1
	wantOnly(t, e, &r, "ours: 0 tokens served from host and disk and 1 blocks loaded, though these tiers are off")

	e.offload, r.BlocksVerified = true, 0
	wantOnly(t, e, &r, "ours: no token was served from host or disk, though these tiers are on")

	e, r = goodExpectation(), goodRun()
	e.inTurn = true
	wantOnly(t, e, &r, "ours: requests were not given out in turn: one engine answered 3 of them, another one 7")

	e.engines, r.ByEngine = 3, map[uint64]int{1: 5, 2: 5}
	wantOnly(t, e, &r, "ours: requests were not given out in turn: one engine answered 0 of them, another one 5")
}

func TestFirstErrorsFollowTheirCount(t *testing.T) {
	var r RunReport
	rec := &recorder{}
	for range 5 {
		rec.fail("r1", ErrFailed)
	}
	rec.fillReport(&r)
	j := judge{name: "ours"}
	j.requests(&r)
	if len(j.reasons) != 1+maxFirstErrors || !strings.HasPrefix(j.reasons[1], "ours: request r1: ") {
		t.Errorf("reasons %q", j.reasons)
	}
}

func TestPercentileIsTheNearestRank(t *testing.T) {
	if got := percentile(nil, 99); got != 0 {
		t.Errorf("of nothing: %d", got)
	}
	values := []int64{10, 20, 30, 40}
	sorted := durations(values)
	for _, c := range []struct {
		p    int
		want int64
	}{{1, 10}, {25, 10}, {26, 20}, {50, 20}, {99, 40}, {100, 40}} {
		if got := percentile(sorted, c.p); int64(got) != c.want {
			t.Errorf("p%d = %d, want %d", c.p, got, c.want)
		}
	}
}
