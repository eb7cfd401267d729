package router

import (
	"testing"
	"time"
)

// TestTheSilenceOfAServerIsForgiven: publishers that could not be heard while the server
// was away have the whole timeout again, those that were heard meanwhile have what is left.
func TestTheSilenceOfAServerIsForgiven(t *testing.T) {
	onBench(t, Options{}, func(b *bench) {
		p, q := b.publisher(11, workerOwner(1), 0), b.publisher(12, workerOwner(2), 0)
		b.send(p.announce(), q.announce())
		b.pass(time.Second)
		b.send(Frame{Kind: FrameDisconnected})
		b.pass(time.Minute)
		last := q.announce()
		last.Age = 12 * time.Second
		b.send(last, Frame{Kind: FrameConnected})
		b.pass(5 * time.Second)
		b.expectWorkers("the one that was heard 17 s ago is over", "1/0 agent")
	})
}

// TestStreamMessagesHaveAnAge: the time since the server stored a message.
func TestStreamMessagesHaveAnAge(t *testing.T) {
	url := startDurableServer(t)
	first := connectDurable(t, url)
	first.Resume(0)
	p := newWirePublisher(t, url, "default", newTestPublisher(11, workerOwner(1), 0))
	eventually(t, "the stream", func() bool { return first.Stats().Connected })
	p.sendStore("default", promptTokens(1))
	p.sendStore("default", promptTokens(2))
	messageAt(first)
	messageAt(first)
	stored := time.Now()
	second := connectDurable(t, url)
	waited := time.Since(stored)
	second.Resume(1)
	if f := messageAt(second); f.Age < waited || f.Age > time.Minute {
		t.Errorf("age %v, want %v at least", f.Age, waited)
	}
	if got := second.stream.age(time.Now().Add(time.Hour), time.Now()); got != 0 {
		t.Errorf("a message of the future has age %v", got)
	}
}
