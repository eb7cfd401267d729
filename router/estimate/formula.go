package estimate

import (
	"math"

	"github.com/blockyard-ai/blockyard/router/schedule"
)

// Terms are what an engine's work takes, in seconds. The price needs nothing else of an engine.
type Terms struct {
	// Request, Token and Pair are what a prompt takes: once, for each token that is computed, and for
	// each pair of such a token with a token that it attends to.
	Request, Token, Pair float64
	// Step, Running and Context are what the next token of every running request takes: once, for each
	// running request, and for each token of their contexts.
	Step, Running, Context float64
}

// Situation is what a worker has to do when a request arrives.
type Situation struct {
	// Backlog is the seconds of the prompts that are ahead, and Load the seconds until the request's
	// cached blocks are on the device.
	Backlog, Load float64
	// Running is the number of requests that decode, and Context the tokens of their contexts.
	Running, Context float64
	// Budget is the number of tokens that a step computes.
	Budget float64
	// MemoryWait is the seconds until the device has room for the request.
	MemoryWait float64
	// Arrivals are requests per second, and Busy is the share of time that their prompts take.
	Arrivals, Busy float64
	// Reuse is the chance that a token that has to leave the device is asked for again.
	Reuse float64
	// Left is the number of tokens that a running request still gets.
	Left float64
}

// Work is what a request asks for.
type Work struct {
	// Prompt is its length in tokens, of which Compute are to be computed.
	Prompt, Compute float64
	// Output is the number of tokens of the answer.
	Output float64
}

// Beside returns the seconds of a step that computes no prompt.
func (t *Terms) Beside(running, context float64) float64 {
	return t.Step + t.Running*running + t.Context*context
}

// stretch is how much longer prompts take because steps are shared with running requests.
func (t *Terms) stretch(beside, budget float64) float64 {
	if t.Token == 0 {
		return 1
	}
	return 1 + beside/(t.Token*budget)
}

// Pairs returns the pairs of a token that is computed with a token that it attends to.
func (w *Work) Pairs() float64 { return w.Compute * (w.Prompt - w.Compute/2) }

// maxBusyShare bounds the share of time in the formula, so that a price is finite.
const maxBusyShare = 0.9

// Price returns the expected milliseconds of a request in a situation:
//
//	compute  = Request + Token*compute + Pair*pairs
//	beside   = Step + Running*running + Context*context          the step of those that run
//	first    = max(Backlog * (1 + beside/(Token*budget)), Load, MemoryWait) + compute + (steps + 1/2) * beside
//	decode   = output * min(step / (1 - busy), step + Token*budget)
//	           with step = Step + Running*(running+1) + Context*(context + prompt + output/2)
//	imposed  = running * compute                                 they wait while the prompt is computed
//	         + running * min(output, left) * (Running + Context*(prompt + output/2))
//	         + arrivals * compute * (Backlog + compute/2) / (1 - busy)  who comes while it waits
//	         + reuse * Token * compute                           what leaves the device is computed again
//
// where steps is compute tokens over what running requests leave of a step's budget. The half step is
// the rest of the one that runs, if requests run.
func (t *Terms) Price(s *Situation, w *Work) schedule.Price {
	compute := t.Request + t.Token*w.Compute + t.Pair*w.Pairs()
	steps := math.Ceil(w.Compute / max(1, s.Budget-s.Running))
	beside := t.Beside(s.Running, s.Context)
	idle := 1 - min(maxBusyShare, s.Busy)
	growth := t.Running + t.Context*(w.Prompt+w.Output/2) // what the request adds to a step
	step := beside + growth
	if s.Running > 0 {
		steps += 0.5 // for the step that runs
	}
	wait := max(s.Backlog*t.stretch(beside, s.Budget), s.Load, s.MemoryWait)
	return schedule.Price{
		Wait:    1e3 * wait,
		TTFT:    1e3 * (wait + compute + steps*beside),
		Decode:  1e3 * w.Output * min(step/idle, step+t.Token*s.Budget),
		Machine: 1e3 * (compute + w.Output*growth),
		Imposed: 1e3 * (s.Running*compute + s.Running*min(w.Output, s.Left)*growth +
			s.Arrivals*compute*(s.Backlog+compute/2)/idle + s.Reuse*t.Token*w.Compute),
	}
}
