package frontend

import (
	"cmp"
	"context"
	"crypto/rand"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"sync"
	"time"

	"go.uber.org/zap"

	"github.com/blockyard-ai/blockyard/internal/backoff"
	"github.com/blockyard-ai/blockyard/internal/engineevent"
	"github.com/blockyard-ai/blockyard/internal/kv"
	"github.com/blockyard-ai/blockyard/router"
	"github.com/blockyard-ai/blockyard/router/config"
	"github.com/blockyard-ai/blockyard/router/decide"
	"github.com/blockyard-ai/blockyard/router/feed"
	"github.com/blockyard-ai/blockyard/router/frontend/openai"
	"github.com/blockyard-ai/blockyard/router/frontend/session"
	"github.com/blockyard-ai/blockyard/router/frontend/split"
	"github.com/blockyard-ai/blockyard/router/frontend/tokens"
	"github.com/blockyard-ai/blockyard/router/miss"
	"github.com/blockyard-ai/blockyard/router/workers"
)

// booking is a request's place on a worker, from the decision until free.
type booking struct {
	// model is nil for a request that is not booked, such as one about a stored response.
	model  *router.Model
	id     string
	match  router.Match
	worker *workers.Worker

	prefill, freed sync.Once
	// blocks is how many blocks prompt and output filled when they were last counted.
	blocks int
}

// book chooses a worker and books the request on it. It waits while the request is queued,
// until ctx ends. The workers in failed are left out. A request whose prompt is computed goes
// to a worker that can get the blocks. When none takes the request, q.handOver is dropped and the
// request is booked whole.
func (d *Door) book(ctx context.Context, q *request, failed []kv.WorkerID) (*booking, error) {
	model, err := d.model(q.served.Model)
	if err != nil {
		return nil, err
	}
	if q.handOver != nil {
		b, err := d.bookSession(ctx, q, model, wish{allowed: q.handOver.partners, handedOver: true, expected: q.expected, override: split.DecodeOverride(q.override, d.options.Router.Config())})
		if err == nil || ctx.Err() != nil {
			return b, err
		}
		d.log.Info("no decode worker takes the computed prompt", zap.String("request", q.id), zap.Error(err))
		q.handOver = nil
	}
	return d.bookSession(ctx, q, model, wish{allowed: d.allowed(q, failed), pinned: q.pinned, override: q.override, expected: q.expected})
}

// bookSession books the worker of the request's session, if the wish allows that worker and the
// worker is ready and not too busy. Else it books any worker of the wish, and the session moves
// there. A pinned request moves no session.
func (d *Door) bookSession(ctx context.Context, q *request, model *router.Model, w wish) (*booking, error) {
	if q.lease == nil || w.pinned != nil {
		return d.bookOn(ctx, q, model, w)
	}
	at, bound := q.lease.Worker()
	if bound && d.mayServe(at.ID, w.allowed) {
		stays := w
		stays.pinned = &at
		if b, err := d.bookOn(ctx, q, model, stays); err == nil || ctx.Err() != nil {
			q.lease.Bind(at, at)
			return b, err
		}
	}
	b, err := d.bookOn(ctx, q, model, w)
	if err == nil {
		q.lease.Bind(at, b.match.Worker)
	}
	return b, err
}

// joinSession begins the use of the request's session. The caller calls leaveSession at the
// request's end. The error says that the id of the session is too long.
func (d *Door) joinSession(q *request) error {
	if d.sessions == nil || !q.route.Generates() {
		return nil
	}
	id, err := session.ID(q.http.Header, q.parsed.Session)
	if err == nil && id != "" {
		q.lease = d.sessions.Begin(session.Key{Tenant: q.tenant, Model: q.served.Model, ID: id})
	}
	return err
}

// leaveSession ends the use of the request's session, if it has one.
func (q *request) leaveSession() {
	if q.lease != nil {
		q.lease.End(q.http.Header.Get(session.FinalHeader) == "true")
	}
}

