package sourcetest

import (
	"context"
	"fmt"
	"slices"
	"sync"
	"sync/atomic"

	"github.com/blockyard-ai/blockyard/internal/kv"
	"github.com/blockyard-ai/blockyard/internal/kvevent"
	"github.com/blockyard-ai/blockyard/router/source"
)

// Transport hands over the frames that a test sends.
type Transport struct {
	frames chan source.Frame
	// away is true while there is no connection.
	Away atomic.Bool

	mu         sync.Mutex
	publishers map[uint64]*Publisher
	queries    []string
	// hold, when it is not nil, is waited for by every query.
	hold         chan struct{}
	fail         error
	flying, most int
	hints        []Hint
}

// Hint is a read-ahead hint that a Transport was given.
type Hint struct {
	Publisher uint64
	Data      []byte
}

// NewTransport returns a transport without publishers.
func NewTransport() *Transport {
	return &Transport{frames: make(chan source.Frame), publishers: make(map[uint64]*Publisher)}
}

// Publisher makes a publisher that the transport can query.
func (t *Transport) Publisher(id uint64, owner kv.Owner, pool uint64) *Publisher {
	p := NewPublisher(id, owner, pool)
	t.mu.Lock()
	defer t.mu.Unlock()
	t.publishers[id] = p
	return p
}

// Put has the transport know publishers that were made before it.
func (t *Transport) Put(publishers ...*Publisher) {
	t.mu.Lock()
	defer t.mu.Unlock()
	for _, p := range publishers {
		t.publishers[p.Meta.PublisherID] = p
	}
}

// Known is the publisher of an id.
func (t *Transport) Known(id uint64) *Publisher {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.publishers[id]
}

// Send hands frames to the router.
func (t *Transport) Send(frames ...source.Frame) {
	for _, f := range frames {
		t.frames <- f
	}
}

// MostInFlight is how many queries were in flight at one time.
func (t *Transport) MostInFlight() int {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.most
}

// Frames implements source.Transport.
func (t *Transport) Frames() <-chan source.Frame { return t.frames }

// Stats implements source.Transport.
func (t *Transport) Stats() source.Stats { return source.Stats{Connected: !t.Away.Load()} }

// Query answers q with the publisher's events; it implements source.Transport. It records the query
// and how many are under way. A test may hold queries until it closes t.hold, or fail them.
func (t *Transport) Query(ctx context.Context, publisher uint64, q kvevent.QueryRequest) (*source.Answer, error) {
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
	return p.Answer(q), nil
}

// Hint implements source.Hinter. It records the hint, and waits while queries are held.
func (t *Transport) Hint(ctx context.Context, publisher uint64, data []byte) error {
	t.mu.Lock()
	t.hints = append(t.hints, Hint{publisher, data})
	hold, fail := t.hold, t.fail
	t.mu.Unlock()
	if hold != nil {
		select {
		case <-hold:
		case <-ctx.Done():
			return ctx.Err()
		}
	}
	return fail
}

// Hints returns the hints so far.
func (t *Transport) Hints() []Hint {
	t.mu.Lock()
	defer t.mu.Unlock()
	return slices.Clone(t.hints)
}

// HoldQueries makes queries and hints wait, or go on.
func (t *Transport) HoldQueries(hold bool) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if hold {
		t.hold = make(chan struct{})
		return
	}
	close(t.hold)
	t.hold = nil
}

// FailQueries makes queries fail with err, or succeed with nil.
func (t *Transport) FailQueries(err error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.fail = err
}

// Asked lists the queries so far.
func (t *Transport) Asked() []string {
	t.mu.Lock()
	defer t.mu.Unlock()
	return slices.Clone(t.queries)
}
