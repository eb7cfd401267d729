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

// reject answers a request that has no route with the client's mistake.
func (d *Door) reject(w http.ResponseWriter, r *http.Request, f *fault) {
	q := d.newRequest(w, r, openai.Other)
	defer d.finish(q)
	f.Kind = "invalid_request_error"
	d.refuse(q, &refusal{fault: *f})
}

// guarded returns h for requests that no browser sends for a page of another site.
func (d *Door) guarded(h http.Handler) http.Handler {
	guard := control.Guard{Trusted: d.options.TrustedOrigins, Refuse: func(w http.ResponseWriter, r *http.Request, text string) {
		d.reject(w, r, &fault{Status: http.StatusForbidden, Code: "cross_site", Message: text})
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
	r := &refusal{fault: fault{Status: http.StatusBadRequest, Kind: "invalid_request_error", Message: err.Error()}}
	if errors.As(err, &field) {
		r.Param, r.Status = field.Field, field.Code()
	}
	return r
}

// modelError returns the refusal of a model name.
func modelError(err error) *refusal {
	r := &refusal{fault: fault{Status: http.StatusServiceUnavailable, Kind: "server_error", Code: "no_workers", Message: err.Error()}, retryAfter: 1}
	switch {
	case errors.Is(err, workers.ErrUnknownModel), errors.Is(err, router.ErrUnknownModel):
		r.Status, r.Kind, r.Code, r.Param, r.retryAfter = http.StatusNotFound, "invalid_request_error", "model_not_found", "model", 0
	case errors.Is(err, workers.ErrModelRequired), errors.Is(err, router.ErrModelRequired):
		r.Status, r.Kind, r.Code, r.Param, r.retryAfter = http.StatusBadRequest, "invalid_request_error", "", "model", 0
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
		return nil, &refusal{fault: fault{Status: http.StatusServiceUnavailable, Kind: "overloaded_error", Code: "too_many_requests", Message: errTooMany.Error()}, retryAfter: 1}
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
		return &refusal{fault: fault{Status: http.StatusTooManyRequests, Kind: "rate_limit_error", Code: "too_many_requests",
			Message: fmt.Sprintf("the %s has %d requests in progress, as many as it may have", who, most)}, retryAfter: 1}
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
	r := &refusal{fault: fault{Status: http.StatusServiceUnavailable, Kind: "overloaded_error", Code: "queue_full"}, retryAfter: 1}
	switch {
	case err == nil:
		return release, nil
	case errors.Is(err, admission.ErrTenantFull):
		r.Status, r.Kind, r.Code = http.StatusTooManyRequests, "rate_limit_error", "tenant_queue_full"
	case errors.Is(err, admission.ErrFull):
	case errors.Is(err, admission.ErrTimeout):
		r.Code = "queue_timeout"
	default:
		return nil, endRefusal(err)
	}
	r.Message = err.Error()
	return nil, r
}

// bookingError returns the refusal of a request for which no worker was booked.
func (d *Door) bookingError(ctx context.Context, err error) *refusal {
	var query *decide.QueryError
	var endpoint *noEndpointError
	r := &refusal{fault: fault{Status: http.StatusServiceUnavailable, Kind: "server_error", Code: "no_workers", Message: err.Error()}, retryAfter: 1}
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
		r.Status, r.Code, r.Kind = http.StatusTooManyRequests, "queue_full", "overloaded_error"
	case errors.Is(err, schedule.ErrAllOverloaded), errors.Is(err, schedule.ErrPinnedOverloaded), errors.Is(err, load.ErrTooManyRequests):
		r.Status, r.Code, r.Kind = d.options.OverloadStatus, "overloaded", "overloaded_error"
	case errors.As(err, &endpoint):
		r.Code, r.retryAfter = "no_endpoint", 0
	}
	return r
}

// endRefusal answers a request whose context has ended.
func endRefusal(cause error) *refusal {
	switch {
	case errors.Is(cause, errDeadline):
		return &refusal{fault: fault{Status: http.StatusGatewayTimeout, Kind: "server_error", Code: "deadline", Message: cause.Error()}}
	case errors.Is(cause, errStopping):
		return &refusal{fault: fault{Status: http.StatusServiceUnavailable, Kind: "server_error", Code: "stopping", Message: cause.Error()}, retryAfter: 1}
	}
	// 499 is nginx's status for a client that has gone; nobody reads it but the log.
	return &refusal{fault: fault{Status: 499, Kind: "invalid_request_error", Message: "the client has gone"}}
}

// refusal returns what the client is told after the last attempt.
func (o *outcome) refusal(ctx context.Context, fatal bool) *refusal {
	switch {
	case fatal:
		return &refusal{fault: fault{Status: http.StatusBadRequest, Kind: "invalid_request_error", Code: "fatal_request", Message: errFatal.Error()}}
	case o.body != nil:
		return &refusal{fault: fault{Status: o.status, Message: "the worker failed"}, header: o.header, body: o.body}
	case context.Cause(ctx) != nil:
		return endRefusal(context.Cause(ctx))
	}
	return &refusal{fault: fault{Status: http.StatusBadGateway, Kind: "server_error", Code: "worker_failed", Message: o.err.Error()}, retryAfter: 1}
}

// isDial reports whether there was no connection at all.
func isDial(err error) bool {
	var op *net.OpError
	return errors.As(err, &op) && op.Op == "dial"
}
