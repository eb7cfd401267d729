package frontend

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net/http"
	"time"

	"go.uber.org/zap"

	"github.com/blockyard-ai/blockyard/internal/bodies"
	"github.com/blockyard-ai/blockyard/internal/kv"
	"github.com/blockyard-ai/blockyard/router"
	"github.com/blockyard-ai/blockyard/router/config"
	"github.com/blockyard-ai/blockyard/router/frontend/admission"
	"github.com/blockyard-ai/blockyard/router/frontend/memory"
	"github.com/blockyard-ai/blockyard/router/frontend/openai"
	"github.com/blockyard-ai/blockyard/router/frontend/session"
	"github.com/blockyard-ai/blockyard/router/frontend/spans"
	"github.com/blockyard-ai/blockyard/router/frontend/tenant"
	"github.com/blockyard-ai/blockyard/router/frontend/tokens"
	"github.com/blockyard-ai/blockyard/router/miss"
	"github.com/blockyard-ai/blockyard/router/workers"
)

// request is one request of a client, from its body to the last byte of the answer.
type request struct {
	http  *http.Request
	out   http.ResponseWriter
	id    string
	route openai.Route
	// caller is the holder of the request's key, tenant is its tenant.
	caller *tenant.Client
	tenant string
	began  time.Time

	// client is the body of the client, body what the worker gets. parsed is what routing
	// read of the client's body.
	client, body []byte
	parsed       *openai.Request
	// edits are edits of the body that the caller's key asks for.
	edits []openai.Edit
	// addedUsage is true when the door, and not the client, asked for the usage event.
	addedUsage bool
	served     workers.Served
	prompt     tokens.Prompt
	// tokens are those of prompt, or stand-ins when they are unknown.
	tokens []uint32
	// inputTokens is the number of tokens. promptTokens is that of prompt, 0 when unknown. Both
	// outlive shrink.
	inputTokens, promptTokens int
	// charge is what the body holds of Options.MaxBodies; nil for a request without a body.
	charge *bodies.Body
	// expected is the expected number of output tokens, 0 when unknown.
	expected int

	// handOver is the computed prompt; nil when one worker serves the request whole.
	handOver *handOver
	// lease is the use of the request's session; nil without a session.
	lease *session.Lease
	// pinned is the only worker that may serve the request; nil for any.
	pinned *kv.Worker
	// through is the gateway that forwards the request; nil when the door does.
	through        *Through
	priorityJump   float64
	strictPriority uint32
	hints          admission.Hints
	// override is what the request's headers change of the router's settings; nil for nothing.
	override *config.Override

	// span is the trace of the request; nil without tracing.
	span   *spans.Span
	record record
}

// toWorker returns the body for the worker that answers.
func (q *request) toWorker() []byte {
	if q.handOver != nil {
		return q.handOver.body
	}
	return q.body
}

// attempts is how many workers a request is sent to at most.
const attempts = 2

// run sends a request to workers until one has answered. Every error is answered here.
func (d *Door) run(ctx context.Context, q *request) {
	var failed []kv.WorkerID
	if err := d.joinSession(q); err != nil {
		d.refuse(q, bad(err))
		return
	}
	defer q.leaveSession()
	if refused := d.prefill(ctx, q); refused != nil {
		d.refuse(q, refused)
		return
	}
	for attempt := 1; ; attempt++ {
		b, err := d.bookFor(ctx, q, failed, attempt)
		if err != nil {
			d.refuse(q, d.bookingError(ctx, err))
			return
		}
		result := d.try(ctx, q, b)
		if result.err == nil || result.committed {
			return
		}
		if attempt == 1 && d.moved(q, &result) {
			continue
		}
		// A gateway has its own retries.
		if fatal := d.died(q, b, &result); fatal || attempt == attempts || !result.retry || ctx.Err() != nil || q.through != nil {
			d.refuse(q, result.refusal(ctx, fatal))
			return
		}
		failed, q.handOver = append(failed, b.match.Worker.ID), nil
		d.metrics.Retried(q.served.Model, b.match.Worker.String(), result.reason)
		d.log.Info("request is sent to another worker", zap.String("request", q.id), zap.String("worker", b.worker.URL), zap.Error(result.err))
	}
}

// try sends the request to the worker of a booking and frees the booking.
func (d *Door) try(ctx context.Context, q *request, b *booking) (result outcome) {
	defer b.free()
	id := b.match.Worker.ID
	d.options.Workers.Begin(id)
	defer func() { d.options.Workers.Done(id, result.worker()) }()
	ctx, call := d.options.Tracer.StartCall(ctx, "upstream")
	defer func() { call.End(result.err) }()
	call.Text("url.full", b.worker.URL)
	_, q.record.firstSpan = d.options.Tracer.Start(ctx, "first token")
	q.sent(d, b)
	defer b.awaitPrefill(q)()
	resp, err := d.send(ctx, q, b, q.toWorker())
	if err != nil {
		return failedToSend(ctx, err)
	}
	defer resp.Body.Close() //nolint:errcheck // the answer has been read, or its rest does not matter
	a := &answer{door: d, request: q, booking: b, from: resp, control: http.NewResponseController(q.out),
		ended: func() error { return context.Cause(ctx) }}
	result = a.relay()
	if cause := context.Cause(ctx); cause != nil && result.err != nil {
		// The end of ctx broke the answer off, and not the worker.
		result.err, result.reason = cause, endReason(cause)
	}
	return result
}

