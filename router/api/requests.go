package api

import (
	"cmp"
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"io"
	"net/http"
	"slices"
	"strings"
	"time"

	"github.com/blockyard-ai/blockyard/internal/bodies"
	"github.com/blockyard-ai/blockyard/internal/kv"
	"github.com/blockyard-ai/blockyard/router"
	"github.com/blockyard-ai/blockyard/router/decide"
	"github.com/blockyard-ai/blockyard/router/feed"
	"github.com/blockyard-ai/blockyard/router/index"
	"github.com/blockyard-ai/blockyard/router/load"
	"github.com/blockyard-ai/blockyard/router/metrics"
	"github.com/blockyard-ai/blockyard/router/replica"
	"github.com/blockyard-ai/blockyard/router/schedule"
	"github.com/blockyard-ai/blockyard/router/schedule/modes"
	"github.com/blockyard-ai/blockyard/router/schedule/queue"
	"github.com/blockyard-ai/blockyard/router/workers"
)

// service answers route requests of any transport.
type service struct {
	router  *router.Router
	servers *workers.Directory // nil without worker servers
	metrics *metrics.Metrics
	// overload is the HTTP status of requests refused because of load.
	overload int
	// routing has an element for each request that is being routed, and for each call of tokens.
	routing chan struct{}
	bodies  *bodies.Budget
}

func newService(r *router.Router, servers *workers.Directory) *service {
	m := r.Metrics()
	return &service{router: r, servers: servers, metrics: m, overload: int(r.Config().HTTPOverloadStatus),
		routing: make(chan struct{}, maxNewRequests), bodies: bodies.New(maxReading, maxKept, &m.API.Bodies)}
}

// maxNewRequests bounds the requests that are being routed, because each keeps its prompt in
// memory. The queue bounds the waiting requests.
const maxNewRequests = 4096

const (
	// maxReading bounds the bytes of bodies that are not decoded yet. Decoding takes a few
	// times as much memory. maxKept bounds the bytes of all bodies in progress, which are
	// mostly prompts.
	maxReading = 128 << 20
	maxKept    = 1 << 30
)

// errTimeout says that the timeout of a request ended before a worker was free.
var errTimeout = errors.New("timeout_ms: no worker had time for the request")

// caller describes the sender of a request.
type caller struct {
	// id is the request id of the header, or empty. client is the name of the client in the
	// body budget.
	id, client string
	// readBy sets the time at which a blocked read of the body ends, also from another
	// goroutine; nil when reads do not block.
	readBy func(time.Time)
	// unwatched is true when the transport does not report that the client has left. timeout
	// is the default of timeout_ms; 0 is no timeout.
	unwatched bool
	// registers is true when the caller may register workers.
	registers bool
	timeout   time.Duration
	// onWait is called when the request begins to wait for a worker; it may be nil.
	onWait func()
}

// errBusy says that too many requests or bytes of bodies are in progress.
var errBusy = bodies.ErrBusy

// reply is the answer to a route request.
type reply struct {
	// status is an HTTP status, also without HTTP.
	status int
	// body is encoded as JSON. failed is the text of an error, or empty.
	body   any
	failed string
	// id is the request id, or empty. unbook frees the booking after a failed delivery; it
	// is nil without a booking.
	id     string
	unbook func()
	// quality is empty without a look into the index. score is empty without a decision.
	quality feed.Quality
	score   string
	// about says what the request was about, without prompts. readOnly is true when it could
	// change nothing.
	about    string
	readOnly bool
}

// headers returns the reply's headers by name: request id, quality and score, without empty ones.
func (r *reply) headers() map[string]string {
	all := map[string]string{RequestIDHeader: r.id, QualityHeader: string(r.quality), ScoreHeader: headerText(r.score)}
	for name, value := range all {
		if value == "" {
			delete(all, name)
		}
	}
	return all
}

// errorAnswer is the body of an error.
type errorAnswer struct {
	Error string `json:"error"`
}

// route returns the reply to the route request in body, at most maxBody bytes of JSON. The caller
// delivers the reply and calls its unbook if that fails. ctx ends when the sender has left.
func (s *service) route(ctx context.Context, body io.Reader, c caller) reply {
	budgeted := s.bodies.Wrap(body, c.client, c.readBy)
	defer budgeted.Done()
	q, err := decodeRoute(budgeted)
	if err != nil {
		return s.fail(badBody(err), err)
	}
	budgeted.Decoded()
	out := s.decoded(ctx, q, c)
	out.about, out.readOnly = q.about(cmp.Or(strings.TrimSpace(q.RequestID), c.id, out.id)), q.readOnly()
	return out
}

