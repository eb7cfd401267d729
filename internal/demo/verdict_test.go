package demo

import (
	"strings"
	"testing"
)

// goodRun is a run with nothing to complain about.
func goodRun() RunReport {
	return RunReport{
		Requests: 10, InputTokens: 100, Served: Served{Device: 40, Host: 30, Disk: 10, Recomputed: 20},
		BlocksVerified: 5, Events: EventCounts{In: 9, Out: 9, Gaps: 3, Repaired: 3},
		FramesDropped: 4, Resets: 1, Compared: 50, Settled: true,
	}
}

func TestGoodRunHasNoReasons(t *testing.T) {
	r := goodRun()
	if reasons := verdict("ours", &r, true, 4); len(reasons) != 0 {
		t.Errorf("reasons %q", reasons)
	}
	r.Served = Served{Device: 80, Recomputed: 20}
	if reasons := verdict("no_offload", &r, false, 4); len(reasons) != 0 {
		t.Errorf("without tiers: reasons %q", reasons)
	}
	r.FramesDropped, r.Events.Gaps, r.Events.Repaired = 0, 0, 0
	if reasons := verdict("no_offload", &r, false, 0); len(reasons) != 0 {
		t.Errorf("without dropped frames: reasons %q", reasons)
	}
}

func TestEachFailureIsAReason(t *testing.T) {
	for _, c := range []struct {
		spoil func(*RunReport)
		want  string
	}{
		{func(r *RunReport) { r.Failed = 2 }, "ours: 2 of 10 requests failed"},
		{func(r *RunReport) { r.Requests = 0 }, "ours: no request was sent"},
		{func(r *RunReport) { r.InputTokens = 101 }, "ours: served tokens add up to 100, not to the 101 input tokens"},
		{func(r *RunReport) { r.WrongBytes = 1 }, "ours: 1 wrong bytes in 5 verified blocks"},
		{func(r *RunReport) { r.Served.Device, r.Served.Host = 0, 70 }, "ours: no token was served from the device tier"},
		{func(r *RunReport) { r.Served.Device, r.Served.Host = 70, 0 }, "ours: no token was served from the host tier"},
		{func(r *RunReport) { r.Served.Device, r.Served.Disk = 50, 0 }, "ours: no token was served from the disk tier"},
		{func(r *RunReport) { r.FramesDropped = 2 }, "ours: 2 event frames were left out, want at least 3"},
		{func(r *RunReport) { r.Events.Gaps, r.Events.Repaired = 0, 0 }, "ours: 4 event frames were left out and no gap was found"},
		{func(r *RunReport) { r.Events.Repaired = 2 }, "ours: 2 of 3 gaps were repaired"},
		{func(r *RunReport) { r.Events.Lost = 1 }, "ours: 1 gaps were lost"},
		{func(r *RunReport) { r.Resets = 0 }, "ours: no engine cache was reset"},
		{func(r *RunReport) { r.Settled, r.unsettled = false, "engine-2 is busy" }, "ours: did not come to rest: engine-2 is busy"},
		{func(r *RunReport) { r.Diverged = 1 }, "ours: 1 of 50 (owner, block, tier) triples differ between the router and their owners"},
		{func(r *RunReport) { r.Unclean = []string{"router: signal: killed"} }, "ours: router: signal: killed"},
	} {
		r := goodRun()
		c.spoil(&r)
		reasons := verdict("ours", &r, true, 4)
		if len(reasons) != 1 || reasons[0] != c.want {
			t.Errorf("reasons %q, want only %q", reasons, c.want)
		}
	}
}

func TestFirstErrorsFollowTheirCount(t *testing.T) {
	r := goodRun()
	rec := &recorder{}
	for range 5 {
		rec.fail("r1", ErrFailed)
	}
	rec.fillReport(&r)
	reasons := verdict("ours", &r, false, 4)
	if len(reasons) != 1+maxFirstErrors || !strings.HasPrefix(reasons[1], "ours: request r1: ") {
		t.Errorf("reasons %q", reasons)
	}
}

func TestCompareCountsTriplesThatOneSideAloneKnows(t *testing.T) {
	dump := routerDump{Owners: []dumpOwner{
		{Kind: "worker", ID: 1, Blocks: []dumpBlock{{"aa", []string{"device"}}, {"bb", []string{"device"}}}},
		{Kind: "worker", ID: 2},
		{Kind: "pool", ID: 9, Blocks: []dumpBlock{{"aa", []string{"host_pinned", "disk"}}, {"cc", []string{"disk"}}}},
	}}
	engines := []engineState{{WorkerID: 1, Blocks: []string{"aa", "bb"}}, {WorkerID: 2}}
	pools := []agentPool{{Pool: 9, Blocks: []poolBlock{
		{Hash: "aa", Tiers: []string{"host_pinned", "disk"}}, {Hash: "cc", Tiers: []string{"disk"}},
	}}}
	if d := compare(dump, engines, pools); d.Count != 0 || d.Compared != 5 {
		t.Errorf("equal pictures: %+v", d)
	}
	engines[1].Blocks = []string{"bb"}          // the router missed a store
	engines[0].Blocks = []string{"bb"}          // the router missed a removal
	pools[0].Blocks[1].Tiers[0] = "host_pinned" // the tier differs: two triples
	dump.Owners[2].ID, pools[0].Pool = 10, 10   // no difference
	dump.Owners[0].Rank, engines[0].Rank = 3, 3 // no difference
	want := []string{
		"owner only:  pool 10/0 block cc in host_pinned",
		"owner only:  worker 2/0 block bb in device",
		"router only: pool 10/0 block cc in disk",
		"router only: worker 1/3 block aa in device",
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
