package router

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
	"sync/atomic"
	"time"

	"github.com/nats-io/nats.go"
	"go.uber.org/zap"
)

// Headers of replies over NATS, besides those of HTTP.
const (
	// RouterHeader carries the subject of the router that answered. What is said of
	// a request later has to go there: other routers do not know the request.
	RouterHeader = "X-Blockyard-Router"
	// NATSErrorHeader has the text of an error, as NATS clients expect it, and
	// NATSErrorCodeHeader its HTTP status.
	NATSErrorHeader     = "Nats-Service-Error"
	NATSErrorCodeHeader = "Nats-Service-Error-Code"
)

// RouteSubject is where the routers of a cluster take requests; each request is
// answered by one of them.
func RouteSubject(cluster string) string { return "blockyard." + cluster + ".route" }

// errStopping: a request waited for a worker when the router was stopped.
var errStopping = errors.New("the router is stopping")

const (
	// natsRequestQueue is how many requests wait to be taken up.
	natsRequestQueue = 1024
	// maxNATSRequests bounds the requests at hand. It is above maxNewRequests, so
	// that those get through by which others end.
	maxNATSRequests = 2 * maxNewRequests
	// natsPatience is how long a request waits for a worker that does not say: nobody
	// notices when who asks has gone.
	natsPatience = 30 * time.Second
	// natsLookInterval is how often the dropped requests are counted.
	natsLookInterval = time.Second
)

// natsServeCounters count what became of requests over NATS.
type natsServeCounters struct {
	// Busy requests found too many others, Dropped ones no room in the queue, and
	// Undelivered replies no connection.
	busy, dropped, undelivered atomic.Uint64
}

// natsService answers route requests over one connection.
type natsService struct {
	service  service
	log      *zap.Logger
	own      string // the subject that is this router's alone
	messages chan *nats.Msg
	subs     []*nats.Subscription
	dropped  []int // per subscription, those that are counted already
	counters *natsServeCounters
	// slots holds a token for each request at hand that does not wait for a worker.
	slots   chan struct{}
	serving sync.WaitGroup
}

// ServeNATS answers route requests over n until ctx ends, then lets the requests at
// hand finish. docs/router-api.md describes them. n must stay open until it returns;
// while n has no server, no requests come. The error is nil when ctx ended it.
func (r *Router) ServeNATS(ctx context.Context, n *NATS) error {
	return r.serveNATS(ctx, n, drainTimeout)
}

// serveNATS is ServeNATS; what is at hand at the end may take as long as drain.
func (r *Router) serveNATS(ctx context.Context, n *NATS, drain time.Duration) error {
	s := &natsService{
		service:  r.service(),
		log:      r.log,
		own:      RouteSubject(n.cluster) + "." + rand.Text(),
		messages: make(chan *nats.Msg, natsRequestQueue),
		counters: &r.natsServed,
		slots:    make(chan struct{}, maxNATSRequests),
	}
	if err := s.subscribe(n); err != nil {
		return fmt.Errorf("serve routing over nats: %w", errors.Join(err, s.unsubscribe()))
	}
	serving, cancel := context.WithCancelCause(context.WithoutCancel(ctx))
	defer cancel(nil)
	s.run(ctx, serving)
	err := s.unsubscribe()
	// Those that still wait for a worker then are told so.
	end := time.AfterFunc(drain, func() { cancel(errStopping) })
	defer end.Stop()
	for len(s.messages) > 0 {
		s.take(serving, <-s.messages)
	}
	s.serving.Wait()
	return err
}

func (s *natsService) subscribe(n *NATS) error {
	for _, subject := range []string{RouteSubject(n.cluster), s.own} {
		// A queue group of its own subject has one member: this router.
		sub, err := n.conn.ChanQueueSubscribe(subject, "blockyard-routers", s.messages)
		if err != nil {
			return fmt.Errorf("subscribe to %s: %w", subject, err)
		}
		s.subs, s.dropped = append(s.subs, sub), append(s.dropped, 0)
	}
	if !n.conn.IsConnected() {
		// The connection subscribes when it is made.
		return nil
	}
	if err := n.conn.Flush(); err != nil && n.conn.IsConnected() {
		return fmt.Errorf("subscribe: %w", err)
	}
	return nil
}

// unsubscribe stops requests from coming. A connection that is closed has done so.
func (s *natsService) unsubscribe() (err error) {
	s.countDropped()
	for _, sub := range s.subs {
		if e := sub.Unsubscribe(); !errors.Is(e, nats.ErrConnectionClosed) && !errors.Is(e, nats.ErrBadSubscription) {
			err = errors.Join(err, e)
		}
	}
	return err
}

// countDropped counts what nats.go found no room for since it was last called.
func (s *natsService) countDropped() {
	for i, sub := range s.subs {
		// The error says that the subscription is closed; then nothing is dropped.
		if n, err := sub.Dropped(); err == nil {
			s.counters.dropped.Add(uint64(n - s.dropped[i]))
			s.dropped[i] = n
		}
	}
}

// run takes requests until ctx ends; they are answered under serving.
func (s *natsService) run(ctx, serving context.Context) {
	look := time.NewTicker(natsLookInterval)
	defer look.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case m := <-s.messages:
			s.take(serving, m)
		case <-look.C:
			s.countDropped()
		}
	}
}

// take answers m on a goroutine of its own, or says that there are too many.
func (s *natsService) take(ctx context.Context, m *nats.Msg) {
	select {
	case s.slots <- struct{}{}:
	default:
		s.counters.busy.Add(1)
		s.send(m, s.service.fail(http.StatusServiceUnavailable, errBusy))
		return
	}
	s.serving.Go(func() {
		// Those that wait for a worker leave room for those by which others end.
		taken := sync.OnceFunc(func() { <-s.slots })
		defer taken()
		s.send(m, s.answer(ctx, m, taken))
	})
}

func (s *natsService) answer(ctx context.Context, m *nats.Msg, waits func()) reply {
	if len(m.Data) > maxBody {
		return s.service.fail(http.StatusRequestEntityTooLarge, fmt.Errorf("body: %d bytes are more than %d", len(m.Data), maxBody))
	}
	return s.service.route(ctx, bytes.NewReader(m.Data),
		caller{id: m.Header.Get(RequestIDHeader), client: "nats", unseen: true, patience: natsPatience, waits: waits})
}

// send replies to m. A request that was booked is freed when that is not possible.
func (s *natsService) send(m *nats.Msg, r reply) {
	err := s.reply(m, &r)
	if err == nil {
		return
	}
	s.counters.undelivered.Add(1)
	s.log.Debug("reply over nats is not delivered", zap.Error(err))
	if r.unbook != nil {
		r.unbook()
	}
}

func (s *natsService) reply(m *nats.Msg, r *reply) error {
	body, err := json.Marshal(r.body)
	if err != nil {
		return err
	}
	out := nats.NewMsg(m.Reply)
	out.Data = body
	out.Header.Set(RouterHeader, s.own)
	for name, value := range r.headers() {
		out.Header.Set(name, value)
	}
	if r.failed != "" {
		out.Header.Set(NATSErrorHeader, headerText(r.failed))
		out.Header.Set(NATSErrorCodeHeader, strconv.Itoa(r.status))
	}
	return m.RespondMsg(out)
}
