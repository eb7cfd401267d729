package miss

import (
	"time"

	"github.com/blockyard-ai/blockyard/internal/kv"
)

// Cause says why an engine computed tokens, or why it had more cached than the router predicted.
type Cause uint8

// The causes. docs/front-door.md has a table of them.
const (
	// None is no cause, or an unknown one.
	None Cause = iota
	// NewContent: no worker had the block, as far as the router knows and remembers.
	NewContent
	// LastBlock: tokens behind the last block that an engine can have cached.
	LastBlock
	// Elsewhere: another worker had the block when the router decided.
	Elsewhere
	// Evicted: the block has left the cache that had it last.
	Evicted
	// TierSlow: the block was in a tier below the device, and the engine computed it.
	TierSlow
	// IndexBehind: the event that would have told the router had not arrived at the decision.
	IndexBehind
	// TokensDiffer: the engine computed other tokens, or gave the block another hash.
	TokensDiffer
	// Restarted: the owner of the block restarted, left, or dropped all its blocks.
	Restarted
	// StoredMeanwhile: the worker stored the block between the decision and the computation.
	StoredMeanwhile
	// ApproximateTokens, PredictedCache, LostEvents and HandOver say why the router could not know.
	ApproximateTokens // the router guessed the tokens
	PredictedCache    // the worker publishes no events
	LostEvents        // events of a worker were being repaired
	HandOver          // another worker computed the prompt
	numCauses
)

// String returns the name of the cause in metrics and answers.
func (c Cause) String() string {
	return [numCauses]string{
		None: "unexplained", NewContent: "new_content", LastBlock: "last_block", Elsewhere: "routed_elsewhere", Evicted: "evicted",
		TierSlow: "tier_slow", IndexBehind: "index_behind", TokensDiffer: "tokens_differ", Restarted: "worker_restarted",
		StoredMeanwhile: "stored_meanwhile", ApproximateTokens: "approximate_tokens", PredictedCache: "predicted_cache",
		LostEvents: "lost_events", HandOver: "hand_over",
	}[c]
}

// Part is some tokens of a prompt with one cause.
type Part struct {
	Cause  Cause
	Tokens int
	// Owner and Tier are where the first of the blocks was, or is. Owner is zero when unknown.
	Owner kv.Owner
	Tier  kv.Tier
	// Ago is how long before the decision the first block left, below 0 when it left later. It is
	// for Evicted and Restarted.
	Ago time.Duration
	// Behind is how old the missing event was at the decision. It is for IndexBehind.
	Behind time.Duration
}

// maxParts is from how many parts on the parts with one cause become one. A list has at most
// maxParts parts and one for each cause.
const maxParts = 16

// add adds a part to a list. Parts with the same cause, owner and tier become one.
func add(list []Part, p Part) []Part {
	if p.Tokens <= 0 {
		return list
	}
	for i := range list {
		same := list[i].Owner == p.Owner && list[i].Tier == p.Tier
		if list[i].Cause == p.Cause && (same || len(list) >= maxParts) {
			list[i].Tokens += p.Tokens
			return list
		}
	}
	return append(list, p)
}
