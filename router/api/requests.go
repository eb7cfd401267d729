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
	"sync"
	"time"

	"github.com/blockyard-ai/blockyard/internal/kv"
	"github.com/blockyard-ai/blockyard/router"
	"github.com/blockyard-ai/blockyard/router/decide"
	"github.com/blockyard-ai/blockyard/router/feed"
	"github.com/blockyard-ai/blockyard/router/index"
	"github.com/blockyard-ai/blockyard/router/load"
	"github.com/blockyard-ai/blockyard/router/schedule"
)

// service answers route requests of any transport.
type service struct {
	router  *router.Router
	metrics *router.Metrics
	// overload is the HTTP status of requests whose workers are all too busy.
	overload int
	// routing holds a token for each request that is being routed.
	routing chan struct{}
	bodies  *bodyBudget
}

func newService(r *router.Router) *service {
	m := r.Metrics()
	return &service{router: r, metrics: m, overload: int(r.Config().HTTPOverloadStatus),
		routing: make(chan struct{}, maxNewRequests), bodies: newBodyBudget(maxReading, maxKept, &m.API)}
}

// maxNewRequests bounds the requests that are being routed, because each holds its prompt.
// The queue bounds the requests that wait.
const maxNewRequests = 4096

// errTimeout: the timeout of a request ended before a worker was free.
var errTimeout = errors.New("timeout_ms: no worker had time for the request")

// caller describes where a request came from.
type caller struct {
	// id is the request id outside the body, or empty. client is the client whose share of
	// the body budget the request uses.
	id, client string
	// interrupt ends a blocked read of the body, from another goroutine; nil when reads
	// do not block.
	interrupt func()
	// unwatched is true when the transport does not report that the client has gone. timeout
	// is the timeout of such a request without one of its own; 0 is none.
	unwatched bool
	timeout   time.Duration
	// onWait is called when the request begins to wait for a worker; it may be nil.
	onWait func()
}

// errBusy: there are too many requests, or no room for a body.
var errBusy = errors.New("the router has too many requests in progress")

// reply is the answer to a route request.
type reply struct {
	// status is an HTTP status, also without HTTP.
	status int
	// body is encoded as JSON. failed is the text of its error.
	body   any
	failed string
	// id is the request id, empty when there is none. unbook takes the booking back when
	// nobody gets the reply; nil without a booking.
	id     string
	unbook func()
	// quality is empty when nothing was looked up, score when nothing was decided.
	quality feed.Quality
	score   string
}

// headers returns the reply's headers that are not empty.
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

// route answers the request in body, at most maxBody bytes of JSON.
func (s *service) route(ctx context.Context, body io.Reader, c caller) reply {
	budgeted := s.bodies.wrap(body, c.client, c.interrupt)
	defer budgeted.done()
	q, err := decodeRoute(budgeted)
	if err != nil {
		return s.fail(badBody(err), err)
	}
	budgeted.decoded()
	field := RequestIDHeader
	if strings.TrimSpace(q.RequestID) != "" {
		field, c.id = "request_id", q.RequestID
	}
	if err := checkRequestID(field, c.id); err != nil {
		return s.fail(http.StatusBadRequest, err)
	}
	switch q.Method {
	case "new":
		return s.newRequest(ctx, q, c)
	case "potential_loads":
		return s.potentialLoads(q)
	case "overlap":
		return s.overlap(q)
	}
	return s.mark(q, c.id)
}

// newRequest chooses and books a worker.
func (s *service) newRequest(ctx context.Context, q *routeRequest, c caller) reply {
	id := cmp.Or(c.id, rand.Text())
	select {
	case s.routing <- struct{}{}:
	default:
		return s.fail(http.StatusServiceUnavailable, errBusy)
	}
	// A waiting request gives its token back, so that other requests can be routed.
	routed := sync.OnceFunc(func() { <-s.routing })
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
	query.UpdateStates, query.Provisional = true, c.unwatched
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
		// By its number: a client without a reply may send the same id again.
		unbook = func() { model.Decide().FreeBooking(id, m.Booking) }
	}
	if ctx.Err() != nil {
		// The client has gone and will not send the request to the worker.
		if unbook != nil {
			unbook()
		}
		return s.failed(context.Cause(ctx))
	}
	s.metrics.Decided(time.Since(start)-m.Waited, &m, len(q.Tokens))
	return reply{status: http.StatusOK, id: id, unbook: unbook, quality: m.Quality, score: m.Mode, body: &routeAnswer{
		Method: "new", WorkerID: uint64(m.Worker.ID), DPRank: uint32(m.Worker.Rank), OverlapBlocks: m.OverlapBlocks(),
	}}
}

// model returns the model of a request, once the router has started.
func (s *service) model(name string) (*router.Model, error) {
	if err := s.router.Started(); err != nil {
		return nil, err
	}
	return s.router.Model(name)
}

