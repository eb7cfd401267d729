package selection

import (
	"cmp"
	"context"
	"errors"
	"net/http"
	"slices"
	"strings"
	"sync"
	"time"

	"go.uber.org/zap"

	"github.com/blockyard-ai/blockyard/internal/kv"
	"github.com/blockyard-ai/blockyard/router"
	"github.com/blockyard-ai/blockyard/router/api/shape"
	"github.com/blockyard-ai/blockyard/router/source"
	"github.com/blockyard-ai/blockyard/router/source/registry"
)

// maxBody bounds a body in bytes.
const maxBody = 8 << 20

// Follower follows the KV events of workers.
type Follower interface {
	Follow(e source.Engine) error
	Unfollow(worker kv.WorkerID)
}

// Registry knows workers without events.
type Registry interface {
	Register(g *registry.Registration, ttl time.Duration) error
	Unregister(worker uint64) bool
	AnnounceSoon()
}

// Options configure a Server. Router is required.
type Options struct {
	Router *router.Router
	// Follower follows the events of workers. With nil, workers need no endpoints of events
	// and Registry announces them.
	Follower Follower
	Registry Registry
	// Endpoint returns the URL of a worker that was not registered here, empty for none. It
	// may be nil.
	Endpoint func(kv.WorkerID) string
	Cache    CacheLimits
	// Log may be nil.
	Log *zap.Logger
}

// Server answers in the shapes of the selection service. Make one with New.
type Server struct {
	*shape.JSON
	router   *router.Router
	follower Follower
	registry Registry
	endpoint func(kv.WorkerID) string
	pending  *cache

	mu      sync.Mutex
	records map[uint64]*record
}

// New returns a Server.
func New(o Options) *Server {
	m := &o.Router.Metrics().API
	return &Server{
		router: o.Router, follower: o.Follower, registry: o.Registry, endpoint: o.Endpoint,
		pending: newCache(o.Cache), records: make(map[uint64]*record),
		JSON: shape.New(shape.Options{Counters: &m.Bodies, Log: o.Log}),
	}
}

// Handler returns the HTTP handler with all paths of Dynamo's selection service. Paths about
// replicas have fixed answers, because this router has no peers.
func (s *Server) Handler() http.Handler {
	return s.JSON.Handler(map[string]http.HandlerFunc{
		"POST /workers":                            s.upsert,
		"GET /workers":                             s.listWorkers,
		"PATCH /workers/{worker_id}":               s.patch,
		"DELETE /workers/{worker_id}":              s.delete,
		"POST /select":                             s.selectWorker,
		"POST /select_and_reserve":                 s.selectAndReserve,
		"POST /reservations":                       s.reserve,
		"POST /reservations/{id}/prefill_complete": s.prefillComplete,
		"POST /reservations/{id}/output_block":     s.outputBlock,
		"DELETE /reservations/{id}":                s.free,
		"GET /loads":                               s.loads,
		"POST /potential_loads":                    s.potentialLoads,
		"POST /overlap_scores":                     s.overlapScores,
		"GET /dump": func(w http.ResponseWriter, _ *http.Request) {
			known := s.partitions()
			s.Dump(w, s.router, func(model string) string { return known.of(model).String() })
		},
		"GET /health":                        func(w http.ResponseWriter, _ *http.Request) { s.OK(w, http.StatusOK) },
		"GET /ready":                         s.ready,
		"GET /replica_sync/peers":            func(w http.ResponseWriter, _ *http.Request) { s.Answer(w, http.StatusOK, []string{}) },
		"POST /replica_sync/register_peer":   s.noPeers,
		"POST /replica_sync/deregister_peer": s.noPeers,
	})
}

// noPeers answers requests for peers, which share no bookings with this router.
func (s *Server) noPeers(w http.ResponseWriter, _ *http.Request) {
	s.Fail(w, http.StatusConflict, errors.New("replica sync is disabled"))
}

const (
	// registerFor is how long a registration of a worker without events holds, renewEvery how
	// often Run renews it.
	registerFor = 30 * time.Second
	renewEvery  = 10 * time.Second
)

// Run renews the registrations of workers without events until ctx ends.
func (s *Server) Run(ctx context.Context) error {
	tick := time.NewTicker(renewEvery)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-tick.C:
			s.renew()
		}
	}
}

// partition is a model in a routing group.
type partition struct{ model, group string }

// String returns MODEL:GROUP.
func (p partition) String() string { return p.model + ":" + p.group }

// partitions finds the partition of a router's model.
type partitions map[string]partition

// of returns the partition of a router's model: the one that workers registered here have, else
// the model in the default group.
func (p partitions) of(model string) partition {
	if known, ok := p[model]; ok {
		return known
	}
	return partition{model, shape.DefaultGroup}
}

// partitions returns the partitions of the registered workers.
func (s *Server) partitions() partitions {
	s.mu.Lock()
	defer s.mu.Unlock()
	all := make(partitions)
	for _, r := range s.records {
		all[shape.ModelOf(r.ModelName, r.RoutingGroup)] = partition{r.ModelName, r.RoutingGroup}
	}
	return all
}

// defaultModel is the model of requests that name none.
const defaultModel = "default"

// scope names the partition of a request.
type scope struct {
	ModelName    string `json:"model_name"`
	RoutingGroup string `json:"routing_group"`
}

// find returns the model of a request and its partition. A request without a name means the
// model "default", or else the router's only model.
func (s *Server) find(q *scope) (*router.Model, partition, error) {
	p := partition{cmp.Or(q.ModelName, defaultModel), cmp.Or(q.RoutingGroup, shape.DefaultGroup)}
	if err := s.router.Started(); err != nil {
		return nil, p, err
	}
	m, err := s.router.Model(shape.ModelOf(p.model, p.group))
	if err != nil && q.ModelName == "" && p.group == shape.DefaultGroup {
		if only, e := s.router.Model(""); e == nil {
			return only, s.partitions().of(only.Key().Name), nil
		}
	}
	if err != nil {
		return nil, p, &partitionError{p}
	}
	return m, p, nil
}

// partitionError says that a partition has no worker.
type partitionError struct{ partition }

// Error implements error.
func (e *partitionError) Error() string {
	return "no schedulable workers for model=" + e.model + " routing_group=" + e.group
}

// inScope reports whether the query parameters of a list include a partition.
func inScope(req *http.Request, p partition) bool {
	q := req.URL.Query()
	return (!q.Has("model_name") || q.Get("model_name") == p.model) && (!q.Has("routing_group") || q.Get("routing_group") == p.group)
}

// models returns the router's models with their partitions, in order of the partitions.
func (s *Server) models() (all []scoped) {
	known := s.partitions()
	for _, m := range s.router.Models("") {
		all = append(all, scoped{m, known.of(m.Key().Name)})
	}
	slices.SortFunc(all, func(a, b scoped) int {
		return cmp.Or(strings.Compare(a.model, b.model), strings.Compare(a.group, b.group),
			cmp.Compare(a.Key().BlockSize, b.Key().BlockSize))
	})
	return all
}

// scoped is a model with its partition.
type scoped struct {
	*router.Model
	partition
}
