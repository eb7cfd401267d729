package selection

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"net/http"
	"strconv"

	"github.com/blockyard-ai/blockyard/internal/kv"
	"github.com/blockyard-ai/blockyard/router"
	"github.com/blockyard-ai/blockyard/router/api/shape"
	"github.com/blockyard-ai/blockyard/router/config"
	"github.com/blockyard-ai/blockyard/router/decide"
	"github.com/blockyard-ai/blockyard/router/load"
	"github.com/blockyard-ai/blockyard/router/schedule"
	"github.com/blockyard-ai/blockyard/router/schedule/modes"
	"github.com/blockyard-ai/blockyard/router/schedule/queue"
)

// selectRequest is the body of POST /select and POST /select_and_reserve.
type selectRequest struct {
	scope
	SelectionID *string `json:"selection_id"`
	prompt
	Override       *config.Override `json:"router_config_override"`
	ExpectedOutput uint32           `json:"expected_output_tokens"`
	PriorityJump   float64          `json:"priority_jump"`
	StrictPriority uint32           `json:"strict_priority"`
	PolicyClass    string           `json:"policy_class"`
	Pinned         *struct {
		WorkerID kv.WorkerID `json:"worker_id"`
		DPRank   kv.DPRank   `json:"dp_rank"`
	} `json:"pinned_worker"`
	Allowed     []kv.WorkerID `json:"allowed_worker_ids"`
	Constraints struct {
		Required  []string           `json:"required_taints"`
		Preferred map[string]float64 `json:"preferred_taints"`
	} `json:"routing_constraints"`
}

// selectAnswer is a choice. The pointers are absent in the answer to POST /select.
type selectAnswer struct {
	SelectionID           *string       `json:"selection_id,omitempty"`
	SequenceHashes        *[]int64      `json:"sequence_hashes,omitempty"`
	ISLTokens             *int          `json:"isl_tokens,omitempty"`
	TrackPrefill          *bool         `json:"track_prefill_tokens,omitempty"`
	ModelName             string        `json:"model_name"`
	RoutingGroup          string        `json:"routing_group"`
	WorkerID              uint64        `json:"worker_id"`
	DPRank                uint32        `json:"dp_rank"`
	Endpoint              string        `json:"endpoint"`
	BlockSize             uint32        `json:"block_size"`
	Overlap               shape.Summary `json:"overlap"`
	EffectivePrefill      int           `json:"effective_prefill_tokens"`
	PotentialDecodeBlocks int           `json:"potential_decode_blocks"`
}

// maxSelectionID bounds a selection id in bytes.
const maxSelectionID = 1024

// bookingPrefix begins the ids of bookings, so that they never meet those of other callers of
// the router.
const bookingPrefix = "selection/"

// query returns the request as a query about the model m: the prompt, and which workers may be
// chosen. The error is a badRequest.
func (q *selectRequest) query(s *Server, m *router.Model) (*decide.Query, error) {
	out, err := q.prompt.query(s.router, m, q.Override, false)
	if err != nil {
		return nil, badRequest{err}
	}
	if n := len(value(q.SelectionID, "")); n > maxSelectionID {
		return nil, badRequest{fmt.Errorf("selection_id: %d bytes are more than %d", n, maxSelectionID)}
	}
	out.ExpectedOutput, out.PriorityJump, out.StrictPriority = int(q.ExpectedOutput), q.PriorityJump, q.StrictPriority
	out.PolicyClass = q.PolicyClass
	if q.Pinned != nil {
		out.Pinned = &kv.Worker{ID: q.Pinned.WorkerID, Rank: q.Pinned.DPRank}
	}
	if q.Allowed != nil {
		out.Allowed = make(map[kv.WorkerID]struct{}, len(q.Allowed))
		for _, id := range q.Allowed {
			out.Allowed[id] = struct{}{}
		}
	}
	out.RequiredTaints = q.Constraints.Required
	for taint, weight := range q.Constraints.Preferred {
		out.PreferredTaints = append(out.PreferredTaints, schedule.TaintPreference{Taint: taint, Weight: weight})
	}
	return out, nil
}

// selectWorker answers POST /select. A choice with an id is kept for POST /reservations.
func (s *Server) selectWorker(w http.ResponseWriter, req *http.Request) {
	q, model, p, query, ok := s.decodeSelect(w, req)
	if !ok {
		return
	}
	m, err := model.FindBestMatch(req.Context(), query)
	if err != nil {
		s.fail(w, err)
		return
	}
	if q.SelectionID != nil {
		kept := *query
		kept.Tokens, kept.BlockMMInfos = nil, nil // the hashes suffice
		s.pending.put(&choice{key: choiceKey{p, *q.SelectionID}, worker: m.Worker, query: &kept, cached: min(m.CachedTokens, query.Len())})
	}
	s.Answer(w, http.StatusOK, s.chosen(q, model, p, query, &m))
}

// selectAndReserve answers POST /select_and_reserve. A client that has left before the answer
// leaves no booking.
func (s *Server) selectAndReserve(w http.ResponseWriter, req *http.Request) {
	q, model, p, query, ok := s.decodeSelect(w, req)
	if !ok {
		return
	}
	if q.SelectionID == nil {
		q.SelectionID = new(rand.Text())
	}
	query.ID, query.UpdateStates = bookingPrefix+*q.SelectionID, true
	if s.reserved(query.ID) {
		s.fail(w, reservedError{*q.SelectionID})
		return
	}
	m, err := model.FindBestMatch(req.Context(), query)
	if errors.Is(err, load.ErrDuplicateRequest) {
		err = reservedError{*q.SelectionID}
	}
	if err != nil {
		s.fail(w, err)
		return
	}
	out := s.chosen(q, model, p, query, &m)
	out.SequenceHashes, out.ISLTokens = new(signed(query.Hashed.Sequence)), new(query.Len())
	out.TrackPrefill = new(s.router.Config().TrackPrefillTokens(q.Override))
	if !s.Answer(w, http.StatusOK, out) && m.Booked {
		model.Decide().FreeBooking(query.ID, m.Booking)
	}
}