// pinRank fills in the rank of a pinned worker that has only one.
func (s *service) pinRank(model *router.Model, q *routeRequest, query *router.Request) error {
	if q.Pinned == nil || q.Pinned.DPRank != nil {
		return nil
	}
	rank, only := model.Decide().UniqueDPRankForWorker(q.Pinned.WorkerID)
	if only {
		query.Pinned.Rank = rank
		return nil
	}
	ofIt := func(m index.Member) bool { return m.Worker.ID == q.Pinned.WorkerID }
	if slices.ContainsFunc(model.Index().Members().List, ofIt) {
		return fmt.Errorf("pinned_worker: worker %d has several ranks; dp_rank must say which", uint64(q.Pinned.WorkerID))
	}
	return nil
}

func (s *service) mark(q *routeRequest, id string) reply {
	if id == "" {
		return s.fail(http.StatusBadRequest, fmt.Errorf("request_id: %s needs one, here or in the header %s", q.Method, RequestIDHeader))
	}
	var m markAnswer
	switch q.Method {
	case "mark_prefill":
		m = markAnswer{Method: "prefill_marked", Success: s.router.MarkPrefillCompleted(q.Model, id) == nil}
	case "output_block":
		m = markAnswer{Method: "output_block_added", Success: s.router.AddOutputBlock(q.Model, id, q.DecayFraction) == nil}
	default:
		active := s.router.Free(q.Model, id)
		m = markAnswer{Method: "free_marked", Success: active, Active: &active}
	}
	return s.answered(q.Method, id, s.router.Quality(), &m)
}

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

func (s *service) overlap(q *routeRequest) reply {
	model, err := s.router.Model(q.Model)
	if err != nil {
		return s.failed(err)
	}
	overlaps, err := model.Decide().Overlaps(q.query(""))
	if err != nil {
		return s.failed(err)
	}
	out := overlapsAnswer{Method: "overlap", Overlaps: make([]overlapAnswer, len(overlaps))}
	for i, o := range overlaps {
		out.Overlaps[i] = overlapAnswer{WorkerID: uint64(o.Worker.ID), DPRank: uint32(o.Worker.Rank),
			EffectiveBlocks: o.Effective, CachedTokens: o.CachedTokens,
			Device: o.Hits[kv.TierDevice], Host: o.Hits[kv.TierHost], Disk: o.Hits[kv.TierDisk], External: o.Hits[kv.TierExternal]}
	}
	return s.answered(q.Method, "", model.Quality(), &out)
}

// answered returns the reply to a request that chose no worker.
func (s *service) answered(method, id string, quality feed.Quality, body any) reply {
	s.metrics.Served(method, quality)
	return reply{status: http.StatusOK, body: body, id: id, quality: quality}
}

func (s *service) fail(code int, err error) reply {
	s.metrics.Failed(code)
	return reply{status: code, body: &errorAnswer{err.Error()}, failed: err.Error()}
}

// failed returns the reply to an error of the router.
func (s *service) failed(err error) reply {
	out := s.fail(s.status(err), err)
	var full *schedule.QueueRejection
	if errors.As(err, &full) {
		out.body = &rejectedAnswer{Method: "queue_rejected", Rejection: rejection{
			PolicyClass: "default", LimitKind: string(full.Kind), Current: full.Current, Limit: full.Limit}}
	}
	return out
}

// failedRequest is failed for a request with an id.
func (s *service) failedRequest(id string, err error) reply {
	out := s.failed(err)
	out.id = id
	return out
}

// status returns the HTTP status of an error of the router.
func (s *service) status(err error) int {
	for _, known := range []struct {
		err    error
		status int
	}{
		{router.ErrNoRequestID, http.StatusBadRequest},
		{router.ErrModelRequired, http.StatusBadRequest},
		{router.ErrUnknownModel, http.StatusNotFound},
		{schedule.ErrPinnedNotAllowed, http.StatusBadRequest},
		{schedule.ErrOverride, http.StatusBadRequest},
		{load.ErrDuplicateRequest, http.StatusConflict},
		{schedule.ErrAllOverloaded, s.overload},
		{schedule.ErrPinnedOverloaded, s.overload},
		{schedule.ErrQueueRejected, s.overload},
		{errTimeout, s.overload},
		{router.ErrNoWorkers, http.StatusServiceUnavailable},
		{router.ErrStarting, http.StatusServiceUnavailable},
		{schedule.ErrAllFiltered, http.StatusServiceUnavailable},
		{errStopping, http.StatusServiceUnavailable},
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

// headerText returns s as one line of at most 512 bytes.
func headerText(s string) string {
	const limit = 512
	b := []byte(s[:min(len(s), limit)])
	for i, c := range b {
		if c < ' ' || c == 0x7f {
			b[i] = ' '
		}
	}
	return string(b)
}

func badBody(err error) int {
	var tooLarge *http.MaxBytesError
	switch {
	case errors.As(err, &tooLarge):
		return http.StatusRequestEntityTooLarge
	case errors.Is(err, errBusy):
		return http.StatusServiceUnavailable
	case errors.Is(err, errSlowBody):
		return http.StatusRequestTimeout
	}
	return http.StatusBadRequest
}
