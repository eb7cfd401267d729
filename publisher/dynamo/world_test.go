package dynamo

import (
	"bytes"
	"cmp"
	"errors"
	"maps"
	"slices"
	"sync"
	"testing"

	"github.com/blockyard-ai/blockyard/internal/kv"
	"github.com/blockyard-ai/blockyard/internal/kvevent"
	"github.com/blockyard-ai/blockyard/publisher"
)

var testWorker = kv.Worker{ID: 1 << 63, Rank: 1}

// pair is a block in a tier.
type pair struct {
	tier kv.Tier
	hash kv.SequenceHash
}

// fakeStream is a stream as the consolidator makes it: it calls its sink under its
// own lock.
type fakeStream struct {
	mu     sync.Mutex
	owner  kv.Owner
	sink   interface{ Publish([]kvevent.RouterEvent) }
	last   uint64
	blocks map[pair]kvevent.RouterEvent // the event that would store it
}

func newFakeStream() *fakeStream {
	return &fakeStream{owner: kv.WorkerOwner(testWorker), blocks: make(map[pair]kvevent.RouterEvent)}
}

func (f *fakeStream) Owner() kv.Owner { return f.owner }

func (f *fakeStream) Status() publisher.Status {
	f.mu.Lock()
	defer f.mu.Unlock()
	return publisher.Status{LastEventID: f.last, Blocks: uint64(len(f.blocks))}
}

func (f *fakeStream) Snapshot() ([]kvevent.RouterEvent, uint64, uint64) {
	f.mu.Lock()
	defer f.mu.Unlock()
	events := slices.Collect(maps.Values(f.blocks))
	// Parents stand before their children, which is why a router takes all of it.
	slices.SortFunc(events, func(a, b kvevent.RouterEvent) int {
		return cmp.Or(cmp.Compare(a.StartPosition, b.StartPosition), cmp.Compare(a.Tier, b.Tier), cmp.Compare(a.Blocks[0].Hash, b.Blocks[0].Hash))
	})
	return events, f.last, 0
}

// apply makes one event of a change.
func (f *fakeStream) apply(e kvevent.RouterEvent) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.last++
	e.ID, e.Owner = f.last, f.owner
	switch e.Kind {
	case kvevent.Stored:
		parent, has := e.Parent, e.HasParent
		for i, b := range e.Blocks {
			if e.Group != 0 {
				f.blocks[pair{e.Tier, kv.InGroup(b.Hash, e.Group)}] = kvevent.RouterEvent{
					Kind: kvevent.Stored, Tier: e.Tier, Group: e.Group, Blocks: []kvevent.StoredBlock{b},
				}
				continue
			}
			f.blocks[pair{e.Tier, b.Hash}] = kvevent.RouterEvent{
				Kind: kvevent.Stored, Tier: e.Tier, Parent: parent, HasParent: has, StartPosition: e.StartPosition + uint32(i), HasStart: true,
				Blocks: []kvevent.StoredBlock{b},
			}
			parent, has = b.Hash, true
		}
	case kvevent.Removed:
		for _, h := range e.Removed {
			delete(f.blocks, pair{e.Tier, kv.InGroup(h, e.Group)})
		}
	case kvevent.Cleared:
		clear(f.blocks)
	}
	if f.sink != nil {
		f.sink.Publish([]kvevent.RouterEvent{e})
	}
}

func (f *fakeStream) store(t kv.Tier, hashes ...kv.SequenceHash) {
	e := kvevent.RouterEvent{Kind: kvevent.Stored, Tier: t}
	for _, h := range hashes {
		e.Blocks = append(e.Blocks, kvevent.StoredBlock{Hash: h, Local: kv.LocalHash(h) * 3})
	}
	f.apply(e)
}

func (f *fakeStream) remove(t kv.Tier, hashes ...kv.SequenceHash) {
	f.apply(kvevent.RouterEvent{Kind: kvevent.Removed, Tier: t, Removed: hashes})
}

func (f *fakeStream) clear() { f.apply(kvevent.RouterEvent{Kind: kvevent.Cleared}) }

// state is what the stream holds in the primary group.
func (f *fakeStream) state() map[pair]kv.LocalHash {
	f.mu.Lock()
	defer f.mu.Unlock()
	s := make(map[pair]kv.LocalHash)
	for p, e := range f.blocks {
		if e.Group == 0 {
			s[p] = e.Blocks[0].Local
		}
	}
	return s
}

// fakeConn is a connection whose messages the test hands on.
type fakeConn struct {
	mu      sync.Mutex
	away    bool
	refuse  bool // Publish fails
	payload int64
	sent    []sentMessage
}

type sentMessage struct {
	subject string
	data    []byte
}

var errRefused = errors.New("refused")

func (c *fakeConn) Publish(subject string, data []byte) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.refuse || c.payload > 0 && int64(len(data)) > c.payload {
		return errRefused
	}
	if c.away {
		return errRefused
	}
	c.sent = append(c.sent, sentMessage{subject, bytes.Clone(data)})
	return nil
}

func (c *fakeConn) Connected() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return !c.away
}

func (c *fakeConn) MaxPayload() int64 {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.payload > 0 {
		return c.payload
	}
	return 1 << 20
}

func (c *fakeConn) set(away, refuse bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.away, c.refuse = away, refuse
}

// take returns what was sent since the last call.
func (c *fakeConn) take() []sentMessage {
	c.mu.Lock()
	defer c.mu.Unlock()
	sent := c.sent
	c.sent = nil
	return sent
}

// testOptions are those of an endpoint whose records lie in a new directory.
func testOptions(t *testing.T) Options {
	t.Helper()
	return Options{Namespace: "dynamo", Component: "backend", Endpoint: "generate", FileKV: t.TempDir()}
}

func openPlane(t *testing.T, o Options, c Conn) *Plane {
	t.Helper()
	p, err := Open(t.Context(), o, c)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { closePlane(t, p) })
	return p
}

func closePlane(t *testing.T, p *Plane) {
	t.Helper()
	if err := p.Close(); err != nil {
		t.Error(err)
	}
}

// addSource makes a source of a stream and its sink.
func addSource(t *testing.T, p *Plane, f *fakeStream) *Source {
	t.Helper()
	s, err := p.NewSource(testWorker, f)
	if err != nil {
		t.Fatal(err)
	}
	f.mu.Lock()
	f.sink = s
	f.mu.Unlock()
	return s
}

// envelopes decodes what was sent on the subject of KV events.
func envelopes(t *testing.T, sent []sentMessage) []kvevent.Envelope {
	t.Helper()
	var all []kvevent.Envelope
	for _, m := range sent {
		if m.subject != "namespace.dynamo.component.backend.endpoint.generate.kv-events" {
			continue
		}
		e, err := decodeEnvelope(m.data)
		if err != nil {
			t.Fatal(err)
		}
		all = append(all, e)
	}
	return all
}

func decodeEnvelope(b []byte) (e kvevent.Envelope, err error) {
	err = new(kvevent.EnvelopeDecoder).Decode(b, &e)
	return e, err
}
