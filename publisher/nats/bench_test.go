package nats

import (
	"fmt"
	"runtime"
	"testing"
	"time"

	"github.com/nats-io/nats.go"

	"github.com/blockyard-ai/blockyard/internal/kv"
	"github.com/blockyard-ai/blockyard/internal/kvevent"
	"github.com/blockyard-ai/blockyard/publisher"
	"github.com/blockyard-ai/blockyard/publisher/publishertest"
)

// benchFeed is a feed on a server of its own whose source is already a snapshot,
// and a connection to ask with.
func benchFeed(b *testing.B, src publisher.Source) (*Feed, *nats.Conn) {
	b.Helper()
	srv, err := StartEmbedded(EmbeddedOptions{})
	if err != nil {
		b.Fatal(err)
	}
	b.Cleanup(srv.Close)
	n, err := Connect(b.Context(), Options{URL: srv.URL(), AnnounceEvery: time.Hour})
	if err != nil {
		b.Fatal(err)
	}
	b.Cleanup(func() { n.Close() })
	conn, err := nats.Connect(srv.URL())
	if err != nil {
		b.Fatal(err)
	}
	b.Cleanup(conn.Close)
	f, err := n.NewFeed(testOwner, testMeta)
	if err != nil {
		b.Fatal(err)
	}
	if err := f.Attach(src); err != nil {
		b.Fatal(err)
	}
	if err := n.conn.Flush(); err != nil {
		b.Fatal(err)
	}
	return f, conn
}

// BenchmarkFeed: events to NATS messages, 16 blocks an event.
func BenchmarkFeed(b *testing.B) {
	const blocks = 16
	f, _ := benchFeed(b, publishertest.NewSource())
	e := storedEvent(0, blocks)
	id := uint64(0)
	b.ReportAllocs()
	for b.Loop() {
		id++
		e.ID = id
		f.Publish([]kvevent.RouterEvent{e})
		for id%1024 == 0 && f.Stats().Unsent > 1024 {
			// The journal must not run over: what is skipped costs nothing.
			runtime.Gosched()
		}
	}
	b.StopTimer()
	publishertest.Eventually(b, "the last event", func() bool { return f.Stats().Unsent == 0 })
	if s := f.Stats(); s.Events != id || s.Skipped != 0 {
		b.Fatalf("stats %+v", s)
	}
	b.ReportMetric(float64(b.N)*blocks/b.Elapsed().Seconds(), "blocks/s")
}

// stillSource holds what it is made with, and copies it for a snapshot, as a
// stream does.
type stillSource struct {
	events []kvevent.RouterEvent
	digest uint64
}

func newStillSource(blocks int) *stillSource {
	s := new(stillSource)
	for i := range blocks / 64 {
		e := storedEvent(uint64(i)+1, 64)
		for _, b := range e.Blocks {
			s.digest += kv.Digest(b.Hash, e.Tier)
		}
		s.events = append(s.events, e)
	}
	return s
}

func (s *stillSource) Owner() kv.Owner { return testOwner }
func (s *stillSource) Status() publisher.Status {
	return publisher.Status{LastEventID: 1, Digest: s.digest, Health: kvevent.HealthExact}
}

func (s *stillSource) Snapshot() ([]kvevent.RouterEvent, uint64, uint64) {
	events := make([]kvevent.RouterEvent, 0, len(s.events))
	for _, e := range s.events {
		e.Blocks = append([]kvevent.StoredBlock(nil), e.Blocks...)
		events = append(events, e)
	}
	return events, 1, s.digest
}

// BenchmarkDumpOfAMillionBlocks: so many routers ask at once for everything and
// read all of it.
func BenchmarkDumpOfAMillionBlocks(b *testing.B) {
	for _, waiters := range []int{1, 8} {
		b.Run(fmt.Sprintf("waiters=%d", waiters), func(b *testing.B) {
			f, conn := benchFeed(b, newStillSource(1_000_000))
			subject := kvevent.QuerySubject("default", f.PublisherID())
			b.ReportAllocs()
			for b.Loop() {
				ch := make(chan *nats.Msg, 10000)
				var subs []*nats.Subscription
				for range waiters {
					inbox := conn.NewRespInbox()
					sub, err := conn.ChanSubscribe(inbox, ch)
					if err != nil {
						b.Fatal(err)
					}
					subs = append(subs, sub)
					if err := conn.PublishRequest(subject, inbox, kvevent.AppendQueryRequest(nil, &kvevent.QueryRequest{})); err != nil {
						b.Fatal(err)
					}
				}
				for left := waiters; left > 0; {
					// The flag lies in the head of a chunk, and false is the byte 0xc2.
					if m := <-ch; isFinal(b, m.Data) {
						left--
					}
				}
				for _, sub := range subs {
					if err := sub.Unsubscribe(); err != nil {
						b.Fatal(err)
					}
				}
			}
		})
	}
}

// isFinal looks at a chunk without decoding its events.
func isFinal(b *testing.B, chunk []byte) bool {
	for i := 0; i+6 < len(chunk); i++ {
		if string(chunk[i:i+5]) == "final" {
			return chunk[i+5] == 0xc3
		}
	}
	b.Fatal("a chunk without final")
	return false
}
