package nats

import (
	"context"
	"errors"
	"fmt"
	"sync/atomic"
	"time"

	"github.com/nats-io/nats.go"
)

// NATSRequest is a message of a client that waits for a reply.
type Request struct{ message *nats.Msg }

// Body is what the client sent. The receiver owns it.
func (r *Request) Body() []byte { return r.message.Data }

// Header is the value of a header, empty when there is none.
func (r *Request) Header(name string) string { return r.message.Header.Get(name) }

// Reply answers the request. An error means that no connection took the reply.
func (r *Request) Reply(headers map[string]string, body []byte) error {
	out := nats.NewMsg(r.message.Reply)
	out.Data = body
	for name, value := range headers {
		out.Header.Set(name, value)
	}
	return r.message.RespondMsg(out)
}

// NATSRequests are the requests that clients send to some subjects, in the order in which
// they came. They are for one goroutine.
type Requests struct {
	messages chan *nats.Msg
	subs     []*nats.Subscription
	counted  []int // per subscription, those dropped that are counted already
	dropped  *atomic.Uint64
	look     *time.Ticker
}

// lookInterval is how often the dropped requests are counted.
const lookInterval = time.Second

// Listen subscribes to subjects as a member of a queue group: each request goes to one
// member. room is how many requests may wait for Next; those without room are added to
// dropped. While there is no connection no requests come. Stop must be called.
func (n *Source) Listen(group string, room int, dropped *atomic.Uint64, subjects ...string) (*Requests, error) {
	r := &Requests{messages: make(chan *nats.Msg, room), dropped: dropped, look: time.NewTicker(lookInterval)}
	for _, subject := range subjects {
		sub, err := n.conn.ChanQueueSubscribe(subject, group, r.messages)
		if err != nil {
			return nil, errors.Join(fmt.Errorf("subscribe to %s: %w", subject, err), r.Stop())
		}
		r.subs, r.counted = append(r.subs, sub), append(r.counted, 0)
	}
	if !n.conn.IsConnected() {
		// The connection subscribes when it is made.
		return r, nil
	}
	if err := n.conn.Flush(); err != nil && n.conn.IsConnected() {
		return nil, errors.Join(fmt.Errorf("subscribe: %w", err), r.Stop())
	}
	return r, nil
}

// Next waits for a request until ctx ends; then ok is false.
func (r *Requests) Next(ctx context.Context) (q *Request, ok bool) {
	for {
		select {
		case <-ctx.Done():
			return nil, false
		case m := <-r.messages:
			return &Request{m}, true
		case <-r.look.C:
			r.countDropped()
		}
	}
}

// Rest returns a request that came before Stop; ok is false when there is none left.
func (r *Requests) Rest() (q *Request, ok bool) {
	select {
	case m := <-r.messages:
		return &Request{m}, true
	default:
		return nil, false
	}
}

// Stop stops requests from coming. A connection that is closed has done so.
func (r *Requests) Stop() (err error) {
	r.look.Stop()
	r.countDropped()
	for _, sub := range r.subs {
		if e := sub.Unsubscribe(); !errors.Is(e, nats.ErrConnectionClosed) && !errors.Is(e, nats.ErrBadSubscription) {
			err = errors.Join(err, e)
		}
	}
	return err
}

// countDropped counts what nats.go found no room for since it was last called.
func (r *Requests) countDropped() {
	for i, sub := range r.subs {
		// The error says that the subscription is closed; then nothing is dropped.
		if n, err := sub.Dropped(); err == nil {
			r.dropped.Add(uint64(n - r.counted[i]))
			r.counted[i] = n
		}
	}
}

// Cluster is the name of the cluster that the router listens to.
func (n *Source) Cluster() string { return n.cluster }
