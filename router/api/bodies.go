package api

import (
	"errors"
	"io"
	"sync"
	"time"

	"github.com/blockyard-ai/blockyard/router"
)

const (
	// freeBody is how much of each body counts for nothing, so that what ends a
	// request gets through however large the others are.
	freeBody = 16 << 10
	// maxReading bounds what is read and decoded at a time; decoding takes a few times
	// as much memory. maxKept bounds the bodies of all requests at hand, of which
	// prompts are what is left.
	maxReading = 128 << 20
	maxKept    = 1 << 30
	// slowAfter is how long an upload lasts at least before it counts as slow.
	slowAfter = time.Second
)

// errSlowBody: the body arrived slowly while others needed its room.
var errSlowBody = errors.New("body: arrived too slowly while others needed its room")

// bodyBudget bounds the bytes of request bodies that have arrived. Each client may
// take as much as it leaves free: alone half, beside one other a third. When a
// client's share is used up, or all room is, the slowest upload gives its room to
// the next one. It may be used from any goroutine.
type bodyBudget struct {
	counters *router.APICounters

	mu            sync.Mutex
	reading, kept byteLimit
	// clients has those with any bytes.
	clients map[string]*bodyClient
	// uploads are the bodies with bytes of which more is to arrive.
	uploads map[*budgetedBody]struct{}
}

// byteLimit is how many bytes there may be, and how many there are.
type byteLimit struct{ most, used int64 }

// bodyClient is what the bodies of one client take. Each of them is counted in bodies.
type bodyClient struct {
	reading, kept int64
	bodies        int
}

func newBodyBudget(reading, kept int64, counters *router.APICounters) *bodyBudget {
	return &bodyBudget{
		counters: counters,
		reading:  byteLimit{most: reading}, kept: byteLimit{most: kept},
		clients: make(map[string]*bodyClient), uploads: make(map[*budgetedBody]struct{}),
	}
}

// fits reports whether a client that has taken some may take n more.
func (l *byteLimit) fits(taken, n int64) bool { return taken+n <= l.most-l.used-n }

// budgetedBody is a body that is charged for as it is read. One goroutine reads it.
type budgetedBody struct {
	from      io.Reader
	budget    *bodyBudget
	interrupt func()
	name      string
	begun     time.Time

	// The rest is under the budget's lock. client is nil until the body takes room.
	client *bodyClient
	read   int64
	// reading and kept are what was charged and not given back.
	reading, kept int64
	// slow is set when the body had to give up its room.
	slow bool
}

// of is a body of a client, to be read; the caller calls decoded and then done.
// interrupt ends a read that waits; it may be nil.
func (b *bodyBudget) of(body io.Reader, client string, interrupt func()) *budgetedBody {
	return &budgetedBody{from: body, budget: b, interrupt: interrupt, name: client, begun: time.Now()}
}

// Read implements io.Reader. The error is errBusy when there is no room for more, and
// errSlowBody when the body had to give up its room.
func (b *budgetedBody) Read(p []byte) (int, error) {
	n, err := b.from.Read(p)
	b.budget.mu.Lock()
	defer b.budget.mu.Unlock()
	b.read += int64(n)
	if err != nil {
		delete(b.budget.uploads, b)
	}
	owed := b.read - freeBody - b.kept
	switch {
	case b.slow:
		return 0, errSlowBody
	case owed > 0 && !b.budget.chargeLocked(b, owed):
		b.budget.counters.BodiesRefused.Add(1)
		return 0, errBusy
	case owed > 0 && err == nil:
		b.budget.uploads[b] = struct{}{}
	}
	return n, err
}

// chargeLocked gives a body room for n bytes more, at the cost of slower ones.
func (b *bodyBudget) chargeLocked(body *budgetedBody, n int64) bool {
	if body.client == nil {
		if body.client = b.clients[body.name]; body.client == nil {
			body.client = new(bodyClient)
			b.clients[body.name] = body.client
		}
		body.client.bodies++
	}
	c := body.client
	for !b.reading.fits(c.reading, n) || !b.kept.fits(c.kept, n) {
		slowest := b.slowestLocked(body)
		if slowest == nil {
			return false
		}
		b.giveUpLocked(slowest)
	}
	b.takeLocked(body, n, n)
	return true
}

// takeLocked adds to what a body was charged for.
func (b *bodyBudget) takeLocked(body *budgetedBody, reading, kept int64) {
	body.reading, body.kept = body.reading+reading, body.kept+kept
	body.client.reading, body.client.kept = body.client.reading+reading, body.client.kept+kept
	b.reading.used, b.kept.used = b.reading.used+reading, b.kept.used+kept
}

// slowestLocked is the slowest upload that has lasted a while, among those of body's
// client and of clients that have more than it; nil when body is no faster.
func (b *bodyBudget) slowestLocked(body *budgetedBody) *budgetedBody {
	now := time.Now()
	var slowest *budgetedBody
	var least float64
	for u := range b.uploads {
		lasted := now.Sub(u.begun)
		if u == body || lasted < slowAfter || u.client != body.client && u.client.reading <= body.client.reading {
			continue
		}
		if rate := float64(u.read) / lasted.Seconds(); slowest == nil || rate < least {
			slowest, least = u, rate
		}
	}
	if lasted := now.Sub(body.begun); slowest != nil && lasted >= slowAfter && float64(body.read)/lasted.Seconds() <= least {
		return nil
	}
	return slowest
}

// giveUpLocked takes the room of an upload back and ends it. Its memory is free as soon
// as its goroutine has noticed.
func (b *bodyBudget) giveUpLocked(u *budgetedBody) {
	b.counters.BodiesSlow.Add(1)
	u.slow = true
	delete(b.uploads, u)
	b.takeLocked(u, -u.reading, -u.kept)
	if u.interrupt != nil {
		u.interrupt()
	}
}

// decoded says that the body is not needed any more, but for what was decoded.
func (b *budgetedBody) decoded() {
	b.budget.mu.Lock()
	defer b.budget.mu.Unlock()
	b.decodedLocked()
}

func (b *budgetedBody) decodedLocked() {
	delete(b.budget.uploads, b)
	if b.client != nil {
		b.budget.takeLocked(b, -b.reading, 0)
	}
}

// done says that nothing is left of it.
func (b *budgetedBody) done() {
	b.budget.mu.Lock()
	defer b.budget.mu.Unlock()
	b.decodedLocked()
	if b.client == nil {
		return
	}
	b.budget.takeLocked(b, 0, -b.kept)
	if b.client.bodies--; b.client.bodies == 0 {
		delete(b.budget.clients, b.name)
	}
	b.client = nil
}
