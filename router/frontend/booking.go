package frontend

import (
	"cmp"
	"context"
	"crypto/rand"
	"sync"

	"github.com/blockyard-ai/blockyard/internal/kv"
	"github.com/blockyard-ai/blockyard/router"
	"github.com/blockyard-ai/blockyard/router/workers"
)

// booking is a request's place on a worker, from the decision until free.
type booking struct {
	// model is nil for a request that is not booked, such as one about a stored response.
	model  *router.Model
	id     string
	match  router.Match
	worker *workers.Worker
	free   func()

	prefill sync.Once
	// blocks is how many blocks prompt and output filled when they were last counted.
	blocks int
}

// book chooses a worker and books the request on it. It waits while the request is queued,
// until ctx ends. The workers in failed are left out.
func (d *Door) book(ctx context.Context, q *request, failed []kv.WorkerID) (*booking, error) {
	model, err := d.model(q.served.Model)
	if err != nil {
		return nil, err
	}
	query := &router.Request{
		ID: rand.Text(), Model: q.served.Model, LoRA: q.served.LoRA, Salt: q.parsed.Salt,
		Tokens: q.tokens, Pinned: q.pinned,
		Allowed: d.allowed(q, failed), UpdateStates: true, ExpectedOutput: q.expected,
		PriorityJump: q.priorityJump, StrictPriority: q.strictPriority,
	}
	m, err := model.FindBestMatch(ctx, query)
	if err != nil {
		return nil, err
	}
	b := &booking{model: model, id: query.ID, match: m}
	b.free = sync.OnceFunc(func() {
		if m.Booked {
			model.Decide().FreeBooking(query.ID, m.Booking)
		}
	})
	worker, ok := d.options.Workers.Worker(m.Worker.ID)
	if !ok || worker.URL == "" {
		b.free()
		return nil, &noEndpointError{worker: m.Worker}
	}
	b.worker = worker
	if size := worker.Facts.BlockSize; size > 0 {
		b.blocks = (len(q.tokens) + size - 1) / size
	}
	return b, nil
}

// model returns the router's model of a name, once the router has started.
func (d *Door) model(name string) (*router.Model, error) {
	if err := d.options.Router.Started(); err != nil {
		return nil, err
	}
	return d.options.Router.Model(name)
}

// allowed returns the workers that may get a request, nil for all of its model.
func (d *Door) allowed(q *request, failed []kv.WorkerID) map[kv.WorkerID]struct{} {
	ready := d.options.Workers.AllowedFor(cmp.Or(q.served.LoRA, q.served.Model))
	var only map[kv.WorkerID]struct{}
	if q.through != nil {
		only = q.through.Only
	}
	if len(failed) == 0 && only == nil {
		return ready
	}
	left := make(map[kv.WorkerID]struct{})
	for _, w := range d.options.Workers.Workers() {
		if _, offered := only[w.ID]; only != nil && !offered {
			continue
		}
		if _, ok := ready[w.ID]; ok || ready == nil && w.State == workers.Ready {
			left[w.ID] = struct{}{}
		}
	}
	for _, id := range failed {
		delete(left, id)
	}
	return left
}

// firstToken ends the prefill of the request. Further calls do nothing.
func (b *booking) firstToken() {
	b.prefill.Do(func() {
		if b.model == nil {
			return
		}
		// The request may have expired from the account; then there is nothing to end.
		_ = b.model.Decide().MarkPrefillCompleted(b.id)
	})
}

// output counts the blocks that prompt and output fill together.
func (b *booking) output(tokens int) {
	size := b.worker.Facts.BlockSize
	if size == 0 || b.model == nil {
		return
	}
	for filled := (tokens + size - 1) / size; b.blocks < filled; b.blocks++ {
		// An expired request is not counted any more.
		_ = b.model.Decide().AddOutputBlock(b.id, nil)
	}
}

// predicted returns how many tokens of the prompt the worker is expected to report as
// cached. An engine always computes the last token itself, with the block around it. But
// with an agent's connector it counts a loaded prompt of whole blocks as cached to its end.
func (b *booking) predicted(prompt int) int {
	size := b.worker.Facts.BlockSize
	if size == 0 || prompt == 0 {
		return 0
	}
	var blocks int
	for _, n := range b.match.Hits {
		blocks += int(n)
	}
	if b.worker.Source != workers.FromAgent {
		prompt--
	}
	return min(blocks, prompt/size) * size
}
