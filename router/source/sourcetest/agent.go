package sourcetest

import (
	"io"
	"net/http"
	"net/http/httptest"
	"strconv"
	"sync"
	"testing"

	"github.com/blockyard-ai/blockyard/internal/kv"
	"github.com/blockyard-ai/blockyard/internal/kvevent"
)

// Agent serves publishers over HTTP as an agent does, but loses what a test
// wants lost.
type Agent struct {
	t      *testing.T
	Server *httptest.Server

	mu         sync.Mutex
	publishers map[uint64]*Publisher
	streams    map[chan []byte]struct{}
	failing    bool // refuses streams
	queries    int
}

// NewAgent starts an agent until the test ends.
func NewAgent(t *testing.T) *Agent {
	a := &Agent{t: t, publishers: make(map[uint64]*Publisher), streams: make(map[chan []byte]struct{})}
	mux := http.NewServeMux()
	mux.HandleFunc("GET /v1/events", a.serveEvents)
	mux.HandleFunc("POST /v1/events/query", a.serveQuery)
	a.Server = httptest.NewServer(mux)
	t.Cleanup(func() {
		a.Cut(true)
		a.Server.Close()
	})
	return a
}

// StreamFrame is one frame of a stream.
func StreamFrame(kind kvevent.StreamKind, body []byte) []byte {
	return kvevent.EndStreamFrame(append(kvevent.BeginStreamFrame(nil, kind), body...), 0)
}

// Publisher makes a publisher of the agent.
func (a *Agent) Publisher(id uint64, owner kv.Owner, pool uint64) *Publisher {
	p := NewPublisher(id, owner, pool)
	a.mu.Lock()
	defer a.mu.Unlock()
	a.publishers[id] = p
	return p
}

// serveEvents serves GET /v1/events as an agent does: the announcements of all publishers, and then
// the frames that Say sends, until the test ends the stream or the client leaves. A failing
// agent refuses.
func (a *Agent) serveEvents(w http.ResponseWriter, r *http.Request) {
	a.mu.Lock()
	if a.failing {
		a.mu.Unlock()
		http.Error(w, "not now", http.StatusServiceUnavailable)
		return
	}
	frames := make(chan []byte, 1000)
	a.streams[frames] = struct{}{}
	for _, p := range a.publishers {
		frames <- StreamFrame(kvevent.StreamAnnouncement, p.Announcement())
	}
	a.mu.Unlock()
	w.Header().Set("Content-Type", "application/x-blockyard-frames")
	flush := http.NewResponseController(w)
	for {
		if err := flush.Flush(); err != nil {
			return
		}
		select {
		case f, open := <-frames:
			if !open {
				return
			}
			if _, err := w.Write(f); err != nil {
				return
			}
		case <-r.Context().Done():
			return
		}
	}
}

// serveQuery answers POST /v1/events/query to one of the test's publishers as an agent does, with one
// event per chunk, so that tests see answers of several chunks.
func (a *Agent) serveQuery(w http.ResponseWriter, r *http.Request) {
	id, err := strconv.ParseUint(r.URL.Query().Get("publisher"), 16, 64)
	if err != nil {
		a.t.Error(err)
	}
	a.mu.Lock()
	a.queries++
	p := a.publishers[id]
	a.mu.Unlock()
	if p == nil {
		http.Error(w, "nobody", http.StatusNotFound)
		return
	}
	body, err := io.ReadAll(r.Body)
	if err != nil {
		a.t.Error(err)
	}
	q, err := kvevent.DecodeQueryRequest(body)
	if err != nil {
		a.t.Error(err)
	}
	w.Header().Set("Content-Type", "application/x-blockyard-frames")
	answer := p.Answer(q)
	for i := 0; i == 0 || i < len(answer.Events); i++ {
		reply := kvevent.QueryReply{PublisherID: id, Kind: answer.Kind, LastEventID: answer.LastEventID,
			Chunk: uint32(i), Final: i >= len(answer.Events)-1}
		if len(answer.Events) > 0 {
			reply.Events = answer.Events[i : i+1]
		}
		if _, err := w.Write(StreamFrame(kvevent.StreamReply, kvevent.AppendQueryReply(nil, &reply))); err != nil {
			return
		}
	}
}

// Say sends a frame to every stream.
func (a *Agent) Say(kind kvevent.StreamKind, body []byte) {
	a.mu.Lock()
	defer a.mu.Unlock()
	for s := range a.streams {
		s <- StreamFrame(kind, body)
	}
}

// Cut ends all streams and, when failing, refuses others.
func (a *Agent) Cut(failing bool) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.failing = failing
	for s := range a.streams {
		close(s)
		delete(a.streams, s)
	}
}
