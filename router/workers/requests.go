package workers

import (
	"fmt"

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
// tells that.
func (d *Directory) NoteCachedTokens(id kv.WorkerID, reported bool) {
	s := d.server(id)
	if s == nil || s.current.Load().Facts.CachedTokens == triOf(reported) {
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

// server returns the server of a worker, nil without one.
func (d *Directory) server(id kv.WorkerID) *server { return d.now.Load().byID[id].server }
