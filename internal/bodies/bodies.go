package bodies

import (
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"sync"
	"sync/atomic"
	"time"
)

const (
	// Free is how many bytes of each body cost nothing. So small requests always get
	// through, such as those that free other requests.
	Free = 16 << 10
	// SlowAfter is how long an upload must last before it counts as slow.
	SlowAfter = time.Second
)

// A body must have arrived by Grace, and one second for each LeastRate bytes of it that have come,
// but after Longest in any case. A client that sends a byte a second holds its place for Grace.
const (
	Grace     = 5 * time.Second
	LeastRate = 4 << 10
	Longest   = time.Minute
)

// Counters count the bodies of one Budget or of several. The zero Counters are ready, and may be
// used from any goroutine.
type Counters struct{ refused, slow atomic.Uint64 }

// Stats is a snapshot of Counters.
type Stats struct {
	Refused uint64 `metric:"bodies_refused" help:"Requests refused because the bodies of other requests filled the memory."`
	Slow    uint64 `metric:"bodies_slow" help:"Uploads ended because they were too slow, or slow while other requests needed the memory."`
}

// Stats returns the counters.
func (c *Counters) Stats() Stats { return Stats{Refused: c.refused.Load(), Slow: c.slow.Load()} }

// ErrBusy says that the bodies of other requests fill the memory.
var ErrBusy = errors.New("the router has too many requests in progress")

// ErrLate says that a body arrived more slowly than LeastRate, or took longer than Longest.
var ErrLate = fmt.Errorf("body: arrived too slowly: it needs %d bytes a second after %s, and at most %s", LeastRate, Grace, Longest)

// ErrSlow says that a slow upload was ended because other requests needed the memory.
var ErrSlow = errors.New("body: arrived too slowly while other requests needed the memory")

// Budget bounds the bytes of request bodies. A client may use as many bytes as it leaves
// free: half alone, a third beside one other client. When a client's share or the budget is
// used up, the slowest upload loses its bytes to the next one. A Budget is safe for
// concurrent use.
type Budget struct {
	counters *Counters

	mu            sync.Mutex
	reading, kept byteLimit
	// clients has the clients with bytes.
	clients map[string]*client
	// uploads are the incomplete bodies with charged bytes.
	uploads map[*Body]struct{}
}

// byteLimit is a limit and the bytes in use.
type byteLimit struct{ limit, used int64 }

// client counts the bytes and bodies of one client.
type client struct {
	reading, kept int64
	bodies        int
}

// New returns a Budget. reading bounds the bytes of bodies that are not decoded yet, kept
// those of all bodies until Done. The Budget adds to counters.
func New(reading, kept int64, counters *Counters) *Budget {
	return &Budget{
		counters: counters,
		reading:  byteLimit{limit: reading}, kept: byteLimit{limit: kept},
		clients: make(map[string]*client), uploads: make(map[*Body]struct{}),
	}
}

// fits reports whether a client that uses own bytes may use n more.
func (l *byteLimit) fits(own, n int64) bool { return own+n <= l.limit-l.used-n }

// Body charges a body to the budget as it is read. One goroutine reads it.
type Body struct {
	from   io.Reader
	budget *Budget
	name   string
	begun  time.Time
	pace   pace

	// The budget's lock guards the rest. client is nil until the body is charged.
	client *client
	read   int64
	// reading and kept are the charged bytes.
	reading, kept int64
	// slow is true after the body lost its bytes to another one.
	slow bool
}

// pace ends reads that take too long.
type pace struct {
	mu sync.Mutex
	// readBy sets the time at which a blocked read ends; it may be nil.
	readBy func(time.Time)
	// by is the time that was set last. ended is true after end.
	by    time.Time
	ended bool
}

// allow has the next read end at the time at.
func (p *pace) allow(at time.Time) {
	p.mu.Lock()
	defer p.mu.Unlock()
	// Setting a time costs more than a small read does.
	if p.readBy != nil && !p.ended && at.Sub(p.by) >= time.Second {
		p.by = at
		p.readBy(at)
	}
}

// end ends a blocked read, and every later one.
func (p *pace) end() {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.ended = true; p.readBy != nil {
		p.readBy(time.Unix(1, 0))
	}
}

// Wrap returns the body of a client, charged to the budget. The caller must call Decoded and
// then Done. readBy sets the time at which a blocked read of body ends with
// os.ErrDeadlineExceeded, also from other goroutines; nil is a body whose reads do not block.
func (b *Budget) Wrap(body io.Reader, client string, readBy func(time.Time)) *Body {
	return &Body{from: body, budget: b, name: client, begun: time.Now(), pace: pace{readBy: readBy}}
}

// ReadBy returns the readBy of Wrap for the body of a request. It is nil for a request without a
// body: then the server reads the connection already, to see the client leave, and a deadline
// would look like that.
func ReadBy(w http.ResponseWriter, r *http.Request) func(time.Time) {
	if r.Body == nil || r.Body == http.NoBody {
		return nil
	}
	c := http.NewResponseController(w)
	// Some http.ResponseWriters have no deadlines. Then the read goes on.
	return func(by time.Time) { _ = c.SetReadDeadline(by) }
}

