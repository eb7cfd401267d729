package router

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strconv"
	"time"
)

const (
	// maxRegistrationBody bounds the body of a registration in bytes.
	maxRegistrationBody = 64 << 10
	// defaultTTL is how long a registration holds that names no time, minTTL and
	// maxTTL bound the time, all in seconds.
	defaultTTL, minTTL, maxTTL = 30, 1, 3600
)

// registrationRequest is the body of POST /v1/workers.
type registrationRequest struct {
	Registration
	TTLSeconds uint32 `json:"ttl_seconds"`
}

// registrationAnswer is the answer to it.
type registrationAnswer struct {
	WorkerID         uint64 `json:"worker_id"`
	Ranks            uint32 `json:"ranks"`
	ExpiresInSeconds uint32 `json:"expires_in_seconds"`
}

// errConflict is wrapped by errors of registrations that do not fit to the others.
var errConflict = errors.New("conflict")

// Register makes a worker known for a time, which a later call for the same worker
// renews. A worker that has fewer ranks than before loses the others. The error
// names the field.
func (r *Registry) Register(g *Registration, ttl time.Duration) error {
	err := g.Validate()
	if err == nil && (ttl < minTTL*time.Second || ttl > maxTTL*time.Second) {
		err = fmt.Errorf("ttl_seconds: %v is not in %ds..%ds", ttl, minTTL, maxTTL)
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	if err == nil {
		if err = r.objectionLocked(g, sourceHTTP); err != nil {
			err = fmt.Errorf("%w: %w", errConflict, err)
		}
	}
	if err != nil {
		r.stats.Refusals++
		return err
	}
	r.stats.Registrations++
	for _, w := range g.workers() {
		r.updateLocked(w, g, sourceHTTP, time.Now().Add(ttl))
	}
	for w, e := range r.entries {
		if uint64(w.ID) == g.WorkerID && uint32(w.Rank) >= g.ranks() {
			e.gone = true
		}
	}
	return nil
}

// Unregister ends the registration of a worker; false when it has none. One that the
// file lists stays.
func (r *Registry) Unregister(worker uint64) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	found := false
	for w, e := range r.entries {
		if uint64(w.ID) == worker && e.source == sourceHTTP && !e.gone {
			e.gone, found = true, true
		}
	}
	return found
}

// register adds the handlers by which workers register.
func (r *Registry) register(mux *http.ServeMux, a *api) {
	mux.HandleFunc("POST /v1/workers", func(w http.ResponseWriter, req *http.Request) {
		q, err := decodeRegistration(http.MaxBytesReader(w, req.Body, maxRegistrationBody))
		if err != nil {
			a.fail(w, badBody(err), err)
			return
		}
		switch err := r.Register(&q.Registration, time.Duration(q.TTLSeconds)*time.Second); {
		case errors.Is(err, errConflict):
			a.fail(w, http.StatusConflict, err)
		case err != nil:
			a.fail(w, http.StatusBadRequest, err)
		default:
			r.announce(q.WorkerID, time.Now())
			a.answer(w, http.StatusOK, &registrationAnswer{q.WorkerID, q.ranks(), q.TTLSeconds})
		}
	})
	mux.HandleFunc("DELETE /v1/workers", func(w http.ResponseWriter, req *http.Request) {
		name := req.URL.Query().Get("worker_id")
		id, err := strconv.ParseUint(name, 10, 64)
		if err != nil {
			a.fail(w, http.StatusBadRequest, fmt.Errorf("worker_id: %.60q is not a number in 1..%d", name, uint64(1<<64-1)))
			return
		}
		if !r.Unregister(id) {
			a.fail(w, http.StatusNotFound, fmt.Errorf("worker_id: %d is not registered over HTTP", id))
			return
		}
		r.announce(id, time.Now())
		a.answer(w, http.StatusOK, map[string]uint64{"worker_id": id})
	})
}

// agentList is Agents for JSON.
func (r *Registry) agentList() []AgentInfo {
	if agents := r.Agents(); agents != nil {
		return agents
	}
	return []AgentInfo{}
}

func decodeRegistration(body io.Reader) (*registrationRequest, error) {
	var q registrationRequest
	d := json.NewDecoder(body)
	d.DisallowUnknownFields()
	if err := d.Decode(&q); err != nil {
		return nil, plainError(err)
	}
	if _, err := d.Token(); !errors.Is(err, io.EOF) {
		return nil, errors.New("body: something follows the registration")
	}
	if q.TTLSeconds == 0 {
		q.TTLSeconds = defaultTTL
	}
	return &q, nil
}
