package nats

import (
	"context"
	"errors"
	"fmt"
	"sync/atomic"
	"time"

	"github.com/nats-io/nats.go"
)

// Request is a message whose sender waits for a reply.
type Request struct{ message *nats.Msg }

// Body returns the body of the message. The receiver owns it.
func (r *Request) Body() []byte { return r.message.Data }

// Header returns the value of a header, or an empty string.
func (r *Request) Header(name string) string { return r.message.Header.Get(name) }

// Reply answers the request. An error means that there is no connection.
func (r *Request) Reply(headers map[string]string, body []byte) error {
	out := nats.NewMsg(r.message.Reply)
	out.Data = body
	for name, value := range headers {
		out.Header.Set(name, value)
	}
	return r.message.RespondMsg(out)
}

// Requests delivers the requests of clients on some subjects, in order. A Requests is for
// one goroutine.
type Requests struct {
	messages   chan *nats.Msg
	subs       []*nats.Subscription
	counted    []int // dropped requests that dropped already has, per subscription
	dropped    *atomic.Uint64
	countTicks *time.Ticker
}

// countInterval is how often dropped requests are counted.
const countInterval = time.Second

// Listen subscribes to subjects as a member of a queue group: each request goes to one
// member. At most room requests wait for Next. Further requests are dropped and counted
// in dropped. Without a connection no requests come. Stop must be called.
func (n *Source) Listen(group string, room int, dropped *atomic.Uint64, subjects ...string) (*Requests, error) {
	r := &Requests{messages: make(chan *nats.Msg, room), dropped: dropped, countTicks: time.NewTicker(countInterval)}
	for _, subject := range subjects {
		sub, err := n.conn.ChanQueueSubscribe(subject, group, r.messages)
		if err != nil {
			return nil, errors.Join(fmt.Errorf("subscribe to %s: %w", subject, err), r.Stop())
		}
		r.subs, r.counted = append(r.subs, sub), append(r.counted, 0)
	}
	if !n.conn.IsConnected() {
		return r, nil // nats.go subscribes when it connects
	}
	if err := n.conn.Flush(); err != nil && n.conn.IsConnected() {
		return nil, errors.Join(fmt.Errorf("subscribe: %w", err), r.Stop())
	}
	return r, nil
}

// Next waits for a request. ok is false when ctx ends.
func (r *Requests) Next(ctx context.Context) (q *Request, ok bool) {
	for {
		select {
		case <-ctx.Done():
			return nil, false
		case m := <-r.messages:
			return &Request{m}, true
		case <-r.countTicks.C:
			r.countDropped()
		}
	}
}

// Rest returns the next request that came before Stop. ok is false when none is left.
func (r *Requests) Rest() (q *Request, ok bool) {
	select {
	case m := <-r.messages:
		return &Request{m}, true
	default:
		return nil, false
	}
}

// Stop ends the subscriptions. Requests that came before wait for Rest.
func (r *Requests) Stop() (err error) {
	r.countTicks.Stop()
	r.countDropped()
	for _, sub := range r.subs {
		e := sub.Unsubscribe()
		hasEnded := errors.Is(e, nats.ErrConnectionClosed) || errors.Is(e, nats.ErrBadSubscription)
		if !hasEnded {
			err = errors.Join(err, e)
		}
	}
	return err
}

// countDropped adds the requests dropped since the last call to dropped.
func (r *Requests) countDropped() {
	for i, sub := range r.subs {
		// An error means that the subscription is closed, which drops nothing.
		if n, err := sub.Dropped(); err == nil {
			r.dropped.Add(uint64(n - r.counted[i]))
			r.counted[i] = n
		}
	}
}

// Cluster returns the name of the cluster.
func (n *Source) Cluster() string { return n.cluster }
