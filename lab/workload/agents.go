package workload

import (
	"cmp"
	"fmt"
	"math/rand/v2"
	"slices"
	"time"
)

// AgentOptions shape sessions of agents: one system prompt with tools, many turns with short pauses
// while tools run, answers of tools that are sometimes long, and helpers that begin with the history
// of the agent that starts them.
type AgentOptions struct {
	Seed uint64
	// Sessions is the number of agents, and Rate how many begin in a second.
	Sessions int
	Rate     float64
	// Systems is the number of distinct system prompts.
	Systems int
	// System, Tool and Output are the lengths of system prompts with tools, of what a tool answers, and
	// of what the model answers.
	System, Tool, Output Lengths
	// Turns is the mean number of turns and MaxTurns their bound. Forks is the probability that a
	// turn starts a helper, whose turns are a third of that.
	Turns    float64
	MaxTurns int
	Forks    float64
	// Tools is the mean time that a tool takes.
	Tools time.Duration
}

// Validate reports the first option out of range.
func (o *AgentOptions) Validate() error {
	for _, f := range []struct {
		name      string
		v, lo, hi float64
	}{
		{"sessions", float64(o.Sessions), 1, 1e6}, {"rate", o.Rate, 1e-3, 1e6}, {"systems", float64(o.Systems), 1, 1e5},
		{"turns", o.Turns, 1, 1000}, {"max turns", float64(o.MaxTurns), 1, 1000}, {"forks", o.Forks, 0, 1},
		{"tool time in seconds", o.Tools.Seconds(), 0, 86400},
	} {
		if !(f.v >= f.lo && f.v <= f.hi) {
			return fmt.Errorf("workload agents %s: %g is not in %g..%g", f.name, f.v, f.lo, f.hi)
		}
	}
	return nil
}

// Agents returns the requests of agents, in order of their At and, within a session, of their turns.
// A helper's session follows its agent's. Equal options give equal requests.
func Agents(o AgentOptions) ([]Request, error) {
	if err := o.Validate(); err != nil {
		return nil, err
	}
	rng := rand.New(rand.NewPCG(o.Seed, 20))
	lengths := rand.New(rand.NewPCG(o.Seed, 21))
	systems := make([]Piece, o.Systems)
	for i := range systems {
		systems[i] = Piece{Stream: mix(o.Seed ^ 0x6167656e74 + uint64(i)), Tokens: o.System.draw(lengths)}
	}
	var all []Request
	clock := time.Duration(0)
	sessions := o.Sessions // helpers are numbered after the agents
	for s := range o.Sessions {
		clock += seconds(rng.ExpFloat64() / o.Rate)
		first := []Piece{systems[rng.IntN(o.Systems)]}
		all, sessions = o.session(all, rng, lengths, s, sessions, nil, clock, first, o.Turns)
	}
	slices.SortStableFunc(all, func(a, b Request) int { return cmp.Compare(a.At, b.At) })
	return all, nil
}

// session appends the turns of an agent or helper that begins at a time with pieces. sessions is the
// number of sessions so far, and the new number is returned.
func (o *AgentOptions) session(all []Request, rng, lengths *rand.Rand, number, sessions int, fork *Fork, at time.Duration, pieces []Piece, turns float64) ([]Request, int) {
	n := 1
	for n < o.MaxTurns && rng.Float64() < 1-1/turns {
		n++
	}
	for turn := range n {
		r := Request{ID: fmt.Sprintf("a%d-t%d", number, turn), Session: number, Turn: turn, At: at, OutputTokens: o.Output.draw(lengths)}
		if turn == 0 {
			r.Fork = fork
		}
		if turn > 0 || fork != nil {
			r.Think = seconds(rng.ExpFloat64() * o.Tools.Seconds())
			r.At = at + r.Think
			at = r.At
		}
		r.Pieces = append(pieces, Piece{Stream: mix(o.Seed<<40 ^ uint64(number)<<16 ^ uint64(turn) ^ 0x746f6f6c), Tokens: o.Tool.draw(lengths)})
		pieces = nil
		all = append(all, r)
		if fork == nil && rng.Float64() < o.Forks {
			helper := sessions
			sessions++
			all, sessions = o.session(all, rng, lengths, helper, sessions, &Fork{number, turn}, at, nil, max(1, turns/3))
		}
	}
	return all, sessions
}
