package router

import (
	"time"

	"github.com/blockyard-ai/blockyard/router/feed"
	"github.com/blockyard-ai/blockyard/router/miss"
)

// Answered is an answer of an engine that reported its cached tokens.
type Answered struct {
	// Entry is the request, without its report.
	miss.Entry
	// Prompt is Match.Prompt, Outcome what became of it. Explain fills the fields of Outcome that
	// the Entry has, and Unsure. A zero Computed is now.
	Prompt  *miss.Prompt
	Outcome miss.Outcome
	// Exact is true when the prompt's tokens are those that the engine computed. HandedOver is true
	// when another worker computed the prompt. Quality is that of the decision.
	Exact, HandedOver bool
	Quality           string
}

// unsure says why the prediction of cached tokens is a guess; miss.None for an exact one.
func (a *Answered) unsure() miss.Cause {
	switch {
	case !a.Exact:
		return miss.ApproximateTokens
	case a.HandedOver:
		return miss.HandOver
	case a.Quality == string(feed.Fallback):
		return miss.PredictedCache
	case a.Quality == string(feed.Degraded):
		return miss.LostEvents
	}
	return miss.None
}

// Explain finds out why tokens of an answer's prompt were not cached, and counts them by cause. An
// explanation that depends on events comes a second later. Without an answer's Prompt only the
// difference of predicted and delivered tokens is counted.
func (m *Model) Explain(a *Answered) {
	door, o := m.metrics.Door, &a.Outcome
	o.Predicted, o.Delivered, o.Unsure = a.Predicted, a.Delivered, a.unsure()
	if o.Computed.IsZero() {
		o.Computed = time.Now()
	}
	if a.Prompt == nil || m.history == nil {
		door.Differ(a.Model, a.Worker, a.Delivered-a.Predicted, o.Unsure)
		return
	}
	a.At = a.Prompt.Decided
	explain := func() {
		a.Report = m.history.Explain(a.Prompt, o)
		door.Differ(a.Model, a.Worker, a.Difference.Tokens, a.Difference.Cause)
		for i := range a.Parts {
			door.Missed(a.Model, a.Worker, a.Parts[i].Cause, a.Parts[i].Tokens)
		}
		m.misses.Add(&a.Entry)
	}
	if o.Unsure != miss.None {
		explain()
		return
	}
	m.misses.Settle(len(a.Prompt.Blocks), explain)
}
