package soak

import (
	"math/rand/v2"
	"strings"
	"testing"

	"github.com/blockyard-ai/blockyard/internal/kv"
	"github.com/blockyard-ai/blockyard/internal/kvevent"
	"github.com/blockyard-ai/blockyard/lab/cluster"
)

func exampleTruth() ([]cluster.EngineState, []cluster.AgentPool) {
	const aa, bb = "00000000000000aa", "00000000000000bb"
	return []cluster.EngineState{{WorkerID: 1, Blocks: []string{aa, bb}}, {WorkerID: 2, Rank: 1, Blocks: []string{aa}}},
		[]cluster.AgentPool{{Pool: 42, Blocks: []cluster.Block{{Hash: aa, Tiers: []string{"host_pinned", "disk"}}}}}
}

// row is one element of a router's dump.
func row(o kv.Owner, tier kv.Tier, hashes ...kv.SequenceHash) (r kvevent.StoredJSON) {
	e := kvevent.RouterEvent{Kind: kvevent.Stored, Owner: o, Tier: tier}
	for _, h := range hashes {
		e.Blocks = append(e.Blocks, kvevent.StoredBlock{Hash: h})
	}
	r.Set(&e)
	return r
}

func exampleDump() cluster.RouterDump {
	one, two := kv.WorkerOwner(kv.Worker{ID: 1}), kv.WorkerOwner(kv.Worker{ID: 2, Rank: 1})
	return cluster.RouterDump{
		row(one, kv.TierDevice, 0xaa, 0xbb), row(two, kv.TierDevice, 0xaa),
		row(kv.PoolOwner(42), kv.TierHost, 0xaa), row(kv.PoolOwner(42), kv.TierDisk, 0xaa),
	}
}

// Whatever the router gets wrong about owner, rank, tier or block is a difference,
// on the side where it is.
func TestCompareSeesEveryKindOfDifference(t *testing.T) {
	for name, c := range map[string]struct {
		spoil         func(d cluster.RouterDump) cluster.RouterDump
		lost, phantom int
	}{
		"nothing": {func(d cluster.RouterDump) cluster.RouterDump { return d }, 0, 0},
		"block unknown": {func(d cluster.RouterDump) cluster.RouterDump {
			return append(d[1:], row(d[0].Owner(), kv.TierDevice, 0xaa))
		}, 1, 0},
		"tier unknown":  {func(d cluster.RouterDump) cluster.RouterDump { return append(d[:2], d[3]) }, 1, 0},
		"owner unknown": {func(d cluster.RouterDump) cluster.RouterDump { return d[:2] }, 2, 0},
		"block made up": {func(d cluster.RouterDump) cluster.RouterDump {
			return append(d, row(d[1].Owner(), kv.TierDevice, 0xcc))
		}, 0, 1},
		"wrong tier": {func(d cluster.RouterDump) cluster.RouterDump {
			return append(d[1:], row(d[0].Owner(), kv.TierDisk, 0xaa), row(d[0].Owner(), kv.TierDevice, 0xbb))
		}, 1, 1},
		"wrong rank":  {func(d cluster.RouterDump) cluster.RouterDump { d[1].Event.Rank = 0; return d }, 1, 1},
		"wrong kind":  {func(d cluster.RouterDump) cluster.RouterDump { d[2].OwnerKind, d[3].OwnerKind = "", ""; return d }, 2, 2},
		"wrong owner": {func(d cluster.RouterDump) cluster.RouterDump { d[0].WorkerID = 3; return d }, 2, 2},
	} {
		d := compare(truth(exampleTruth()), belief(c.spoil(exampleDump())))
		if d.lost != c.lost || d.phantom != c.phantom || d.compared != 5+c.phantom {
			t.Errorf("%s: lost %d, phantom %d, compared %d; want %d, %d, %d", name, d.lost, d.phantom, d.compared, c.lost, c.phantom, 5+c.phantom)
		}
		if len(d.first) != d.diverged() {
			t.Errorf("%s: describes %q", name, d.first)
		}
	}
}

func TestEveryFaultIsDrawnBeforeOneIsDrawnAgain(t *testing.T) {
	rng := rand.New(rand.NewPCG(1, 2))
	var bag []fault
	for draws := range 3 * len(faults()) {
		draw(rng, &bag)
		if want := len(faults()) - 1 - draws%len(faults()); len(bag) != want {
			t.Fatalf("after draw %d the bag holds %d faults, want %d", draws, len(bag), want)
		}
	}
}

