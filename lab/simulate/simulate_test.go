package simulate

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/blockyard-ai/blockyard/lab/simulate/engine"
	"github.com/blockyard-ai/blockyard/lab/simulate/policy"
	"github.com/blockyard-ai/blockyard/lab/simulate/report"
	"github.com/blockyard-ai/blockyard/lab/workload"
)

// small returns a scenario of four workers and ten seconds, changed by change.
func small(change func(*Scenario)) *Scenario {
	h := machines(equal(4))
	s := &Scenario{Name: "small", Hardware: h, Limits: report.Limits{TTFT: time.Second, TBT: 50 * time.Millisecond}, Duration: 10 * time.Second, WarmUp: time.Second, Routers: 1,
		Load: chats(300, 10)}
	if change != nil {
		change(s)
	}
	return s
}

// chats returns a load of conversations of which rate begin in a second.
func chats(requests int, rate float64) func(seed uint64) ([]workload.Request, error) {
	return func(seed uint64) ([]workload.Request, error) {
		return workload.Generate(workload.Options{Seed: seed, Requests: requests, Rate: rate, Think: time.Second,
			System: workload.Lengths{Median: 800, Sigma: 0.5, Min: 100, Max: 4000}, Output: workload.Lengths{Median: 80, Sigma: 0.6, Min: 4, Max: 400}})
	}
}

// run simulates a scenario with a policy.
func run(t *testing.T, s *Scenario, name string, seed uint64) report.Result {
	t.Helper()
	prompts, err := s.prompts(seed)
	if err != nil {
		t.Fatal(err)
	}
	p, ok := policy.Named(name)
	if !ok {
		t.Fatalf("no policy %s", name)
	}
	r, err := simulate(s, prompts, p, seed)
	if err != nil {
		t.Fatal(err)
	}
	return r
}

// TestOneSeedOneResult for every policy, with several routers, a loss and a newcomer; and all requests
// end.
func TestOneSeedOneResult(t *testing.T) {
	s := small(func(s *Scenario) {
		s.Load = chats(150, 5)
		s.Routers, s.Lag = 2, 20*time.Millisecond
		s.Events = []Event{{At: 3 * time.Second, Kind: Kill, Worker: 1}, {At: 4 * time.Second, Kind: Add, Speed: 0.5},
			{At: 5 * time.Second, Kind: Drain, Worker: 2}, {At: 6 * time.Second, Kind: Slow, Worker: 0, Factor: 0.5}, {At: 6 * time.Second, Kind: Disk, Factor: 0.1}}
	})
	for _, p := range policy.All() {
		a, b := run(t, s, p.Name, 1), run(t, s, p.Name, 1)
		if !reflect.DeepEqual(a, b) {
			t.Errorf("%s: %+v and then %+v", p.Name, a, b)
		}
		if a.Unfinished != 0 || a.Failed != 0 || a.Requests == 0 {
			t.Errorf("%s: %d requests, %d unfinished, %d failed", p.Name, a.Requests, a.Unfinished, a.Failed)
		}
	}
	if a, b := run(t, s, "price", 1), run(t, s, "price", 2); reflect.DeepEqual(a, b) {
		t.Error("two seeds have one result")
	}
}

// TestCachesAreUsed: what looks at caches computes less than what does not, and nothing serves more
// than an infinite cache would but by chance of the order.
func TestCachesAreUsed(t *testing.T) {
	s := small(nil)
	random, price := run(t, s, "random", 1), run(t, s, "price", 1)
	if price.Served.Cached() < random.Served.Cached()+0.05 || price.Served.Cached() > price.InfiniteShare+0.05 {
		t.Errorf("random %.2f, price %.2f, infinite %.2f", random.Served.Cached(), price.Served.Cached(), price.InfiniteShare)
	}
}

// TestForksMeet: conversations that continue one new history at nearly the same time find it where it is
// computed. Weights, which have no credit for it, compute it several times.
func TestForksMeet(t *testing.T) {
	s := small(func(s *Scenario) {
		s.Duration, s.WarmUp = 30*time.Second, 10*time.Second
		s.Load = forks(1.5, s.Duration)
	})
	weights, price := run(t, s, "weights", 1), run(t, s, "price", 1)
	if price.Served.Cached() < price.InfiniteShare-0.03 || price.Served.Cached() < weights.Served.Cached()+0.05 {
		t.Errorf("weights %.2f, price %.2f, infinite %.2f", weights.Served.Cached(), price.Served.Cached(), price.InfiniteShare)
	}
}

