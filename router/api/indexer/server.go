package indexer

import (
	"errors"
	"net/http"
	"sync"

	"go.uber.org/zap"

	"github.com/blockyard-ai/blockyard/internal/kv"
	"github.com/blockyard-ai/blockyard/router"
	"github.com/blockyard-ai/blockyard/router/api/shape"
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
	*shape.JSON
	router   *router.Router
	follower Follower

	mu        sync.Mutex
	instances map[uint64]*instance
}

// New returns a Server.
func New(o Options) *Server {
	m := &o.Router.Metrics().API
	return &Server{router: o.Router, follower: o.Follower, instances: make(map[uint64]*instance),
		JSON: shape.New(shape.Options{Counters: &m.Bodies, Log: o.Log})}
}

// Handler returns the HTTP handler with all paths of Dynamo's standalone indexer. Paths without a
// counterpart here (peers, log files) have fixed answers, so that clients go on.
func (s *Server) Handler() http.Handler {
	return s.JSON.Handler(map[string]http.HandlerFunc{
		"POST /register":      s.register,
		"POST /unregister":    s.unregister,
		"GET /workers":        s.workers,
		"POST /query":         s.query,
		"POST /query_by_hash": s.queryByHash,
		"GET /dump":           s.dump,
		"POST /register_peer": func(w http.ResponseWriter, _ *http.Request) {
			s.Fail(w, http.StatusNotImplemented, errors.New("this indexer recovers from its publishers and has no peers"))
		},
		"POST /deregister_peer": func(w http.ResponseWriter, _ *http.Request) {
			s.Fail(w, http.StatusNotFound, errors.New("peer not found"))
		},
		"GET /peers":        func(w http.ResponseWriter, _ *http.Request) { s.Answer(w, http.StatusOK, []string{}) },
		"POST /reopen_logs": func(w http.ResponseWriter, _ *http.Request) { s.OK(w, http.StatusOK) },
		"GET /health":       func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(http.StatusOK) },
		"GET /metrics":      s.router.Metrics().Handler().ServeHTTP,
	})
}
