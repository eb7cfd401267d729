package nats

import (
	"fmt"
	"sync"

	"github.com/nats-io/nats.go"
)

// Subscribe delivers the bodies of the messages of another subject than the
// router's own, in order, until stop is called. A receiver that is slow loses
// messages; NATS itself says so in the log, and dropped how many, until the end.
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
		// From here on nothing is missed: what is asked for next is not older.
		if err := n.conn.Flush(); err != nil && n.conn.IsConnected() {
			return nil, nil, fmt.Errorf("nats subscribe to %q: %w", subject, err)
		}
	}
	var once sync.Once
	stop = func() {
		once.Do(func() {
			close(stopped)
			// The error says that the connection is closed, and with it the subscription.
			_ = sub.Unsubscribe()
		})
	}
	return stop, func() uint64 {
		// The error says that the subscription is closed; then nothing is dropped.
		lost, err := sub.Dropped()
		if err != nil {
			return 0
		}
		return uint64(lost)
	}, nil
}

// Connections is how many connections were made so far.
func (n *Source) Connections() uint64 { return n.connections.Load() }

// Connected is whether there is a connection now.
func (n *Source) Connected() bool { return n.conn.IsConnected() }