// TestPriceDoesNotHerd: of equal workers that share no prefix none gets much more than its share, and
// none is left alone, while at least four requests run per worker. A price of the first token alone had
// sent 120 requests to one worker and none to another.
func TestPriceDoesNotHerd(t *testing.T) {
	s := small(func(s *Scenario) {
		s.Hardware = machines(equal(8))
		s.Load = func(seed uint64) ([]workload.Request, error) {
			return workload.Generate(workload.Options{Seed: seed, Requests: 500, Rate: 36, Turns: 1, SystemPrompts: 100_000, SystemZipf: 0.001,
				System: workload.Lengths{Median: 1500, Sigma: 1, Min: 64, Max: 12_000}, Output: workload.Lengths{Median: 180, Sigma: 0.7, Min: 4, Max: 1200}})
		}
	})
	for seed := range uint64(2) {
		if r := run(t, s, "price", seed+1); r.Herd == 0 || r.Herd > 1.6 || r.Balance < 0.5 {
			t.Errorf("seed %d: the most loaded worker had %.2f of the fair share, the least loaded %.2f", seed+1, r.Herd, r.Balance)
		}
	}
	h := herd{sums: []float64{3, 1}, samples: 2}
	if h.worst() != 1.5 || h.balance() != 0.5 {
		t.Errorf("%v and %v of the fair share, want 1.5 and 0.5", h.worst(), h.balance())
	}
}

// TestASlowStarterGetsItsShare: a worker that joins and whose first steps take four times as long is not
// left alone when it has become as fast as the others.
func TestASlowStarterGetsItsShare(t *testing.T) {
	s := small(func(s *Scenario) {
		s.Duration = 30 * time.Second
		s.Hardware.WarmUp = 300
		s.Events = []Event{{At: time.Second, Kind: Add, Speed: 1}}
		s.Load = chats(1500, 18)
	})
	prompts, err := s.prompts(1)
	if err != nil {
		t.Fatal(err)
	}
	p, _ := policy.Named("price")
	c, err := newCluster(s, prompts, p, 1)
	if err != nil {
		t.Fatal(err)
	}
	c.run()
	if c.err != nil {
		t.Fatal(c.err)
	}
	fair := 0
	for _, n := range c.routed {
		fair += n / 5
	}
	if got := c.routed[4]; got < fair/3 {
		t.Errorf("%d requests on the worker that started slowly, a fair share is %d: %v", got, fair, c.routed)
	}
}

// TestRunWritesTablesAndFiles, and a trace is a scenario.
func TestRunWritesTablesAndFiles(t *testing.T) {
	dir := t.TempDir()
	trace := filepath.Join(dir, "tiny.jsonl")
	var lines strings.Builder
	for i := range 40 {
		b, err := json.Marshal(map[string]any{"timestamp": i * 900, "input_length": 1030 + i, "output_length": 20, "hash_ids": []int{1, 2, 100 + i}})
		if err != nil {
			t.Fatal(err)
		}
		lines.Write(append(b, '\n'))
	}
	if err := os.WriteFile(trace, []byte(lines.String()), 0o644); err != nil {
		t.Fatal(err)
	}
	s, err := TraceScenario(trace, FormatMooncake, engine.DefaultSteps())
	if err != nil {
		t.Fatal(err)
	}
	if r := run(t, &s, "price", 1); r.Unfinished != 0 {
		t.Errorf("%+v", r)
	}
	var out strings.Builder
	o := Options{Seeds: 1, Scenarios: []string{"disk"}, Policies: []string{"price", "random"}, JSON: filepath.Join(dir, "r.json"), Page: filepath.Join(dir, "r.html"), Out: &out}
	tables, err := Run(t.Context(), o)
	if err != nil {
		t.Fatal(err)
	}
	if len(tables) != 1 || len(tables[0].Rows) != 2 || !strings.Contains(out.String(), "simulate: scenarios=1 ") {
		t.Errorf("%d tables: %s", len(tables), out.String())
	}
	for name, limits := range map[string]string{o.JSON: `"ttft_ms": 1500,`, o.Page: tables[0].Limits.String()} {
		if b, err := os.ReadFile(name); err != nil || !strings.Contains(string(b), limits) {
			t.Errorf("%s, %v: no %s in %d bytes", name, err, limits, len(b))
		}
	}
	if first, _, _ := strings.Cut(out.String(), "\n"); !strings.HasSuffix(first, "first token within 1500 ms and a mean time between tokens of at most 60 ms") {
		t.Errorf("the title does not state the limits: %s", first)
	}
	for _, bad := range []Options{{Seeds: 0}, {Seeds: 1, Policies: []string{"luck"}}, {Seeds: 1, Scenarios: []string{"mars"}},
		{Seeds: 1, Workers: 7}, {Seeds: 1, Workers: MaxWorkers + 1}, {Seeds: 1, Workers: 16, Traces: []string{trace}}} {
		if err := bad.Validate(); err == nil {
			t.Errorf("%+v is valid", bad)
		}
	}
}

