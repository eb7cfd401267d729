package dynamo

import (
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/blockyard-ai/blockyard/internal/backoff"
	"github.com/blockyard-ai/blockyard/internal/kvevent"
)

// Bounds of recovering a source: as Dynamo's routers have them.
const (
	maxWaitingEvents = 1024
	maxTries         = 8
	firstRetry       = 200 * time.Millisecond
	lastRetry        = firstRetry << (maxTries - 2)
	// checkEvery is the silence after which a source is asked whether something
	// was lost, givenUpFor the pause after eight tries in vain.
	checkEvery = 10 * time.Second
	givenUpFor = 30 * time.Second
)

// source follows the events of one publisher of Dynamo and keeps a table up to
// date. It is told what arrives and when and says what to ask; it does no I/O
// and knows no clock. What its methods append to out are the changes that they
// made to the table.
type eventSource struct {
	origin origin
	table  *table

	// cursor is the id of the last event that the table contains, once started.
	cursor  uint64
	started bool
	// whole is set while the table holds everything that the publisher said;
	// doubted, while a message may have been lost that nobody can be asked for.
	whole, doubted bool

	// recovering: events wait, and the target is to be asked, for everything when
	// dump is set.
	recovering, dump bool
	waiting          []kvevent.RouterEvent
	tries            int
	// askAt is when the target is to be asked next: again while recovering, else
	// to check for a loss at the end of the stream.
	askAt time.Time
	// asked is the number of the query in flight, 0 without one; queries counts
	// them. from is the cursor when it was sent.
	asked, queries, from uint64
	counters             *Counters
}

func newEventSource(o origin, t *table, c *Counters, now time.Time) *eventSource {
	s := &eventSource{origin: o, table: t, counters: c, askAt: now}
	if s.recoverable() {
		s.recovering, s.dump = true, true
	}
	return s
}

func (s *eventSource) recoverable() bool { return s.origin.target.address != "" }

// exact reports whether the table equals what the publisher said.
func (s *eventSource) exact() bool {
	return s.whole && !s.doubted && !s.recovering && s.table.holes == 0
}

// events takes in the live events of one message, which are only borrowed.
func (s *eventSource) events(out, events []kvevent.RouterEvent, now time.Time) []kvevent.RouterEvent {
	for i := range events {
		if e := &events[i]; e.Owner.Worker() != s.origin.worker {
			// Half of a message would be worse than none: the ids show the hole.
			s.counters.Foreign++
			return out
		}
	}
	for i := range events {
		out = s.event(out, &events[i], now)
	}
	return out
}

func (s *eventSource) event(out []kvevent.RouterEvent, e *kvevent.RouterEvent, now time.Time) []kvevent.RouterEvent {
	switch {
	case s.started && e.ID <= s.cursor:
		s.counters.Stale++
	case e.Kind == kvevent.Cleared:
		// Nothing before it matters, lost or not.
		out = s.apply(out, e)
		s.whole = true
		s.recovered(now)
		return s.drain(out, now)
	case s.recovering:
		s.wait(e)
	case !s.started:
		s.whole = e.ID == 1
		out = s.apply(out, e)
	case e.ID == s.cursor+1:
		out = s.apply(out, e)
		if !s.dump {
			s.askAt = now.Add(checkEvery)
		}
	case s.recoverable():
		s.gap(now)
		s.wait(e)
	default:
		s.counters.Gaps++
		out = s.table.clear(out)
		s.whole = false
		out = s.apply(out, e)
	}
	return out
}

func (s *eventSource) apply(out []kvevent.RouterEvent, e *kvevent.RouterEvent) []kvevent.RouterEvent {
	s.cursor, s.started, s.doubted = e.ID, true, false
	s.counters.Applied++
	return s.table.apply(out, e)
}

// gap begins a recovery of what follows the cursor. A check that is in flight
// asks for the same, but its answer may be older than the gap.
func (s *eventSource) gap(now time.Time) {
	s.counters.Gaps++
	s.recovering, s.dump, s.tries, s.askAt, s.asked = true, false, 0, now, 0
}

func (s *eventSource) wait(e *kvevent.RouterEvent) {
	if len(s.waiting) == maxWaitingEvents {
		// The hole that this makes is asked for afterwards.
		s.waiting = slices.Delete(s.waiting, 0, 1)
		s.counters.Overflowed++
	}
	kept := *e
	kept.Blocks, kept.Removed = slices.Clone(e.Blocks), slices.Clone(e.Removed)
	s.waiting = append(s.waiting, kept)
}

