package nats

import (
	"context"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"github.com/nats-io/nats.go"

	"github.com/blockyard-ai/blockyard/router/source"
)

// errorHeader carries the error of an answer without a body.
const errorHeader = "Nats-Service-Error"

// Publish sends a message to the subscribers of a subject. An error means that there is no connection.
func (n *Source) Publish(subject string, data []byte) error { return n.conn.Publish(subject, data) }

// Answer answers the requests of a subject, one at a time, until stop. An error of answer reaches the
// sender as a source.AnswerError.
func (n *Source) Answer(subject string, answer func(request []byte) ([]byte, error)) (stop func(), err error) {
	sub, err := n.conn.Subscribe(subject, func(m *nats.Msg) { respond(m, answer) })
	if err != nil {
		return nil, fmt.Errorf("nats answer %q: %w", subject, err)
	}
	return sync.OnceFunc(func() { unsubscribe(sub) }), nil
}

// AnswerGroup answers requests of a subject as a member of a queue group, each of which gets a part of the
// requests, one at a time, until stop. arrived is when the request came to this process. At most room
// requests wait; dropped returns the number of those beyond. An error of answer reaches the sender as a
// source.AnswerError.
func (n *Source) AnswerGroup(group, subject string, room int, answer func(request []byte, arrived time.Time) ([]byte, error)) (stop func(), dropped func() uint64, err error) {
	type arrival struct {
		message *nats.Msg
		at      time.Time
	}
	var lost atomic.Uint64
	waiting, ended := make(chan arrival, room), make(chan struct{})
	sub, err := n.conn.QueueSubscribe(subject, group, func(m *nats.Msg) {
		select {
		case waiting <- arrival{m, time.Now()}:
		default:
			lost.Add(1)
		}
	})
	if err != nil {
		return nil, nil, fmt.Errorf("nats answer %q: %w", subject, err)
	}
	go func() {
		for {
			select {
			case <-ended:
				return
			case a := <-waiting:
				respond(a.message, func(request []byte) ([]byte, error) { return answer(request, a.at) })
			}
		}
	}()
	return sync.OnceFunc(func() { unsubscribe(sub); close(ended) }), lost.Load, nil
}

// respond sends the answer to a request.
func respond(m *nats.Msg, answer func(request []byte) ([]byte, error)) {
	out := nats.NewMsg(m.Reply)
	body, err := answer(m.Data)
	if out.Data = body; err != nil {
		out.Header.Set(errorHeader, err.Error())
	}
	// An error means that the connection is lost: the sender's request ends by itself.
	_ = m.RespondMsg(out)
}

// unsubscribe ends a subscription.
func unsubscribe(sub *nats.Subscription) {
	// An error means that the connection is closed, which ends the subscription.
	_ = sub.Unsubscribe()
}

// Request sends a request and returns its answer. The error is a source.AnswerError of the answering side, or
// says that nobody answers before ctx ends.
func (n *Source) Request(ctx context.Context, subject string, request []byte) ([]byte, error) {
	m, err := n.conn.RequestWithContext(ctx, subject, request)
	if err != nil {
		return nil, fmt.Errorf("nats request to %q: %w", subject, err)
	}
	if text := m.Header.Get(errorHeader); text != "" {
		return nil, source.AnswerError(text)
	}
	return m.Data, nil
}
