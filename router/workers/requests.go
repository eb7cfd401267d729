package workers

import (
	"fmt"
	"time"

	"github.com/blockyard-ai/blockyard/internal/backoff"
	"github.com/blockyard-ai/blockyard/internal/kv"
)

// Begin notes that a request is sent to a worker. Done must be called once for it.
func (d *Directory) Begin(id kv.WorkerID) {
	if s := d.server(id); s != nil {
		s.inflight.Add(1)
	}
}

// Done ends a request that Begin has counted. outcome says how the request ended. A failure has the
// worker probed at once. After 5 failures in a row the worker gets no requests for a while; one
// success ends that. An id that the directory does not know has no effect.
func (d *Directory) Done(id kv.WorkerID, outcome Outcome) {
	s := d.server(id)
	if s == nil {
		return
	}
	s.inflight.Add(-1)
	switch {
	case outcome == OutcomeOK && s.failed.Load() != 0:
		s.failed.Store(0)
	case outcome == OutcomeFailed:
		s.failed.Add(1)
	default:
		return
	}
	s.mu.Lock()
	s.countLocked()
	s.mu.Unlock()
	s.publish()
	notify(s.wake)
}

// Inflight returns the requests to a worker that have not ended.
func (d *Directory) Inflight(id kv.WorkerID) int {
	if s := d.server(id); s != nil {
		return int(s.inflight.Load())
	}
	return 0
}

// NoteCachedTokens records whether the worker reports cached tokens. reported is true when the
// usage of an answer had prompt_tokens_details. It becomes Facts.CachedTokens unless the server
// tells that. Yes remains: some answers of a server that reports, such as those of embeddings, have
// no details.
func (d *Directory) NoteCachedTokens(id kv.WorkerID, reported bool) {
	s := d.server(id)
	if s == nil {
		return
	}
	if known := s.current.Load().Facts.CachedTokens; known == Yes || known == triOf(reported) {
		return
	}
	s.mu.Lock()
	s.cached = triOf(reported)
	s.mu.Unlock()
	s.publish()
}

// Drain stops new requests to a worker when on is true, and allows them again when on is false.
// Requests in progress go on. The worker stays drained until then, or until it is removed. The
// error is ErrUnknownWorker.
func (d *Directory) Drain(id kv.WorkerID, on bool) error {
	s := d.server(id)
	if s == nil {
		return fmt.Errorf("worker %d: %w", uint64(id), ErrUnknownWorker)
	}
	s.mu.Lock()
	s.drain = on
	s.mu.Unlock()
	s.publish()
	notify(s.wake)
	return nil
}

// Known returns ErrUnknownWorker for a worker that the directory does not have.
func (d *Directory) Known(id kv.WorkerID) error {
	if d.server(id) == nil {
		return fmt.Errorf("worker %d: %w", uint64(id), ErrUnknownWorker)
	}
	return nil
}

// server returns the server of a worker, nil without one.
func (d *Directory) server(id kv.WorkerID) *server { return d.now.Load().byID[id].server }

const (
	// maxSlowProbes is how many probes in a row may fail without proof that the server is gone.
	maxSlowProbes = 3
	// maxFailedRequests is how many requests in a row may fail before the server gets none.
	maxFailedRequests = 5
	// firstOpen and lastOpen bound how long a server gets no requests after failures. The
	// time doubles while requests go on failing.
	firstOpen, lastOpen = time.Second, 30 * time.Second
)

// health decides from probes and requests whether a server takes requests. It has no
// clock. One goroutine owns it.
type health struct {
	// answered is true once a probe succeeded, down while probes fail.
	answered, down bool
	// slow counts failed probes in a row.
	slow int
	// open is true while failed requests keep requests away, until openUntil. opened
	// counts the times in a row.
	open      bool
	openUntil time.Time
	opened    int
}

// probed updates the health after a probe. failed is true for a probe without a good answer.
// decisive is true when the failure proves that the server does not serve, and false when the server
// may only be busy. The server is down after one decisive failure or maxSlowProbes others in a row.
func (h *health) probed(failed, decisive bool) {
	if !failed {
		h.answered, h.down, h.slow = true, false, 0
		return
	}
	if h.slow++; decisive || h.slow >= maxSlowProbes {
		h.down = true
	}
}

// requests updates the health from failed, the number of requests in a row that have failed. It is a
// circuit breaker: after maxFailedRequests failures the server gets no requests for a while. It
// returns the count to go on with. After the pause one more failure opens the breaker again.
func (h *health) requests(failed int, now time.Time) int {
	switch {
	case failed == 0:
		h.open, h.opened = false, 0
	case h.open && !now.Before(h.openUntil):
		h.open = false
		return maxFailedRequests - 1
	case !h.open && failed >= maxFailedRequests:
		h.open = true
		h.opened++
		h.openUntil = now.Add(backoff.Nth(backoff.Doubling(firstOpen, lastOpen), h.opened))
	}
	return failed
}

// state returns Starting before the first good probe, Unhealthy while probes or requests fail, and
// else Ready.
func (h *health) state() State {
	switch {
	case !h.answered:
		return Starting
	case h.down, h.open:
		return Unhealthy
	}
	return Ready
}
