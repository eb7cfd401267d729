package router

import (
	"context"
	"fmt"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"go.uber.org/goleak"

	"github.com/blockyard-ai/blockyard/internal/kv"
	"github.com/blockyard-ai/blockyard/internal/kvevent"
)

// TestMain looks for goroutines that are left behind. One of the NATS client's is, when
// an object is stored faster than that goroutine begins.
func TestMain(m *testing.M) {
	goleak.VerifyTestMain(m, goleak.IgnoreTopFunction(
		"github.com/nats-io/nats.go/jetstream.(*jetStream).resetPendingAcksOnReconnect"))
}

const testBlockSize = 4

// testPublisher is a publisher that loses nothing: it keeps every event, knows
// what its owner holds, and answers any query.
type testPublisher struct {
	meta kvevent.Announcement

	mu       sync.Mutex
	events   []kvevent.RouterEvent
	held     map[heldBlock]bool
	places   map[kv.SequenceHash]kvevent.RouterEvent // the store of each block alone
	sequence uint64
}

type heldBlock struct {
	hash kv.SequenceHash
	tier kv.Tier
}

func newTestPublisher(id uint64, owner kv.Owner, pool uint64) *testPublisher {
	return &testPublisher{
		held: make(map[heldBlock]bool), places: make(map[kv.SequenceHash]kvevent.RouterEvent),
		meta: kvevent.Announcement{PublisherID: id, Owner: owner, Pool: pool, Model: "m",
			BlockSize: testBlockSize, Health: kvevent.HealthExact},
	}
}

// promptTokens are the tokens of a prompt whose n-th block is made of ids[n].
func promptTokens(ids ...uint32) []uint32 {
	var tokens []uint32
	for _, id := range ids {
		for i := range uint32(testBlockSize) {
			tokens = append(tokens, id*100+i)
		}
	}
	return tokens
}

// add makes an event that stores or removes the blocks of tokens from block
// first on, and returns the message that publishes it.
func (p *testPublisher) add(kind kvevent.Kind, t kv.Tier, tokens []uint32, first int) []byte {
	var h kv.Hasher
	locals := h.AppendLocals(nil, tokens, testBlockSize, kv.LocalSeed("", ""))
	seq := kv.AppendSequence(nil, locals)
	p.mu.Lock()
	defer p.mu.Unlock()
	e := kvevent.RouterEvent{Owner: p.meta.Owner, Tier: t, Kind: kind, ID: uint64(len(p.events) + 1)}
	if first > 0 {
		e.Parent, e.HasParent = seq[first-1], true
	}
	for i := first; i < len(seq); i++ {
		if kind == kvevent.Stored {
			e.Blocks = append(e.Blocks, kvevent.StoredBlock{Hash: seq[i], Local: locals[i]})
			p.places[seq[i]] = kvevent.RouterEvent{Parent: seq[max(0, i-1)], HasParent: i > 0, Blocks: e.Blocks[i-first:]}
			p.held[heldBlock{seq[i], t}] = true
		} else {
			e.Removed = append(e.Removed, seq[i])
			delete(p.held, heldBlock{seq[i], t})
		}
	}
	p.events = append(p.events, e)
	p.sequence++
	return kvevent.AppendEnvelope(nil, &kvevent.Envelope{PublisherID: p.meta.PublisherID,
		Sequence: p.sequence, Topic: kvevent.Topic, Events: []kvevent.RouterEvent{e}})
}

func (p *testPublisher) store(t kv.Tier, tokens []uint32) Frame {
	return Frame{Kind: FrameEvents, Data: p.add(kvevent.Stored, t, tokens, 0)}
}

// drift changes what the publisher holds without telling anybody.
func (p *testPublisher) drift(h kv.SequenceHash) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.held[heldBlock{h, kv.TierDevice}] = true
	p.places[h] = kvevent.RouterEvent{Blocks: []kvevent.StoredBlock{{Hash: h, Local: kv.LocalHash(h)}}}
}

func (p *testPublisher) announcement() []byte {
	p.mu.Lock()
	defer p.mu.Unlock()
	a := p.meta
	a.LastEventID, a.Blocks = uint64(len(p.events)), uint64(len(p.held))
	for b := range p.held {
		a.Digest += kv.Digest(b.hash, b.tier)
	}
	return kvevent.AppendAnnouncement(nil, &a)
}

func (p *testPublisher) announce() Frame {
	return Frame{Kind: FrameAnnouncement, Data: p.announcement()}
}

// goodbye is the last announcement.
func (p *testPublisher) goodbye() Frame {
	a := p.meta
	a.Health = kvevent.HealthGone
	return Frame{Kind: FrameAnnouncement, Data: kvevent.AppendAnnouncement(nil, &a)}
}

