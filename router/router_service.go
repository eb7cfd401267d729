package router

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strings"
	"time"

	"github.com/blockyard-ai/blockyard/internal/kv"
	"github.com/blockyard-ai/blockyard/router/decide"
	"github.com/blockyard-ai/blockyard/router/load"
	"github.com/blockyard-ai/blockyard/router/schedule"
)

// service answers route requests, whatever they travel over.
type service struct {
	router  *Router
	metrics *metrics
}

func (r *Router) service() service { return service{router: r, metrics: r.metrics} }

// maxNewRequests bounds the requests that are being routed or wait for it: each
// keeps its prompt.
const maxNewRequests = 4096

// errBusy: there are maxNewRequests, or as many requests as a transport takes.
var errBusy = errors.New("the router has too many requests at hand")

// reply is the answer to a route request.
type reply struct {
	// status is an HTTP status, also where there is no HTTP.
	status int
	// body is to be encoded as JSON; failed is the text of the error in it.
	body   any
	failed string
	// id names the request, empty when there is none. booked says that the request
	// is on a worker's account, and has to be taken off when nobody gets the reply.
	id     string
	booked bool
	// quality is empty when nothing was decided or looked up, score when nothing was
	// decided.
	quality Quality
	score   string
}

// headers are those of the reply that are not empty.
func (r *reply) headers() map[string]string {
	all := map[string]string{RequestIDHeader: r.id, QualityHeader: string(r.quality), ScoreHeader: headerText(r.score)}
	for name, value := range all {
		if value == "" {
			delete(all, name)
		}
	}
	return all
}

// errorAnswer is the body of a reply that has no other.
type errorAnswer struct {
	Error string `json:"error"`
}

// route answers the request in body, at most maxBody bytes of JSON. id is the one
// that came beside the body, or empty.
func (s *service) route(ctx context.Context, body io.Reader, id string) reply {
	q, err := decodeRoute(body)
	if err != nil {
		return s.fail(badBody(err), err)
	}
	if err := checkRequestID(RequestIDHeader, id); err != nil {
		return s.fail(http.StatusBadRequest, err)
	}
	switch q.Method {
	case "new":
		return s.newRequest(ctx, q, id)
	case "potential_loads":
		return s.potentialLoads(q)
	case "overlap":
		return s.overlap(q)
	}
	return s.mark(q, id)
}

func (s *service) newRequest(ctx context.Context, q *routeRequest, id string) reply {
	if id == "" {
		id = rand.Text()
	}
	select {
	case s.router.routing <- struct{}{}:
		defer func() { <-s.router.routing }()
	default:
		return s.fail(http.StatusServiceUnavailable, errBusy)
	}
	start := time.Now()
	query := q.query(id)
	query.UpdateStates = true
	m, err := s.router.FindBestMatch(ctx, query)
	if err != nil {
		out := s.failed(err)
		out.id = id
		return out
	}
	if err := ctx.Err(); err != nil {
		// Who asked has gone: nobody will send this request to the worker.
		if m.Booked {
			s.router.Free(id)
		}
		return s.failed(err)
	}
	s.metrics.decided(time.Since(start)-m.Waited, &m, len(q.Tokens))
	return reply{status: http.StatusOK, id: id, booked: m.Booked, quality: m.Quality, score: m.Mode, body: &routeAnswer{
		Method: "new", WorkerID: uint64(m.Worker.ID), DPRank: uint32(m.Worker.Rank), OverlapBlocks: m.OverlapBlocks(),
	}}
}

