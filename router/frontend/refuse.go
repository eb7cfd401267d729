package frontend

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"strconv"

	"github.com/blockyard-ai/blockyard/internal/control"
	"github.com/blockyard-ai/blockyard/internal/kv"
	"github.com/blockyard-ai/blockyard/router"
	"github.com/blockyard-ai/blockyard/router/decide"
	"github.com/blockyard-ai/blockyard/router/frontend/admission"
	"github.com/blockyard-ai/blockyard/router/frontend/openai"
	"github.com/blockyard-ai/blockyard/router/load"
	"github.com/blockyard-ai/blockyard/router/schedule"
	"github.com/blockyard-ai/blockyard/router/schedule/modes"
	"github.com/blockyard-ai/blockyard/router/schedule/queue"
	"github.com/blockyard-ai/blockyard/router/workers"
)

var (
	errDeadline   = errors.New("the time of the request is over")
	errTooLong    = errors.New("too long")
	errNoData     = errors.New("the worker ended the stream without data")
	errNotDone    = errors.New("the worker ended the stream without its last event, [DONE]")
	errFirstEvent = errors.New("the worker's first event is an error")
	errFatal      = errors.New("the request was at two workers when they died; it is refused for ten minutes")
	errTooMany    = errors.New("the router has too many requests in progress")
	errStopping   = errors.New("the router is stopping")
)

// Types of errors in OpenAI's shape.
const (
	kindInvalid    = "invalid_request_error"
	kindServer     = "server_error"
	kindOverloaded = "overloaded_error"
	kindRate       = "rate_limit_error"
)

// knownError is one of the errors that clients get from the door. when says in docs/front-door.md in which case.
type knownError struct {
	status     int
	kind, code string
	// retryAfter is in seconds; 0 is none.
	retryAfter int
	when       string
}

// usualOverload is the default of the setting http_overload_status.
const usualOverload = 529

// knownErrors has every knownError, in the order of their declarations.
var knownErrors []*knownError

func known(status int, kind, code string, retryAfter int, when string) *knownError {
	e := &knownError{status, kind, code, retryAfter, when}
	knownErrors = append(knownErrors, e)
	return e
}

var (
	badRequest       = known(http.StatusBadRequest, kindInvalid, "", 0, "a member or header that is named, with its value and what is allowed")
	fatalRequest     = known(http.StatusBadRequest, kindInvalid, "fatal_request", 0, "two workers died with this request")
	invalidKey       = known(http.StatusUnauthorized, kindInvalid, "invalid_api_key", 0, "`--api-keys` is given, and the request has no key or an unknown one")
	crossSite        = known(http.StatusForbidden, kindInvalid, "cross_site", 0, "a [browser](#browsers) sends the request for a page of another site")
	responseNotFound = known(http.StatusNotFound, kindInvalid, "response_not_found", 0, "no worker has the response, or it is another tenant's")
	modelNotFound    = known(http.StatusNotFound, kindInvalid, "model_not_found", 0, "no worker serves the model; the text lists the models")
	unknownURL       = known(http.StatusNotFound, kindInvalid, "unknown_url", 0, "a path that the door does not forward")
	bodyTooSlow      = known(http.StatusRequestTimeout, kindInvalid, "", 0, "the body arrived [too slowly](#limits)")
	bodyTooLarge     = known(http.StatusRequestEntityTooLarge, kindInvalid, "", 0, "the body is larger than 32 MiB")
	tooManyOfClient  = known(http.StatusTooManyRequests, kindRate, "too_many_requests", 1, "the tenant or the client's address has as many requests in progress as its [limit](#limits)")
	tenantQueueFull  = known(http.StatusTooManyRequests, kindRate, "tenant_queue_full", 1, "the tenant's part of the [queue](#fair-shares) is full")
	routerQueueFull  = known(http.StatusTooManyRequests, kindOverloaded, "queue_full", 1, "the router's queue is full")
	headersTooLarge  = known(http.StatusRequestHeaderFieldsTooLarge, kindInvalid, "headers_too_large", 0, "the headers are larger than their [limit](#limits)")
	unsupportedURL   = known(http.StatusNotImplemented, kindInvalid, "unsupported_url", 0, "`/v1/realtime`")
	workerFailed     = known(http.StatusBadGateway, kindServer, "worker_failed", 1, "two workers failed")
	workerLost       = known(http.StatusBadGateway, kindServer, "worker_lost", 0, "in a stream: the worker ended the answer before it was complete")
	noWorkers        = known(http.StatusServiceUnavailable, kindServer, "no_workers", 1, "no worker of the model is ready")
	noEndpoint       = known(http.StatusServiceUnavailable, kindServer, "no_endpoint", 0, "nobody told the router where the chosen worker takes requests")
	tooManyRequests  = known(http.StatusServiceUnavailable, kindOverloaded, "too_many_requests", 1, "`--max-requests` are in progress, or bodies fill their [memory](#limits)")
	queueFull        = known(http.StatusServiceUnavailable, kindOverloaded, "queue_full", 1, "the [queue](#fair-shares) of the model is full")
	queueTimeout     = known(http.StatusServiceUnavailable, kindOverloaded, "queue_timeout", 1, "the request waited for `--max-wait`")
	routerStopping   = known(http.StatusServiceUnavailable, kindServer, "stopping", 1, "the router is being stopped")
	deadlinePassed   = known(http.StatusGatewayTimeout, kindServer, "deadline", 0, "the time of the request is over")
	overloaded       = known(usualOverload, kindOverloaded, "overloaded", 1, "every worker is beyond a busy threshold; `http_overload_status` sets another status")
)