// decoded returns the reply to a decoded request.
func (s *service) decoded(ctx context.Context, q *routeRequest, c caller) reply {
	// The id in the body wins over the header's. field names the one that is checked.
	field := RequestIDHeader
	if strings.TrimSpace(q.RequestID) != "" {
		field, c.id = "request_id", q.RequestID
	}
	if err := checkRequestID(field, c.id); err != nil {
		return s.fail(http.StatusBadRequest, err)
	}
	switch q.Method {
	case "new", "explain":
		return s.newRequest(ctx, q, c)
	case "add_request":
		return s.addRequest(q, c.id)
	case "record_routing_decision":
		return s.recordDecision(q)
	case "register_workers":
		return s.registerWorkers(q, &c)
	case "potential_loads":
		return s.potentialLoads(q)
	case "overlap":
		return s.overlap(q)
	}
	return s.mark(ctx, q, c.id)
}

// newRequest answers "new" and "explain": it chooses a worker for the prompt, and waits for one
// while all are busy. It books the request, which adds its load to the worker, unless the request
// is a dry run. The reply's unbook takes the booking back.
func (s *service) newRequest(ctx context.Context, q *routeRequest, c caller) reply {
	id := c.id
	if q.books() {
		id = cmp.Or(id, rand.Text()) // the client frees the booking by this id
	}
	routed, err := s.takeSlot()
	if err != nil {
		return s.fail(http.StatusServiceUnavailable, err)
	}
	// A request releases its slot when it begins to wait, because the queue has its own bound.
	defer routed()
	if timeout := cmp.Or(q.timeout(), c.timeout); timeout > 0 {
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeoutCause(ctx, timeout, errTimeout)
		defer cancel()
	}
	start := time.Now()
	query := q.query(id)
	model, err := s.model(q.Model)
	if err != nil {
		return s.failedRequest(id, err)
	}
	if err := s.pinRank(model, q, query); err != nil {
		return s.fail(http.StatusBadRequest, err)
	}
	// A client may leave unnoticed while its request waits. Then its booking must expire soon.
	query.Provisional = c.unwatched
	query.Waits = func() {
		routed()
		if c.onWait != nil {
			c.onWait()
		}
	}
	m, err := model.FindBestMatch(ctx, query)
	if err != nil {
		return s.failedRequest(id, err)
	}
	var unbook func()
	if m.Booked {
		// The booking's number frees it, and not the id: a client without a reply may have
		// booked the same id again.
		unbook = func() { model.Decide().FreeBooking(id, m.Booking) }
	}
	if ctx.Err() != nil {
		// The client has left and will not send the request to the worker.
		if unbook != nil {
			unbook()
		}
		return s.failed(context.Cause(ctx))
	}
	if q.books() {
		s.metrics.Decided(time.Since(start)-m.Waited, m.Quality, &m.Match, len(q.Tokens))
	} else {
		s.metrics.Served(q.Method, m.Quality)
	}
	return reply{status: http.StatusOK, id: id, unbook: unbook, quality: m.Quality, score: m.Mode, body: s.chosen(q, model, &m)}
}

// model returns the model of a request, once the router has started.
func (s *service) model(name string) (*router.Model, error) {
	if err := s.router.Started(); err != nil {
		return nil, err
	}
	return s.router.Model(name)
}

// pinRank sets query.Pinned.Rank for a request that pins a worker without a rank. The error says
// that the worker has several ranks. An unknown worker is no error here: FindBestMatch reports it.
func (s *service) pinRank(model *router.Model, q *routeRequest, query *router.Request) error {
	if q.Pinned == nil || q.Pinned.DPRank != nil {
		return nil
	}
	rank, only := model.Decide().UniqueDPRankForWorker(q.Pinned.WorkerID)
	if only {
		query.Pinned.Rank = rank
		return nil
	}
	isPinned := func(m index.Member) bool { return m.Worker.ID == q.Pinned.WorkerID }
	if slices.ContainsFunc(model.Index().Members().List, isPinned) {
		return fmt.Errorf("pinned_worker: worker %d has several ranks; dp_rank must say which", uint64(q.Pinned.WorkerID))
	}
	return nil
}

// mark answers "mark_prefill", "output_block" and "mark_free", by which a client reports the
// progress of the booked request id. Success is false in the answer for an unknown request.
func (s *service) mark(ctx context.Context, q *routeRequest, id string) reply {
	if id == "" {
		return s.fail(http.StatusBadRequest, fmt.Errorf("request_id: %s needs a request id, in the body or in the header %s", q.Method, RequestIDHeader))
	}
	mark, m := replica.Mark{Model: q.Model, ID: id}, markAnswer{}
	switch q.Method {
	case "mark_prefill":
		mark.Kind, m.Method = replica.MarkPrefill, "prefill_marked"
	case "output_block":
		mark.Kind, mark.Decay, m.Method = replica.MarkOutput, q.DecayFraction, "output_block_added"
	default:
		mark.Kind, m.Method, m.Active = replica.MarkFree, "free_marked", &m.Success
	}
	var err error
	if m.Success, err = s.router.Mark(ctx, &mark); err != nil {
		return s.failedRequest(id, err)
	}
	return s.answered(q.Method, id, s.router.Quality(), &m)
}

