package httpfeed

import (
	"fmt"
	"net"
	"strings"
	"sync"
	"testing"

	"github.com/blockyard-ai/blockyard/internal/kvevent"
	"github.com/blockyard-ai/blockyard/publisher/publishertest"
)

// askSlowly asks for a dump and reads nothing of it.
func (s *served) askSlowly() {
	s.t.Helper()
	conn, err := net.Dial("tcp", s.server.Listener.Addr().String())
	if err != nil {
		s.t.Fatal(err)
	}
	s.t.Cleanup(func() { conn.Close() })
	body := kvevent.AppendQueryRequest(nil, &kvevent.QueryRequest{})
	_, err = fmt.Fprintf(conn, "POST /v1/events/query?publisher=%016x HTTP/1.1\r\nHost: x\r\nContent-Length: %d\r\n\r\n%s",
		s.feed.PublisherID(), len(body), body)
	if err != nil {
		s.t.Fatal(err)
	}
}

// TestSlowAskerKeepsNobodyWaiting: who does not read a dump holds up neither ranges
// nor other dumps.
func TestSlowAskerKeepsNobodyWaiting(t *testing.T) {
	s := serve(t, Options{})
	s.hub.readTimeout = answerTimeout // the answers to others may take long on a busy machine
	for i := range 400 {              // more than sockets keep
		s.source.Store(i*1000+1, 1000)
	}
	s.askSlowly()
	publishertest.Eventually(t, "the slow one is being answered", func() bool { return s.feed.Stats().Dumps == 1 })
	r, _, err := s.ask(s.feed.PublisherID(), kvevent.QueryRequest{StartID: 400, HasStart: true})
	if err != nil || r.Kind != kvevent.QueryEvents || len(r.Events) != 1 {
		t.Errorf("a range: %s of %d events, %v", r.Kind, len(r.Events), err)
	}
	r, _, err = s.ask(s.feed.PublisherID(), kvevent.QueryRequest{})
	if err != nil || r.Kind != kvevent.QueryTreeDump {
		t.Errorf("a dump: %s, %v", r.Kind, err)
	}
	if got := s.feed.Stats(); got.VoidAnswers != 0 {
		t.Errorf("the slow one was cut off before the others were answered: %+v", got)
	}
}

// TestWaitingAskersShareASnapshot: snapshots are bounded, and all who wait for the next
// one get what the owner holds when it is taken.
func TestWaitingAskersShareASnapshot(t *testing.T) {
	s := serve(t, Options{})
	s.source.Store(1, 1)
	for range maxDumps {
		s.feed.dumps <- struct{}{}
	}
	const waiters = 5
	var asking sync.WaitGroup
	for range waiters {
		asking.Go(func() {
			r, _, err := s.ask(s.feed.PublisherID(), kvevent.QueryRequest{})
			if err != nil || r.Kind != kvevent.QueryTreeDump || r.LastEventID != 2 || len(r.Events) != 1 || len(r.Events[0].Blocks) != 3 {
				t.Errorf("%s up to %d of %d events, %v", r.Kind, r.LastEventID, len(r.Events), err)
			}
		})
	}
	publishertest.Eventually(t, "all wait", func() bool {
		s.feed.mu.Lock()
		defer s.feed.mu.Unlock()
		return s.feed.next != nil && s.feed.next.users == waiters
	})
	s.source.Store(10, 2)
	<-s.feed.dumps
	asking.Wait()
	if got := s.feed.Stats(); got.Dumps != waiters || got.Snapshots != 1 {
		t.Errorf("stats %+v, want %d dumps of one snapshot", got, waiters)
	}
	publishertest.Eventually(t, "its place is free", func() bool { return len(s.feed.dumps) == maxDumps-1 })
}

// TestCloseEndsWhoWaitsForASnapshot: a feed that closes keeps nobody waiting.
func TestCloseEndsWhoWaitsForASnapshot(t *testing.T) {
	s := serve(t, Options{})
	for range maxDumps {
		s.feed.dumps <- struct{}{}
	}
	var asking sync.WaitGroup
	asking.Go(func() {
		if r, _, err := s.ask(s.feed.PublisherID(), kvevent.QueryRequest{}); err != nil || r.Kind != kvevent.QueryError {
			t.Errorf("%s, %v", r.Kind, err)
		}
	})
	publishertest.Eventually(t, "it waits", func() bool {
		s.feed.mu.Lock()
		defer s.feed.mu.Unlock()
		return s.feed.next != nil
	})
	s.feed.Close()
	asking.Wait()
}

// TestTooManyAskersAreRefused: they are told, and counted.
func TestTooManyAskersAreRefused(t *testing.T) {
	s := serve(t, Options{})
	for range maxAnswers {
		if err := s.feed.beginAnswer(); err != nil {
			t.Fatal(err)
		}
	}
	if _, _, err := s.ask(s.feed.PublisherID(), kvevent.QueryRequest{}); err == nil || !strings.Contains(err.Error(), "503") {
		t.Errorf("one too many: %v", err)
	}
	for range maxAnswers {
		s.feed.endAnswer()
	}
	if _, _, err := s.ask(s.feed.PublisherID(), kvevent.QueryRequest{}); err != nil {
		t.Error(err)
	}
	if got := s.feed.Stats(); got.DroppedQueries != 1 || got.Queries != 1 {
		t.Errorf("stats %+v", got)
	}
}
