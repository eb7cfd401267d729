package engine

import (
	"encoding/json"
	"errors"
	"fmt"
	"net/http"

	"github.com/blockyard-ai/blockyard/internal/kv"
	"github.com/blockyard-ai/blockyard/lab/engine/zmqpub"
)

// maxBody bounds the body of a request: more than a prompt of a million tokens.
const maxBody = 16 << 20

// GenerateRequest is the body of POST /v1/generate.
type GenerateRequest struct {
	// RequestID is the client's name for the request, for error messages.
	RequestID string `json:"request_id"`
	// Tokens is the prompt; it must not be empty.
	Tokens []uint32 `json:"tokens"`
	// OutputTokens is the number of tokens to generate, at least 1.
	OutputTokens int `json:"output_tokens"`
}

// GenerateEvent is one line of the answer to POST /v1/generate: "first_token" with
// Served, then "done" with Output. "error" with Message may come at any point.
type GenerateEvent struct {
	Event   string   `json:"event"`
	Served  *Served  `json:"served,omitempty"`
	Output  []uint32 `json:"output,omitempty"`
	Message string   `json:"message,omitempty"`
}

// State is the answer to GET /v1/state.
type State struct {
	WorkerID uint64 `json:"worker_id"`
	Rank     uint32 `json:"rank"`
	// Blocks are the sequence hashes of all blocks that are findable on the
	// device, each once, as 16 hexadecimal digits.
	Blocks []string `json:"blocks"`
	// WindowBlocks are those of the sliding window of a hybrid model.
	WindowBlocks []string `json:"window_blocks,omitempty"`
	// Idle: no request is in the engine, nothing is loaded or stored, and every event
	// has been sent.
	Idle  bool  `json:"idle"`
	Stats Stats `json:"stats"`
}

// api is the engine's HTTP interface.
type api struct {
	opts   Options
	naming naming
	core   *core
	pub    *zmqpub.Publisher
}

func (a *api) handler() http.Handler {
	mux := http.NewServeMux()
	mux.HandleFunc("POST /v1/generate", a.generate)
	mux.HandleFunc("POST /v1/cached", a.cached)
	mux.HandleFunc("GET /v1/state", a.state)
	mux.HandleFunc("POST /v1/reset_prefix_cache", a.reset)
	return mux
}

// CachedRequest is the body of POST /v1/cached, CachedAnswer its answer.
type CachedRequest struct {
	Tokens []uint32 `json:"tokens"`
}

// CachedAnswer says how many leading blocks of a prompt the engine would find now.
type CachedAnswer struct {
	// Blocks are on the device, in every KV group. FullBlocks are those that full attention alone
	// has there.
	Blocks     int `json:"blocks"`
	FullBlocks int `json:"full_blocks"`
	// Stored are at the agent, in every KV group, 0 without an agent. The engine would load those
	// beyond Blocks.
	Stored int `json:"stored"`
}

// cached answers POST /v1/cached.
func (a *api) cached(w http.ResponseWriter, req *http.Request) {
	var body CachedRequest
	err := json.NewDecoder(http.MaxBytesReader(w, req.Body, maxBody)).Decode(&body)
	if err == nil && len(body.Tokens) == 0 {
		err = errors.New("tokens: must not be empty")
	}
	if err != nil {
		refuse(w, http.StatusBadRequest, fmt.Errorf("body: %w", err))
		return
	}
	r := &request{seq: newSequence(a.naming, body.Tokens)}
	stored := make(chan fitted, 1)
	found, err := inCore(req.Context(), a.core, func() CachedAnswer {
		a.core.askStored(r, stored)
		p := a.core.pool
		return CachedAnswer{Blocks: len(p.match(nil, r.hittable())), FullBlocks: len(p.prefix(nil, r.hittable()))}
	})
	if err == nil {
		at := <-stored
		found.Stored, err = at.blocks, at.err
	}
	if err != nil {
		refuse(w, http.StatusServiceUnavailable, err)
		return
	}
	answer(w, http.StatusOK, found)
}