// mayServe reports whether a worker is ready and in a set of allowed workers; nil allows all.
func (d *Door) mayServe(id kv.WorkerID, allowed map[kv.WorkerID]struct{}) bool {
	if w, ok := d.options.Workers.Worker(id); !ok || w.State != workers.Ready {
		return false
	}
	_, ok := allowed[id]
	return ok || allowed == nil
}

// wish says which workers may be booked for a request, and how they are compared.
type wish struct {
	allowed  map[kv.WorkerID]struct{} // nil for all of the model
	pinned   *kv.Worker
	override *config.Override
	expected int // output tokens
	// handedOver says that a prefill worker has computed the prompt.
	handedOver bool
}

// query returns what the router needs to know of a request in any decision of a model.
func (q *request) query(model *router.Model) *router.Request {
	return &router.Request{
		Model: q.served.Model, LoRA: q.served.LoRA, Salt: q.parsed.Salt, Tokens: q.tokens,
		BlockMMInfos: objectsOfBlocks(&q.prompt, int(model.Key().BlockSize)),
		PriorityJump: q.priorityJump, StrictPriority: q.strictPriority, PolicyClass: q.hints.PolicyClass, Deadline: q.hints.Deadline,
	}
}

// overrideOf returns what a request's headers change of the settings in c, nil for nothing. Weights have no
// objective, so the header then changes nothing. The error names the header.
func overrideOf(h http.Header, c *config.Config) (*config.Override, error) {
	objective := h.Get(ObjectiveHeader)
	switch {
	case objective == "":
		return nil, nil
	case !slices.Contains(config.Objectives, objective):
		return nil, &openai.FieldError{Field: ObjectiveHeader, Want: strings.Join(config.Objectives, " or "), Got: fmt.Sprintf("%.32q", objective)}
	case c.Score != config.ScorePrice:
		return nil, nil
	}
	return &config.Override{Objective: &objective}, nil
}

// objectsOfBlocks returns the multimodal objects of each block of size tokens, as the engine names
// its blocks: an object belongs to every block that has one of its tokens. It returns nil for a
// prompt without objects.
func objectsOfBlocks(p *tokens.Prompt, size int) []*decide.BlockExtraInfo {
	if len(p.Objects) == 0 || size == 0 {
		return nil
	}
	all := make([]*decide.BlockExtraInfo, (len(p.Tokens)+size-1)/size)
	for _, o := range p.Objects {
		one := decide.MMObject{Hash: engineevent.ObjectHash(o.Hash)}
		for i := o.Offset / size; i*size < o.Offset+o.Length; i++ {
			if all[i] == nil {
				all[i] = new(decide.BlockExtraInfo)
			}
			all[i].MMObjects = append(all[i].MMObjects, one)
		}
	}
	return all
}

