package frontend

import (
	"context"
	"fmt"
	"net"
	"net/http"
	"sync/atomic"
	"time"

	"go.uber.org/zap"

	"github.com/blockyard-ai/blockyard/internal/bodies"
	"github.com/blockyard-ai/blockyard/internal/connlimit"
	"github.com/blockyard-ai/blockyard/internal/drain"
	"github.com/blockyard-ai/blockyard/internal/metric"
	"github.com/blockyard-ai/blockyard/router/frontend/admission"
	"github.com/blockyard-ai/blockyard/router/frontend/memory"
	"github.com/blockyard-ai/blockyard/router/frontend/session"
	"github.com/blockyard-ai/blockyard/router/frontend/split"
	"github.com/blockyard-ai/blockyard/router/metrics"
)

// Door serves clients of the OpenAI API. Make one with New. Its methods may be called from
// any goroutine.
type Door struct {
	options   Options
	log       *zap.Logger
	transport http.RoundTripper
	metrics   *metrics.Door
	deaths    *memory.Deaths
	lengths   *memory.Lengths
	responses *memory.Responses
	// running holds a token for each request in progress.
	running chan struct{}
	// refused counts the requests of tenants and clients that have too many in progress.
	refused      atomic.Uint64
	bodies       *bodies.Budget
	bodyCounters *bodies.Counters
	// tenants and clients count the requests in progress.
	tenants, clients admission.Counter
	// queues are nil without a limit of requests at workers.
	queues *admission.Models
	// lapses are the prefill workers that handed nothing over.
	lapses split.Lapses
	// sessions is nil when requests of a session need not stay together.
	sessions *session.Table
}

// New returns a Door. The error names the option that is missing or out of range.
func New(o Options) (*Door, error) {
	if err := o.Validate(); err != nil {
		return nil, fmt.Errorf("frontend: %w", err)
	}
	o = o.withDefaults()
	var queues *admission.Models
	if o.Admission.Running > 0 {
		var err error
		if queues, err = admission.NewModels(o.Admission); err != nil {
			return nil, fmt.Errorf("frontend: %w", err)
		}
	}
	var sessions *session.Table
	if o.SessionTTL > 0 {
		sessions = session.New(o.SessionTTL)
	}
	counters := new(bodies.Counters)
	return &Door{
		sessions: sessions, bodyCounters: counters,
		bodies: bodies.New(maxReading, o.MaxBodies, counters), queues: queues, options: o, log: o.Log, transport: newTransport(), metrics: o.Router.Metrics().Door,
		deaths: memory.NewDeaths(), lengths: memory.NewLengths(), responses: memory.NewResponses(),
		running: make(chan struct{}, o.MaxRequests),
	}, nil
}

const (
	// maxReading bounds the bytes of bodies that are being read.
	maxReading = 512 << 20
	// maxHeader bounds the headers of a request.
	maxHeader = 64 << 10
	// headTimeout bounds the time for headers, and keepAlive the time between the requests of a
	// connection. Package bodies bounds the time for a body; bodyTimeout is for bodies that
	// nobody reads.
	headTimeout = 5 * time.Second
	bodyTimeout = bodies.Longest
	keepAlive   = 2 * time.Minute
	// drainTimeout is how long requests may go on after the end of ctx.
	drainTimeout = 30 * time.Second
)

// Serve answers clients on l until ctx ends. Then it lets requests finish, for at most 30
// seconds, and closes l and the idle connections to workers. The error is nil when ctx ended it.
func (d *Door) Serve(ctx context.Context, l net.Listener) error {
	defer (&http.Client{Transport: d.transport}).CloseIdleConnections()
	server := &http.Server{
		Handler: d.Handler(), ReadHeaderTimeout: headTimeout, ReadTimeout: bodyTimeout, IdleTimeout: keepAlive,
		MaxHeaderBytes: maxHeader, ErrorLog: zap.NewStdLog(d.log), ConnState: connlimit.State,
	}
	return drain.Serve(ctx, server, shapedListener{l}, drainTimeout, errStopping)
}

// Stats is a snapshot of the door's numbers without labels.
type Stats struct {
	Running  int `metric:"requests_running" help:"Requests that are being sent to a worker or answered by one."`
	Bodies   bodies.Stats
	Memory   bodies.Usage
	Sessions session.Stats
}

// refusedBy counts the requests that a limit refused, by the limit.
type refusedBy struct {
	Requests uint64 `metric:"requests"`
	Queues   admission.Refused
}

// Measure adds the door's numbers to m, under names that begin with "blockyard_frontend_". Call it
// once for each m.
func (d *Door) Measure(m *metrics.Metrics) {
	metrics.AddStats(m, "blockyard_frontend_", d.Stats)
	metrics.AddStatsBy(m, "blockyard_frontend_admission_", "model", d.admissions)
	metrics.AddReasons(m, "blockyard_frontend_admission_refused_total",
		"Requests refused because of a limit: requests, tenant_queue_full, queue_full or queue_timeout.", d.refusals)
}

// Stats returns the numbers of the moment.
func (d *Door) Stats() Stats {
	s := Stats{Running: len(d.running), Bodies: d.bodyCounters.Stats(), Memory: d.bodies.Usage()}
	if d.sessions != nil {
		s.Sessions = d.sessions.Stats()
	}
	return s
}

// admissions returns the numbers of the queues by model, none without queues.
func (d *Door) admissions() map[string]admission.Stats {
	if d.queues == nil {
		return nil
	}
	return d.queues.Stats()
}

// refusals returns the refusals of all queues, and those before them.
func (d *Door) refusals() refusedBy {
	r := refusedBy{Requests: d.refused.Load()}
	for _, q := range d.admissions() {
		metric.Add(&r.Queues, &q.Refused)
	}
	return r
}