// potentialLoads answers "potential_loads": the load that each worker would have with the
// request, and how many requests wait. Nothing is booked.
func (s *service) potentialLoads(q *routeRequest) reply {
	model, err := s.router.Model(q.Model)
	if err != nil {
		return s.failed(err)
	}
	loads, err := model.Decide().GetPotentialLoads(q.query(""))
	if err != nil {
		return s.failed(err)
	}
	out := loadsAnswer{Method: "potential_loads", Loads: make([]loadAnswer, len(loads)),
		PendingCount: model.Decide().PendingCount(), PendingISLTokens: model.Decide().PendingTokens()}
	for i, l := range loads {
		out.Loads[i] = loadAnswer{uint64(l.Worker.ID), uint32(l.Worker.Rank), l.PrefillTokens, l.DecodeBlocks}
	}
	return s.answered(q.Method, "", model.Quality(), &out)
}

// overlap answers "overlap": how many blocks of the prompt each worker holds, by tier. Nothing is
// booked.
func (s *service) overlap(q *routeRequest) reply {
	model, err := s.router.Model(q.Model)
	if err != nil {
		return s.failed(err)
	}
	overlaps, quality, err := model.Overlaps(q.query(""))
	if err != nil {
		return s.failed(err)
	}
	out := overlapsAnswer{Method: "overlap", Overlaps: make([]overlapAnswer, len(overlaps))}
	for i, o := range overlaps {
		out.Overlaps[i] = overlapAnswer{WorkerID: uint64(o.Worker.ID), DPRank: uint32(o.Worker.Rank),
			EffectiveBlocks: o.Effective, CachedTokens: o.CachedTokens,
			Device: o.Hits[kv.TierDevice], Host: o.Hits[kv.TierHost], Disk: o.Hits[kv.TierDisk], External: o.Hits[kv.TierExternal]}
	}
	return s.answered(q.Method, "", quality, &out)
}

// answered returns the reply to a request that chose no worker.
func (s *service) answered(method, id string, quality feed.Quality, body any) reply {
	s.metrics.Served(method, quality)
	return reply{status: http.StatusOK, body: body, id: id, quality: quality}
}

// fail returns the reply of an error with an HTTP status.
func (s *service) fail(code int, err error) reply {
	s.metrics.Failed(code)
	return reply{status: code, body: &errorAnswer{err.Error()}, failed: err.Error()}
}

// failed returns the reply to a request that the router refused with err. The body names the
// reached limit when the queue was full.
func (s *service) failed(err error) reply {
	out := s.fail(s.status(err), err)
	var full *queue.Rejection
	if errors.As(err, &full) {
		out.body = &rejectedAnswer{Method: "queue_rejected", Rejection: rejection{
			PolicyClass: full.Class, LimitKind: string(full.Kind), Current: full.Current, Limit: full.Limit}}
	}
	return out
}

// failedRequest is failed for a request with an id.
func (s *service) failedRequest(id string, err error) reply {
	out := s.failed(err)
	out.id = id
	return out
}

// status returns the HTTP status of an error of the router; 500 for an unexpected error. s.overload
// is the configured status of refusals because of load.
func (s *service) status(err error) int {
	for _, known := range []struct {
		err    error
		status int
	}{
		{router.ErrNoRequestID, http.StatusBadRequest},
		{router.ErrModelRequired, http.StatusBadRequest},
		{router.ErrUnknownModel, http.StatusNotFound},
		{schedule.ErrPinnedNotAllowed, http.StatusBadRequest},
		{modes.ErrNotPinned, http.StatusBadRequest},
		{load.ErrDuplicateRequest, http.StatusConflict},
		{decide.ErrNotRecorded, http.StatusConflict},
		{decide.ErrUnknownWorker, http.StatusNotFound},
		{errRegistrationClosed, http.StatusForbidden},
		{schedule.ErrAllOverloaded, s.overload},
		{schedule.ErrPinnedOverloaded, s.overload},
		{queue.ErrRejected, s.overload},
		{errTimeout, s.overload},
		{router.ErrNoWorkers, http.StatusServiceUnavailable},
		{router.ErrStarting, http.StatusServiceUnavailable},
		{schedule.ErrAllFiltered, http.StatusServiceUnavailable},
		{errStopping, http.StatusServiceUnavailable},
		{router.ErrPeerSilent, http.StatusServiceUnavailable},
		{context.Canceled, http.StatusServiceUnavailable},
		{context.DeadlineExceeded, http.StatusServiceUnavailable},
	} {
		if errors.Is(err, known.err) {
			return known.status
		}
	}
	var bad *decide.QueryError
	if errors.As(err, &bad) {
		return http.StatusBadRequest
	}
	return http.StatusInternalServerError
}

// badBody returns the HTTP status for err, an error of reading or decoding a request body: 413 for
// a body over the limit, 503 when bodies fill the memory, 408 for a slow upload, and else 400.
func badBody(err error) int {
	var tooLarge *http.MaxBytesError
	switch {
	case errors.As(err, &tooLarge):
		return http.StatusRequestEntityTooLarge
	case errors.Is(err, errBusy):
		return http.StatusServiceUnavailable
	case errors.Is(err, bodies.ErrSlow), errors.Is(err, bodies.ErrLate):
		return http.StatusRequestTimeout
	}
	return http.StatusBadRequest
}