// died records the death of a worker and reports whether the request was at two deaths.
func (d *Door) died(q *request, b *booking, result *outcome) (fatal bool) {
	if result.reason != reasonDied {
		return false
	}
	n := d.deaths.Add(memory.FingerprintOf(q.http.URL.Path, q.client), b.match.Worker, time.Now())
	d.log.Warn("worker ended a request without an answer", zap.String("request", q.id), zap.String("worker", b.worker.URL),
		zap.Int("deaths", n), zap.Error(result.err))
	return n >= memory.FatalDeaths
}

// Reasons of failed attempts, as metrics have them.
const (
	reasonConnect = "connect"  // no connection
	reasonDied    = "died"     // the connection ended without an answer
	reasonStatus  = "status"   // the worker answered 5xx
	reasonBad     = "answer"   // the answer makes no sense
	reasonClient  = "client"   // the client has gone
	reasonTimeout = "deadline" // the request's time is over
	// reasonPrefillTime: the time of the prefill is over, and not the request's.
	reasonPrefillTime = "prefill_timeout"
	// reasonNotHandedOver: the prefill worker's answer does not say where the blocks are.
	reasonNotHandedOver = "not_handed_over"
)

// outcome is how an attempt at a worker ended.
type outcome struct {
	// committed is true when bytes of the answer have gone to the client.
	committed bool
	// err is nil after a whole answer.
	err    error
	reason string
	// retry is true when another worker may do better.
	retry bool
	// status and body are the worker's own error, 0 without one.
	status int
	header http.Header
	body   []byte
}

// worker returns what the attempt says about the worker.
func (o *outcome) worker() workers.Outcome {
	switch o.reason {
	case "":
		return workers.OutcomeOK
	case reasonClient, reasonTimeout:
		return workers.OutcomeClient
	case reasonStatus, reasonNotHandedOver:
		if o.status < http.StatusInternalServerError {
			return workers.OutcomeClient
		}
	}
	return workers.OutcomeFailed
}

// failedToSend returns the outcome of a request that got no headers.
func failedToSend(ctx context.Context, err error) outcome {
	cause := context.Cause(ctx)
	switch {
	case cause != nil:
		return outcome{err: cause, reason: endReason(cause)}
	case isDial(err):
		return outcome{err: err, reason: reasonConnect, retry: true}
	}
	return outcome{err: err, reason: reasonDied, retry: true}
}

// endReason tells why a request's context has ended.
func endReason(cause error) string {
	if errors.Is(cause, errDeadline) {
		return reasonTimeout
	}
	return reasonClient
}

// record is what the access log and the metrics show of a request.
type record struct {
	status          int
	failed          string
	worker, quality string
	// prefill is the worker that computed the prompt; empty when worker did.
	prefill string
	// predicted and delivered are cached tokens. delivered is -1 until it is known.
	predicted, delivered int
	attempts             int
	output               int
	// prompt is what the decision of model knew; nil when no misses are explained. At most cacheable
	// tokens can be cached. reported is the length of the prompt as the worker counts, 0 when unknown.
	prompt              *miss.Prompt
	model               *router.Model
	cacheable, reported int
	booked, first, last time.Time
	gap                 func(time.Duration)
	// firstSpan lasts from the sending of the request to its first token.
	firstSpan *spans.Span
}

// trace begins the span of a request. The context carries the span.
func (d *Door) trace(q *request) (ctx context.Context) {
	ctx, q.span = d.options.Tracer.Begin(q.http.Context(), q.http.Pattern, q.http.Header, q.began)
	return ctx
}

// phase is a part of the time that a request takes before a worker has it.
type phase struct {
	name  string
	began time.Time
	span  *spans.Span
}

// Phases, as metrics and spans name them.
const (
	phaseTokens    = "tokens"    // the prompt becomes tokens
	phaseAdmission = "admission" // the request waits because of Admission
	phaseDecision  = "decision"  // the router decides, with the wait in its queue
	phaseQueue     = "queue"     // part of the decision: the wait in the router's queue
)

// begin begins a phase.
func (d *Door) begin(ctx context.Context, name string) (context.Context, phase) {
	ctx, span := d.options.Tracer.Start(ctx, name)
	return ctx, phase{name, time.Now(), span}
}

