package demo

import (
	"strings"
	"testing"

	"github.com/blockyard-ai/blockyard/internal/kv"
)

// goodRun is a run with nothing to complain about: ours, goodExpectation.
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

func TestStreamsAndFeedsThatAreNotExactAreUnsound(t *testing.T) {
	c := &demoCluster{
		agents:  []*agentNode{{endpoint: endpoint{process: "agent-1"}}},
		engines: []*engine{{endpoint: endpoint{process: "engine-1"}, worker: 1}},
		router:  endpoint{process: "router", url: "http://unused"},
	}
	const worker = "worker 1/0"
	for _, e := range []struct {
		spoil func(*snapshot)
		want  string
	}{
		{func(*snapshot) {}, ""},
		{func(s *snapshot) { s.agents[0].Streams[0].Health = "degraded" }, "agent-1: the stream of worker 1/0 is degraded"},
		{func(s *snapshot) { s.agents[0].Streams[0].PublisherID = "b" }, "router: no feed of worker 1/0"},
		{func(s *snapshot) { s.agents[0].Streams = nil }, "no agent has a stream of worker 1/0"},
		{func(s *snapshot) { s.feeds[0].Health = "gone" }, "router: the feed of worker 1/0 is gone"},
		{func(s *snapshot) { s.feeds[0].DigestOK = false }, "router: the digest of worker 1/0 differs"},
		{func(s *snapshot) { s.feeds[0].Gaps = 3 }, "router: 2 of 3 gaps in the feed of worker 1/0 were repaired"},
	} {
		s := snapshot{
			engines: []engineState{{WorkerID: 1, Idle: true}},
			agents:  []agentStats{{Quiet: true, Streams: []streamStat{{Owner: worker, PublisherID: "a", LastEventID: 4, Health: "exact"}}}},
			feeds: []routerFeed{{
				PublisherID: "a", Owner: worker, Cursor: 4, Announced: 4, Health: "exact", Gaps: 2, Repaired: 2, DigestOK: true,
			}},
		}
		e.spoil(&s)
		if got := strings.Join(s.inexact(c), "; "); got != e.want {
			t.Errorf("unsound: %q, want %q", got, e.want)
		}
	}
}

// A digest says nothing about events that came after it.
func TestRestNeedsADigestOfTheLastEvent(t *testing.T) {
	c := &demoCluster{router: endpoint{process: "router", url: "http://unused"}}
	s := snapshot{
		agents: []agentStats{{Quiet: true, Streams: []streamStat{{Owner: "pool 1", PublisherID: "a", LastEventID: 4}}}},
		feeds:  []routerFeed{{PublisherID: "a", Cursor: 4, Announced: 3}},
	}
	if got, want := s.moving(c), "the router has not heard the announcement of event 4 of pool 1"; got != want {
		t.Errorf("moving: %q, want %q", got, want)
	}
	s.feeds[0].Announced = 4
	if got := s.moving(c); got != "" {
		t.Errorf("moving: %q", got)
	}
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

func TestCompareCountsTriplesThatOneSideAloneKnows(t *testing.T) {
	one := kv.WorkerOwner(kv.Worker{ID: 1})
	dump := routerDump{
		dumpRow(one, kv.TierDevice, 0xaa, 0xbb),
		dumpRow(kv.PoolOwner(9), kv.TierHost, 0xaa), dumpRow(kv.PoolOwner(9), kv.TierDisk, 0xaa, 0xcc),
	}
	engines := []engineState{{WorkerID: 1, Blocks: []string{"00000000000000aa", "00000000000000bb"}}, {WorkerID: 2}}
	pools := []agentPool{{Pool: 9, Blocks: []poolBlock{
		{Hash: "00000000000000aa", Tiers: []string{"host_pinned", "disk"}}, {Hash: "00000000000000cc", Tiers: []string{"disk"}},
	}}}
	if d := compare(dump, engines, pools); d.Count != 0 || d.Compared != 5 {
		t.Errorf("equal pictures: %+v", d)
	}
	engines[1].Blocks = []string{"00000000000000bb"}               // the router missed a store
	engines[0].Blocks = []string{"00000000000000bb"}               // the router missed a removal
	pools[0].Blocks[1].Tiers[0] = "host_pinned"                    // the tier differs: two triples
	dump[1].WorkerID, dump[2].WorkerID, pools[0].Pool = 10, 10, 10 // no difference
	dump[0].Event.Rank, engines[0].Rank = 3, 3                     // no difference
	want := []string{
		"owner only:  pool 10/0 block 00000000000000cc in host_pinned",
		"owner only:  worker 2/0 block 00000000000000bb in device",
		"router only: pool 10/0 block 00000000000000cc in disk",
		"router only: worker 1/3 block 00000000000000aa in device",
	}
	d := compare(dump, engines, pools)
	if d.Count != 4 || strings.Join(d.First, "|") != strings.Join(want, "|") {
		t.Errorf("got %d %q, want %q", d.Count, d.First, want)
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
