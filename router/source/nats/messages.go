package nats

import (
	"context"
	"errors"
	"fmt"
	"sync"

	"github.com/nats-io/nats.go"
)

// errorHeader carries the error of an answer without a body.
const errorHeader = "Nats-Service-Error"

// Publish sends a message to the subscribers of a subject. An error means that there is no connection.
func (n *Source) Publish(subject string, data []byte) error { return n.conn.Publish(subject, data) }

// Answer answers the requests of a subject, one at a time, until stop. An error of answer reaches the
// sender as an error of Request.
func (n *Source) Answer(subject string, answer func(request []byte) ([]byte, error)) (stop func(), err error) {
	sub, err := n.conn.Subscribe(subject, answering(answer))
	if err != nil {
		return nil, fmt.Errorf("nats answer %q: %w", subject, err)
	}
	return unsubscribing(sub), nil
}

// AnswerGroup answers requests of a subject as a member of a queue group, each of which gets a part of the
// requests, one at a time, until stop. At most room requests wait; dropped returns the number of those
// beyond. An error of answer reaches the sender as an error of Request.
func (n *Source) AnswerGroup(group, subject string, room int, answer func(request []byte) ([]byte, error)) (stop func(), dropped func() uint64, err error) {
	sub, err := n.conn.QueueSubscribe(subject, group, answering(answer))
	if err == nil {
		err = sub.SetPendingLimits(room, -1)
	}
	if err != nil {
		return nil, nil, fmt.Errorf("nats answer %q: %w", subject, err)
	}
	return unsubscribing(sub), droppedOf(sub), nil
}

// answering returns the handler of a subscription that answers by answer.
func answering(answer func(request []byte) ([]byte, error)) nats.MsgHandler {
	return func(m *nats.Msg) {
		out := nats.NewMsg(m.Reply)
		body, err := answer(m.Data)
		if out.Data = body; err != nil {
			out.Header.Set(errorHeader, err.Error())
		}
		// An error means that the connection is lost: the sender's request ends by itself.
		_ = m.RespondMsg(out)
	}
}

// unsubscribing returns a function that ends a subscription.
func unsubscribing(sub *nats.Subscription) (stop func()) {
	return sync.OnceFunc(func() {
		// An error means that the connection is closed, which ends the subscription.
		_ = sub.Unsubscribe()
	})
}

// droppedOf returns a function that returns how many messages a slow receiver of sub has lost.
func droppedOf(sub *nats.Subscription) func() uint64 {
	return func() uint64 {
		// An error means that the subscription is closed, which drops nothing.
		lost, err := sub.Dropped()
		if err != nil {
			return 0
		}
		return uint64(lost)
	}
}

// Request sends a request and returns its answer. The error is that of the answering side, or says that
// nobody answers before ctx ends.
func (n *Source) Request(ctx context.Context, subject string, request []byte) ([]byte, error) {
	m, err := n.conn.RequestWithContext(ctx, subject, request)
	if err != nil {
		return nil, fmt.Errorf("nats request to %q: %w", subject, err)
	}
	if text := m.Header.Get(errorHeader); text != "" {
		return nil, errors.New(text)
	}
	return m.Data, nil
}