// answer gives the events asked for, or everything as one event per block.
func (p *testPublisher) answer(q kvevent.QueryRequest) *Answer {
	p.mu.Lock()
	defer p.mu.Unlock()
	last := uint64(len(p.events))
	if q.HasStart {
		return &Answer{Kind: kvevent.QueryEvents, LastEventID: last, Events: slices.Clone(p.events[min(q.StartID-1, last):])}
	}
	a := &Answer{Kind: kvevent.QueryTreeDump, LastEventID: last}
	for b := range p.held {
		e := p.places[b.hash]
		e.Owner, e.Tier, e.Kind, e.ID = p.meta.Owner, b.tier, kvevent.Stored, uint64(len(a.Events))
		a.Events = append(a.Events, e)
	}
	return a
}

// testTransport hands over the frames that a test sends.
type testTransport struct {
	frames chan Frame
	// away is true while there is no connection.
	away atomic.Bool

	mu         sync.Mutex
	publishers map[uint64]*testPublisher
	queries    []string
	// hold, when it is not nil, is waited for by every query.
	hold         chan struct{}
	fail         error
	flying, most int
}

func (t *testTransport) Frames() <-chan Frame { return t.frames }

func (t *testTransport) Stats() TransportStats { return TransportStats{Connected: !t.away.Load()} }

func (t *testTransport) Query(ctx context.Context, publisher uint64, q kvevent.QueryRequest) (*Answer, error) {
	t.mu.Lock()
	t.queries = append(t.queries, fmt.Sprintf("%d from %d", publisher, q.StartID))
	t.flying++
	t.most = max(t.most, t.flying)
	hold, fail, p := t.hold, t.fail, t.publishers[publisher]
	t.mu.Unlock()
	defer func() {
		t.mu.Lock()
		t.flying--
		t.mu.Unlock()
	}()
	if hold != nil {
		select {
		case <-hold:
		case <-ctx.Done():
			return nil, ctx.Err()
		}
	}
	if fail != nil {
		return nil, fail
	}
	return p.answer(q), nil
}

// holdQueries makes queries wait, or go on.
func (t *testTransport) holdQueries(hold bool) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if hold {
		t.hold = make(chan struct{})
		return
	}
	close(t.hold)
	t.hold = nil
}

func (t *testTransport) failQueries(err error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.fail = err
}

func (t *testTransport) asked() []string {
	t.mu.Lock()
	defer t.mu.Unlock()
	return slices.Clone(t.queries)
}

// bench is a router that runs in a bubble of synctest on a testTransport.
type bench struct {
	t         *testing.T
	router    *Router
	transport *testTransport
}

// onBench runs f with a router; time passes only when f lets it.
func onBench(t *testing.T, o Options, f func(b *bench)) {
	synctest.Test(t, func(t *testing.T) {
		b := &bench{t: t, transport: &testTransport{
			frames: make(chan Frame), publishers: make(map[uint64]*testPublisher)}}
		var err error
		if b.router, err = New(o, b.transport); err != nil {
			t.Fatal(err)
		}
		ctx, cancel := context.WithCancel(t.Context())
		var running sync.WaitGroup
		running.Go(func() {
			if err := b.router.Run(ctx); err != nil {
				t.Errorf("run: %v", err)
			}
		})
		defer running.Wait()
		defer cancel()
		f(b)
	})
}

// publisher makes a publisher that the transport can query.
func (b *bench) publisher(id uint64, owner kv.Owner, pool uint64) *testPublisher {
	p := newTestPublisher(id, owner, pool)
	b.transport.mu.Lock()
	defer b.transport.mu.Unlock()
	b.transport.publishers[id] = p
	return p
}

// send delivers frames and waits until all that follows from them has happened.
func (b *bench) send(frames ...Frame) {
	for _, f := range frames {
		b.transport.frames <- f
	}
	synctest.Wait()
}

// pass lets time pass.
func (b *bench) pass(d time.Duration) {
	<-time.After(d)
	synctest.Wait()
}

func (b *bench) best(tokens []uint32) Match {
	b.t.Helper()
	m, err := b.router.FindBestMatch(b.t.Context(), &Request{Tokens: tokens})
	if err != nil {
		b.t.Fatal(err)
	}
	return m
}

// expect checks the device hits and the quality of a prompt's best match.
func (b *bench) expect(when string, tokens []uint32, worker kv.WorkerID, device uint32, q Quality) {
	b.t.Helper()
	m := b.best(tokens)
	if m.Worker.ID != worker || m.Hits[kv.TierDevice] != device || m.Quality != q {
		b.t.Errorf("%s: worker %s with %d device blocks, %s; want worker %d with %d, %s",
			when, m.Worker, m.Hits[kv.TierDevice], m.Quality, worker, device, q)
	}
}
