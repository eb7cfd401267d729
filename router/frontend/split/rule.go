package split

import (
	"fmt"

	"github.com/blockyard-ai/blockyard/router/frontend/openai"
)

// Reasons to have one worker serve a whole request, as metrics have them.
const (
	// Unsupported: the request asks for something that the prefill cannot leave out.
	Unsupported = "unsupported"
	// UnknownPrompt: the tokens of the prompt are not known.
	UnknownPrompt = "unknown_prompt"
	// Short: too few tokens are to be computed.
	Short = "short"
	// Bounded: Rule.Conditional bounds the tokens to compute.
	Bounded = "conditional"
	// Busy: the prefill worker is busy, and Rule.Conditional counts that.
	Busy = "busy"
	// NoPartner: no prefill worker has a decode worker that can get its blocks.
	NoPartner = "no_partner"
)

// Unfit returns why a request cannot be split; empty when it can. What a client asks to see of
// the prompt comes from the worker that computes it, and stored responses belong to one worker.
func Unfit(r *openai.Request) string {
	switch {
	case !r.Route.Generates(), r.KVTransfer, r.Prompts != 1, r.MaxTokens == 1:
	case r.PromptLogprobs, r.Echo, r.BeamSearch, r.BestOf > 1:
	case r.Store, r.Background, r.PreviousResponse != "", r.Conversation:
	default:
		return ""
	}
	return Unsupported
}

// Rule decides which requests are worth two workers. The zero value splits every request.
type Rule struct {
	// MinTokens is the number of uncached prompt tokens from which on a request is split.
	MinTokens int
	// Conditional is Dynamo's rule; nil has none.
	Conditional *Conditional
}

// Conditional has a decode worker compute a prompt where that is faster.
type Conditional struct {
	// Bounds applies Tokens and Ratio: a prompt with fewer uncached tokens than Tokens, and a
	// smaller uncached share than Ratio, is computed by the decode worker.
	Bounds bool
	Tokens int
	Ratio  float64
	// PrefillBusy is the share of a step's tokens beyond which the prefill worker is busy, and
	// its prompts are computed by decode workers that are not. DecodeBusy is the same of decode
	// workers. Nil is no limit.
	PrefillBusy, DecodeBusy *float64
}

// Validate reports the first field that is out of range.
func (r *Rule) Validate() error {
	if r.MinTokens < 0 {
		return fmt.Errorf("min tokens: %d is negative", r.MinTokens)
	}
	if c := r.Conditional; c != nil && !(c.Ratio >= 0 && c.Ratio <= 1) {
		return fmt.Errorf("ratio: %v is not in 0..1", c.Ratio)
	}
	return nil
}

// Whole returns why one worker should serve a prompt whole: Short or Bounded, else an empty
// string. cached are the tokens of the prompt that a decode worker has.
func (r *Rule) Whole(prompt, cached int) string {
	uncached := max(0, prompt-cached)
	if uncached < r.MinTokens {
		return Short
	}
	if c := r.Conditional; c != nil && c.Bounds && uncached < c.Tokens && float64(uncached) < c.Ratio*float64(prompt) {
		return Bounded
	}
	return ""
}

// Load is what a worker has to prefill.
type Load struct {
	// PrefillTokens are the prompt tokens of its requests that are not computed yet. Batch is
	// how many tokens it computes in a step; 0 is unknown.
	PrefillTokens, Batch int
}

// beyond reports whether the load exceeds a share of the step. An unknown step is never
// exceeded.
func (l Load) beyond(share *float64) bool {
	return share != nil && l.Batch > 0 && float64(l.PrefillTokens) > *share*float64(l.Batch)
}

// Weighs reports whether Bypass needs loads.
func (r *Rule) Weighs() bool { return r.Conditional != nil && r.Conditional.PrefillBusy != nil }

// Bypass reports whether a decode worker should compute a prompt because the prefill worker is
// busy. decode is the load of the least loaded decode worker.
func (r *Rule) Bypass(prefill, decode Load) bool {
	return r.Weighs() && prefill.beyond(r.Conditional.PrefillBusy) && !decode.beyond(r.Conditional.DecodeBusy)
}