// decodeSelect reads the body of a request for a choice. After an error it answers the request
// and returns false.
func (s *Server) decodeSelect(w http.ResponseWriter, req *http.Request) (q *selectRequest, m *router.Model, p partition, query *decide.Query, ok bool) {
	q = new(selectRequest)
	if !s.Decode(w, req, maxBody, q) {
		return nil, nil, p, nil, false
	}
	m, p, err := s.find(&q.scope)
	if err == nil {
		query, err = q.query(s, m)
	}
	if err != nil {
		s.fail(w, err)
		return nil, nil, p, nil, false
	}
	return q, m, p, query, true
}

// chosen returns the answer to a request for which the decision m found a worker: the worker, its
// URL, what it holds of the prompt, and the load that it will have.
func (s *Server) chosen(q *selectRequest, model *router.Model, p partition, query *decide.Query, m *router.Match) *selectAnswer {
	size := model.Key().BlockSize
	out := &selectAnswer{SelectionID: q.SelectionID, ModelName: p.model, RoutingGroup: p.group,
		WorkerID: uint64(m.Worker.ID), DPRank: uint32(m.Worker.Rank), Endpoint: s.place(model, p, m.Worker), BlockSize: size,
		EffectivePrefill: max(0, query.Len()-m.CachedTokens), PotentialDecodeBlocks: m.PotentialBlocks}
	out.Overlap.Add(strconv.FormatUint(uint64(m.Worker.Rank), 10), m.Hits, size)
	if model.Decide().Ranks(m.Worker.ID) > 1 {
		// The other ranks of the worker. A worker that leaves meanwhile has none.
		overlaps, _ := model.Decide().Overlaps(query)
		for i := range overlaps {
			if o := &overlaps[i]; o.Worker.ID == m.Worker.ID && o.Worker.Rank != m.Worker.Rank {
				out.Overlap.Add(strconv.FormatUint(uint64(o.Worker.Rank), 10), o.Hits, size)
			}
		}
	}
	return out
}

// place returns the URL of a worker's server: as it was registered here, else as the directory of
// worker servers or the worker's card has it. It is empty when nobody told.
func (s *Server) place(model *router.Model, p partition, w kv.Worker) string {
	s.mu.Lock()
	r := s.records[uint64(w.ID)]
	s.mu.Unlock()
	if r != nil && r.Endpoint != nil && r.ModelName == p.model && r.RoutingGroup == p.group {
		return *r.Endpoint
	}
	if s.endpoint != nil {
		if url := s.endpoint(w.ID); url != "" {
			return url
		}
	}
	return model.Place(w).Endpoint
}

// badRequest is an error of the client.
type badRequest struct{ error }

// reservedError says that a selection id is taken.
type reservedError struct{ id string }

// Error implements error.
func (e reservedError) Error() string {
	return "selection " + e.id + " is already reserved or being reserved"
}

// notFound says that what a request names does not exist.
type notFound struct{ error }

// fail answers with err: the status for it, and its text as JSON. A full queue has details of the
// limit too.
func (s *Server) fail(w http.ResponseWriter, err error) {
	var full *queue.Rejection
	if !errors.As(err, &full) {
		s.Fail(w, status(err), err)
		return
	}
	type details struct {
		PolicyClass string `json:"policy_class"`
		LimitKind   string `json:"limit_kind"`
		Current     int    `json:"current"`
		Limit       int    `json:"limit"`
	}
	s.Answer(w, http.StatusServiceUnavailable, struct {
		Error   string  `json:"error"`
		Details details `json:"details"`
	}{err.Error(), details{full.Class, string(full.Kind), full.Current, full.Limit}})
}

// status returns the HTTP status that Dynamo's selection service has for an error; 500 for an
// unexpected one.
func status(err error) int {
	var bad badRequest
	var query *decide.QueryError
	var reserved reservedError
	var unknown notFound
	var nobody *partitionError
	switch {
	case errors.As(err, &bad), errors.As(err, &query), errors.Is(err, schedule.ErrPinnedNotAllowed),
		errors.Is(err, modes.ErrNotPinned):
		return http.StatusBadRequest
	case errors.As(err, &unknown), errors.Is(err, load.ErrUnknownRequest):
		return http.StatusNotFound
	case errors.As(err, &reserved), errors.Is(err, load.ErrDuplicateRequest):
		return http.StatusConflict
	case errors.Is(err, schedule.ErrAllOverloaded), errors.Is(err, schedule.ErrPinnedOverloaded), errors.Is(err, load.ErrTooManyRequests):
		return http.StatusTooManyRequests
	case errors.As(err, &nobody), errors.Is(err, router.ErrNoWorkers), errors.Is(err, router.ErrStarting), errors.Is(err, schedule.ErrAllFiltered),
		errors.Is(err, context.Canceled), errors.Is(err, context.DeadlineExceeded):
		return http.StatusServiceUnavailable
	}
	return http.StatusInternalServerError
}
