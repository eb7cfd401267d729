package api

import (
	"cmp"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strconv"
	"time"

	"github.com/blockyard-ai/blockyard/internal/control"
	"github.com/blockyard-ai/blockyard/internal/strictjson"
	"github.com/blockyard-ai/blockyard/router/source/registry"
)

const (
	// maxRegistrationBody bounds the body of a registration in bytes.
	maxRegistrationBody = 64 << 10
	// defaultTTL is the default of ttl_seconds.
	defaultTTL = 30
)

// registrationRequest is the body of POST /v1/workers.
type registrationRequest struct {
	registry.Registration
	TTLSeconds uint32 `json:"ttl_seconds"`
}

// registrationAnswer is the answer to POST /v1/workers.
type registrationAnswer struct {
	WorkerID         uint64 `json:"worker_id"`
	Ranks            uint32 `json:"ranks"`
	ExpiresInSeconds uint32 `json:"expires_in_seconds"`
}

// register adds the paths that register and unregister a worker over HTTP: POST and DELETE
// /v1/workers. r holds the registrations until they expire.
func (a *API) register(mux *http.ServeMux, r *registry.Source) {
	mux.HandleFunc("POST /v1/workers", func(w http.ResponseWriter, req *http.Request) {
		q, err := decodeRegistration(http.MaxBytesReader(w, req.Body, maxRegistrationBody))
		if err != nil {
			a.fail(w, badBody(err), err)
			return
		}
		control.About(req, fmt.Sprintf("worker %d, model %.64q, %d seconds", q.WorkerID, q.Model, q.TTLSeconds))
		switch err := r.Register(&q.Registration, time.Duration(q.TTLSeconds)*time.Second); {
		case errors.Is(err, registry.ErrConflict):
			a.fail(w, http.StatusConflict, err)
		case err != nil:
			a.fail(w, http.StatusBadRequest, err)
		default:
			r.Announce(q.WorkerID)
			a.answer(w, http.StatusOK, &registrationAnswer{q.WorkerID, max(1, q.Ranks), q.TTLSeconds})
		}
	})
	mux.HandleFunc("DELETE /v1/workers", func(w http.ResponseWriter, req *http.Request) {
		name := req.URL.Query().Get("worker_id")
		id, err := strconv.ParseUint(name, 10, 64)
		if err != nil {
			a.fail(w, http.StatusBadRequest, fmt.Errorf("worker_id: %.60q is not a number in 1..%d", name, uint64(1<<64-1)))
			return
		}
		control.About(req, fmt.Sprintf("worker %d", id))
		if !r.Unregister(id) {
			a.fail(w, http.StatusNotFound, fmt.Errorf("worker_id: %d is not registered over HTTP", id))
			return
		}
		r.Announce(id)
		a.answer(w, http.StatusOK, map[string]uint64{"worker_id": id})
	})
}

// decodeRegistration reads the body of POST /v1/workers and sets the default TTL.
func decodeRegistration(body io.Reader) (*registrationRequest, error) {
	var q registrationRequest
	if err := strictjson.Decode(body, &q, "registration", nil); err != nil {
		return nil, err
	}
	q.TTLSeconds = cmp.Or(q.TTLSeconds, defaultTTL)
	return &q, nil
}
