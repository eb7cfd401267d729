package frontend_test

import (
	"net/http"
	"testing"

	"github.com/blockyard-ai/blockyard/router"
	"github.com/blockyard-ai/blockyard/router/config"
	"github.com/blockyard-ai/blockyard/router/frontend"
	"github.com/blockyard-ai/blockyard/router/frontend/split"
	"github.com/blockyard-ai/blockyard/router/routertest"
	"github.com/blockyard-ai/blockyard/router/schedule"
	"github.com/blockyard-ai/blockyard/router/schedule/price"
)

// objectives records the objective of each decision, and whether the request asked for it. It takes the
// first candidate.
type objectives struct {
	got []price.Objective
	own []bool
}

func (o *objectives) Select(in *schedule.Selection) (int, error) {
	o.got = append(o.got, in.Config.Objective)
	o.own = append(o.own, in.Request.Override != nil && in.Request.Override.Objective != nil)
	return in.At(0), nil
}

// The header reaches the decision where prices are compared, and is a hint where weights are.
func TestObjectiveOfARequest(t *testing.T) {
	for _, tc := range []struct {
		score, asked string
		want         price.Objective
		own          bool
	}{
		{config.ScorePrice, "", price.Balanced, false},
		{config.ScorePrice, "balanced", price.Balanced, true},
		{config.ScorePrice, "ttft", price.TTFT, true},
		{config.ScorePrice, "throughput", price.Throughput, true},
		{config.ScoreWeights, "ttft", price.Balanced, false},
	} {
		var seen objectives
		ro := router.Options{Selector: &seen, Config: routertest.Configured(func(c *config.Config) { c.Score = tc.score })}
		b := newBenchOn(t, ro, frontend.Options{}, newServer(t, 7, streams(chunk, "[DONE]")))
		if resp, body := b.post("/v1/completions", prompt, frontend.ObjectiveHeader, tc.asked); resp.StatusCode != http.StatusOK {
			t.Fatalf("%s: status %d, %s", tc.asked, resp.StatusCode, body)
		}
		if len(seen.got) != 1 || seen.got[0] != tc.want || seen.own[0] != tc.own {
			t.Errorf("score %s, %q: decided by %s, of the request %v; want %s, %v", tc.score, tc.asked, seen.got, seen.own, tc.want, tc.own)
		}
		b.expectIdle()
	}
}

// An answer says by what its worker was chosen, and why not by price. A mode without scores says nothing.
func TestAnswersHaveTheScore(t *testing.T) {
	for want, change := range map[string]func(*config.Config){
		"weights": func(c *config.Config) { c.Score = config.ScoreWeights },
		"weights: no prefill time of worker 7/0 yet": func(c *config.Config) { c.Score = config.ScorePrice },
		"": func(c *config.Config) { c.RouterMode = config.ModeRoundRobin },
	} {
		b := newBenchOn(t, router.Options{Config: routertest.Configured(change)}, frontend.Options{}, newServer(t, 7, streams(chunk, "[DONE]")))
		resp, body := b.post("/v1/completions", prompt)
		if got := resp.Header.Get(frontend.ScoreHeader); resp.StatusCode != http.StatusOK || got != want {
			t.Errorf("status %d, score %q, want %q: %s", resp.StatusCode, got, want, body)
		}
		b.expectIdle()
	}
}

// The prefill worker and the decode worker are both chosen by the request's objective.
func TestObjectiveOfASplitRequest(t *testing.T) {
	var seen objectives
	ro := router.Options{Selector: &seen, Config: routertest.Configured(func(c *config.Config) { c.Score = config.ScorePrice })}
	b := newBenchOn(t, ro, frontend.Options{}, newServer(t, 1, answers(200, whole)), newServer(t, 2, streams(chunk, "[DONE]")))
	disaggregate(b, split.Yard)
	if resp, body := b.post("/v1/completions", prompt, frontend.ObjectiveHeader, "ttft"); resp.StatusCode != http.StatusOK || resp.Header.Get(frontend.PrefillHeader) != "1/0" {
		t.Fatalf("status %d, prefill at %q, %s", resp.StatusCode, resp.Header.Get(frontend.PrefillHeader), body)
	}
	if len(seen.got) != 2 || seen.got[0] != price.TTFT || seen.got[1] != price.TTFT {
		t.Errorf("decided by %s", seen.got)
	}
	b.expectIdle()
}
