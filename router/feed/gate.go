package feed

import (
	"slices"
	"time"

	"github.com/blockyard-ai/blockyard/router/source"
)

// Bounds of the answers that are on their way, by what announcements promise. A
// NATS server ends the router's connection when more than 64 MiB wait for it.
const (
	// promisedBlock is how many bytes one (block, tier) pair takes in an answer, and
	// promisedEvent how many a missed event is expected to take, rounded up.
	promisedBlock = 64
	promisedEvent = 64 << 10
	// promisedRange bounds an answer with events: those of one window.
	promisedRange = 4 << 20
	// maxSmallBytes bounds the sum of the small answers. Larger ones than largeBytes
	// are not part of the sum, as a window bounds what is on its way of each; there
	// are maxLarge of them.
	maxSmallBytes = 16 << 20
	largeBytes    = 8 << 20
	maxLarge      = 2
	// keepPartial is how long the beginning of an answer that was cut is kept. Its
	// publisher keeps the rest for ten seconds.
	keepPartial = 15 * time.Second
)

// ticket names the answer to one query of a feed.
type ticket struct {
	feed   *feed
	number uint64
}

// queryGate decides which queries may be sent now, so that their answers fit into
// the memory of whoever carries them. It is for one goroutine.
type queryGate struct {
	// inFlight is how many queries are on their way, at most slots.
	inFlight, slots int
	held            map[ticket]*room
	small           int // bytes of the small answers in held
	large           int // how many large ones there are
	// waiting are feeds that were refused, in order. Each is there once.
	waiting []*feed
}

// room is what an answer may take. The answer is on its way, or was cut and its feed
// keeps the beginning.
type room struct {
	bytes int
	cut   bool
}

func newQueryGate(slots int) queryGate {
	return queryGate{slots: slots, held: make(map[ticket]*room)}
}

// admit makes room for an answer; false when there is none. A small answer is
// always admitted alone.
func (g *queryGate) admit(t ticket, bytes int) bool {
	switch {
	case bytes > largeBytes && g.large == maxLarge,
		bytes <= largeBytes && g.small > 0 && g.small+bytes > maxSmallBytes:
		if !t.feed.refused {
			t.feed.refused = true
			g.waiting = append(g.waiting, t.feed)
		}
		return false
	}
	g.count(bytes, 1)
	g.held[t] = &room{bytes: bytes}
	return true
}

// resume keeps the room of an answer that was cut for its rest.
func (g *queryGate) resume(from, to ticket) {
	if r := g.held[from]; r != nil {
		delete(g.held, from)
		r.cut = false
		g.held[to] = r
	}
}

// settle gives back the room of an answer that has come, unless the feed keeps the
// beginning of it.
func (g *queryGate) settle(t ticket) {
	r := g.held[t]
	if r == nil {
		return
	}
	if r.cut = t.kept(); !r.cut {
		g.release(t, r)
	}
}

func (g *queryGate) release(t ticket, r *room) {
	delete(g.held, t)
	g.count(r.bytes, -1)
}

func (g *queryGate) count(bytes, n int) {
	if bytes > largeBytes {
		g.large += n
	} else {
		g.small += n * bytes
	}
}

// sweep forgets the beginnings of answers whose rest nobody asked for in time, and
// gives back the room of those that feeds have let go.
func (g *queryGate) sweep(now time.Time) {
	for t, r := range g.held {
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
		f.refused = f.recovering
		return !f.recovering
	})
}

// kept reports whether the feed keeps the beginning of the answer.
func (t ticket) kept() bool { return t.feed.partial != nil && t.feed.partialOf == t.number }

// next is the feed that was refused first; nil when none waits.
func (g *queryGate) next() *feed {
	if len(g.waiting) == 0 {
		return nil
	}
	f := g.waiting[0]
	g.waiting[0] = nil
	g.waiting = g.waiting[1:]
	f.refused = false
	return f
}

// promised is how many bytes the answer to the feed's next query has, at most, by
// the publisher's last announcement.
func (f *feed) promised() int {
	if f.dump {
		return int(min(f.announcement.Blocks, source.MaxAnswerBlocks)) * promisedBlock
	}
	missed := max(f.announcement.LastEventID, f.cursor) - f.cursor
	return int(min(missed, promisedRange/promisedEvent)) * promisedEvent
}

// askLocked appends what a feed wants to know now: nothing while it wants nothing, while
// there is no room for the answer, or without a feed.
func (s *Set) askLocked(due []Query, f *feed, now time.Time) []Query {
	if f == nil || s.gate.inFlight == s.gate.slots || !f.due(now) {
		return due
	}
	next := ticket{f, f.queries + 1}
	if f.partial != nil {
		// The room is that of the answer that was cut.
		s.gate.resume(ticket{f, f.partialOf}, next)
	} else if !s.gate.admit(next, f.promised()) {
		return due
	}
	s.gate.inFlight++
	q, number, _ := f.nextQuery(now)
	return append(due, Query{Publisher: f.announcement.PublisherID, Request: q, feed: f, number: number})
}