func (s *service) mark(q *routeRequest, id string) reply {
	if strings.TrimSpace(q.RequestID) != "" {
		id = q.RequestID
	}
	if id == "" {
		return s.fail(http.StatusBadRequest, fmt.Errorf("request_id: %s needs one, here or in the header %s", q.Method, RequestIDHeader))
	}
	m := markAnswer{Method: "free_marked", Success: true}
	switch q.Method {
	case "mark_prefill":
		m = markAnswer{Method: "prefill_marked", Success: s.router.MarkPrefillCompleted(id) == nil}
	case "output_block":
		m = markAnswer{Method: "output_block_added", Success: s.router.AddOutputBlock(id, q.DecayFraction) == nil}
	default:
		s.router.Free(id)
	}
	return s.looked(q.Method, id, &m)
}

func (s *service) potentialLoads(q *routeRequest) reply {
	loads, err := s.router.PotentialLoads(q.query(""))
	if err != nil {
		return s.failed(err)
	}
	out := loadsAnswer{Method: "potential_loads", Loads: make([]loadAnswer, len(loads)),
		PendingCount: s.router.decide.PendingCount(), PendingISLTokens: s.router.decide.PendingTokens()}
	for i, l := range loads {
		out.Loads[i] = loadAnswer{uint64(l.Worker.ID), uint32(l.Worker.Rank), l.PrefillTokens, l.DecodeBlocks}
	}
	return s.looked(q.Method, "", &out)
}

func (s *service) overlap(q *routeRequest) reply {
	overlaps, err := s.router.Overlaps(q.query(""))
	if err != nil {
		return s.failed(err)
	}
	out := overlapsAnswer{Method: "overlap", Overlaps: make([]overlapAnswer, len(overlaps))}
	for i, o := range overlaps {
		out.Overlaps[i] = overlapAnswer{WorkerID: uint64(o.Worker.ID), DPRank: uint32(o.Worker.Rank),
			EffectiveBlocks: o.Effective, CachedTokens: o.CachedTokens,
			Device: o.Hits[kv.TierDevice], Host: o.Hits[kv.TierHost], Disk: o.Hits[kv.TierDisk], External: o.Hits[kv.TierExternal]}
	}
	return s.looked(q.Method, "", &out)
}

// looked is the reply to a request that chose no worker.
func (s *service) looked(method, id string, body any) reply {
	quality := s.router.Quality()
	s.metrics.served(method, quality)
	return reply{status: http.StatusOK, body: body, id: id, quality: quality}
}

func (s *service) fail(code int, err error) reply {
	s.metrics.failed(code)
	return reply{status: code, body: &errorAnswer{err.Error()}, failed: err.Error()}
}

// failed is the reply to a request that the facade could not serve.
func (s *service) failed(err error) reply {
	out := s.fail(s.router.status(err), err)
	var full *schedule.QueueRejection
	if errors.As(err, &full) {
		out.body = &rejectedAnswer{Method: "queue_rejected", Rejection: rejection{
			PolicyClass: "default", LimitKind: string(full.Kind), Current: full.Current, Limit: full.Limit}}
	}
	return out
}

// status is the HTTP status of an error of the facade.
func (r *Router) status(err error) int {
	overload := int(r.config.HTTPOverloadStatus)
	for _, known := range []struct {
		err    error
		status int
	}{
		{ErrNoRequestID, http.StatusBadRequest},
		{schedule.ErrPinnedNotAllowed, http.StatusBadRequest},
		{load.ErrDuplicateRequest, http.StatusConflict},
		{schedule.ErrAllOverloaded, overload},
		{schedule.ErrPinnedOverloaded, overload},
		{schedule.ErrQueueRejected, overload},
		{ErrNoWorkers, http.StatusServiceUnavailable},
		{ErrStarting, http.StatusServiceUnavailable},
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

// scoreKind is Match.Mode in one word.
func scoreKind(mode string) string {
	switch {
	case mode == "":
		return "none"
	case mode == schedule.ModeWeights || mode == schedule.ModeCost:
		return mode
	}
	return "fallback"
}

// headerText is s as it may stand in a header: in one line, and not too long.
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
	if errors.As(err, &tooLarge) {
		return http.StatusRequestEntityTooLarge
	}
	return http.StatusBadRequest
}
