package api

import (
	"errors"
	"io"
	"sync"
	"time"

	"github.com/blockyard-ai/blockyard/router"
)

const (
	// freeBody is how many bytes of each body are free, so that small requests, which end
	// others, always get through.
	freeBody = 16 << 10
	// maxReading bounds the bytes that are being read and decoded; decoding takes a few
	// times as much memory. maxKept bounds the bodies of all requests in progress, which
	// are mostly prompts.
	maxReading = 128 << 20
	maxKept    = 1 << 30
	// slowAfter is how long an upload must last before it counts as slow.
	slowAfter = time.Second
)

// errSlowBody: the body came slowly while others needed its room.
var errSlowBody = errors.New("body: arrived too slowly while others needed its room")

// bodyBudget bounds the bytes of request bodies. A client may take as much as it leaves
// free: half when alone, a third beside one other. When a client's share or all room is
// used, the slowest upload loses its room to the next one. It is safe for concurrent use.
type bodyBudget struct {
	counters *router.APICounters

	mu            sync.Mutex
	reading, kept byteLimit
	// clients has the clients with bytes.
	clients map[string]*bodyClient
	// uploads are the bodies with bytes that are not complete.
	uploads map[*budgetedBody]struct{}
}

// byteLimit is a limit and the bytes in use.
type byteLimit struct{ most, used int64 }

// bodyClient is what the bodies of one client use.
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

// fits reports whether a client that uses taken bytes may use n more.
func (l *byteLimit) fits(taken, n int64) bool { return taken+n <= l.most-l.used-n }

// budgetedBody charges a body to the budget as it is read. One goroutine reads it.
type budgetedBody struct {
	from      io.Reader
	budget    *bodyBudget
	interrupt func()
	name      string
	begun     time.Time

	// The budget's lock guards the rest. client is nil until the body uses room.
	client *bodyClient
	read   int64
	// reading and kept are the bytes charged now.
	reading, kept int64
	// slow is true after the body lost its room.
	slow bool
}

// wrap wraps the body of a client. The caller calls decoded and then done. interrupt ends a
// blocked read; it may be nil.
func (b *bodyBudget) wrap(body io.Reader, client string, interrupt func()) *budgetedBody {
	return &budgetedBody{from: body, budget: b, interrupt: interrupt, name: client, begun: time.Now()}
}

// Read implements io.Reader. The error is errBusy without room, and errSlowBody after the
// body lost its room.
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

// chargeLocked charges n more bytes to a body. It may end slower uploads.
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
		b.endUploadLocked(slowest)
	}
	b.takeLocked(body, n, n)
	return true
}

// takeLocked adds to the bytes that a body is charged for.
func (b *bodyBudget) takeLocked(body *budgetedBody, reading, kept int64) {
	body.reading, body.kept = body.reading+reading, body.kept+kept
	body.client.reading, body.client.kept = body.client.reading+reading, body.client.kept+kept
	b.reading.used, b.kept.used = b.reading.used+reading, b.kept.used+kept
}

// slowestLocked returns the slowest upload of body's client, or of a client that uses more;
// nil when body is no faster. Uploads younger than slowAfter do not count.
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

// endUploadLocked ends an upload and takes its room. Its goroutine frees the memory soon.
func (b *bodyBudget) endUploadLocked(u *budgetedBody) {
	b.counters.BodiesSlow.Add(1)
	u.slow = true
	delete(b.uploads, u)
	b.takeLocked(u, -u.reading, -u.kept)
	if u.interrupt != nil {
		u.interrupt()
	}
}

// decoded releases the room for reading; the decoded request keeps the rest.
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

// done releases all room of the body.
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