// refusal returns the answer with the error.
func (e *knownError) refusal(message string) *refusal {
	return &refusal{fault: fault{Status: e.status, Kind: e.kind, Code: e.code, Message: message}, retryAfter: e.retryAfter}
}

// noEndpointError says that nobody knows where the chosen worker takes requests.
type noEndpointError struct{ worker kv.Worker }

// Error implements error.
func (e *noEndpointError) Error() string {
	return fmt.Sprintf("worker %s: its endpoint is not known; name it with --worker URL,id=%d or let it announce serving_endpoint", e.worker, e.worker.ID)
}

// fault is an error in the terms of OpenAI's clients.
type fault struct {
	Status                     int
	Kind, Message, Param, Code string
}

// body returns the error as a route's clients expect it.
func (f *fault) encode(route openai.Route) []byte {
	return route.ErrorBody(f.Status, f.Kind, f.Message, f.Param, f.Code)
}

// refusal is an answer with an error.
type refusal struct {
	fault
	// retryAfter is in seconds; 0 is none.
	retryAfter int
	// header is the worker's, nil for errors of the door.
	header http.Header
	body   []byte
}

// refuse answers with an error.
func (d *Door) refuse(q *request, r *refusal) {
	h := q.out.Header()
	body := r.body
	if body == nil {
		body = r.encode(q.route)
		h.Set("Content-Type", "application/json")
	} else if kind := r.header.Get("Content-Type"); kind != "" {
		h.Set("Content-Type", kind)
	}
	if r.retryAfter > 0 {
		h.Set("Retry-After", strconv.Itoa(r.retryAfter))
	}
	h.Set(requestIDHeader, q.id)
	q.record.status, q.record.failed = r.Status, r.Message
	q.out.WriteHeader(r.Status)
	// A client that has gone does not read the error.
	_, _ = q.out.Write(body)
}

// reject answers a request that has no route.
func (d *Door) reject(w http.ResponseWriter, r *http.Request, refused *refusal) {
	q := d.newRequest(w, r, openai.Other)
	defer d.finish(q)
	d.refuse(q, refused)
}

// guarded returns h for requests that no browser sends for a page of another site.
func (d *Door) guarded(h http.Handler) http.Handler {
	guard := control.Guard{Trusted: d.options.TrustedOrigins, Refuse: func(w http.ResponseWriter, r *http.Request, text string) {
		d.reject(w, r, crossSite.refusal(text))
	}}
	guarded, err := guard.Handler(h)
	if err != nil {
		panic("BUG: New has checked the origins: " + err.Error())
	}
	return guarded
}

// bad returns the refusal of a request with a mistake.
func bad(err error) *refusal {
	var field *openai.FieldError
	r := badRequest.refusal(err.Error())
	if errors.As(err, &field) {
		r.Param, r.Status = field.Field, field.Code()
	}
	return r
}

// modelError returns the refusal of a model name.
func modelError(err error) *refusal {
	e := noWorkers
	switch {
	case errors.Is(err, workers.ErrUnknownModel), errors.Is(err, router.ErrUnknownModel):
		e = modelNotFound
	case errors.Is(err, workers.ErrModelRequired), errors.Is(err, router.ErrModelRequired):
		e = badRequest
	}
	r := e.refusal(err.Error())
	if e != noWorkers {
		r.Param = "model"
	}
	return r
}

