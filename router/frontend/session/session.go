package session

import (
	"container/list"
	"fmt"
	"net/http"
	"sync"
	"time"

	"github.com/blockyard-ai/blockyard/internal/kv"
)

const (
	// maxSessions bounds a Table.
	maxSessions = 65536
	// MaxID bounds the id of a session in bytes.
	MaxID = 256
)

// FinalHeader with the value "true" ends the session of a request after it.
const FinalHeader = "X-Dynamo-Session-Final"

// headers may have the id of a session, the first one that is there: Dynamo's own, those of
// Claude Code and OpenCode, and that of Codex.
var headers = []string{"X-Dynamo-Session-Id", "X-Claude-Code-Session-Id", "X-Session-Id", "Session-Id"}

// ID returns the id of the session that a request belongs to: that of a header, else the body's
// session_id, else none. The error names a header whose id is too long.
func ID(h http.Header, body string) (string, error) {
	for _, name := range headers {
		if id := h.Get(name); len(id) > MaxID {
			return "", fmt.Errorf("%s: %d bytes, want at most %d", name, len(id), MaxID)
		} else if id != "" {
			return id, nil
		}
	}
	if len(body) > MaxID {
		return "", fmt.Errorf("session_id: %d bytes, want at most %d", len(body), MaxID)
	}
	return body, nil
}

// Key names a session. Tenants cannot name each other's.
type Key struct{ Tenant, Model, ID string }

// Table has the sessions and their workers. Make one with New.
type Table struct {
	ttl time.Duration

	mu    sync.Mutex
	known map[Key]*list.Element
	// order has *binding values, the one with the oldest use first.
	order list.List
	stats Stats
}

// binding is one session. active counts its requests in progress.
type binding struct {
	key    Key
	worker kv.Worker
	bound  bool
	active int
	used   time.Time // end of the last request, or begin of one in progress
}

// Stats counts what happened to sessions.
type Stats struct {
	Sessions int    `metric:"sessions" help:"Sessions that are bound to a worker or have a request in progress."`
	Followed uint64 `metric:"session_requests" help:"Requests that went to the worker of their session."`
	Moved    uint64 `metric:"session_moves" help:"Sessions that moved to another worker, because theirs was gone, draining or too busy."`
	Evicted  uint64 `metric:"session_evictions" help:"Sessions forgotten because the table was full."`
}

// New returns a Table whose sessions expire after ttl without a request.
func New(ttl time.Duration) *Table {
	return &Table{ttl: ttl, known: make(map[Key]*list.Element)}
}

// Stats returns the counters.
func (t *Table) Stats() Stats {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.expireLocked(time.Now())
	s := t.stats
	s.Sessions = t.order.Len()
	return s
}

// Lease is the use of a session by one request, until End.
type Lease struct {
	table *Table
	key   Key
	of    *binding
	once  sync.Once
}

// Begin begins a request of a session. The caller calls End at the request's end.
func (t *Table) Begin(key Key) *Lease {
	now := time.Now()
	t.mu.Lock()
	defer t.mu.Unlock()
	t.expireLocked(now)
	e := t.known[key]
	if e == nil {
		t.makeRoomLocked()
		e = t.order.PushBack(&binding{key: key})
		t.known[key] = e
	}
	b := e.Value.(*binding)
	b.active++
	b.used = now
	t.order.MoveToBack(e)
	return &Lease{table: t, key: key, of: b}
}

// Worker returns the worker of the session; false while none is bound.
func (l *Lease) Worker() (kv.Worker, bool) {
	l.table.mu.Lock()
	defer l.table.mu.Unlock()
	return l.of.worker, l.of.bound
}

// Bind binds the session to the worker that serves the request. Of requests that begin a
// session at the same time the first one decides: Bind changes a binding only when from, the
// worker that Worker returned, is still bound.
func (l *Lease) Bind(from, to kv.Worker) {
	l.table.mu.Lock()
	defer l.table.mu.Unlock()
	switch b := l.of; {
	case !b.bound:
		b.worker, b.bound = to, true
	case b.worker == to:
		l.table.stats.Followed++
	case b.worker == from:
		b.worker = to
		l.table.stats.Moved++
	}
}

// End ends the request. With final the session ends too, once no other request of it is in
// progress. Further calls do nothing.
func (l *Lease) End(final bool) {
	l.once.Do(func() {
		now := time.Now()
		t := l.table
		t.mu.Lock()
		defer t.mu.Unlock()
		l.of.active--
		l.of.used = now
		e := t.known[l.key]
		if e == nil || e.Value.(*binding) != l.of {
			return // evicted
		}
		if l.of.active == 0 && (final || !l.of.bound) {
			t.removeLocked(e)
			return
		}
		t.order.MoveToBack(e)
	})
}

// expireLocked removes the sessions that have been silent for the time to live.
func (t *Table) expireLocked(now time.Time) {
	for e := t.order.Front(); e != nil; {
		b, next := e.Value.(*binding), e.Next()
		if now.Sub(b.used) < t.ttl {
			return // the others were used later
		}
		if b.active > 0 {
			// A long request keeps its session.
			b.used = now
			t.order.MoveToBack(e)
		} else {
			t.removeLocked(e)
		}
		e = next
	}
}

// makeRoomLocked forgets the session with the oldest use when the table is full.
func (t *Table) makeRoomLocked() {
	if t.order.Len() < maxSessions {
		return
	}
	t.removeLocked(t.order.Front())
	t.stats.Evicted++
}

func (t *Table) removeLocked(e *list.Element) {
	delete(t.known, e.Value.(*binding).key)
	t.order.Remove(e)
}
