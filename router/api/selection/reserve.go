package selection

import (
	"errors"
	"fmt"
	"net/http"

	"github.com/blockyard-ai/blockyard/internal/kv"
	"github.com/blockyard-ai/blockyard/router"
	"github.com/blockyard-ai/blockyard/router/config"
	"github.com/blockyard-ai/blockyard/router/decide"
	"github.com/blockyard-ai/blockyard/router/load"
)

// reservationRequest is the body of POST /reservations. Without WorkerID it books the choice
// of POST /select that has the id.
type reservationRequest struct {
	scope
	SelectionID *string `json:"selection_id"`
	WorkerID    *uint64 `json:"worker_id"`
	DPRank      uint32  `json:"dp_rank"`
	prompt
	Override       *config.Override `json:"router_config_override"`
	ExpectedOutput uint32           `json:"expected_output_tokens"`
	// EffectivePrefill are the tokens to compute. TrackPrefill false counts none; absent is
	// true with EffectivePrefill, and else the router's setting.
	EffectivePrefill *uint32 `json:"effective_prefill_tokens"`
	TrackPrefill     *bool   `json:"track_prefill_tokens"`
}

// reservationAnswer is the answer to POST /reservations.
type reservationAnswer struct {
	SelectionID  string `json:"selection_id"`
	ModelName    string `json:"model_name"`
	RoutingGroup string `json:"routing_group"`
	WorkerID     uint64 `json:"worker_id"`
	DPRank       uint32 `json:"dp_rank"`
	Endpoint     string `json:"endpoint"`
}

// reserve answers POST /reservations: it books the choice that POST /select kept under the id, or
// a worker that the request names itself.
func (s *Server) reserve(w http.ResponseWriter, req *http.Request) {
	var q reservationRequest
	if !s.Decode(w, req, maxBody, &q) || !s.Need(w, "selection_id", q.SelectionID != nil) {
		return
	}
	if n := len(*q.SelectionID); n > maxSelectionID {
		s.fail(w, badRequest{fmt.Errorf("selection_id: %d bytes are more than %d", n, maxSelectionID)})
		return
	}
	model, p, err := s.find(&q.scope)
	key := choiceKey{p, *q.SelectionID}
	var c *choice
	switch {
	case q.WorkerID != nil:
		s.pending.drop(key, nil) // the request replaces a kept choice
		if err == nil {
			c, err = s.explicit(&q, model, key)
		}
	default:
		if c = s.pending.get(key); c == nil {
			err = notFound{fmt.Errorf("no pending selection %s for model=%s routing_group=%s (expired, already used, or never selected)", key.id, p.model, p.group)}
		}
	}
	if err == nil {
		err = s.book(model, c)
	}
	if err != nil {
		s.fail(w, err)
		return
	}
	s.pending.drop(key, c)
	s.Answer(w, http.StatusCreated, &reservationAnswer{key.id, p.model, p.group, uint64(c.worker.ID), uint32(c.worker.Rank), s.place(model, p, c.worker)})
}

// explicit returns the choice for a request that names the worker itself. The request may say how
// many tokens of the prompt the worker must still compute; without that, none.
func (s *Server) explicit(q *reservationRequest, m *router.Model, key choiceKey) (*choice, error) {
	query, err := q.prompt.query(s.router, m, q.Override, true)
	if err != nil {
		return nil, badRequest{err}
	}
	c := &choice{key: key, worker: kv.Worker{ID: kv.WorkerID(*q.WorkerID), Rank: kv.DPRank(q.DPRank)}, query: query, cached: query.Len()}
	if q.EffectivePrefill != nil {
		if c.cached = query.Len() - int(*q.EffectivePrefill); c.cached < 0 {
			return nil, badRequest{fmt.Errorf("effective_prefill_tokens (%d) must not exceed isl_tokens (%d)", *q.EffectivePrefill, query.Len())}
		}
	}
	query.ExpectedOutput = int(q.ExpectedOutput)
	if track := q.TrackPrefill; track != nil || q.EffectivePrefill != nil {
		o := config.Override{}
		if q.Override != nil {
			o = *q.Override
		}
		o.TrackPrefillTokens = new(value(track, true))
		query.Override = &o
	}
	if m.Decide().Ranks(c.worker.ID) == 0 {
		return nil, notFound{fmt.Errorf("schedulable worker %d not found for model=%s routing_group=%s", *q.WorkerID, key.model, key.group)}
	}
	return c, nil
}

// book adds the load of a choice to its worker, under the choice's id, and records the prompt's
// blocks as the worker's where the router predicts caches. The error says that the worker has
// left or that the id is booked.
func (s *Server) book(m *router.Model, c *choice) error {
	if _, known := m.Index().Members().Find(c.worker); !known {
		return notFound{fmt.Errorf("schedulable worker %d (dp_rank %d) not found for model=%s routing_group=%s", uint64(c.worker.ID), c.worker.Rank, c.key.model, c.key.group)}
	}
	q := *c.query
	q.ID = bookingPrefix + c.key.id
	if s.reserved(q.ID) {
		return reservedError{c.key.id}
	}
	err := m.Decide().AddRequest(&q, c.worker, c.cached)
	if errors.Is(err, load.ErrDuplicateRequest) {
		return reservedError{c.key.id}
	}
	if err != nil || len(q.Hashed.Locals) == 0 {
		return err
	}
	if err := m.Decide().RecordRoutingDecision(&q, c.worker); err != nil && !errors.Is(err, decide.ErrNotRecorded) {
		return err
	}
	return nil
}

// reserved reports whether a booking with an id exists in any partition.
func (s *Server) reserved(id string) bool { return s.router.Touch("", id) == nil }

// reservation answers a request about the reservation that its path names: it calls f with the id
// of the booking, and answers with f's error or OK.
func (s *Server) reservation(w http.ResponseWriter, req *http.Request, f func(booking string) error) {
	id := req.PathValue("id")
	err := f(bookingPrefix + id)
	if errors.Is(err, load.ErrUnknownRequest) {
		err = notFound{fmt.Errorf("reservation %s not found", id)}
	}
	if err != nil {
		s.fail(w, err)
		return
	}
	s.OK(w, http.StatusOK)
}

// prefillComplete answers POST /reservations/{id}/prefill_complete.
func (s *Server) prefillComplete(w http.ResponseWriter, req *http.Request) {
	s.reservation(w, req, func(booking string) error { return s.router.MarkPrefillCompleted("", booking) })
}

// outputBlock answers POST /reservations/{id}/output_block: the request has produced one more
// block of output.
func (s *Server) outputBlock(w http.ResponseWriter, req *http.Request) {
	var q struct {
		Decay *float64 `json:"decay_fraction"`
	}
	if !s.Decode(w, req, maxBody, &q) {
		return
	}
	if d := q.Decay; d != nil && !(*d >= 0 && *d <= 1) {
		s.fail(w, badRequest{errors.New("decay_fraction must be between 0.0 and 1.0")})
		return
	}
	s.reservation(w, req, func(booking string) error { return s.router.AddOutputBlock("", booking, q.Decay) })
}

// free answers DELETE /reservations/{id}: the request has ended, and its load leaves the worker.
func (s *Server) free(w http.ResponseWriter, req *http.Request) {
	s.reservation(w, req, func(booking string) error {
		if !s.router.Free("", booking) {
			return load.ErrUnknownRequest
		}
		return nil
	})
}