// enter finds the tenant of a request and counts the request in. The caller calls leave at its end.
func (d *Door) enter(q *request) (leave func(), refused *refusal) {
	if refused := d.identify(q); refused != nil {
		return nil, refused
	}
	select {
	case d.running <- struct{}{}:
	default:
		return nil, tooManyRequests.refusal(errTooMany.Error())
	}
	counted, refused := d.count(q)
	if refused != nil {
		<-d.running
		return nil, refused
	}
	return func() {
		counted()
		<-d.running
	}, nil
}

// count counts a request in by tenant and by client address. The caller calls leave at its
// end.
func (d *Door) count(q *request) (leave func(), refused *refusal) {
	full := func(who string, most int) *refusal {
		d.refused.Add(1)
		return tooManyOfClient.refusal(fmt.Sprintf("the %s has %d requests in progress, as many as it may have", who, most))
	}
	ofTenant, ok := d.tenants.Enter(q.tenant, q.caller.Requests)
	if !ok {
		return nil, full("tenant", q.caller.Requests)
	}
	most := d.options.MaxClientRequests
	ofClient, ok := d.clients.Enter(admission.ClientOf(q.http), most)
	if !ok {
		ofTenant()
		return nil, full("client's address", most)
	}
	return func() { ofTenant(); ofClient() }, nil
}

// admit waits until the request may go on to a worker. The caller calls leave at its end.
func (d *Door) admit(ctx context.Context, q *request) (leave func(), refused *refusal) {
	if d.queues == nil {
		return func() {}, nil
	}
	model := q.served.Model
	ctx, waits := d.begin(ctx, phaseAdmission)
	release, err := d.queues.Queue(model).Enter(ctx, admission.Request{Tenant: q.tenant, Priority: q.strictPriority, Order: q.parsed.Priority, Weight: q.caller.Weight,
		Tokens: len(q.tokens) + q.expected, Bytes: int64(len(q.client) + len(q.body) + 4*len(q.tokens))})
	d.end(waits, model, err)
	switch {
	case err == nil:
		return release, nil
	case errors.Is(err, admission.ErrTenantFull):
		return nil, tenantQueueFull.refusal(err.Error())
	case errors.Is(err, admission.ErrFull):
		return nil, queueFull.refusal(err.Error())
	case errors.Is(err, admission.ErrTimeout):
		return nil, queueTimeout.refusal(err.Error())
	}
	return nil, endRefusal(err)
}

// bookingError returns the refusal of a request for which no worker was booked.
func (d *Door) bookingError(ctx context.Context, err error) *refusal {
	var query *decide.QueryError
	var endpoint *noEndpointError
	switch cause := context.Cause(ctx); {
	case cause != nil:
		return endRefusal(cause)
	case errors.As(err, &query):
		return bad(err)
	case errors.Is(err, router.ErrUnknownModel), errors.Is(err, router.ErrModelRequired):
		return modelError(err)
	case errors.Is(err, modes.ErrNotPinned):
		return bad(fmt.Errorf("%s: %w", WorkerPinHeader, err))
	case errors.Is(err, queue.ErrRejected):
		return routerQueueFull.refusal(err.Error())
	case errors.Is(err, schedule.ErrAllOverloaded), errors.Is(err, schedule.ErrPinnedOverloaded), errors.Is(err, load.ErrTooManyRequests):
		r := overloaded.refusal(err.Error())
		r.Status = d.options.OverloadStatus
		return r
	case errors.As(err, &endpoint):
		return noEndpoint.refusal(err.Error())
	}
	return noWorkers.refusal(err.Error())
}

// endRefusal answers a request whose context has ended.
func endRefusal(cause error) *refusal {
	switch {
	case errors.Is(cause, errDeadline):
		return deadlinePassed.refusal(cause.Error())
	case errors.Is(cause, errStopping):
		return routerStopping.refusal(cause.Error())
	}
	// 499 is nginx's status for a client that has gone; nobody reads it but the log.
	return &refusal{fault: fault{Status: 499, Kind: kindInvalid, Message: "the client has gone"}}
}

// refusal returns what the client is told after the last attempt.
func (o *outcome) refusal(ctx context.Context, fatal bool) *refusal {
	switch {
	case fatal:
		return fatalRequest.refusal(errFatal.Error())
	case o.body != nil:
		return &refusal{fault: fault{Status: o.status, Message: "the worker failed"}, header: o.header, body: o.body}
	case context.Cause(ctx) != nil:
		return endRefusal(context.Cause(ctx))
	}
	return workerFailed.refusal(o.err.Error())
}

// isDial reports whether there was no connection at all.
func isDial(err error) bool {
	var op *net.OpError
	return errors.As(err, &op) && op.Op == "dial"
}
