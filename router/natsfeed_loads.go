package router

import (
	"context"
	"errors"
	"sync"

	"github.com/blockyard-ai/blockyard/internal/kvevent"
)

// LoadFeed is a Transport that brings the load reports of a NATS and nothing else; it
// is to be joined with that by a Registry. Reports that the router was too slow for
// are missing: each replaces the one before.
type LoadFeed struct {
	frames  chan Frame
	stop    func()
	dropped func() uint64
	closing chan struct{}
	once    sync.Once
	pumping sync.WaitGroup
}

var _ Transport = (*LoadFeed)(nil)

// FollowLoads subscribes to the load reports of n's cluster. Close must be called,
// before n is closed.
func FollowLoads(n *NATS) (*LoadFeed, error) {
	messages := make(chan []byte, 256)
	stop, dropped, err := n.Subscribe(kvevent.AllLoadSubject(n.cluster), messages)
	if err != nil {
		return nil, err
	}
	f := &LoadFeed{frames: make(chan Frame), stop: stop, dropped: dropped, closing: make(chan struct{})}
	f.pumping.Go(func() {
		for {
			select {
			case m := <-messages:
				select {
				case f.frames <- Frame{Kind: FrameLoad, Data: m}:
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
func (f *LoadFeed) Close() error {
	f.once.Do(func() {
		close(f.closing)
		f.stop()
	})
	f.pumping.Wait()
	return nil
}

// Frames is the Transport's.
func (f *LoadFeed) Frames() <-chan Frame { return f.frames }

// Query is the Transport's; there is nobody to ask.
func (f *LoadFeed) Query(context.Context, uint64, kvevent.QueryRequest) (*Answer, error) {
	return nil, errors.New("load reports have nobody to ask")
}

// Stats is the Transport's. The NATS itself says whether it is connected.
func (f *LoadFeed) Stats() TransportStats {
	return TransportStats{Connected: true, Dropped: f.dropped()}
}
