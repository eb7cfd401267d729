package zmqsink

import (
	"encoding/binary"
	"maps"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	zmq "github.com/pebbe/zmq4"

	"github.com/blockyard-ai/blockyard/internal/engineevent"
	"github.com/blockyard-ai/blockyard/internal/kv"
	"github.com/blockyard-ai/blockyard/internal/kvevent"
	"github.com/blockyard-ai/blockyard/publisher"
)

var testWorker = kv.Worker{ID: 7, Rank: 3}

// place is a block in a tier.
type place struct {
	hash kv.SequenceHash
	tier kv.Tier
}

// stream is a source as the consolidator makes it: blocks of one chain, whose events
// go to the sink under the stream's lock.
type stream struct {
	mu     sync.Mutex
	sink   *Sink
	last   uint64
	held   map[place]struct{}
	silent bool // nothing goes to the sink
	// pending is removed, by an event, as soon as somebody asks for the state.
	pending *place
}

func newStream() *stream { return &stream{held: make(map[place]struct{})} }

func (s *stream) Owner() kv.Owner { return kv.WorkerOwner(testWorker) }

func (s *stream) Status() publisher.Status {
	s.mu.Lock()
	defer s.mu.Unlock()
	return publisher.Status{LastEventID: s.last}
}

// Snapshot has one event per block, parents first.
func (s *stream) Snapshot() (events []kvevent.RouterEvent, last, digest uint64) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if p := s.pending; p != nil {
		s.pending = nil
		s.removeLocked(p.tier, p.hash)
	}
	places := slices.SortedFunc(maps.Keys(s.held), func(a, b place) int { return int(a.hash) - int(b.hash) })
	for _, p := range places {
		events = append(events, chainEvent(p.tier, p.hash, p.hash))
	}
	return events, s.last, 0
}

// chainEvent stores blocks first to last of the chain 1, 2, 3 and so on.
func chainEvent(t kv.Tier, first, last kv.SequenceHash) kvevent.RouterEvent {
	var hashes []kv.SequenceHash
	for h := first; h <= last; h++ {
		hashes = append(hashes, h)
	}
	e := storedIn(t, first-1, hashes...)
	e.Owner = kv.WorkerOwner(testWorker)
	return e
}

func (s *stream) store(t kv.Tier, first, last kv.SequenceHash) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for h := first; h <= last; h++ {
		s.held[place{h, t}] = struct{}{}
	}
	s.publishLocked(chainEvent(t, first, last))
}

func (s *stream) remove(t kv.Tier, hashes ...kv.SequenceHash) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.removeLocked(t, hashes...)
}

func (s *stream) removeLocked(t kv.Tier, hashes ...kv.SequenceHash) {
	for _, h := range hashes {
		delete(s.held, place{h, t})
	}
	e := removedFrom(t, hashes...)
	e.Owner = kv.WorkerOwner(testWorker)
	s.publishLocked(e)
}

func (s *stream) publishLocked(e kvevent.RouterEvent) {
	s.last++
	e.ID = s.last
	if s.sink != nil && !s.silent {
		s.sink.Publish([]kvevent.RouterEvent{e})
	}
}

// numbered knows every block of the chain: four tokens that name it.
type numbered struct{}

func (numbered) Describe(h kv.SequenceHash, e *engineevent.Event) bool {
	n := uint32(h)
	*e = engineevent.Event{Tokens: append(e.Tokens[:0], n, n, n, n), BlockSize: 4}
	return true
}

// startSink is a sink of s on free ports; the end of the test closes it.
func startSink(t *testing.T, s *stream, change func(*Options)) *Sink {
	t.Helper()
	o := Options{Bind: "tcp://127.0.0.1:*", Worker: testWorker, BlockSize: 4, Topic: "kv", ReannounceEvery: time.Millisecond}
	if change != nil {
		change(&o)
	}
	sink, err := New(o, s, numbered{})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(sink.Close)
	s.sink = sink
	return sink
}

// subscriber is a consumer as Dynamo's worker is one: a SUB socket and what the
// events say is held. It fails the test when events contradict one another.
type subscriber struct {
	t    testing.TB
	ctx  *zmq.Context
	sub  *zmq.Socket
	held map[place]struct{}
	// seqs are the numbers of the batches. next is the number after the last one.
	seqs []uint64
	next atomic.Uint64
	// gaps allows gaps between the numbers. After one, lost is true until the sink says the whole
	// state: the events in between may follow events that the subscriber has missed.
	gaps, lost bool
	decoder    engineevent.Decoder
}

// subscribe is a subscriber that has connected to endpoint.
func subscribe(t testing.TB, endpoint string) *subscriber {
	t.Helper()
	s := newSubscriber(t)
	s.connect(endpoint)
	return s
}

func newSubscriber(t testing.TB) *subscriber {
	t.Helper()
	s := &subscriber{t: t, held: make(map[place]struct{})}
	var err error
	if s.ctx, err = zmq.NewContext(); err != nil {
		t.Fatal(err)
	}
	s.sub = s.socket(zmq.SUB)
	t.Cleanup(s.leave)
	return s
}

func (s *subscriber) connect(endpoint string) {
	s.t.Helper()
	// A prefix of the topic is enough.
	if err := s.sub.SetSubscribe("k"); err != nil {
		s.t.Fatal(err)
	}
	if err := s.sub.Connect(endpoint); err != nil {
		s.t.Fatal(err)
	}
}