// TestHistoriesAndForks: a turn repeats what came before, a helper begins with its agent's history, and
// a whole prompt with nothing.
func TestHistoriesAndForks(t *testing.T) {
	piece := func(stream uint64, tokens int) []workload.Piece {
		return []workload.Piece{{Stream: stream, Tokens: tokens}}
	}
	requests := []workload.Request{
		{ID: "a0", Session: 0, Pieces: piece(1, 64), OutputTokens: 32},
		{ID: "a1", Session: 0, Turn: 1, Pieces: piece(2, 32), OutputTokens: 16},
		{ID: "h0", Session: 1, Fork: &workload.Fork{Session: 0, Turn: 0}, Pieces: piece(3, 48), OutputTokens: 16},
		{ID: "w0", Session: 2, Whole: true, Pieces: piece(1, 64), OutputTokens: 16},
	}
	p, err := promptsOf(requests, 16)
	if err != nil {
		t.Fatal(err)
	}
	for i, want := range []int{64, 128, 144, 64} {
		if p[i].tokens != want || p[i].promptBlocks != want/16 {
			t.Errorf("%s: %d tokens, %d blocks, want %d", p[i].id, p[i].tokens, p[i].promptBlocks, want)
		}
	}
	same := func(a, b *prompt, blocks int) bool {
		return slices.Equal(a.text.Blocks[:blocks], b.text.Blocks[:blocks]) && slices.Equal(a.text.Numbers[:blocks], b.text.Numbers[:blocks])
	}
	if !same(p[0], p[1], 6) || !same(p[1], p[2], 6) || same(p[1], p[2], 7) || !same(p[0], p[3], 4) || same(p[0], p[3], 5) {
		t.Error("histories are not those of the sessions")
	}
	if p[0].next != p[1] || len(p[0].forks) != 1 || p[0].forks[0] != p[2] || !p[3].starts || p[1].starts || p[2].starts {
		t.Error("turns and helpers do not follow one another")
	}
	if p[1].known != 96 || p[3].known != 63 {
		t.Errorf("an infinite cache has %d and %d tokens", p[1].known, p[3].known)
	}
	if all, err := Accesses(requests, 16); err != nil || len(all) != 4 || len(all[0].Sequence) != 6 || all[0].Prompt != 4 {
		t.Errorf("accesses %v, %v: want the answer's blocks too", all, err)
	}
	requests[2].Fork.Turn = 9
	if _, err := promptsOf(requests, 16); err == nil || !strings.Contains(err.Error(), "turn 9") {
		t.Error(err)
	}
}

// TestSyncedRoutersDecideLikeOne: shared bookings bring several routers within 3 % of the times to the
// first token of one router, and without them the times are longer. Time is virtual: each run has the same figures.
func TestSyncedRoutersDecideLikeOne(t *testing.T) {
	for _, c := range []struct {
		policy         string
		routers, seeds int
	}{{"weights", 3, 2}, {"weights", 4, 4}, {"price", 4, 4}} {
		t.Run(fmt.Sprint(c.policy, c.routers), func(t *testing.T) {
			t.Parallel()
			f, err := CompareFleet(t.Context(), c.policy, c.routers, c.seeds)
			if err != nil {
				t.Fatal(err)
			}
			if f.Mean > 1.03 || f.Mean >= f.StaleMean || f.P99 > 1.03 || f.P99 >= f.StaleP99 {
				t.Errorf("%+v", f)
			}
		})
	}
}