// bookOn chooses a worker by a wish and books the request on it, as book does.
func (d *Door) bookOn(ctx context.Context, q *request, model *router.Model, w wish) (*booking, error) {
	query := q.query(model)
	query.ID, query.UpdateStates, query.Misses = rand.Text(), true, model.History() != nil
	query.Allowed, query.Pinned, query.Override, query.ExpectedOutput = w.allowed, w.pinned, w.override, w.expected
	query.HandedOver = w.handedOver
	within, decision := d.begin(ctx, phaseDecision)
	m, err := model.FindBestMatch(within, query)
	if err == nil {
		d.metrics.Phase(q.served.Model, phaseQueue, m.Waited)
		decision.span.Text("blockyard.worker", m.Worker.String())
		decision.span.Number("blockyard.queued_ms", int(m.Waited.Milliseconds()))
	}
	d.end(decision, q.served.Model, err)
	if err != nil {
		return nil, err
	}
	b := &booking{model: model, id: query.ID, match: m}
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

// free ends the booking. Further calls do nothing.
func (b *booking) free() {
	b.freed.Do(func() {
		if b.model != nil && b.match.Booked {
			b.model.Decide().FreeBooking(b.id, b.match.Booking)
		}
	})
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

// firstCheck and lastCheck bound the pauses between looks for the blocks of a prompt.
const firstCheck, lastCheck = 100 * time.Millisecond, 2 * time.Second

// awaitPrefill ends the prefill of a request whose answer is not streamed, which shows no first
// token: the prefill is over once the worker's events show the blocks of the prompt. For a worker
// without exact events the prefill ends with the request. The caller calls stop when the answer has
// come.
func (b *booking) awaitPrefill(q *request) (stop func()) {
	if b.model == nil || q.parsed.Stream || !q.route.Generates() {
		return func() {}
	}
	b.model.Decide().Unfollow(b.id)
	if !q.prompt.Exact || b.match.Quality != feed.Exact {
		return func() {}
	}
	query, ended := q.query(b.model), make(chan struct{})
	go func() {
		pauses := backoff.Doubling(firstCheck, lastCheck)
		for n := 1; ; n++ {
			pause := time.NewTimer(backoff.Nth(pauses, n))
			select {
			case <-ended:
				pause.Stop()
				return
			case <-pause.C:
			}
			if b.computed(query) {
				// The request may have expired from the account; then there is nothing to end.
				b.prefill.Do(func() { _ = b.model.Decide().EndPrefill(b.id) })
				return
			}
		}
	}()
	return func() { close(ended) }
}

// computed reports whether the worker has all full blocks of a prompt on its device.
func (b *booking) computed(prompt *router.Request) bool {
	full := len(prompt.Tokens) / int(b.model.Key().BlockSize)
	if b.model.IsEagle() {
		full = (len(prompt.Tokens) - 1) / int(b.model.Key().BlockSize)
	}
	// The other KV groups keep few blocks of a prompt.
	primary := *prompt
	primary.PrimaryGroup = true
	overlaps, err := b.model.Decide().Overlaps(&primary)
	if err != nil {
		return false // the worker has left
	}
	at := slices.IndexFunc(overlaps, func(o decide.Overlap) bool { return o.Worker == b.match.Worker })
	return at >= 0 && int(overlaps[at].Hits[kv.TierDevice]) >= full
}

// output counts the blocks that prompt and output fill together.
func (b *booking) output(tokens int) {
	size := b.blockSize()
	if size == 0 || b.model == nil {
		return
	}
	for filled := (tokens + size - 1) / size; b.blocks < filled; b.blocks++ {
		// An expired request is not counted any more.
		_ = b.model.Decide().AddOutputBlock(b.id, nil)
	}
}

// blockSize returns the tokens of a block at the worker, 0 when unknown. A server that was not asked yet has the block size of the
// worker's events.
func (b *booking) blockSize() int {
	if size := b.worker.Facts.BlockSize; size != 0 || b.model == nil {
		return size
	}
	return int(b.model.Key().BlockSize)
}

// cacheable returns how many tokens of a prompt the worker can report as cached. An engine always
// computes the last token itself, with the block around it. But with an agent's connector it counts
// a loaded prompt of whole blocks as cached to its end, or to its last token if it loads within a step.
func (b *booking) cacheable(prompt int) int {
	size := b.blockSize()
	if size == 0 || prompt == 0 {
		return 0
	}
	if b.worker.Source != workers.FromAgent {
		prompt--
	}
	return prompt / size * size
}

// predicted returns how many tokens of the prompt the worker is expected to report as cached.
func (b *booking) predicted(prompt int) int {
	return min(b.match.CachedBlocks()*b.blockSize(), b.cacheable(prompt))
}

// cached records the cached tokens of an answer that reported them.
func (q *request) cached(d *Door) {
	r := &q.record
	d.metrics.Cached(q.served.Model, r.worker, q.promptTokens, r.predicted, r.delivered)
	r.model.Explain(&router.Answered{Prompt: r.prompt, Exact: q.prompt.Exact, HandedOver: r.prefill != "", Quality: r.quality,
		Outcome: miss.Outcome{Cacheable: r.cacheable, Reported: r.reported, Computed: r.first},
		Entry:   miss.Entry{Request: q.id, Model: q.served.Model, Worker: r.worker, Tokens: q.promptTokens, Predicted: r.predicted, Delivered: r.delivered}})
}
