package nats

import (
	"errors"
	"sync"
	"testing"

	"github.com/nats-io/nats.go"

	"github.com/blockyard-ai/blockyard/internal/kv"
	"github.com/blockyard-ai/blockyard/internal/kvevent"
	"github.com/blockyard-ai/blockyard/router/source/sourcetest"
)

// dumpServer answers for a publisher with a dump in parts and keeps an account of
// what it was asked.
type dumpServer struct {
	conn      *nats.Conn
	publisher uint64
	chunks    uint32

	mu       sync.Mutex
	requests []kvevent.QueryRequest
	// stopAt is the chunk before which it falls silent, and closes silent; 0 is none.
	stopAt uint32
	silent chan struct{}
	served uint32
}

func serveDump(t *testing.T, url string, publisher uint64, chunks, stopAt uint32) *dumpServer {
	t.Helper()
	conn, err := nats.Connect(url)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(conn.Close)
	s := &dumpServer{conn: conn, publisher: publisher, chunks: chunks, stopAt: stopAt, silent: make(chan struct{})}
	if _, err := conn.Subscribe(kvevent.QuerySubject("default", publisher), s.serve); err != nil {
		t.Fatal(err)
	}
	if err := conn.Flush(); err != nil {
		t.Fatal(err)
	}
	return s
}

func (s *dumpServer) serve(m *nats.Msg) {
	q, err := kvevent.DecodeQueryRequest(m.Data)
	if err != nil {
		panic(err)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.requests = append(s.requests, q)
	for i := q.FirstChunk; i < min(s.chunks, q.FirstChunk+q.MaxChunks); i++ {
		if s.stopAt > 0 && i >= s.stopAt {
			return
		}
		if s.served++; s.served == s.stopAt {
			close(s.silent)
		}
		r := kvevent.QueryReply{PublisherID: s.publisher, DumpID: 5, Kind: kvevent.QueryTreeDump, LastEventID: 9, Chunk: i, Final: i+1 == s.chunks,
			Events: []kvevent.RouterEvent{{Owner: sourcetest.WorkerOwner(1), ID: uint64(i) + 1, Kind: kvevent.Stored,
				Blocks: []kvevent.StoredBlock{{Hash: kv.SequenceHash(i + 1), Local: kv.LocalHash(i + 1)}}}}}
		_ = s.conn.Publish(m.Reply, kvevent.AppendQueryReply(nil, &r))
	}
}

// TestNATSAsksForADumpWindowByWindow: no more of a dump is on its way than one window,
// and every chunk is asked for once.
func TestNATSAsksForADumpWindowByWindow(t *testing.T) {
	url := sourcetest.StartServer(t).ClientURL()
	n, err := Connect(Options{URL: url})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { n.Close() })
	const chunks = 50
	s := serveDump(t, url, 11, chunks, 0)
	a, err := n.Query(t.Context(), 11, kvevent.QueryRequest{})
	if err != nil || len(a.Events) != chunks || a.NextChunk != chunks {
		t.Fatalf("answer %+v: %v", a, err)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	end := uint32(0)
	for i, q := range s.requests {
		if q.FirstChunk != end || q.MaxChunks > windowChunks || i > 0 && (q.DumpID != 5 || q.MaxChunks > windowChunks/2) {
			t.Errorf("request %d: %+v, want it to begin with chunk %d", i, q, end)
		}
		end = q.FirstChunk + q.MaxChunks
	}
	if s.served != chunks || end > chunks+windowChunks {
		t.Errorf("%d chunks were served and %d asked for, want %d", s.served, end, chunks)
	}
}

// TestADumpThatWasCutGoesOnWhereItBrokeOff: a lost connection ends the answer at once,
// and the next query gets the rest.
func TestADumpThatWasCutGoesOnWhereItBrokeOff(t *testing.T) {
	url := sourcetest.StartServer(t).ClientURL()
	n, err := Connect(Options{URL: url})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { n.Close() })
	const chunks, stopAt = 50, 21
	s := serveDump(t, url, 11, chunks, stopAt)
	began := n.Stats().Reconnects
	go func() {
		<-s.silent
		_ = n.conn.ForceReconnect()
	}()
	first, err := n.Query(t.Context(), 11, kvevent.QueryRequest{})
	if cut := errors.Is(err, errDisconnected) || errors.Is(err, nats.ErrReconnectBufExceeded); !cut || first == nil || first.NextChunk == 0 || first.DumpID != 5 {
		t.Fatalf("answer %+.100v: %v; want the beginning of a dump", first, err)
	}
	sourcetest.Eventually(t, "connected again", func() bool { return n.Stats().Reconnects > began && n.Connected() })
	s.mu.Lock()
	s.stopAt = 0
	s.mu.Unlock()
	rest, err := n.Query(t.Context(), 11, kvevent.QueryRequest{DumpID: first.DumpID, FirstChunk: first.NextChunk})
	if err != nil || rest.FirstChunk != first.NextChunk {
		t.Fatalf("answer %+v: %v; want the rest", rest, err)
	}
	if first.Extend(rest); len(first.Events) != chunks || first.Events[chunks-1].ID != chunks {
		t.Errorf("%d events in all, want %d", len(first.Events), chunks)
	}
}
