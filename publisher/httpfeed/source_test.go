package httpfeed

import (
	"bufio"
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"testing"
	"time"

	"github.com/blockyard-ai/blockyard/internal/kv"
	"github.com/blockyard-ai/blockyard/internal/kvevent"
	"github.com/blockyard-ai/blockyard/publisher"
	"github.com/blockyard-ai/blockyard/publisher/publishertest"
)

var (
	testOwner = publishertest.Owner
	testMeta  = publisher.Meta{Pool: 9, Namespace: kv.NamespaceID{1, 2}, Model: "m", BlockSize: 16, Card: testCard}
	testCard  = kvevent.ModelCard{Endpoint: "http://node-7:8000", Ranks: 2}
)

// served is a hub on a real server.
type served struct {
	t      *testing.T
	hub    *Hub
	feed   *Feed
	source *publishertest.Source
	server *httptest.Server
}

// serverTimeout is the time that the server gives requests and answers, as the agent's server
// does. A stream must outlive it. It is long enough for the requests of a busy machine.
const serverTimeout = 2 * time.Second

func serve(t *testing.T, o Options) *served {
	t.Helper()
	hub, err := New(o)
	if err != nil {
		t.Fatal(err)
	}
	mux := http.NewServeMux()
	hub.Register(mux)
	s := &served{t: t, hub: hub, server: httptest.NewUnstartedServer(mux)}
	s.server.Config.ReadTimeout, s.server.Config.WriteTimeout = serverTimeout, serverTimeout
	s.server.Start()
	t.Cleanup(func() {
		if err := hub.Close(); err != nil {
			t.Error(err)
		}
		http.DefaultClient.CloseIdleConnections()
		s.server.Close()
	})
	s.feed, s.source = s.newFeed(0)
	return s
}

func (s *served) newFeed(id uint64) (*Feed, *publishertest.Source) {
	s.t.Helper()
	f, err := s.hub.NewFeed(id, testOwner, testMeta)
	if err != nil {
		s.t.Fatal(err)
	}
	src := publishertest.NewSource()
	src.Sink = f
	if err := f.Attach(src); err != nil {
		s.t.Fatal(err)
	}
	return f, src
}

// follower reads a stream.
type follower struct {
	t       *testing.T
	body    io.ReadCloser
	r       *bufio.Reader
	dropped uint64
}

// follow begins a stream; path has what follows /v1/events.
func (s *served) follow(path string) *follower {
	s.t.Helper()
	resp, err := http.Get(s.server.URL + "/v1/events" + path)
	if err != nil {
		s.t.Fatal(err)
	}
	if resp.StatusCode != http.StatusOK || resp.Header.Get("Content-Type") != ContentType {
		s.t.Fatalf("status %d, %v", resp.StatusCode, resp.Header)
	}
	f := &follower{t: s.t, body: resp.Body, r: bufio.NewReader(resp.Body)}
	s.t.Cleanup(func() { f.body.Close() })
	return f
}

// next is the next announcement, envelope or load report; nil, nil, nil at the end.
func (f *follower) next() (*kvevent.Announcement, *kvevent.Envelope, *kvevent.LoadReport) {
	f.t.Helper()
	for {
		kind, body, err := kvevent.ReadStreamFrame(f.r, nil)
		if errors.Is(err, io.EOF) {
			return nil, nil, nil
		}
		if err != nil {
			f.t.Fatal(err)
		}
		switch kind {
		case kvevent.StreamAnnouncement:
			a, err := kvevent.DecodeAnnouncement(body)
			if err != nil {
				f.t.Fatal(err)
			}
			return &a, nil, nil
		case kvevent.StreamEvents:
			var d kvevent.EnvelopeDecoder
			e := new(kvevent.Envelope)
			if err := d.Decode(body, e); err != nil {
				f.t.Fatal(err)
			}
			return nil, e, nil
		case kvevent.StreamLoad:
			l, err := kvevent.DecodeLoadReport(body)
			if err != nil {
				f.t.Fatal(err)
			}
			return nil, nil, &l
		case kvevent.StreamHeartbeat:
			f.dropped = binary.LittleEndian.Uint64(body)
		default:
			f.t.Fatalf("frame of kind %d", kind)
		}
	}
}

// announcement skips what comes before one that satisfies ok.
func (f *follower) announcement(ok func(*kvevent.Announcement) bool) *kvevent.Announcement {
	f.t.Helper()
	for {
		a, e, l := f.next()
		if a == nil && e == nil && l == nil {
			f.t.Fatal("the stream ended")
		}
		if a != nil && ok(a) {
			return a
		}
	}
}

func anyAnnouncement(*kvevent.Announcement) bool { return true }

// ask sends a query and puts the chunks of the answer together.
func (s *served) ask(publisher uint64, q kvevent.QueryRequest) (kvevent.QueryReply, int, error) {
	s.t.Helper()
	resp, err := http.Post(fmt.Sprintf("%s/v1/events/query?publisher=%016x", s.server.URL, publisher), "", bytes.NewReader(kvevent.AppendQueryRequest(nil, &q)))
	if err != nil {
		s.t.Fatal(err)
	}
	defer resp.Body.Close()
	if resp.StatusCode != http.StatusOK {
		text, _ := io.ReadAll(resp.Body)
		return kvevent.QueryReply{}, 0, fmt.Errorf("status %d: %s", resp.StatusCode, text)
	}
	var whole kvevent.QueryReply
	for chunk := uint32(0); ; chunk++ {
		kind, body, err := kvevent.ReadStreamFrame(resp.Body, nil)
		if err != nil || kind != kvevent.StreamReply {
			return whole, int(chunk), fmt.Errorf("chunk %d: kind %d, %w", chunk, kind, err)
		}
		r, err := kvevent.DecodeQueryReply(body)
		if err != nil || r.Chunk != chunk || r.PublisherID != publisher {
			s.t.Fatalf("chunk %d: %+v, %v", chunk, r, err)
		}
		events := append(whole.Events, r.Events...)
		whole = r
		whole.Events = events
		if r.Final {
			return whole, int(chunk) + 1, nil
		}
	}
}
