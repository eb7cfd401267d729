package router

import (
	"errors"
	"sync"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	"pgregory.net/rapid"

	"github.com/blockyard-ai/blockyard/internal/kv"
	"github.com/blockyard-ai/blockyard/internal/kvevent"
)

// TestGateBoundsWhatIsOnItsWay: whatever comes, is cut, is taken up again or is let go,
// the answers on their way stay within the bounds, no room is lost, and a feed that was
// refused is asked once there is room.
func TestGateBoundsWhatIsOnItsWay(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		g := newQueryGate()
		now := time.Unix(1000, 0)
		feeds := make([]*feedState, 6)
		flying := make(map[ticket]bool)
		for i := range feeds {
			feeds[i] = &feedState{recovery: recovery{recovering: true}}
		}
		rt.Repeat(map[string]func(*rapid.T){
			"ask": func(rt *rapid.T) {
				f := rapid.SampledFrom(feeds).Draw(rt, "feed")
				bytes := rapid.SampledFrom([]int{0, 1 << 20, largeBytes, largeBytes + 1, 1 << 30}).Draw(rt, "bytes")
				f.queries++
				next := ticket{f, f.queries}
				if f.partial != nil {
					g.resume(ticket{f, f.partialOf}, next)
					f.partialOf = f.queries
				} else if !g.admit(next, bytes) {
					return
				}
				flying[next] = true
			},
			"answer": func(rt *rapid.T) {
				for at := range flying {
					if rapid.Bool().Draw(rt, "cut") {
						at.feed.partial, at.feed.partialOf, at.feed.partialAt = &Answer{}, at.number, now
					}
					delete(flying, at)
					g.settle(at)
					return
				}
			},
			"let go": func(rt *rapid.T) { rapid.SampledFrom(feeds).Draw(rt, "feed").partial = nil },
			"sweep": func(rt *rapid.T) {
				now = now.Add(time.Duration(rapid.IntRange(0, 20).Draw(rt, "seconds")) * time.Second)
				g.sweep(now)
			},
			"next": func(*rapid.T) { g.next() },
			"": func(rt *rapid.T) {
				small, large := 0, 0
				for _, r := range g.held {
					if r.bytes > largeBytes {
						large++
					} else {
						small += r.bytes
					}
				}
				if large != g.large || small != g.small || large > maxLarge || small > maxSmallBytes || len(g.waiting) > len(feeds) {
					rt.Fatalf("%d large and %d bytes, counted %d and %d; %d wait", large, small, g.large, g.small, len(g.waiting))
				}
			},
		})
		for at := range flying {
			g.settle(at)
		}
		g.sweep(now.Add(keepPartial + 1))
		if len(g.held) > 0 || g.small != 0 || g.large != 0 {
			rt.Fatalf("room is lost: %d answers, %d bytes, %d large", len(g.held), g.small, g.large)
		}
	})
}

// TestLargeDumpsAreNotAskedForAllAtOnce: a router that joins late asks for as much at a
// time as the announcements let it, and gets to everybody.
func TestLargeDumpsAreNotAskedForAllAtOnce(t *testing.T) {
	onBench(t, Options{}, func(b *bench) {
		b.transport.holdQueries(true)
		var all []*testPublisher
		for i := range uint64(12) {
			p := b.publisher(100+i, workerOwner(i+1), 0)
			p.add(kvevent.Stored, kv.TierDevice, promptTokens(1), 0)
			all = append(all, p)
			a := p.meta
			// What is promised is far more than the test's publishers have.
			a.LastEventID, a.Blocks, a.Digest = 1, 400_000, 1
			if i >= 8 {
				a.Blocks = 20_000
			}
			b.send(Frame{Kind: FrameAnnouncement, Data: kvevent.AppendAnnouncement(nil, &a)})
		}
		b.pass(time.Second)
		if most := b.transport.most; most != maxLarge+4 {
			t.Errorf("%d questions at once, want %d for large dumps and 4 for small ones", most, maxLarge)
		}
		b.transport.holdQueries(false)
		b.pass(time.Second)
		for _, p := range all {
			b.send(p.announce())
		}
		if got := b.router.Stats().Feeds.ExactFeeds; got != len(all) {
			t.Errorf("%d of %d feeds are exact", got, len(all))
		}
	})
}

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
			Events: []kvevent.RouterEvent{{Owner: workerOwner(1), ID: uint64(i) + 1, Kind: kvevent.Stored,
				Blocks: []kvevent.StoredBlock{{Hash: kv.SequenceHash(i + 1), Local: kv.LocalHash(i + 1)}}}}}
		_ = s.conn.Publish(m.Reply, kvevent.AppendQueryReply(nil, &r))
	}
}

// TestNATSAsksForADumpWindowByWindow: no more of a dump is on its way than one window,
// and every chunk is asked for once.
func TestNATSAsksForADumpWindowByWindow(t *testing.T) {
	url := startServer(t).ClientURL()
	n, err := ConnectNATS(NATSOptions{URL: url})
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
	url := startServer(t).ClientURL()
	n, err := ConnectNATS(NATSOptions{URL: url})
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
	eventually(t, "connected again", func() bool { return n.Stats().Reconnects > began && n.Connected() })
	s.mu.Lock()
	s.stopAt = 0
	s.mu.Unlock()
	rest, err := n.Query(t.Context(), 11, kvevent.QueryRequest{DumpID: first.DumpID, FirstChunk: first.NextChunk})
	if err != nil || rest.FirstChunk != first.NextChunk {
		t.Fatalf("answer %+v: %v; want the rest", rest, err)
	}
	if first.extend(rest); len(first.Events) != chunks || first.Events[chunks-1].ID != chunks {
		t.Errorf("%d events in all, want %d", len(first.Events), chunks)
	}
}

// TestEventsThatWaitAreThoseAfterTheDump: a feed that waits long for its turn to be asked
// has room for the events that come while the dump is read.
func TestEventsThatWaitAreThoseAfterTheDump(t *testing.T) {
	now := time.Unix(1000, 0)
	blocks := &blockSet{held: make(map[kv.SequenceHash]bool)}
	f := &feedState{announcement: kvevent.Announcement{Owner: scriptOwner}, blocks: blocks}
	store := func(id uint64) kvevent.RouterEvent {
		return kvevent.RouterEvent{
			Owner: scriptOwner, ID: id, Kind: kvevent.Stored, Blocks: []kvevent.StoredBlock{{Hash: kv.SequenceHash(id)}},
		}
	}
	live := func(from, to uint64) {
		for id := from; id <= to; id++ {
			e := store(id)
			f.event(&e, now)
		}
	}
	f.announced(&kvevent.Announcement{Owner: scriptOwner, LastEventID: 1, Blocks: 1}, now)
	const asked = 2*maxWaitingEvents + 1
	live(2, asked)
	q, number, due := f.nextQuery(now)
	if !due || q.HasStart {
		t.Fatalf("query %+v, due %v; want one for everything", q, due)
	}
	const last = asked + maxWaitingEvents
	live(asked+1, last)
	a := &Answer{Kind: kvevent.QueryTreeDump, LastEventID: asked}
	for id := range uint64(asked) {
		a.Events = append(a.Events, store(id+1))
	}
	if err := f.answered(number, a, nil, now); err != nil {
		t.Fatal(err)
	}
	if f.cursor != last || f.recovering || len(blocks.held) != last {
		t.Errorf("cursor %d of %d, recovers %v, %d blocks", f.cursor, last, f.recovering, len(blocks.held))
	}
}