// end records the phase of a request for a model.
func (d *Door) end(p phase, model string, err error) {
	d.metrics.Phase(model, p.name, time.Since(p.began))
	p.span.End(err)
}

// sent records that the request goes to the worker of a booking.
func (q *request) sent(d *Door, b *booking) {
	r := &q.record
	r.attempts++
	r.worker, r.quality, r.booked = b.match.Worker.String(), string(b.match.Quality), time.Now()
	r.predicted, r.cacheable, r.delivered = b.predicted(len(q.prompt.Tokens)), b.cacheable(len(q.prompt.Tokens)), -1
	r.prompt, r.model = b.match.Prompt, b.model
	if q.handOver == nil {
		r.prefill = ""
	} else {
		r.predicted = max(r.predicted, q.handOver.cached)
	}
	r.gap = d.metrics.Gap(q.served.Model, r.worker)
}

// token records an event with a token.
func (q *request) token(d *Door) {
	r, now := &q.record, time.Now()
	if r.first.IsZero() {
		r.first = now
		r.firstSpan.End(nil)
		d.metrics.FirstToken(q.served.Model, r.worker, now.Sub(q.began))
	} else {
		r.gap(now.Sub(r.last))
	}
	r.last = now
}

// used records what the worker reports of its use.
func (q *request) used(d *Door, b *booking, u openai.Usage) {
	d.options.Workers.NoteCachedTokens(b.worker.ID, u.HasCached)
	r := &q.record
	if u.Completion > 0 {
		r.output = u.Completion
	}
	if u.HasCached {
		r.delivered, r.reported = u.Cached, u.Prompt
	}
	b.output(q.inputTokens + u.Completion)
}

// finish records the end of a request. Callers defer it, because it records a panic too, which
// then goes on.
func (d *Door) finish(q *request) {
	r, model := &q.record, q.served.Model
	if p := recover(); p != nil {
		r.status, r.failed = cmp.Or(r.status, http.StatusInternalServerError), fmt.Sprintf("BUG: %.200v", p)
		defer panic("BUG: request " + q.id + ": " + r.failed)
	}
	d.metrics.Answered(q.route.String(), model, r.status)
	if r.worker != "" {
		d.metrics.Ended(model, r.worker, time.Since(q.began), r.output)
		d.lengths.Learn(q.tenant, model, r.output)
		if r.delivered >= 0 && q.promptTokens > 0 {
			q.cached(d)
		}
	}
	if d.options.AccessLog {
		d.logRequest(q)
	}
	q.endSpan()
}

// endSpan ends the span of a request.
func (q *request) endSpan() {
	s, r := q.span, &q.record
	s.Text("http.request.method", q.http.Method)
	s.Text("url.path", q.http.URL.Path)
	s.Number("http.response.status_code", r.status)
	s.Text("gen_ai.request.model", q.served.Model)
	s.Text("blockyard.request_id", q.id)
	s.Text("blockyard.tenant", q.tenant)
	if r.worker != "" {
		s.Text("blockyard.worker", r.worker)
		s.Text("blockyard.quality", r.quality)
		s.Number("blockyard.attempts", r.attempts)
		s.Number("blockyard.cached_tokens.predicted", r.predicted)
		s.Number("gen_ai.usage.input_tokens", q.inputTokens)
		s.Number("gen_ai.usage.output_tokens", r.output)
	}
	if r.delivered >= 0 && r.worker != "" {
		s.Number("blockyard.cached_tokens.delivered", r.delivered)
	}
	if r.failed != "" {
		s.Fail(r.failed)
	}
	s.End(nil)
}

func (d *Door) logRequest(q *request) {
	r := &q.record
	fields := []zap.Field{
		zap.String("request", q.id), zap.String("client", q.http.RemoteAddr), zap.String("method", fmt.Sprintf("%.20s", q.http.Method)),
		zap.String("path", fmt.Sprintf("%.300s", q.http.URL.Path)), zap.String("model", q.served.Model), zap.Int("status", r.status),
		zap.Duration("took", time.Since(q.began)),
	}
	if q.caller != nil && q.caller.Tenant != "" {
		fields = append(fields, zap.String("tenant", q.caller.Tenant), zap.String("key", q.caller.Key))
	}
	if r.worker != "" {
		fields = append(fields, zap.String("worker", r.worker), zap.Int("attempts", r.attempts),
			zap.Int("prompt_tokens", q.inputTokens), zap.Int("output_tokens", r.output),
			zap.Int("cached_predicted", r.predicted), zap.Int("cached_delivered", r.delivered))
	}
	if r.prefill != "" {
		fields = append(fields, zap.String("prefill_worker", r.prefill))
	}
	if !r.first.IsZero() {
		fields = append(fields, zap.Duration("first_token", r.first.Sub(q.began)))
	}
	if r.failed != "" {
		fields = append(fields, zap.String("error", r.failed))
	}
	d.log.Info("request", fields...)
}
