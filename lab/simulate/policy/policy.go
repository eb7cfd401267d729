package policy

import (
	"math/rand/v2"
	"time"

	"github.com/blockyard-ai/blockyard/internal/kv"
	"github.com/blockyard-ai/blockyard/router/schedule"
	"github.com/blockyard-ai/blockyard/router/schedule/modes"
	"github.com/blockyard-ai/blockyard/router/schedule/price"
	"github.com/blockyard-ai/blockyard/router/schedule/queue"
)

// State is the present state of an engine.
type State struct {
	Running, Waiting int
	// Used is the share of the device's blocks in use. Work is the time in seconds that the engine's
	// requests still take, by their true lengths.
	Used, Work float64
}

// View is what a policy may look at besides the Selection.
type View interface {
	// State returns the state of a worker's engine.
	State(w kv.Worker) State
	// Session returns the session of the request that is decided.
	Session() int
}

// Context is what a policy is made from.
type Context struct {
	View View
	Seed uint64
	// TokensPerSecond is the prefill rate that a rule with a rate of its own is configured with: the true
	// mean rate of the workers.
	TokensPerSecond float64
}

// Policy is a way to choose workers.
type Policy struct {
	Name, About string
	// Selector returns the selector; a nil Selector is the production CostSelector.
	Selector func(c Context) schedule.Selector
	// Configure changes the production configuration; nil keeps it.
	Configure func(c *schedule.Config)
	// Priced policies need an estimator. Oracle gives it the true parameters and lengths.
	Priced, Oracle bool
	// Queue says when requests wait in the router; nil never.
	Queue *queue.Options
	// OnlyNamed policies run only when they are named.
	OnlyNamed bool
}

// queued returns the options of a queue in which a request waits while all workers have more than a step of
// prompts, and for a better worker at most maxWait.
func queued(maxWait time.Duration) *queue.Options {
	step := 1.0
	return &queue.Options{Class: queue.Class{Threshold: &step}, MaxWait: maxWait}
}

// objective returns a Configure that sets the objective of prices.
func objective(o price.Objective) func(*schedule.Config) {
	return func(c *schedule.Config) { c.Objective = o }
}

// All returns the policies in the order of reports.
func All() []Policy {
	return []Policy{
		{Name: "round-robin", About: "workers in turn", Selector: func(Context) schedule.Selector { return &modes.RoundRobin{} }},
		{Name: "random", About: "any worker", Selector: func(c Context) schedule.Selector { return modes.NewRandom(c.Seed) }},
		{Name: "power-of-two", About: "the less loaded of two random workers", Selector: func(c Context) schedule.Selector { return modes.NewPowerOfTwo(c.Seed) }},
		{Name: "least-loaded", About: "fewest booked requests, then prompt tokens", Selector: func(c Context) schedule.Selector { return modes.NewLeastLoaded(c.Seed) }},
		{Name: "jsq", About: "fewest requests in the engine", Selector: func(c Context) schedule.Selector { return newLeast(c, (*least).queue) }},
		{Name: "least-work", About: "least work left, by true lengths", Selector: func(c Context) schedule.Selector { return newLeast(c, (*least).work) }},
		{Name: "bounded-hash", About: "consistent hash of the prompt's start, load at most 1.25 of the mean", Selector: func(c Context) schedule.Selector { return &boundedHash{} }},
		{Name: "sticky", About: "sessions stay, new ones to the fewest requests", Selector: func(c Context) schedule.Selector { return newSticky(c) }},
		{Name: "dynamo", About: "Dynamo's formula with its defaults", Configure: func(c *schedule.Config) {}},
		{Name: "llm-d", About: "scorers prefix 3, queue 2, KV use 2", Selector: func(c Context) schedule.Selector { return newLLMD(c) }},
		{Name: "kv-aware", About: "vllm-router: tier credits 1, 0.8, 0.3 against load", Configure: func(c *schedule.Config) { c.HostWeight, c.DiskWeight = 0.8, 0.3 }},
		{Name: "cache-aware", About: "smg: shortest queue when out of balance, else longest match", Selector: func(c Context) schedule.Selector { return newCacheAware(c) }},
		{Name: "preble", About: "E2: exploit a long match, else the least cost", Selector: func(c Context) schedule.Selector { return newE2(c) }},
		{Name: "mooncake", About: "conductor: least expected time to the first token", Selector: func(c Context) schedule.Selector { return &conductor{rand.New(rand.NewPCG(c.Seed, 12))} }},
		{Name: "weights", About: "Dynamo's formula with Blockyard's tuned weights", Configure: (*schedule.Config).Tune},
		{Name: "price", About: "expected milliseconds, with what the request costs others", Priced: true},
		{Name: "price-ttft", About: "price with the objective ttft", Configure: objective(price.TTFT), Priced: true, OnlyNamed: true},
		{Name: "price-throughput", About: "price with the objective throughput", Configure: objective(price.Throughput), Priced: true, OnlyNamed: true},
		{Name: "price-queue", About: "price, and requests wait while all workers are busy", Priced: true, Queue: queued(0), OnlyNamed: true},
		{Name: "price-wait", About: "price, and requests wait for a better worker, at most five seconds", Priced: true, Queue: queued(5 * time.Second), OnlyNamed: true},
		{Name: "oracle", About: "price with true parameters and lengths", Priced: true, Oracle: true},
	}
}

// Named returns a policy.
func Named(name string) (Policy, bool) {
	for _, p := range All() {
		if p.Name == name {
			return p, true
		}
	}
	return Policy{}, false
}

// least chooses by a number of each worker; ties are drawn.
type least struct {
	c    Context
	of   func(*least, *schedule.Selection, int) float64
	rand *rand.Rand
}

func newLeast(c Context, of func(*least, *schedule.Selection, int) float64) *least {
	return &least{c, of, rand.New(rand.NewPCG(c.Seed, 7))}
}

func (l *least) state(in *schedule.Selection, m int) State {
	return l.c.View.State(in.Members.List[m].Worker)
}

func (l *least) queue(in *schedule.Selection, m int) float64 {
	s := l.state(in, m)
	return float64(s.Running + s.Waiting)
}

func (l *least) work(in *schedule.Selection, m int) float64 { return l.state(in, m).Work }

// Select implements schedule.Selector.
func (l *least) Select(in *schedule.Selection) (int, error) {
	return lowest(in, l.rand, func(m int) float64 { return l.of(l, in, m) }), nil
}

// lowest returns the candidate with the lowest value, and draws among equals.
func lowest(in *schedule.Selection, random *rand.Rand, of func(member int) float64) int {
	best, equals := in.At(0), 1
	value := of(best)
	for k := 1; k < in.Len(); k++ {
		m := in.At(k)
		switch v := of(m); {
		case v < value:
			best, value, equals = m, v, 1
		case v == value:
			if equals++; random.IntN(equals) == 0 {
				best = m
			}
		}
	}
	return best
}
