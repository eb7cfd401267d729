package indexer

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"sync"

	"go.uber.org/zap"

	"github.com/blockyard-ai/blockyard/internal/control"
	"github.com/blockyard-ai/blockyard/internal/kv"
	"github.com/blockyard-ai/blockyard/router"
	"github.com/blockyard-ai/blockyard/router/source"
)

// Limits of bodies, in bytes.
const (
	maxQueryBody = 8 << 20
	maxBody      = 2 << 20
)

// Follower follows the KV events of engines.
type Follower interface {
	Follow(e source.Engine) error
	Unfollow(worker kv.WorkerID)
}

// Options configure a Server.
type Options struct {
	Router *router.Router
	// Follower follows registered engines. Nil refuses registrations.
	Follower Follower
	// Log may be nil.
	Log *zap.Logger
}

// Server answers in the shapes of the standalone indexer. Make one with New.
type Server struct {
	router   *router.Router
	follower Follower
	log      *zap.Logger

	mu        sync.Mutex
	instances map[uint64]*instance
}

// New returns a Server.
func New(o Options) *Server {
	if o.Log == nil {
		o.Log = zap.NewNop()
	}
	return &Server{router: o.Router, follower: o.Follower, log: o.Log, instances: make(map[uint64]*instance)}
}

// Handler returns the HTTP handler with all paths of Dynamo's standalone indexer. Paths without a
// counterpart here (peers, log files) have fixed answers, so that clients go on.
func (s *Server) Handler() http.Handler {
	mux := http.NewServeMux()
	mux.HandleFunc("POST /register", s.register)
	mux.HandleFunc("POST /unregister", s.unregister)
	mux.HandleFunc("GET /workers", s.workers)
	mux.HandleFunc("POST /query", s.query)
	mux.HandleFunc("POST /query_by_hash", s.queryByHash)
	mux.HandleFunc("GET /dump", s.dump)
	mux.HandleFunc("POST /register_peer", func(w http.ResponseWriter, _ *http.Request) {
		s.fail(w, http.StatusNotImplemented, errors.New("this indexer recovers from its publishers and has no peers"))
	})
	mux.HandleFunc("POST /deregister_peer", func(w http.ResponseWriter, _ *http.Request) {
		s.fail(w, http.StatusNotFound, errors.New("peer not found"))
	})
	mux.HandleFunc("GET /peers", func(w http.ResponseWriter, _ *http.Request) { s.answer(w, http.StatusOK, []string{}) })
	mux.HandleFunc("POST /reopen_logs", func(w http.ResponseWriter, _ *http.Request) { s.ok(w, http.StatusOK) })
	mux.HandleFunc("GET /health", func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(http.StatusOK) })
	mux.Handle("GET /metrics", s.router.Metrics().Handler())
	return control.RefuseCrossSite(mux)
}

// defaultGroup is the routing group of requests that name none.
const defaultGroup = "default"

// modelOf returns the router's name of a model in a routing group.
func modelOf(model, group string) string {
	if group == "" || group == defaultGroup {
		return model
	}
	return model + ":" + group
}

// decode reads the JSON body of a request, at most limit bytes, into v. Unknown fields are ignored,
// as the indexer's clients expect. After an error, decode answers the request and returns false.
func (s *Server) decode(w http.ResponseWriter, req *http.Request, limit int64, v any) bool {
	body, err := io.ReadAll(http.MaxBytesReader(w, req.Body, limit))
	var large *http.MaxBytesError
	switch {
	case errors.As(err, &large):
		s.fail(w, http.StatusRequestEntityTooLarge, fmt.Errorf("body: more than %d bytes", limit))
		return false
	case err != nil:
		s.fail(w, http.StatusBadRequest, fmt.Errorf("body: %w", err))
		return false
	}
	var syntax *json.SyntaxError
	switch err := json.Unmarshal(body, v); {
	case errors.As(err, &syntax):
		s.fail(w, http.StatusBadRequest, fmt.Errorf("body: %w", err))
	case err != nil:
		s.fail(w, http.StatusUnprocessableEntity, fmt.Errorf("body: %w", err))
	default:
		return true
	}
	return false
}

// need answers 422 and returns false when a required field is missing.
func (s *Server) need(w http.ResponseWriter, field string, given bool) bool {
	if !given {
		s.fail(w, http.StatusUnprocessableEntity, fmt.Errorf("%s: the field is missing", field))
	}
	return given
}

func (s *Server) ok(w http.ResponseWriter, status int) {
	s.answer(w, status, map[string]string{"status": "ok"})
}

func (s *Server) fail(w http.ResponseWriter, status int, err error) {
	s.answer(w, status, map[string]string{"error": err.Error()})
}

// answer answers with v as JSON.
func (s *Server) answer(w http.ResponseWriter, status int, v any) {
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(status)
	if err := json.NewEncoder(w).Encode(v); err != nil {
		s.log.Debug("answer is not delivered", zap.Error(err))
	}
}
