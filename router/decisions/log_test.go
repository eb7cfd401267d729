package decisions_test

import (
	"fmt"
	"slices"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/blockyard-ai/blockyard/internal/kv"
	"github.com/blockyard-ai/blockyard/router/decisions"
	"github.com/blockyard-ai/blockyard/router/index"
	"github.com/blockyard-ai/blockyard/router/schedule"
)

func worker(id uint64) kv.Worker { return kv.Worker{ID: kv.WorkerID(id)} }

func candidate(id uint64, cost float64) schedule.Candidate {
	return schedule.Candidate{Worker: worker(id), Cost: cost}
}

// A decision has the chosen worker first and the others by cost, also when the chosen one is not the
// cheapest.
func TestChosenAndOthers(t *testing.T) {
	var l decisions.Log
	compared := make([]schedule.Candidate, 40)
	for i := range compared {
		compared[i] = candidate(uint64(i), float64(i))
	}
	l.Add(decisions.Decision{Request: "r"}, &schedule.Result{Worker: worker(30), Mode: "price"}, compared)
	d := l.Recent(1, time.Now())[0]
	if d.Chosen.Worker != worker(30) || d.Compared != 40 || d.Mode != "price" || len(d.Others) != decisions.MaxCandidates-1 || d.Others[14].Worker != worker(14) {
		t.Errorf("%+v", d)
	}
	// Without candidates the chosen one has what the result has.
	l.Add(decisions.Decision{}, &schedule.Result{Worker: worker(2), Cost: 7, Prefill: 3, Hits: index.Hits{1, 2}}, nil)
	if d := l.Recent(1, time.Now())[0]; d.Compared != 0 || d.Others != nil || d.Chosen.Cost != 7 || d.Chosen.Prefill != 3 || d.Chosen.Hits != (index.Hits{1, 2}) {
		t.Errorf("%+v", d)
	}
}

// Candidates are wanted for ten seconds after a look, of at most twenty decisions a second.
func TestWants(t *testing.T) {
	var l decisions.Log
	now := time.Now()
	if l.Wants(now) {
		t.Error("candidates are wanted before anybody looks")
	}
	l.Recent(1, now)
	for second := range 10 {
		wanted := 0
		for i := range 100 {
			if l.Wants(now.Add(time.Duration(second)*time.Second + time.Duration(i)*time.Millisecond)) {
				wanted++
			}
		}
		if wanted != 20 {
			t.Errorf("second %d: %d wanted, want 20", second, wanted)
		}
	}
	if l.Wants(now.Add(10 * time.Second)) {
		t.Error("candidates are wanted ten seconds after the look")
	}
}

// A Log and a list that keeps everything agree.
func TestLogModel(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		var (
			l       decisions.Log
			all     []string
			sums    decisions.Sums
			pending = make(map[kv.Worker][]float64)
			at      = time.Now()
		)
		t.Repeat(map[string]func(*rapid.T){
			"add": func(t *rapid.T) {
				for range rapid.IntRange(1, 60).Draw(t, "times") {
					blocks := rapid.IntRange(0, 10).Draw(t, "blocks")
					tokens := blocks*4 + rapid.IntRange(1, 4).Draw(t, "more")
					device := rapid.IntRange(0, blocks).Draw(t, "device")
					disk := rapid.IntRange(0, blocks-device).Draw(t, "disk")
					w := worker(rapid.Uint64Range(1, 3).Draw(t, "worker"))
					id := fmt.Sprint(len(all))
					all = append(all, id)
					l.Add(decisions.Decision{Request: id, Tokens: tokens, BlockSize: 4}, &schedule.Result{Worker: w, Hits: index.Hits{kv.TierDevice: uint32(device), kv.TierDisk: uint32(disk)}}, nil)
					sums.Decisions++
					sums.PromptTokens += uint64(tokens)
					sums.HitTokens[kv.TierDevice] += uint64(4 * device)
					sums.HitTokens[kv.TierDisk] += uint64(4 * disk)
					pending[w] = append(pending[w], float64(4*(device+disk)))
				}
			},
			"recent": func(t *rapid.T) {
				most := rapid.IntRange(0, 200).Draw(t, "most")
				var want, got []string
				for i := len(all) - 1; i >= 0 && len(want) < min(most, decisions.MaxDecisions); i-- {
					want = append(want, all[i])
				}
				for _, d := range l.Recent(most, at) {
					got = append(got, d.Request)
				}
				if !slices.Equal(got, want) {
					t.Fatalf("recent %d: %v, want %v", most, got, want)
				}
			},
			"value": func(t *rapid.T) {
				costs := map[kv.Worker]decisions.Cost{worker(1): {Token: 0.125}, worker(2): {Pair: 0.25}} // that of 3 is not known
				for w, all := range pending {
					for _, n := range all {
						if c, known := costs[w]; known {
							sums.SavedSeconds += c.Token*n + c.Pair*n*n/2
						} else {
							sums.UnvaluedTokens += uint64(n)
						}
					}
				}
				clear(pending)
				if got := l.Value(costs); got != sums { // sums of eighths are exact
					t.Fatalf("sums %+v, want %+v", got, sums)
				}
			},
		})
	})
}

// Hits of a prompt never count more tokens than the prompt has.
func TestHitsOfTheLastBlock(t *testing.T) {
	var l decisions.Log
	l.Add(decisions.Decision{Tokens: 10, BlockSize: 4}, &schedule.Result{Hits: index.Hits{kv.TierDevice: 2, kv.TierHost: 1}}, nil)
	if s := l.Value(nil); s.HitTokens[kv.TierDevice] != 8 || s.HitTokens[kv.TierHost] != 2 || s.UnvaluedTokens != 10 {
		t.Errorf("%+v", s)
	}
}
