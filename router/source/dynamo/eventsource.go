package dynamo

import (
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/blockyard-ai/blockyard/internal/backoff"
	"github.com/blockyard-ai/blockyard/internal/kvevent"
)

// Bounds of recovering a source; Dynamo's routers have the same.
const (
	maxWaitingEvents = 1024
	maxTries         = 8
	firstRetry       = 200 * time.Millisecond
	lastRetry        = firstRetry << (maxTries - 2)
	// checkEvery is the silence after which a source is asked whether something was lost,
	// givenUpFor the pause after eight failed tries.
	checkEvery = 10 * time.Second
	givenUpFor = 30 * time.Second
)

// eventSource follows the events of one Dynamo publisher and keeps a table up to date.
// Callers pass in events, answers and the time, and send the queries that nextQuery
// returns. Methods append their changes of the table to out. An eventSource does no I/O
// and reads no clock.
type eventSource struct {
	origin origin
	table  *table

	// cursor is the id of the last applied event, once started.
	cursor  uint64
	started bool
	// complete is true while the table has all that the publisher said. doubted is true while
	// a message may have been lost and nobody can be asked.
	complete, doubted bool

	// recovering is true while events wait for an answer. dump is true when everything is
	// to be asked for.
	recovering, dump bool
	waiting          []kvevent.RouterEvent
	tries            int
	// askAt is when to ask next: again during a recovery, otherwise to find a loss at the
	// end of the stream.
	askAt time.Time
	// query is the number of the query in flight, 0 for none; queries counts queries. from
	// is the cursor when the query was sent.
	query, queries, from uint64
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
	return s.complete && !s.doubted && !s.recovering && s.table.holes == 0
}

// events applies the live events of one message. It only borrows them.
func (s *eventSource) events(out, events []kvevent.RouterEvent, now time.Time) []kvevent.RouterEvent {
	for i := range events {
		if e := &events[i]; e.Owner.Worker() != s.origin.worker {
			// The whole message is dropped: half of it would hide the hole.
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
		// No earlier event matters.
		out = s.apply(out, e)
		s.complete = true
		s.recovered(now)
		return s.drain(out, now)
	case s.recovering:
		s.wait(e)
	case !s.started:
		s.complete = e.ID == 1
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
		s.complete = false
		out = s.apply(out, e)
	}
	return out
}

func (s *eventSource) apply(out []kvevent.RouterEvent, e *kvevent.RouterEvent) []kvevent.RouterEvent {
	s.cursor, s.started, s.doubted = e.ID, true, false
	s.counters.Applied++
	return s.table.apply(out, e)
}

// gap begins a recovery. The answer to a check in flight may be older than the gap.
func (s *eventSource) gap(now time.Time) {
	s.counters.Gaps++
	s.recovering, s.dump, s.tries, s.askAt, s.query = true, false, 0, now, 0
}

func (s *eventSource) wait(e *kvevent.RouterEvent) {
	if len(s.waiting) == maxWaitingEvents {
		// The hole is asked for afterwards.
		s.waiting = slices.Delete(s.waiting, 0, 1)
		s.counters.Overflowed++
	}
	kept := *e
	kept.Blocks, kept.Removed = slices.Clone(e.Blocks), slices.Clone(e.Removed)
	s.waiting = append(s.waiting, kept)
}

// suspect notes that messages may have been lost.
func (s *eventSource) suspect(now time.Time) {
	if s.recoverable() && !s.recovering {
		s.askAt = now
	}
	s.doubted = s.doubted || !s.recoverable() // until the next event shows whether there is a hole
}

// nextQuery returns the query to send now and its number; due is false without one.
func (s *eventSource) nextQuery(now time.Time) (q kvevent.DynamoQuery, number uint64, due bool) {
	if !s.recoverable() || s.query != 0 || now.Before(s.askAt) {
		return q, 0, false
	}
	s.queries++
	s.query, s.from = s.queries, s.cursor
	s.counters.Queries++
	q.Worker, q.KnowsDumpFailed = s.origin.worker, true
	if s.dump {
		// Events wait, so that the dump is not older than the table.
		s.recovering = true
	} else {
		q.StartID, q.HasStart = s.cursor+1, true
	}
	return q, s.query, true
}

// answered applies the answer to query number, or its error. It returns that error, or why
// the answer was unusable.
func (s *eventSource) answered(out []kvevent.RouterEvent, number uint64, a *kvevent.QueryReply, err error, now time.Time) ([]kvevent.RouterEvent, error) {
	if number != s.query {
		return out, nil
	}
	s.query = 0
	if err == nil {
		out, err = s.applyAnswer(out, a)
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
	s.recovering, s.dump, s.tries, s.query = false, false, 0, 0
	s.askAt = now.Add(checkEvery)
}

// errUnusable is wrapped by errors of answers that contradict the table. The next query
// asks for everything.
var errUnusable = errors.New("answer does not fit")

// applyAnswer applies the answer to the table.
func (s *eventSource) applyAnswer(out []kvevent.RouterEvent, a *kvevent.QueryReply) ([]kvevent.RouterEvent, error) {
	for i := range a.Events {
		if e := &a.Events[i]; e.Owner.Worker() != s.origin.worker {
			s.dump = true
			return out, fmt.Errorf("%w: event %d is of %s", errUnusable, e.ID, e.Owner)
		}
	}
	switch {
	case a.Kind == kvevent.QueryTreeDump:
		if a.LastEventID < s.cursor && !s.recovering {
			return out, nil // older than the live events
		}
		out = s.table.replace(out, a.Events)
		s.cursor, s.started, s.complete = a.LastEventID, true, true
		s.counters.Dumps++
		return out, nil
	case a.Kind == kvevent.QueryEvents && !s.dump:
		for i := range a.Events {
			// A hole in an answer is an event that is not modelled.
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

// failed plans the next try. After the last try the waiting events are applied with their
// holes, and everything is asked for from time to time.
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
	s.recovering, s.complete = false, false
	for i := range s.waiting {
		if e := &s.waiting[i]; !s.started || e.ID > s.cursor {
			out = s.apply(out, e)
		}
	}
	s.waiting = nil
	s.dump, s.tries, s.askAt = true, maxTries-1, now.Add(givenUpFor)
	return out
}

// drain applies the waiting events up to the next hole.
func (s *eventSource) drain(out []kvevent.RouterEvent, now time.Time) []kvevent.RouterEvent {
	waiting := s.waiting
	s.waiting = nil
	for i := range waiting {
		out = s.event(out, &waiting[i], now)
	}
	return out
}
