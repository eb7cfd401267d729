package decisions_test

import (
	"fmt"
	"time"

	"github.com/blockyard-ai/blockyard/internal/kv"
	"github.com/blockyard-ai/blockyard/router/decisions"
	"github.com/blockyard-ai/blockyard/router/index"
	"github.com/blockyard-ai/blockyard/router/schedule"
)

// The log knows what was decided and what the hits are worth.
func Example() {
	var log decisions.Log
	w := kv.Worker{ID: 7}
	log.Add(decisions.Decision{Request: "r-1", Tokens: 100, BlockSize: 16}, &schedule.Result{Worker: w, Hits: index.Hits{kv.TierDevice: 4}}, nil)
	fmt.Println(log.Recent(1, time.Now())[0].Chosen.Worker)
	sums := log.Value(map[kv.Worker]decisions.Cost{w: {Token: 0.0005}})
	fmt.Println(sums.HitTokens[kv.TierDevice], "of", sums.PromptTokens, "tokens,", sums.SavedSeconds, "s")
	// Output:
	// 7/0
	// 64 of 100 tokens, 0.032 s
}