func (s *subscriber) socket(kind zmq.Type) *zmq.Socket {
	s.t.Helper()
	k, err := s.ctx.NewSocket(kind)
	if err != nil {
		s.t.Fatal(err)
	}
	for _, err := range []error{k.SetLinger(0), k.SetRcvtimeo(30 * time.Second)} {
		if err != nil {
			s.t.Fatal(err)
		}
	}
	return k
}

func (s *subscriber) leave() {
	if s.sub != nil {
		_ = s.sub.Close()
		_ = s.ctx.Term()
		s.sub = nil
	}
}

// read takes one batch from the live socket.
func (s *subscriber) read() (seq uint64, payload []byte) {
	s.t.Helper()
	parts, err := s.sub.RecvMessageBytes(0)
	if err != nil {
		s.t.Fatalf("no batch after %v: %v", s.seqs, err)
	}
	return s.take(parts)
}

// take checks the form and the number of a batch.
func (s *subscriber) take(parts [][]byte) (seq uint64, payload []byte) {
	s.t.Helper()
	if len(parts) != 3 || string(parts[0]) != "kv" || len(parts[1]) != 8 {
		s.t.Fatalf("batch of the parts %x", parts)
	}
	seq = binary.BigEndian.Uint64(parts[1])
	if n := len(s.seqs); n > 0 && seq != s.seqs[n-1]+1 {
		if s.lost = true; !s.gaps {
			s.t.Errorf("batch %d after %d", seq, s.seqs[n-1])
		}
	}
	s.seqs = append(s.seqs, seq)
	s.next.Store(seq + 1)
	return seq, parts[2]
}

// readWaiting applies the batches that are there now.
func (s *subscriber) readWaiting() {
	s.t.Helper()
	for {
		parts, err := s.sub.RecvMessageBytes(zmq.DONTWAIT)
		if err != nil {
			return
		}
		_, payload := s.take(parts)
		s.apply(payload)
	}
}

// until reads batches until cond holds.
func (s *subscriber) until(cond func() bool) {
	s.t.Helper()
	for !cond() {
		_, payload := s.read()
		s.apply(payload)
	}
}

// untilHolds reads until exactly these blocks are there.
func (s *subscriber) untilHolds(want ...place) {
	s.t.Helper()
	set := make(map[place]struct{})
	for _, p := range want {
		set[p] = struct{}{}
	}
	s.until(func() bool { return len(s.seqs) > 0 && maps.Equal(s.held, set) })
}

func (s *subscriber) apply(payload []byte) {
	s.t.Helper()
	var b engineevent.Batch
	if err := s.decoder.Decode(payload, &b); err != nil || len(b.Bad) > 0 {
		s.t.Fatalf("batch %x: %v %v", payload, err, b.Bad)
	}
	if !b.HasRank || b.Rank != testWorker.Rank {
		s.t.Errorf("batch of rank %d", b.Rank)
	}
	for i := range b.Events {
		s.applyEvent(&b.Events[i])
	}
}

func (s *subscriber) applyEvent(e *engineevent.Event) {
	tier, _ := kv.TierFromMedium(e.Medium)
	if e.Kind == kvevent.Cleared {
		clear(s.held)
		s.lost = false
	}
	if s.lost {
		return
	}
	for i, h := range e.BlockHashes {
		p := place{kv.SequenceHash(h), tier}
		_, there := s.held[p]
		if e.Kind == kvevent.Removed {
			if !there {
				s.t.Errorf("%v is removed and was not there", p)
			}
			delete(s.held, p)
			continue
		}
		parent := e.Parent
		if i > 0 {
			parent = e.BlockHashes[i-1]
		}
		if there || (e.HasParent || i > 0) && !s.holds(kv.SequenceHash(parent)) {
			s.t.Errorf("%v is stored after %d: it is there already, or that is not", p, parent)
		}
		if e.Tokens[4*i] != uint32(h) {
			s.t.Errorf("%v has the tokens %v", p, e.Tokens[4*i:4*i+4])
		}
		s.held[p] = struct{}{}
	}
}

func (s *subscriber) holds(h kv.SequenceHash) bool {
	return slices.ContainsFunc(kv.Tiers[:], func(t kv.Tier) bool {
		_, there := s.held[place{h, t}]
		return there
	})
}

// replay asks for the batches from start on, and checks each reply's form.
func (s *subscriber) replay(endpoint string, start uint64) (seqs []uint64, payloads [][]byte) {
	s.t.Helper()
	d := s.socket(zmq.DEALER)
	defer func() { _ = d.Close() }()
	if err := d.Connect(endpoint); err != nil {
		s.t.Fatal(err)
	}
	if _, err := d.SendMessage([]byte{}, sequenceFrame(start)); err != nil {
		s.t.Fatal(err)
	}
	for {
		parts, err := d.RecvMessageBytes(0)
		if err != nil || len(parts) != 4 || len(parts[0]) != 0 || len(parts[2]) != 8 {
			s.t.Fatalf("reply of the parts %x: %v", parts, err)
		}
		seq := binary.BigEndian.Uint64(parts[2])
		if seq == replayEnd {
			if len(parts[1]) != 0 || len(parts[3]) != 0 {
				s.t.Errorf("end mark of the parts %x", parts)
			}
			return seqs, payloads
		}
		if string(parts[1]) != "kv" {
			s.t.Errorf("reply of topic %q", parts[1])
		}
		seqs, payloads = append(seqs, seq), append(payloads, parts[3])
	}
}