// TestRolesAreKept: prompts are computed on the workers for them and answered on the others, their KV goes over the
// network, each policy serves all requests, and one seed has one result.
func TestRolesAreKept(t *testing.T) {
	s := small(func(s *Scenario) {
		s.Hardware.Prefill, s.Hardware.NetworkBytes = 2, 12.5e9
		s.Load = chats(150, 5)
	})
	prompts, err := s.prompts(1)
	if err != nil {
		t.Fatal(err)
	}
	for _, p := range policy.All() {
		c, err := newCluster(s, prompts, p, 1)
		if err != nil {
			t.Fatal(err)
		}
		if c.run(); c.err != nil {
			t.Fatalf("%s: %v", p.Name, c.err)
		}
		decoded := c.routed[2] + c.routed[3]
		if prefilled := c.routed[0] + c.routed[1]; prefilled == 0 || prefilled > decoded {
			t.Errorf("%s: %d prompts computed and %d answers: %v", p.Name, prefilled, decoded, c.routed)
		}
		r := c.finish()
		if r.Unfinished != 0 || r.Failed != 0 || r.Requests == 0 || r.Moved.Network == 0 {
			t.Errorf("%s: %d requests, %d unfinished, %d failed, %.0f bytes over the network", p.Name, r.Requests, r.Unfinished, r.Failed, r.Moved.Network)
		}
	}
	if a, b := run(t, s, "price", 1), run(t, s, "price", 1); !reflect.DeepEqual(a, b) {
		t.Errorf("%+v and then %+v", a, b)
	}
}

// TestDecisionsAreExplained: the first seed has a bounded sample whose chosen worker is among those compared, the
// others have none, and the sample changes no result.
func TestDecisionsAreExplained(t *testing.T) {
	s := small(func(s *Scenario) { s.Load = chats(150, 5) })
	r := run(t, s, "price", 1)
	if n := len(r.Decisions); n < explainedDecisions/2 || n > explainedDecisions {
		t.Fatalf("%d decisions, want about %d", n, explainedDecisions)
	}
	for i, d := range r.Decisions {
		chosen := slices.IndexFunc(d.Candidates, func(c report.Candidate) bool { return c.Chosen })
		if chosen < 0 || d.Compared != 4 || len(d.Candidates) != 4 || d.Candidates[0].Cost > d.Candidates[chosen].Cost ||
			d.AtMS < 1000 || i > 0 && d.AtMS <= r.Decisions[i-1].AtMS || d.Candidates[0].TTFTMS <= 0 {
			t.Errorf("%+v", d)
		}
	}
	if other := run(t, s, "price", 2); len(other.Decisions) > 0 {
		t.Errorf("seed 2: %d decisions", len(other.Decisions))
	}
	prompts, err := s.prompts(1)
	if err != nil {
		t.Fatal(err)
	}
	p, _ := policy.Named("price")
	c, err := newCluster(s, prompts, p, 1)
	if err != nil {
		t.Fatal(err)
	}
	c.explainAt = s.Duration // no decision is explained
	c.run()
	if plain := c.finish(); plain.Decisions == nil {
		r.Decisions = nil
		if !reflect.DeepEqual(plain, r) {
			t.Errorf("%+v, and without explanations %+v", r, plain)
		}
	} else {
		t.Errorf("%d decisions are explained", len(plain.Decisions))
	}
}

// TestSplitRoutersDecideLikeOne: routers with a part of the index each, by the first blocks, have the times to the first token of one router
// or less. With few first blocks none of a common system prompt is kept twice, and with many the parts are more even, up to what all have. It
// logs the shares of docs/fleet.md.
func TestSplitRoutersDecideLikeOne(t *testing.T) {
	for first, most := range map[int]struct{ fullest, sum float64 }{1: {0.65, 1.05}, 8: {0.5, 1.15}, 32: {0.6, 2.1}} {
		t.Run(fmt.Sprint(first), func(t *testing.T) {
			t.Parallel()
			s, err := CompareSplit(t.Context(), "weights", 4, first, 2)
			if err != nil {
				t.Fatal(err)
			}
			t.Logf("first %d blocks: the fullest of 4 routers keeps %.0f %%, all together %.0f %%; time to the first token: mean %.3f, 99th percentile %.3f of one router's",
				first, 100*s.Fullest, 100*s.Sum, s.Mean, s.P99)
			if s.Mean > 1.03 || s.P99 > 1.03 || s.Fullest > most.fullest || s.Sum > most.sum || s.Sum < 0.95 {
				t.Errorf("%+v", s)
			}
		})
	}
}
