package api

import (
	"bytes"
	"context"
	"crypto/rand"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"strconv"
	"sync"
	"time"

	"go.uber.org/zap"

	"github.com/blockyard-ai/blockyard/router"
	natssource "github.com/blockyard-ai/blockyard/router/source/nats"
)

// Headers of replies over NATS, besides those of HTTP.
const (
	// RouterHeader carries the subject of the router that answered. Later calls about the
	// request must go there: other routers do not know the request.
	RouterHeader = "X-Blockyard-Router"
	// NATSErrorHeader carries the text of an error, as NATS clients expect it,
	// NATSErrorCodeHeader its HTTP status.
	NATSErrorHeader     = "Nats-Service-Error"
	NATSErrorCodeHeader = "Nats-Service-Error-Code"
)

// RouteSubject returns the subject of a cluster's routers. One of them answers each request.
func RouteSubject(cluster string) string { return "blockyard." + cluster + ".route" }

// errStopping: the router stopped while a request waited for a worker.
var errStopping = errors.New("the router is stopping")

const (
	// natsRequestQueue is how many requests may wait to be read.
	natsRequestQueue = 1024
	// maxNATSRequests bounds the requests in progress. It exceeds maxNewRequests, so that
	// requests that end others get through.
	maxNATSRequests = 2 * maxNewRequests
	// natsTimeout is the timeout of a request without one of its own: over NATS nobody
	// notices that a client has gone.
	natsTimeout = 30 * time.Second
)

// natsService answers route requests over one connection.
type natsService struct {
	service  *service
	log      *zap.Logger
	own      string // the subject of this router alone
	counters *router.APICounters
	// slots holds a token for each request in progress that does not wait for a worker.
	slots   chan struct{}
	serving sync.WaitGroup
}

// ServeNATS answers route requests over n until ctx ends. Then it lets requests finish. n
// must stay open until ServeNATS returns. The error is nil when ctx ended it.
// docs/router-api.md describes the requests.
func (a *API) ServeNATS(ctx context.Context, n *natssource.Source) error {
	return a.serveNATS(ctx, n, drainTimeout)
}

// serveNATS is ServeNATS with a time for requests to finish.
func (a *API) serveNATS(ctx context.Context, n *natssource.Source, drain time.Duration) error {
	s := &natsService{
		service:  a.service,
		log:      a.log,
		own:      RouteSubject(n.Cluster()) + "." + rand.Text(),
		counters: &a.router.Metrics().API,
		slots:    make(chan struct{}, maxNATSRequests),
	}
	// The queue group of the router's own subject has one member.
	requests, err := n.Listen("blockyard-routers", natsRequestQueue, &s.counters.NATSDropped, RouteSubject(n.Cluster()), s.own)
	if err != nil {
		return fmt.Errorf("serve routing over nats: %w", err)
	}
	serving, cancel := context.WithCancelCause(context.WithoutCancel(ctx))
	defer cancel(nil)
	for q, ok := requests.Next(ctx); ok; q, ok = requests.Next(ctx) {
		s.take(serving, q)
	}
	err = requests.Stop()
	// Requests that still wait for a worker then get errStopping.
	end := time.AfterFunc(drain, func() { cancel(errStopping) })
	defer end.Stop()
	for q, ok := requests.Rest(); ok; q, ok = requests.Rest() {
		s.take(serving, q)
	}
	s.serving.Wait()
	return err
}

// take answers q in a goroutine, or says that there are too many requests.
func (s *natsService) take(ctx context.Context, q *natssource.Request) {
	select {
	case s.slots <- struct{}{}:
	default:
		s.counters.NATSBusy.Add(1)
		s.send(q, s.service.fail(http.StatusServiceUnavailable, errBusy))
		return
	}
	s.serving.Go(func() {
		// A waiting request leaves its slot to requests that end others.
		taken := sync.OnceFunc(func() { <-s.slots })
		defer taken()
		s.send(q, s.answer(ctx, q, taken))
	})
}

func (s *natsService) answer(ctx context.Context, q *natssource.Request, waits func()) reply {
	if len(q.Body()) > maxBody {
		return s.service.fail(http.StatusRequestEntityTooLarge, fmt.Errorf("body: %d bytes are more than %d", len(q.Body()), maxBody))
	}
	return s.service.route(ctx, bytes.NewReader(q.Body()),
		caller{id: q.Header(RequestIDHeader), client: "nats", unwatched: true, timeout: natsTimeout, onWait: waits})
}

// send replies to q. A reply that cannot be sent takes its booking back.
func (s *natsService) send(q *natssource.Request, r reply) {
	err := s.reply(q, &r)
	if err == nil {
		return
	}
	s.counters.NATSUndelivered.Add(1)
	s.log.Debug("reply over nats is not delivered", zap.Error(err))
	if r.unbook != nil {
		r.unbook()
	}
}

func (s *natsService) reply(q *natssource.Request, r *reply) error {
	body, err := json.Marshal(r.body)
	if err != nil {
		return err
	}
	headers := r.headers()
	headers[RouterHeader] = s.own
	if r.failed != "" {
		headers[NATSErrorHeader] = headerText(r.failed)
		headers[NATSErrorCodeHeader] = strconv.Itoa(r.status)
	}
	return q.Reply(headers, body)
}
