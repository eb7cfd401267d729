package fleet

import (
	"math"
	"strings"
	"testing"

	"github.com/blockyard-ai/blockyard/lab/simulate"
)

// The comparison sees everything that may be wrong, and names it.
func TestComparisonSeesEveryDifference(t *testing.T) {
	r1 := booking{RequestID: "r1", Router: "a", WorkerID: 1, PrefillTokens: 9}
	own := r1
	own.Own = true
	waits := r1
	waits.PrefillTokens = 0
	generated := r1
	generated.OutputBlocks = 2
	for _, c := range []struct {
		name                   string
		lists                  [][]booking
		owners                 map[string]int
		diverged, lost, double int
	}{
		{"equal", [][]booking{{own}, {r1}}, map[string]int{"r1": 0}, 0, 0, 0},
		{"nothing", [][]booking{{}, {}}, nil, 0, 0, 0},
		{"missing at a router", [][]booking{{own}, {}}, map[string]int{"r1": 0}, 1, 0, 0},
		{"other progress", [][]booking{{own}, {waits}}, map[string]int{"r1": 0}, 1, 0, 0},
		{"other output", [][]booking{{own}, {generated}}, map[string]int{"r1": 0}, 1, 0, 0},
		{"lost at its router", [][]booking{{}, {}}, map[string]int{"r1": 0}, 0, 1, 0},
		{"left behind", [][]booking{{}, {r1}}, nil, 1, 0, 0},
		{"never freed", [][]booking{{own}, {r1}}, nil, 1, 0, 0},
		{"twice", [][]booking{{own}, {r1, r1}}, map[string]int{"r1": 0}, 0, 0, 1},
		{"booked elsewhere", [][]booking{{own}, {r1}}, map[string]int{"r1": 1}, 1, 0, 0},
	} {
		d := compare(c.lists, c.owners)
		if d.diverged != c.diverged || d.lost != c.lost || d.double != c.double || d.clean() != (len(d.first) == 0) {
			t.Errorf("%s: %+v", c.name, d)
		}
	}
}

func TestVerdictNamesWhatIsWrong(t *testing.T) {
	good := tally{compared: 1, routerKills: 1, routerStops: 1, agentKills: 1, brokerKills: 1, forwarded: 1, restatements: 1}
	for want, spoil := range map[string]func(w *world){
		"":                   func(*world) {},
		"diverged=1":         func(w *world) { w.tally.diverged = 1 },
		"lost=1":             func(w *world) { w.tally.lost = 1 },
		"double_booked=1":    func(w *world) { w.tally.doubleBooked = 1 },
		"marks not found 1":  func(w *world) { w.ledger.unknown.Add(1) },
		"not answered 1":     func(w *world) { w.ledger.unanswered.Add(1) },
		"no orderly end":     func(w *world) { w.tally.routerStops = 0 },
		"no output block":    func(w *world) { w.ledger.outputs.Store(0) },
		"no kill of a route": func(w *world) { w.tally.routerKills = 0 },
		"no restatement":     func(w *world) { w.tally.restatements = 0 },
		"no compared":        func(w *world) { w.tally.compared = 0 },
		"ttft_vs_one=1.031":  func(w *world) { w.simulated = &simulate.Fleet{Mean: 1.031, P99: 1.03} },
		"p99_vs_one=1.031":   func(w *world) { w.simulated = &simulate.Fleet{Mean: 1.03, P99: 1.031} },
		"ttft_vs_one=NaN":    func(w *world) { w.simulated = &simulate.Fleet{Mean: math.NaN(), P99: 1} },
	} {
		w := &world{o: &Options{Seed: 5}, ledger: newLedger(), tally: good}
		w.ledger.freed.Add(1)
		w.ledger.outputs.Add(1)
		w.simulated = &simulate.Fleet{Mean: maxRatio, P99: maxRatio}
		spoil(w)
		if err := w.verdict(); (err == nil) != (want == "") || err != nil && !strings.Contains(err.Error(), want) {
			t.Errorf("verdict %v, want %q", err, want)
		}
	}
}

func TestOptionsOutOfRangeAreNamed(t *testing.T) {
	for want, o := range map[string]Options{
		"duration -1ns": {Duration: -1}, "rounds -1": {Rounds: -1}, "routers 1": {Routers: 1}, "quiet -1ns": {Quiet: -1}, "seeds 101": {Seeds: 101},
	} {
		if err := o.Validate(); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%v, want %q", err, want)
		}
	}
}