// settledView is a view in which all is well; tests spoil it.
func settledView() *view {
	return &view{
		states: []cluster.EngineState{{WorkerID: 1, Idle: true}},
		agents: []cluster.AgentStats{{Quiet: true, Streams: []cluster.AgentStream{
			{Owner: "worker 1/0", PublisherID: "p", LastEventID: 7, Health: healthExact},
		}}},
		feeds: []cluster.RouterFeed{{PublisherID: "p", Owner: "worker 1/0", Cursor: 7, Announced: 7, Health: healthExact, DigestOK: true}},
	}
}

// What is compared while something moves, or on a router's bare word, proves
// nothing.
func TestNothingSettlesBeforeItHas(t *testing.T) {
	for want, spoil := range map[string]func(v *view){
		"":                         func(*view) {},
		"engine 1 is busy":         func(v *view) { v.states[0].Idle = false },
		"agent 1 is busy":          func(v *view) { v.agents[0].Quiet = false },
		"the router is at event 6": func(v *view) { v.feeds[0].Cursor = 6 },
		"heard of 6":               func(v *view) { v.feeds[0].Announced = 6 },
		"follows 2 feeds": func(v *view) {
			v.feeds = append(v.feeds, cluster.RouterFeed{PublisherID: "q", Health: healthExact, DigestOK: true})
		},
		"the stream of worker 1/0 is":  func(v *view) { v.agents[0].Streams[0].Health = "degraded" },
		"feed of worker 1/0 is":        func(v *view) { v.feeds[0].Health = "degraded" },
		"digest as announced: false":   func(v *view) { v.feeds[0].DigestOK = false },
		"no agent has a stream of eng": func(v *view) { v.agents[0].Streams[0].Owner = "worker 2/0" },
	} {
		v := settledView()
		spoil(v)
		if got := v.movement() + v.doubts(); !strings.Contains(got, want) || (want == "") != (got == "") {
			t.Errorf("the view says %q, want %q", got, want)
		}
	}
}

func TestAgentHasReturnedWhenTheRouterKnowsItsNewPublisher(t *testing.T) {
	for _, c := range []struct {
		name  string
		old   string
		spoil func(v *view)
		done  bool
	}{
		{"new publisher", "before", func(*view) {}, true},
		{"the old one still", "p", func(*view) {}, false},
		{"no stream yet", "before", func(v *view) { v.agents[0].Streams = nil }, false},
		{"unknown to the router", "before", func(v *view) { v.feeds = nil }, false},
		{"router behind", "before", func(v *view) { v.feeds[0].Cursor = 3 }, false},
	} {
		v := settledView()
		c.spoil(v)
		if reason := v.missing(map[uint64]string{1: c.old}); (reason == "") != c.done {
			t.Errorf("%s: %q", c.name, reason)
		}
	}
}

// A run passes only when nothing differs, everything came to rest and every fault
// was there.
func TestVerdictNamesWhatIsWrong(t *testing.T) {
	good := tally{
		events: 1, compared: 1, dropped: 1, brokerRestarts: 1, agentRestarts: 1, engineRestarts: 1, routerRestarts: 1, kept: 1,
	}
	o := &Options{Seed: 5}
	if err := good.verdict(o); err != nil {
		t.Errorf("a good run: %v", err)
	}
	for want, spoil := range map[string]func(t *tally){
		"lost=1 diverged=2":    func(t *tally) { t.lost, t.diverged = 1, 2 },
		"kept 98.00 %":         func(t *tally) { t.kept = 0.98 },
		"came to rest":         func(t *tally) { t.note("an agent is busy") },
		"no dropped frame":     func(t *tally) { t.dropped = 0 },
		"no comparison":        func(t *tally) { t.compared = 0 },
		"restart of an engine": func(t *tally) { t.engineRestarts = 0 },
	} {
		bad := good
		spoil(&bad)
		if err := bad.verdict(o); err == nil || !strings.Contains(err.Error(), want) || !strings.Contains(err.Error(), "seed 5") {
			t.Errorf("verdict %v, want %q", err, want)
		}
	}
	if blind(&good, nil) == nil || blind(&tally{diverged: 1}, nil) != nil {
		t.Error("a run without repair must diverge, and may")
	}
}
