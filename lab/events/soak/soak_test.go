package soak

import (
	"math/rand/v2"
	"strings"
	"testing"

	"github.com/blockyard-ai/blockyard/lab/cluster"
)

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

func TestAgentHasReturnedWhenTheRouterKnowsItsNewPublisher(t *testing.T) {
	for _, c := range []struct {
		name  string
		old   string
		spoil func(p *cluster.Picture)
		done  bool
	}{
		{"new publisher", "before", func(*cluster.Picture) {}, true},
		{"the old one still", "p", func(*cluster.Picture) {}, false},
		{"no stream yet", "before", func(p *cluster.Picture) { p.Agents[0].Streams = nil }, false},
		{"unknown to the router", "before", func(p *cluster.Picture) { p.Feeds = nil }, false},
		{"router behind", "before", func(p *cluster.Picture) { p.Feeds[0].Cursor = 3 }, false},
	} {
		p := &cluster.Picture{
			Agents: []cluster.AgentStats{{Streams: []cluster.AgentStream{{Owner: "worker 1/0", PublisherID: "p", LastEventID: 7}}}},
			Feeds:  []cluster.RouterFeed{{PublisherID: "p", Owner: "worker 1/0", Cursor: 7, Announced: 7}},
		}
		c.spoil(p)
		if reason := missing(p, map[uint64]string{1: c.old}); (reason == "") != c.done {
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
