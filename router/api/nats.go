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

	"github.com/blockyard-ai/blockyard/router/metrics"
	natssource "github.com/blockyard-ai/blockyard/router/source/nats"
)

// Headers of replies over NATS, besides those of HTTP.
const (
	// RouterHeader carries the subject of the router that answered. Send later calls about
	// the request there: other routers do not know the request.
	RouterHeader = "X-Blockyard-Router"
	// NATSErrorHeader carries the text of an error. NATSErrorCodeHeader carries its HTTP
	// status. NATS clients expect both.
	NATSErrorHeader     = "Nats-Service-Error"
	NATSErrorCodeHeader = "Nats-Service-Error-Code"
)

// RouteSubject returns the subject of a cluster's routers. One of them answers each request.
func RouteSubject(cluster string) string { return "blockyard." + cluster + ".route" }

// errStopping is the error of requests that wait for a worker when the router stops.
var errStopping = errors.New("the router is stopping")

const (
	// natsRequestQueue is how many requests may wait to be read.
	natsRequestQueue = 1024
	// maxNATSRequests bounds the requests in progress. It exceeds maxNewRequests, so that
	// requests that free others get through.
	maxNATSRequests = 2 * maxNewRequests
	// natsTimeout is the timeout of a request without timeout_ms, because NATS does not
	// report that a client has left.
	natsTimeout = 30 * time.Second
)

// natsService answers route requests over one connection.
type natsService struct {
	service  *service
	log      *zap.Logger
	subject  string // the subject of this router alone
	counters *metrics.APICounters
	// slots has an element for each request in progress that does not wait for a worker.
	slots      chan struct{}
	goroutines sync.WaitGroup
}

// ServeNATS answers route requests over n until ctx ends. Then it lets requests finish. n
// must stay open until ServeNATS returns. The error is nil after the end of ctx.
// docs/router-api.md describes the requests.
func (a *API) ServeNATS(ctx context.Context, n *natssource.Source) error {
	return a.serveNATS(ctx, n, drainTimeout)
}

// serveNATS answers route requests over n until ctx ends. After that, requests have the time
// drain to finish. Then requests that still wait for a worker are answered with errStopping.
// serveNATS returns when all requests are answered.
func (a *API) serveNATS(ctx context.Context, n *natssource.Source, drain time.Duration) error {
	s := &natsService{
		service:  a.service,
		log:      a.log,
		subject:  RouteSubject(n.Cluster()) + "." + rand.Text(),
		counters: &a.router.Metrics().API,
		slots:    make(chan struct{}, maxNATSRequests),
	}
	// The shared subject brings requests for any router, one member of the queue group each. The
	// router's own subject brings calls about requests that this router has booked; it has one
	// member.
	requests, err := n.Listen("blockyard-routers", natsRequestQueue, &s.counters.NATSDropped, RouteSubject(n.Cluster()), s.subject)
	if err != nil {
		return fmt.Errorf("serve routing over nats: %w", err)
	}
	// Requests outlive ctx: cancel ends them, and only after drain.
	serving, cancel := context.WithCancelCause(context.WithoutCancel(ctx))
	defer cancel(nil)
	for q, ok := requests.Next(ctx); ok; q, ok = requests.Next(ctx) {
		s.serve(serving, q)
	}
	err = requests.Stop()
	// After drain, requests that still wait for a worker get errStopping.
	end := time.AfterFunc(drain, func() { cancel(errStopping) })
	defer end.Stop()
	// Requests that arrived before Stop still get an answer.
	for q, ok := requests.Rest(); ok; q, ok = requests.Rest() {
		s.serve(serving, q)
	}
	s.goroutines.Wait()
	return err
}

// serve answers q in a goroutine. Above maxNATSRequests it answers with errBusy at once.
func (s *natsService) serve(ctx context.Context, q *natssource.Request) {
	select {
	case s.slots <- struct{}{}:
	default:
		s.counters.NATSBusy.Add(1)
		s.send(q, s.service.fail(http.StatusServiceUnavailable, errBusy))
		return
	}
	s.goroutines.Go(func() {
		// A request that waits for a worker gives up its slot. Else waiting requests could
		// shut out the calls that free workers.
		release := sync.OnceFunc(func() { <-s.slots })
		defer release()
		s.send(q, s.answer(ctx, q, release))
	})
}

// answer returns the reply to q. It calls onWait before the request waits for a worker.
func (s *natsService) answer(ctx context.Context, q *natssource.Request, onWait func()) reply {
	if len(q.Body()) > maxBody {
		return s.service.fail(http.StatusRequestEntityTooLarge, fmt.Errorf("body: %d bytes are more than %d", len(q.Body()), maxBody))
	}
	return s.service.route(ctx, bytes.NewReader(q.Body()),
		caller{id: q.Header(RequestIDHeader), client: "nats", unwatched: true, timeout: natsTimeout, onWait: onWait})
}

// send replies to q with r. It frees the booking of an undelivered reply, because the sender
// will not use the worker.
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

// reply sends r to the sender of q: the body as JSON, and headers with the quality, with the
// subject of this router and with the error, if r has one.
func (s *natsService) reply(q *natssource.Request, r *reply) error {
	body, err := json.Marshal(r.body)
	if err != nil {
		return err
	}
	headers := r.headers()
	headers[RouterHeader] = s.subject
	if r.failed != "" {
		headers[NATSErrorHeader] = headerText(r.failed)
		headers[NATSErrorCodeHeader] = strconv.Itoa(r.status)
	}
	return q.Reply(headers, body)
}
