package nats

import (
	"context"
	"errors"
	"sync"

	"github.com/blockyard-ai/blockyard/internal/kvevent"
	"github.com/blockyard-ai/blockyard/router/source"
)

// Loads is a Transport that brings only the load reports of a cluster. A registry joins
// Loads with the transport of events. Reports that wait too long are dropped: the next
// report of the worker or pool replaces them.
type Loads struct {
	frames     chan source.Frame
	stop       func()
	dropped    func() uint64
	closing    chan struct{}
	once       sync.Once
	goroutines sync.WaitGroup
}

var _ source.Transport = (*Loads)(nil)

// FollowLoads subscribes to the load reports of n's cluster and delivers them as frames. Close must
// be called before n is closed.
func FollowLoads(n *Source) (*Loads, error) {
	messages := make(chan []byte, 256)
	stop, dropped, err := n.Subscribe(kvevent.AllLoadSubject(n.cluster), messages)
	if err != nil {
		return nil, err
	}
	f := &Loads{frames: make(chan source.Frame), stop: stop, dropped: dropped, closing: make(chan struct{})}
	f.goroutines.Go(func() {
		for {
			select {
			case m := <-messages:
				select {
				case f.frames <- source.Frame{Kind: source.FrameLoad, Data: m}:
				case <-f.closing:
					return
				}
			case <-f.closing:
				return
			}
		}
	})
	return f, nil
}

// Close ends the subscription and waits for the goroutine. It may be called twice.
func (f *Loads) Close() error {
	f.once.Do(func() {
		close(f.closing)
		f.stop()
	})
	f.goroutines.Wait()
	return nil
}

// Frames implements source.Transport.
func (f *Loads) Frames() <-chan source.Frame { return f.frames }

// Query implements source.Transport. It always fails.
func (f *Loads) Query(context.Context, uint64, kvevent.QueryRequest) (*source.Answer, error) {
	return nil, errors.New("load reports have no publisher to query")
}

// Stats implements source.Transport.
func (f *Loads) Stats() source.Stats {
	return source.Stats{Connected: true, Dropped: f.dropped()}
}