// Read implements io.Reader. The bytes that it reads beyond the first Free are charged to the
// budget. The error is ErrBusy when the budget is used up, ErrSlow after the body lost its bytes
// to a faster upload, and ErrLate for a body that is too slow in any case.
func (b *Body) Read(p []byte) (int, error) {
	// Only the reading goroutine changes b.read.
	b.pace.allow(b.begun.Add(min(Grace+time.Duration(b.read)*time.Second/LeastRate, Longest)))
	n, err := b.from.Read(p)
	b.budget.mu.Lock()
	defer b.budget.mu.Unlock()
	b.read += int64(n)
	if err != nil {
		delete(b.budget.uploads, b) // a body that has ended is no upload
	}
	owed := b.read - Free - b.kept
	switch {
	case b.slow:
		return 0, ErrSlow
	case errors.Is(err, os.ErrDeadlineExceeded):
		b.budget.counters.slow.Add(1)
		return 0, ErrLate
	case owed > 0 && !b.budget.chargeLocked(b, owed):
		b.budget.counters.refused.Add(1)
		return 0, ErrBusy
	case owed > 0 && err == nil:
		b.budget.uploads[b] = struct{}{}
	}
	return n, err
}

// chargeLocked charges n more bytes to a body: to the limit for bodies that are not decoded and to
// the limit for all bodies. While the bytes do not fit, it ends uploads that arrive more slowly than
// this one, the slowest first. It returns false, and charges nothing, when no such upload is left.
// The caller holds b.mu.
func (b *Budget) chargeLocked(body *Body, n int64) bool {
	if body.client == nil {
		if body.client = b.clients[body.name]; body.client == nil {
			body.client = new(client)
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
	b.addLocked(body, n, n)
	return true
}

// addLocked adds to the charged bytes of a body, of its client and of the budget.
func (b *Budget) addLocked(body *Body, reading, kept int64) {
	body.reading, body.kept = body.reading+reading, body.kept+kept
	body.client.reading, body.client.kept = body.client.reading+reading, body.client.kept+kept
	b.reading.used, b.kept.used = b.reading.used+reading, b.kept.used+kept
}

// slowestLocked returns the slowest upload of body's client or of a client that uses more. It
// returns nil when body is not faster. Uploads younger than SlowAfter do not count.
func (b *Budget) slowestLocked(body *Body) *Body {
	now := time.Now()
	var slowest *Body
	var least float64 // its bytes per second
	for u := range b.uploads {
		lasted := now.Sub(u.begun)
		if u == body || lasted < SlowAfter || u.client != body.client && u.client.reading <= body.client.reading {
			continue
		}
		if rate := float64(u.read) / lasted.Seconds(); slowest == nil || rate < least {
			slowest, least = u, rate
		}
	}
	if lasted := now.Sub(body.begun); slowest != nil && lasted >= SlowAfter && float64(body.read)/lasted.Seconds() <= least {
		return nil
	}
	return slowest
}

// endUploadLocked ends an upload and releases its bytes: its next Read returns ErrSlow. The
// goroutine that reads the upload frees the memory then. The caller holds b.mu.
func (b *Budget) endUploadLocked(u *Body) {
	b.counters.slow.Add(1)
	u.slow = true
	delete(b.uploads, u)
	b.addLocked(u, -u.reading, -u.kept)
	u.pace.end()
}

// Decoded releases the bytes for reading. The bytes of the decoded request stay charged.
func (b *Body) Decoded() {
	b.budget.mu.Lock()
	defer b.budget.mu.Unlock()
	b.decodedLocked()
}

// decodedLocked releases the bytes for reading. The caller holds the budget's lock.
func (b *Body) decodedLocked() {
	delete(b.budget.uploads, b)
	if b.client != nil {
		b.budget.addLocked(b, -b.reading, 0)
	}
}

// Done releases all bytes of the body. The caller calls it when the request has ended; later calls
// have no effect.
func (b *Body) Done() {
	b.budget.mu.Lock()
	defer b.budget.mu.Unlock()
	b.decodedLocked()
	if b.client == nil {
		return
	}
	b.budget.addLocked(b, 0, -b.kept)
	if b.client.bodies--; b.client.bodies == 0 {
		delete(b.budget.clients, b.name)
	}
	b.client = nil
}

// Usage is what bodies in progress take of a Budget.
type Usage struct {
	Reading int64 `metric:"bodies_reading_bytes" help:"Bytes of request bodies that are not decoded yet, beyond the first 16 KiB of each."`
	Kept    int64 `metric:"bodies_kept_bytes" help:"Bytes of request bodies of requests in progress, beyond the first 16 KiB of each."`
	Clients int   `metric:"bodies_clients" help:"Clients with request bodies in memory."`
	Uploads int   `metric:"bodies_uploads" help:"Request bodies that have not arrived whole."`
}

// Usage returns the usage of the moment.
func (b *Budget) Usage() Usage {
	b.mu.Lock()
	defer b.mu.Unlock()
	return Usage{Reading: b.reading.used, Kept: b.kept.used, Clients: len(b.clients), Uploads: len(b.uploads)}
}
