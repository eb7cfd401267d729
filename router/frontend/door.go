package frontend

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"time"

	"go.uber.org/zap"

	"github.com/blockyard-ai/blockyard/internal/bodies"
	"github.com/blockyard-ai/blockyard/internal/connlimit"
	"github.com/blockyard-ai/blockyard/router/frontend/admission"
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
	deaths    *deaths
	expected  *expected
	pinned    *pinned
	// running holds a token for each request in progress.
	running chan struct{}
	bodies  *bodies.Budget
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
	return &Door{
		sessions: sessions,
		bodies:   bodies.New(maxReading, o.MaxBodies, o.Router.Metrics().Door.Bodies()), queues: queues, options: o, log: o.Log, transport: newTransport(), metrics: o.Router.Metrics().Door,
		deaths: newDeaths(), expected: newExpected(), pinned: newPinned(),
		running: make(chan struct{}, o.MaxRequests),
	}, nil
}

// SessionStats returns the counters of sessions, all 0 when none are kept together.
func (d *Door) SessionStats() session.Stats {
	if d.sessions == nil {
		return session.Stats{}
	}
	return d.sessions.Stats()
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
	serving, end := context.WithCancelCause(context.WithoutCancel(ctx))
	defer end(nil)
	server := &http.Server{
		Handler: d.Handler(), ReadHeaderTimeout: headTimeout, ReadTimeout: bodyTimeout, IdleTimeout: keepAlive,
		MaxHeaderBytes: maxHeader, ErrorLog: zap.NewStdLog(d.log), ConnState: connlimit.State,
		BaseContext: func(net.Listener) context.Context { return serving },
	}
	drained := make(chan error, 1)
	stop := context.AfterFunc(ctx, func() {
		late := time.AfterFunc(drainTimeout, func() { end(errStopping) })
		defer late.Stop()
		draining, cancel := context.WithTimeout(context.WithoutCancel(ctx), drainTimeout+time.Second)
		defer cancel()
		if err := server.Shutdown(draining); err != nil {
			drained <- server.Close()
			return
		}
		drained <- nil
	})
	err := server.Serve(l)
	if stop() || !errors.Is(err, http.ErrServerClosed) {
		return fmt.Errorf("serve clients on %s: %w", l.Addr(), err)
	}
	return <-drained
}
