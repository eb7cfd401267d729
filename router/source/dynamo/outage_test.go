package dynamo

import (
	"net"
	"sync/atomic"
	"testing"

	"github.com/blockyard-ai/blockyard/internal/kv"
	"github.com/blockyard-ai/blockyard/internal/kvevent"
	"github.com/blockyard-ai/blockyard/router/source"
)

// fakePlane is a Plane whose connection a test makes and breaks.
type fakePlane struct {
	connected     atomic.Bool
	made, dropped atomic.Uint64
	messages      chan<- []byte
}

func (p *fakePlane) Subscribe(subject string, messages chan<- []byte) (stop func(), dropped func() uint64, err error) {
	if subject != endpoint.Subject(topic) {
		return noPlane{}.Subscribe(subject, messages)
	}
	p.messages = messages
	return func() {}, p.dropped.Load, nil
}
func (p *fakePlane) Connections() uint64 { return p.made.Load() }
func (p *fakePlane) Connected() bool     { return p.connected.Load() }

// TestAnOutageIsSaidBeforeAndAfterWhatItMayHaveCost: the router hears of the outage, and
// of its end only after the ranks that may have missed something have said so.
func TestAnOutageIsSaidBeforeAndAfterWhatItMayHaveCost(t *testing.T) {
	d := newDirectory(t)
	d.card(7, 1)
	w := newFakeWorker(kv.Worker{ID: 7}, 4)
	d.source(origin{publisher: 21, worker: w.worker}) // nobody can be asked
	p := &fakePlane{}
	p.connected.Store(true)
	p.made.Store(1)
	tr, err := Open(Options{Directory: d.dir, Endpoint: endpoint}, p)
	if err != nil {
		t.Fatal(err)
	}
	defer tr.Close()
	p.messages <- kvevent.AppendEnvelope(nil, &kvevent.Envelope{PublisherID: 21, Topic: topic,
		Events: []kvevent.RouterEvent{w.store(kv.TierDevice, 0, 100, 1, 2)}})
	health := func(f source.Frame) kvevent.Health {
		a, err := kvevent.DecodeAnnouncement(f.Data)
		if f.Kind != source.FrameAnnouncement || err != nil {
			return ""
		}
		return a.Health
	}
	for health(<-tr.Frames()) != kvevent.HealthExact {
	}
	p.connected.Store(false)
	for (<-tr.Frames()).Kind != source.FrameDisconnected {
	}
	p.dropped.Store(5)
	// As with NATS, there is a connection a moment before it is counted.
	p.connected.Store(true)
	p.made.Store(2)
	var before source.Frame
	for f := range tr.Frames() {
		if f.Kind == source.FrameConnected {
			break
		}
		before = f
	}
	if health(before) != kvevent.HealthDegraded {
		t.Errorf("before the word of the connection the rank was %q, want degraded", health(before))
	}
	if got := tr.Stats(); !got.Connected || got.Dropped != 5 || tr.Counters().Dropped != 5 {
		t.Errorf("stats %+v", got)
	}
}

// TestWithoutEventsTheDirectoryIsEnough: the workers of the directory are announced, no
// event plane is needed, and no worker is asked for what it holds.
func TestWithoutEventsTheDirectoryIsEnough(t *testing.T) {
	asked := make(chan struct{})
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	go func() {
		if c, err := l.Accept(); err == nil {
			c.Close()
			close(asked)
		}
	}()
	d := newDirectory(t)
	d.card(7, 1)
	d.source(origin{publisher: 21, worker: kv.Worker{ID: 7}, target: target{address: l.Addr().String(), path: "x"}})
	tr, err := Open(Options{Directory: d.dir, Endpoint: endpoint, NoEvents: true}, nil)
	if err != nil {
		t.Fatal(err)
	}
	for range 3 { // more than a second, in which the worker would be asked
		f := <-tr.Frames()
		if a, err := kvevent.DecodeAnnouncement(f.Data); f.Kind != source.FrameAnnouncement || err != nil || a.Owner.ID != 7 || a.Model != "tiny" {
			t.Errorf("frame of kind %d, %+v, %v", f.Kind, a, err)
		}
	}
	if s := tr.Stats(); !s.Connected {
		t.Errorf("%+v", s)
	}
	if err := tr.Close(); err != nil {
		t.Error(err)
	}
	if s := tr.Counters(); s.Queries != 0 {
		t.Errorf("%+v", s)
	}
	select {
	case <-asked:
		t.Error("the worker was asked")
	default:
	}
}