// generate answers POST /v1/generate with a stream of JSON lines: the first token with where the
// prompt's KV came from, and the end with the output or an error. A client that leaves ends its
// request.
func (a *api) generate(w http.ResponseWriter, req *http.Request) {
	var body GenerateRequest
	if err := json.NewDecoder(http.MaxBytesReader(w, req.Body, maxBody)).Decode(&body); err != nil {
		refuse(w, http.StatusBadRequest, fmt.Errorf("body: %w", err))
		return
	}
	r, err := a.newRequest(&body)
	if err != nil {
		refuse(w, http.StatusBadRequest, fmt.Errorf("request %q: %w", body.RequestID, err))
		return
	}
	if err := a.submit(r); err != nil {
		refuse(w, http.StatusServiceUnavailable, fmt.Errorf("request %q: %w", body.RequestID, err))
		return
	}
	w.Header().Set("Content-Type", "application/x-ndjson")
	for {
		select {
		case u := <-r.updates:
			if last := stream(w, u); last {
				return
			}
		case <-req.Context().Done():
			a.core.post(func() { a.core.abort(r) })
			return
		}
	}
}

// newRequest returns a client's request as the scheduler keeps it, with the hashes of its full
// blocks. The error names the field that is out of range.
func (a *api) newRequest(g *GenerateRequest) (*request, error) {
	capacity := a.opts.DeviceBlocks / len(a.core.pool.groups) * a.naming.blockSize
	switch {
	case len(g.Tokens) == 0:
		return nil, errors.New("tokens: must not be empty")
	case g.OutputTokens < 1 || g.OutputTokens > capacity:
		return nil, fmt.Errorf("output_tokens: %d is not in 1..%d", g.OutputTokens, capacity)
	case len(g.Tokens)+g.OutputTokens > capacity:
		return nil, fmt.Errorf("tokens: %d and %d of output are more than the %d that the device holds",
			len(g.Tokens), g.OutputTokens, capacity)
	}
	s := newSequence(a.naming, g.Tokens)
	return &request{
		seq:     s,
		prompt:  len(g.Tokens),
		want:    g.OutputTokens,
		seed:    s.prefixHash(),
		updates: make(chan update, maxUpdates),
	}, nil
}

// submit queues r at the scheduler, from another goroutine, and returns its error.
func (a *api) submit(r *request) error {
	result := make(chan error, 1)
	a.core.post(func() { result <- a.core.submit(r) })
	select {
	case err := <-result:
		return err
	case <-a.core.ended:
		return errStopping
	}
}

// state answers GET /v1/state with the blocks on the device, the counters, and whether the engine
// is idle.
func (a *api) state(w http.ResponseWriter, _ *http.Request) {
	result := make(chan State, 1)
	a.core.post(func() { result <- a.core.snapshot() })
	select {
	case s := <-result:
		// The core hands events over before it is quiet, so this order misses none.
		s.Idle = s.Idle && a.pub.Idle()
		s.Stats.Stats = a.pub.Stats()
		answer(w, http.StatusOK, s)
	case <-a.core.ended:
		refuse(w, http.StatusServiceUnavailable, errStopping)
	}
}

// reset answers the request to drop the prefix cache. The answer says whether the cache was dropped.
func (a *api) reset(w http.ResponseWriter, _ *http.Request) {
	result := make(chan bool, 1)
	a.core.post(func() { result <- a.core.reset() })
	select {
	case ok := <-result:
		answer(w, http.StatusOK, struct {
			Success bool `json:"success"`
		}{ok})
	case <-a.core.ended:
		refuse(w, http.StatusServiceUnavailable, errStopping)
	}
}

// stream writes the update u as one JSON line at once. It returns true when the request has ended
// with it.
func stream(w http.ResponseWriter, u update) (last bool) {
	var e GenerateEvent
	switch {
	case u.err != nil:
		e, last = GenerateEvent{Event: "error", Message: u.err.Error()}, true
	case u.served != nil:
		e = GenerateEvent{Event: "first_token", Served: u.served}
	default:
		e, last = GenerateEvent{Event: "done", Output: u.output}, true
	}
	// A client that cannot be written to shows in its request's context.
	_ = json.NewEncoder(w).Encode(e)
	_ = http.NewResponseController(w).Flush()
	return last
}

// refuse answers with an error event and a status.
func refuse(w http.ResponseWriter, status int, err error) {
	answer(w, status, GenerateEvent{Event: "error", Message: err.Error()})
}

func answer(w http.ResponseWriter, status int, v any) {
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(status)
	_ = json.NewEncoder(w).Encode(v) // the client may have gone
}

// hexHashes writes each hash as 16 hexadecimal digits.
func hexHashes(hashes []kv.SequenceHash) []string {
	out := make([]string, len(hashes))
	for i, h := range hashes {
		out[i] = fmt.Sprintf("%016x", uint64(h))
	}
	return out
}
