package split

import (
	"github.com/blockyard-ai/blockyard/internal/kv"
	"github.com/blockyard-ai/blockyard/router/config"
	"github.com/blockyard-ai/blockyard/router/decide"
)

// DecodeOverride returns asked, which may be nil, for a request whose prompt comes from elsewhere: the decode
// worker is chosen by its decode load, its cache earns no credit, and nothing is left to prefill.
func DecodeOverride(asked *config.Override, c *config.Config) *config.Override {
	off, none := false, 0.0
	o := &config.Override{AssumeKVReuse: &off, TrackPrefillTokens: &off}
	if asked != nil {
		o.Objective = asked.Objective
	}
	// Expected milliseconds know no credit. With Dynamo's conditional rule decode workers keep
	// prompts of their own, which are worth going back to.
	if c.Score != config.ScorePrice && !c.ConditionalDisaggEnabled {
		o.OverlapScoreCredit = &none
	}
	return o
}

// MostCached returns how many tokens of a prompt the decode worker with most of them has, in any tier. overlaps
// are those of all workers, in blocks of blockSize tokens.
func MostCached(overlaps []decide.Overlap, decode map[kv.WorkerID]struct{}, blockSize, prompt int) (tokens int) {
	for i := range overlaps {
		o := &overlaps[i]
		if _, ok := decode[o.Worker.ID]; !ok {
			continue
		}
		var blocks int
		for _, n := range o.Hits {
			blocks += int(n)
		}
		tokens = max(tokens, blocks*blockSize)
	}
	return min(tokens, prompt)
}
