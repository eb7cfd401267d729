package nats_test

import (
	"testing"
	"time"

	"github.com/blockyard-ai/blockyard/router"
	"github.com/blockyard-ai/blockyard/router/routertest"
	"github.com/blockyard-ai/blockyard/router/source"
	natssource "github.com/blockyard-ai/blockyard/router/source/nats"
	"github.com/blockyard-ai/blockyard/router/source/sourcetest"
)

// TestTheSilenceOfAServerIsForgiven: publishers that could not be heard while the server
// was away have the whole timeout again, those that were heard meanwhile have what is left.
func TestTheSilenceOfAServerIsForgiven(t *testing.T) {
	routertest.OnBench(t, router.Options{}, func(b *routertest.Bench) {
		p, q := b.Publisher(11, sourcetest.WorkerOwner(1), 0), b.Publisher(12, sourcetest.WorkerOwner(2), 0)
		b.Send(p.Announce(), q.Announce())
		b.Pass(time.Second)
		b.Send(source.Frame{Kind: source.FrameDisconnected})
		b.Pass(time.Minute)
		last := q.Announce()
		last.Age = 12 * time.Second
		b.Send(last, source.Frame{Kind: source.FrameConnected})
		b.Pass(5 * time.Second)
		b.ExpectWorkers("the one that was heard 17 s ago is over", "1/0 agent")
	})
}

// TestStreamMessagesHaveAnAge: the time since the server stored a message.
func TestStreamMessagesHaveAnAge(t *testing.T) {
	url := natssource.StartDurableServer(t)
	first := natssource.ConnectDurable(t, url)
	first.Resume(0)
	p := sourcetest.NewWirePublisher(t, url, "default", sourcetest.NewPublisher(11, sourcetest.WorkerOwner(1), 0))
	sourcetest.Eventually(t, "the stream", func() bool { return first.Stats().Connected })
	p.SendStore("default", sourcetest.Tokens(1))
	p.SendStore("default", sourcetest.Tokens(2))
	messageAt(first)
	messageAt(first)
	stored := time.Now()
	second := natssource.ConnectDurable(t, url)
	waited := time.Since(stored)
	second.Resume(1)
	if f := messageAt(second); f.Age < waited || f.Age > time.Minute {
		t.Errorf("age %v, want %v at least", f.Age, waited)
	}
	if got := second.Age(time.Now().Add(time.Hour), time.Now()); got != 0 {
		t.Errorf("a message of the future has age %v", got)
	}
}
