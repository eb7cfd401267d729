package nats

import (
	"fmt"
	"sync"

	"github.com/nats-io/nats.go"
)

// Subscribe delivers the messages of another subject in order, until stop is called. A
// slow receiver loses messages; dropped returns their number.
func (n *Source) Subscribe(subject string, messages chan<- []byte) (stop func(), dropped func() uint64, err error) {
	stopped := make(chan struct{})
	sub, err := n.conn.Subscribe(subject, func(m *nats.Msg) {
		select {
		case messages <- m.Data:
		case <-stopped:
		}
	})
	if err != nil {
		return nil, nil, fmt.Errorf("nats subscribe to %q: %w", subject, err)
	}
	if n.conn.IsConnected() {
		// Wait for the subscription, so that no message after a later query is missed.
		if err := n.conn.Flush(); err != nil && n.conn.IsConnected() {
			return nil, nil, fmt.Errorf("nats subscribe to %q: %w", subject, err)
		}
	}
	var once sync.Once
	stop = func() {
		once.Do(func() {
			close(stopped)
			// An error means that the connection is closed, which ends the subscription.
			_ = sub.Unsubscribe()
		})
	}
	return stop, droppedOf(sub), nil
}

// Connections returns the number of connections so far.
func (n *Source) Connections() uint64 { return n.connections.Load() }

// Connected reports whether there is a connection now.
func (n *Source) Connected() bool { return n.conn.IsConnected() }

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
