package router

import (
	"context"
	"fmt"
	"slices"
	"sync"
	"sync/atomic"

	"github.com/blockyard-ai/blockyard/internal/kv"
	"github.com/blockyard-ai/blockyard/internal/kvevent"
)

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

// newTestTransport returns a transport without publishers.
func newTestTransport() *testTransport {
	return &testTransport{frames: make(chan Frame), publishers: make(map[uint64]*testPublisher)}
}

// publisher makes a publisher that the transport can query.
func (t *testTransport) publisher(id uint64, owner kv.Owner, pool uint64) *testPublisher {
	p := newTestPublisher(id, owner, pool)
	t.mu.Lock()
	defer t.mu.Unlock()
	t.publishers[id] = p
	return p
}

// put has the transport know publishers that were made before it.
func (t *testTransport) put(publishers ...*testPublisher) {
	t.mu.Lock()
	defer t.mu.Unlock()
	for _, p := range publishers {
		t.publishers[p.meta.PublisherID] = p
	}
}

// known is the publisher of an id.
func (t *testTransport) known(id uint64) *testPublisher {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.publishers[id]
}

// send hands frames to the router.
func (t *testTransport) send(frames ...Frame) {
	for _, f := range frames {
		t.frames <- f
	}
}

// mostInFlight is how many queries were in flight at one time.
func (t *testTransport) mostInFlight() int {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.most
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
