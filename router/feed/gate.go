package feed

import (
	"slices"
	"time"

	"github.com/blockyard-ai/blockyard/router/source"
)

// Bounds of the answers in flight, estimated from announcements. A NATS server ends
// a connection for which more than 64 MiB wait.
const (
	// bytesPerBlock is the size of one (block, tier) pair in an answer, bytesPerEvent the
	// size of one missed event, both in bytes and rounded up.
	bytesPerBlock = 64
	bytesPerEvent = 64 << 10
	// maxRangeBytes bounds an answer with events: one window of chunks.
	maxRangeBytes = 4 << 20
	// maxSmallBytes bounds the sum of small answers. An answer above largeBytes is not in
	// the sum, because its window bounds it. At most maxLarge of them are in flight.
	maxSmallBytes = 16 << 20
	largeBytes    = 8 << 20
	maxLarge      = 2
	// keepPartial is how long the beginning of a broken answer is kept. The publisher
	// keeps the rest for ten seconds.
	keepPartial = 15 * time.Second
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

// reservation is the room for one answer in the gate. cut is true when the answer broke off and its feed
// keeps the beginning.
type reservation struct {
	bytes int
	cut   bool
}

func newQueryGate(slots int) queryGate {
	return queryGate{slots: slots, reserved: make(map[ticket]*reservation)}
}

// admit reserves room for the answer of ticket t, which has at most the given number of
// bytes. Without room admit returns false and the feed of t waits. A small answer always
// has room when no other small answer is in flight.
func (g *queryGate) admit(t ticket, bytes int) bool {
	switch {
	case bytes > largeBytes && g.largeAnswers == maxLarge,
		bytes <= largeBytes && g.smallBytes > 0 && g.smallBytes+bytes > maxSmallBytes:
		if !t.feed.waitsForRoom {
			t.feed.waitsForRoom = true
			g.waiting = append(g.waiting, t.feed)
		}
		return false
	}
	g.countAnswer(bytes, 1)
	g.reserved[t] = &reservation{bytes: bytes}
	return true
}

// resume moves the room of a broken answer to the query for its rest.
func (g *queryGate) resume(from, to ticket) {
	if r := g.reserved[from]; r != nil {
		delete(g.reserved, from)
		r.cut = false
		g.reserved[to] = r
	}
}

// settle releases the room of an answer that came, unless the feed keeps a part of it.
func (g *queryGate) settle(t ticket) {
	r := g.reserved[t]
	if r == nil {
		return
	}
	if r.cut = t.kept(); !r.cut {
		g.release(t, r)
	}
}

// release gives back the room of ticket t.
func (g *queryGate) release(t ticket, r *reservation) {
	delete(g.reserved, t)
	g.countAnswer(r.bytes, -1)
}

// countAnswer adds n answers of a size, in bytes, to the sums; n is negative to take them
// out.
func (g *queryGate) countAnswer(bytes, n int) {
	if bytes > largeBytes {
		g.largeAnswers += n
	} else {
		g.smallBytes += n * bytes
	}
}

// sweep drops the beginnings of answers whose rest nobody asked for in time, and
// releases the room of answers that feeds dropped.
func (g *queryGate) sweep(now time.Time) {
	for t, r := range g.reserved {
		if !r.cut {
			continue
		}
		if t.kept() && now.Sub(t.feed.partialAt) > keepPartial {
			t.feed.partial = nil
		}
		if !t.kept() {
			g.release(t, r)
		}
	}
	g.waiting = slices.DeleteFunc(g.waiting, func(f *feed) bool {
		f.waitsForRoom = f.recovering
		return !f.recovering
	})
}

// kept reports whether the feed keeps the beginning of the answer.
func (t ticket) kept() bool { return t.feed.partial != nil && t.feed.partialOf == t.number }

// next returns the feed that has waited longest for room; nil when none waits.
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

// answerBytes returns the size of the answer to the feed's next query, in bytes, at most.
func (f *feed) answerBytes() int {
	if f.dump {
		return int(min(f.announcement.Blocks, source.MaxAnswerBlocks)) * bytesPerBlock
	}
	missed := max(f.announcement.LastEventID, f.cursor) - f.cursor
	return int(min(missed, maxRangeBytes/bytesPerEvent)) * bytesPerEvent
}

// askLocked appends the feed's next query to due, if there is one and the gate has
// room for its answer. f may be nil.
func (s *Set) askLocked(due []Query, f *feed, now time.Time) []Query {
	if f == nil || s.gate.inFlight == s.gate.slots || !f.due(now) {
		return due
	}
	next := ticket{f, f.queries + 1}
	if f.partial != nil {
		// The room is the one of the broken answer.
		s.gate.resume(ticket{f, f.partialOf}, next)
	} else if !s.gate.admit(next, f.answerBytes()) {
		return due
	}
	s.gate.inFlight++
	q, number, _ := f.nextQuery(now)
	return append(due, Query{Publisher: f.announcement.PublisherID, Request: q, feed: f, number: number})
}
