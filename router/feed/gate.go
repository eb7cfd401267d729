package feed

import (
	"slices"
	"time"

	"go.uber.org/zap"

	"github.com/blockyard-ai/blockyard/internal/kvevent"
	"github.com/blockyard-ai/blockyard/router/miss"
	"github.com/blockyard-ai/blockyard/router/source"
)

// Bounds of the answers in flight, estimated from announcements. A NATS server ends a
// connection with more than 64 MiB of buffered messages.
const (
	// bytesPerBlock is the size of one (block, tier) pair in an answer. bytesPerEvent is
	// the size of one missed event. Both are in bytes and rounded up.
	bytesPerBlock = 64
	bytesPerEvent = 64 << 10
	// maxRangeBytes bounds an answer with events: one window of chunks.
	maxRangeBytes = 4 << 20
	// maxSmallBytes bounds the sum of small answers. An answer above largeBytes is large and
	// not in the sum: the window of its query bounds it. At most maxLarge are in flight.
	maxSmallBytes = 16 << 20
	largeBytes    = 8 << 20
	maxLarge      = 2
	// partialMaxAge is how long the beginning of an interrupted answer is kept. The
	// publisher keeps the rest for ten seconds.
	partialMaxAge = 15 * time.Second
)

// ticket identifies the answer to one query of a feed.
type ticket struct {
	feed   *feed
	number uint64
}

// queryGate admits queries so that their answers fit into the memory of the
// connection. It is for one goroutine.
type queryGate struct {
	// inFlight is the number of queries in flight, at most slots.
	inFlight, slots int
	reserved        map[ticket]*reservation
	smallBytes      int // of the small answers in reserved
	largeAnswers    int // number of large answers in reserved
	// waiting are the feeds without room, in order. Each feed is in it once.
	waiting []*feed
}

// reservation is the room for one answer in the gate. interrupted is true while the feed
// keeps the beginning of an interrupted answer.
type reservation struct {
	bytes       int
	interrupted bool
}

func newQueryGate(slots int) queryGate {
	return queryGate{slots: slots, reserved: make(map[ticket]*reservation)}
}

// admit reserves room for the answer to query t, which has at most the given number of bytes.
// Without room admit returns false, and the feed of t waits in line for room. At most maxLarge
// large answers are in flight. The sum of the small ones is bounded, but one alone always fits.
func (g *queryGate) admit(t ticket, bytes int) bool {
	hasRoom := g.smallBytes == 0 || g.smallBytes+bytes <= maxSmallBytes
	if bytes > largeBytes {
		hasRoom = g.largeAnswers < maxLarge
	}
	if !hasRoom {
		g.wait(t.feed)
		return false
	}
	g.countAnswer(bytes, 1)
	g.reserved[t] = &reservation{bytes: bytes}
	return true
}

// wait makes a feed wait in line for room.
func (g *queryGate) wait(f *feed) {
	if !f.waitsForRoom {
		f.waitsForRoom = true
		g.waiting = append(g.waiting, f)
	}
}

// full reports whether as many queries are in flight as may be.
func (g *queryGate) full() bool { return g.inFlight == g.slots }

// resume moves the room of an interrupted answer to the query for the rest.
func (g *queryGate) resume(from, to ticket) {
	if r := g.reserved[from]; r != nil {
		delete(g.reserved, from)
		r.interrupted = false
		g.reserved[to] = r
	}
}

// finish releases the room of query t, which has been answered or has failed. The room stays
// reserved while the feed keeps the beginning of an interrupted dump, to query for the rest.
func (g *queryGate) finish(t ticket) {
	r := g.reserved[t]
	if r == nil {
		return
	}
	if r.interrupted = t.hasPartial(); !r.interrupted {
		g.release(t, r)
	}
}

// release gives back the room of ticket t.
func (g *queryGate) release(t ticket, r *reservation) {
	delete(g.reserved, t)
	g.countAnswer(r.bytes, -1)
}

