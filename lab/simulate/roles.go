package simulate

import (
	"math/rand/v2"
	"time"

	"github.com/blockyard-ai/blockyard/internal/kv"
	"github.com/blockyard-ai/blockyard/lab/simulate/engine"
	"github.com/blockyard-ai/blockyard/router/config"
	"github.com/blockyard-ai/blockyard/router/decide"
	"github.com/blockyard-ai/blockyard/router/frontend/split"
)

// roles divides the workers of a cluster into those that compute prompts and those that answer. The zero value has
// workers for both.
type roles struct {
	prefill, decode map[kv.WorkerID]struct{}
	rule            split.Rule
	// rng draws the hashes of blocks that no two requests share.
	rng *rand.Rand
}

// newRoles returns the roles of a scenario without workers.
func newRoles(h *Hardware, seed uint64) roles {
	if h.Prefill == 0 {
		return roles{}
	}
	c := config.Default()
	return roles{prefill: make(map[kv.WorkerID]struct{}), decode: make(map[kv.WorkerID]struct{}),
		rule: split.Rule{MinTokens: c.Disaggregation().MinTokens}, rng: rand.New(rand.NewPCG(seed, 60))}
}

// join gives a worker its role: the first Prefill ones compute prompts.
func (r *roles) join(id kv.WorkerID, prefill int) {
	switch {
	case r.prefill == nil:
	case len(r.prefill) < prefill:
		r.prefill[id] = struct{}{}
	default:
		r.decode[id] = struct{}{}
	}
}

// wish says which workers may be chosen for a prompt, and how they are compared. The zero value allows all.
type wish struct {
	allowed  map[kv.WorkerID]struct{}
	expected int // tokens of the answer, 0 when unknown
	// handedOver says that another worker has computed the prompt.
	handedOver bool
}

// apply makes a query ask for the wish. policy has Blockyard's own choice, or a rule of its own.
func (r *router) apply(w *wish, q *decide.Query) {
	q.Allowed, q.ExpectedOutput, q.HandedOver = w.allowed, w.expected, w.handedOver
	if !w.handedOver {
		return
	}
	q.Override = split.DecodeOverride(nil, &r.config)
	if r.cluster.policy.Selector != nil { // other rules know their workers' blocks
		q.Override.AssumeKVReuse = nil
		return
	}
	sequence := make([]kv.SequenceHash, len(q.Hashed.Sequence)) // as AssumeKVReuse has it, but with the run's seed
	for i := range sequence {
		sequence[i] = kv.SequenceHash(r.cluster.roles.rng.Uint64())
	}
	q.Hashed.Sequence = sequence
}

// dispatch has a prompt computed and answered: by one worker, or by two where the front door's rule finds that
// worth it.
func (a *attempt) dispatch() {
	c, r := a.c, a.router
	if c.roles.prefill == nil {
		r.route(a.id, a.p, wish{}, a.submit)
		return
	}
	overlaps, err := r.decide.Overlaps(queryOf(a.id, a.p))
	if err != nil {
		c.fail(err)
		return
	}
	cached := split.MostCached(overlaps, c.roles.decode, c.scenario.Hardware.BlockSize, a.p.tokens)
	if c.roles.rule.Whole(a.p.tokens, cached) != "" {
		r.route(a.id, a.p, wish{allowed: c.roles.decode}, a.submit)
		return
	}
	r.route(a.prefillID(), a.p, wish{allowed: c.roles.prefill, expected: 1}, a.prefill)
}

func (a *attempt) prefillID() string { return a.id + "/prefill" }

// prefill has a worker compute the prompt, with one token that nobody sees.
func (a *attempt) prefill(w kv.Worker) {
	nothing := func() {}
	a.c.routed[int(w.ID)-1]++
	a.prefilled = &engine.Request{Chain: a.p.text, Prompt: a.p.tokens, Output: 1, Held: true,
		First: nothing, Block: nothing, Gap: func(time.Duration) {}, Last: a.onPrefilled, Lost: func() {
			a.router.decide.Free(a.prefillID())
			a.onLost()
		}}
	a.c.engines[w].Submit(a.prefilled)
}

// onPrefilled sends the prompt to a worker that answers.
func (a *attempt) onPrefilled() {
	_ = a.router.decide.MarkPrefillCompleted(a.prefillID()) // as completePrefill
	a.router.decide.Free(a.prefillID())
	a.c.clock.After(0, func() { a.router.route(a.id, a.p, wish{allowed: a.c.roles.decode, handedOver: true}, a.submit) })
}

// share returns how many times a worker's share of all requests and of all prompts it gets because of its role.
func (c *cluster) share(id kv.WorkerID) (requests, prompts float64) {
	if c.roles.prefill == nil {
		return 1, 1
	}
	all := float64(len(c.list))
	if _, ok := c.roles.prefill[id]; ok {
		return all / float64(len(c.roles.prefill)), all / float64(len(c.roles.prefill))
	}
	return all / float64(len(c.roles.decode)), 0
}

// served returns where the prompt tokens came from. Tokens that the worker that answers computed again count twice.
func (a *attempt) served() engine.Served {
	if a.prefilled == nil {
		return a.request.Cached
	}
	s := a.prefilled.Cached
	s.Computed += a.request.Cached.Computed
	return s
}