// suspect says that messages may have been lost.
func (s *eventSource) suspect(now time.Time) {
	if s.recoverable() && !s.recovering {
		s.askAt = now
	}
	s.doubted = s.doubted || !s.recoverable() // until the next event shows whether there is a hole
}

// nextQuery is the query to send now, if there is one, and its number.
func (s *eventSource) nextQuery(now time.Time) (q kvevent.DynamoQuery, number uint64, due bool) {
	if !s.recoverable() || s.asked != 0 || now.Before(s.askAt) {
		return q, 0, false
	}
	s.queries++
	s.asked, s.from = s.queries, s.cursor
	s.counters.Queries++
	q.Worker, q.KnowsDumpFailed = s.origin.worker, true
	if s.dump {
		// Events wait, so that what the dump replaces is not newer than it.
		s.recovering = true
	} else {
		q.StartID, q.HasStart = s.cursor+1, true
	}
	return q, s.asked, true
}

// answered takes in the answer to query number, or the error that came instead,
// and returns the error, or why the answer was of no use.
func (s *eventSource) answered(out []kvevent.RouterEvent, number uint64, a *kvevent.QueryReply, err error, now time.Time) ([]kvevent.RouterEvent, error) {
	if number != s.asked {
		return out, nil
	}
	s.asked = 0
	if err == nil {
		out, err = s.takeIn(out, a)
	}
	if err != nil {
		s.counters.QueryFailures++
		return s.failed(out, now), err
	}
	if s.recovering {
		s.counters.Recovered++
	}
	s.recovered(now)
	return s.drain(out, now), nil
}

// recovered ends a recovery or a check.
func (s *eventSource) recovered(now time.Time) {
	s.recovering, s.dump, s.tries, s.asked = false, false, 0, 0
	s.askAt = now.Add(checkEvery)
}

// errUnusable is wrapped by errors of answers that do not fit what is known
// here, after which everything is asked for.
var errUnusable = errors.New("answer does not fit")

// takeIn makes the answer part of the table.
func (s *eventSource) takeIn(out []kvevent.RouterEvent, a *kvevent.QueryReply) ([]kvevent.RouterEvent, error) {
	for i := range a.Events {
		if e := &a.Events[i]; e.Owner.Worker() != s.origin.worker {
			s.dump = true
			return out, fmt.Errorf("%w: event %d is of %s", errUnusable, e.ID, e.Owner)
		}
	}
	switch {
	case a.Kind == kvevent.QueryTreeDump:
		if a.LastEventID < s.cursor && !s.recovering {
			return out, nil // older than what came meanwhile
		}
		out = s.table.replace(out, a.Events)
		s.cursor, s.started, s.whole = a.LastEventID, true, true
		s.counters.Dumps++
		return out, nil
	case a.Kind == kvevent.QueryEvents && !s.dump:
		for i := range a.Events {
			// Holes in an answer are events that are not modelled.
			if e := &a.Events[i]; e.ID > s.cursor {
				out = s.apply(out, e)
			}
		}
		s.cursor = max(s.cursor, a.LastEventID)
		return out, nil
	case a.Kind == kvevent.QueryTooNew && a.LastEventID == s.from && !s.recovering:
		return out, nil // nothing was lost
	}
	s.dump = true
	return out, fmt.Errorf("%w: %s, newest event %d, cursor %d %s", errUnusable, a.Kind, a.LastEventID, s.cursor, a.Message)
}

// failed plans the next try. After the last one the events that waited are taken
// as they are, and everything is asked for again from time to time.
func (s *eventSource) failed(out []kvevent.RouterEvent, now time.Time) []kvevent.RouterEvent {
	if !s.recovering {
		s.askAt = now.Add(checkEvery)
		if s.dump {
			s.askAt = now
		}
		return out
	}
	if s.tries++; s.tries < maxTries {
		s.askAt = now.Add(backoff.Nth(backoff.Doubling(firstRetry, lastRetry), s.tries))
		return out
	}
	s.counters.GivenUp++
	s.recovering, s.whole = false, false
	for i := range s.waiting {
		if e := &s.waiting[i]; !s.started || e.ID > s.cursor {
			out = s.apply(out, e)
		}
	}
	s.waiting = nil
	s.dump, s.tries, s.askAt = true, maxTries-1, now.Add(givenUpFor)
	return out
}

// drain takes in the events that waited, up to the next hole.
func (s *eventSource) drain(out []kvevent.RouterEvent, now time.Time) []kvevent.RouterEvent {
	waiting := s.waiting
	s.waiting = nil
	for i := range waiting {
		out = s.event(out, &waiting[i], now)
	}
	return out
}