// countAnswer adds n answers of a size in bytes to the sums. A negative n subtracts them.
func (g *queryGate) countAnswer(bytes, n int) {
	if bytes > largeBytes {
		g.largeAnswers += n
	} else {
		g.smallBytes += n * bytes
	}
}

// sweep drops the beginnings of answers that are older than partialMaxAge. It releases the
// room of beginnings that feeds have dropped.
func (g *queryGate) sweep(now time.Time) {
	for t, r := range g.reserved {
		if !r.interrupted {
			continue
		}
		if t.hasPartial() && now.Sub(t.feed.partialAt) > partialMaxAge {
			t.feed.partialDump = nil
		}
		if !t.hasPartial() {
			g.release(t, r)
		}
	}
	g.waiting = slices.DeleteFunc(g.waiting, func(f *feed) bool { // feeds without a query to send
		f.waitsForRoom = f.recovering
		return !f.recovering
	})
}

// kept reports whether the feed keeps the beginning of the answer.
func (t ticket) hasPartial() bool {
	return t.feed.partialDump != nil && t.feed.partialQuery == t.number
}

// next removes and returns the feed that has waited longest for room, nil for none.
func (g *queryGate) next() *feed {
	if len(g.waiting) == 0 {
		return nil
	}
	f := g.waiting[0]
	g.waiting[0] = nil
	g.waiting = g.waiting[1:]
	f.waitsForRoom = false
	return f
}

// answerBytes returns an upper bound of the bytes of the answer to the feed's next query. It
// estimates them from the last announcement: a dump has all blocks, another answer the events
// after the cursor.
func (f *feed) answerBytes() int {
	if f.needDump {
		return int(min(f.announcement.Blocks, source.MaxAnswerBlocks)) * bytesPerBlock
	}
	missed := max(f.announcement.LastEventID, f.cursor) - f.cursor
	return int(min(missed, maxRangeBytes/bytesPerEvent)) * bytesPerEvent
}

// askLocked appends the feed's next query to due, if one is due, fewer than gate.slots queries are
// in flight, and the gate can reserve the bytes of its answer. Otherwise a feed with a due query waits in
// line. f may be nil. The caller holds s.mu.
func (s *Set) askLocked(due []Query, f *feed, now time.Time) []Query {
	if f == nil || !f.due(now) {
		return due
	}
	if s.gate.full() {
		s.gate.wait(f)
		return due
	}
	next := ticket{f, f.lastQuery + 1}
	if f.partialDump != nil {
		// The interrupted answer already has room.
		s.gate.resume(ticket{f, f.partialQuery}, next)
	} else if !s.gate.admit(next, f.answerBytes()) {
		return due
	}
	s.gate.inFlight++
	q, number, _ := f.nextQuery(now)
	return append(due, Query{Publisher: f.announcement.PublisherID, Request: q, feed: f, number: number})
}

// Query is a query to a publisher. Pass its answer to Set.Answered.
type Query struct {
	Publisher uint64
	Request   kvevent.QueryRequest
	feed      *feed
	number    uint64
}

// maxAsked is how many waiting feeds may send a query after one answer.
const maxAsked = 4

// Answered applies the answer to a query, or its error, and returns the queries to
// send now.
func (s *Set) Answered(q *Query, a *source.Answer, err error, now time.Time) []Query {
	s.mu.Lock()
	defer s.mu.Unlock()
	if a != nil {
		s.handledEvents.Add(uint64(len(a.Events))) // these events count towards the next snapshot
	}
	q.feed.moment = miss.Moment{At: now}
	if err := q.feed.handleAnswer(q.number, a, err, now); err != nil {
		s.log.Warn("feed cannot be recovered yet", zap.Stringer("owner", q.feed.owner()),
			zap.Int("failures", q.feed.failures), zap.Error(err))
	}
	s.gate.inFlight--
	s.gate.finish(ticket{q.feed, q.number})
	s.recountLocked(q.feed)
	due := s.askLocked(nil, q.feed, now)
	// Several small answers may fit into the room of the answer that came.
	for range maxAsked {
		if s.gate.full() {
			break
		}
		due = s.askLocked(due, s.gate.next(), now)
	}
	return due
}
