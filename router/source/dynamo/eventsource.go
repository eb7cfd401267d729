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
	maxAttempts      = 8
	firstRetry       = 200 * time.Millisecond
	lastRetry        = firstRetry << (maxAttempts - 2)
	// checkInterval is the silence after which a source is queried for lost events.
	// givenUpPause is the pause after maxAttempts failed attempts.
	checkInterval = 10 * time.Second
	givenUpPause  = 30 * time.Second
)

// eventSource follows the events of one Dynamo publisher and keeps a table up to date. It
// does no I/O and reads no clock. Callers pass in events, answers and the time, and send
// the queries of nextQuery. Methods append their changes of the table to out.
type eventSource struct {
	origin origin
	table  *table

	// cursor is the id of the last applied event, once started.
	cursor  uint64
	started bool
	// complete is true while the table has every block that the publisher reported.
	// lossPossible is true while a message may be lost and there is no recovery target.
	complete, lossPossible bool

	// recovering is true while events wait for an answer. needDump is true when the next
	// query must ask for a dump.
	recovering, needDump bool
	waiting              []kvevent.RouterEvent
	attempts             int
	// queryAt is when to send the next query. During a recovery it is the next attempt,
	// otherwise a check for lost last events.
	queryAt time.Time
	// inFlight is the number of the query in flight, 0 for none. lastQuery is the last
	// number given. cursorAtQuery is the cursor when the query was sent.
	inFlight, lastQuery, cursorAtQuery uint64
	counters                           *Counters
}

func newEventSource(o origin, t *table, c *Counters, now time.Time) *eventSource {
	s := &eventSource{origin: o, table: t, counters: c, queryAt: now}
	if s.recoverable() {
		s.recovering, s.needDump = true, true
	}
	return s
}

// recoverable reports whether the source has a recovery target.
func (s *eventSource) recoverable() bool { return s.origin.target.address != "" }

// exact reports whether the table surely has the publisher's blocks.
func (s *eventSource) exact() bool {
	return s.complete && !s.lossPossible && !s.recovering && s.table.holes == 0
}

// applyMessage applies the live events of one message to the table and appends the table's changes
// to out. It does not keep events.
func (s *eventSource) applyMessage(out, events []kvevent.RouterEvent, now time.Time) []kvevent.RouterEvent {
	for i := range events {
		if e := &events[i]; e.Owner.Worker() != s.origin.worker {
			// Drop the whole message: applying a part would hide the gap.
			s.counters.Foreign++
			return out
		}
	}
	for i := range events {
		out = s.handle(out, &events[i], now)
	}
	return out
}

// handle handles one live event: it applies the event to the table, queues it while lost events are
// recovered, or finds a gap and begins a recovery. s.cursor is the id of the last applied event;
// s.complete is false while blocks may be missing. It appends the table's changes to out.
func (s *eventSource) handle(out []kvevent.RouterEvent, e *kvevent.RouterEvent, now time.Time) []kvevent.RouterEvent {
	switch {
	case s.started && e.ID <= s.cursor:
		s.counters.Stale++
	case e.Kind == kvevent.Cleared:
		// A clear makes every earlier event obsolete, lost or not.
		out = s.apply(out, e)
		s.complete = true
		s.endRecovery(now)
		return s.applyWaiting(out, now)
	case s.recovering:
		s.queue(e)
	case !s.started:
		s.complete = e.ID == 1 // else earlier events are missing
		out = s.apply(out, e)
	case e.ID == s.cursor+1:
		out = s.apply(out, e)
		if !s.needDump { // the query for a dump keeps its time
			s.queryAt = now.Add(checkInterval)
		}
	case s.recoverable():
		s.beginRecovery(now)
		s.queue(e)
	default: // a gap that cannot be repaired: as in Dynamo, it empties the rank
		s.counters.Gaps++
		out = s.table.clear(out)
		s.complete = false
		out = s.apply(out, e)
	}
	return out
}

// apply applies an event to the table and moves the cursor.
func (s *eventSource) apply(out []kvevent.RouterEvent, e *kvevent.RouterEvent) []kvevent.RouterEvent {
	s.cursor, s.started, s.lossPossible = e.ID, true, false
	s.counters.Applied++
	return s.table.apply(out, e)
}

// beginRecovery begins a recovery after a gap. It disowns a check in flight, whose answer
// may be older than the gap.
func (s *eventSource) beginRecovery(now time.Time) {
	s.counters.Gaps++
	s.recovering, s.needDump, s.attempts, s.queryAt, s.inFlight = true, false, 0, now, 0
}

// queue keeps a copy of a live event until the recovery ends. A full queue drops its oldest event.
func (s *eventSource) queue(e *kvevent.RouterEvent) {
	if len(s.waiting) == maxWaitingEvents {
		// The next recovery queries for the dropped event.
		s.waiting = slices.Delete(s.waiting, 0, 1)
		s.counters.Overflowed++
	}
	copied := *e
	copied.Blocks, copied.Removed = slices.Clone(e.Blocks), slices.Clone(e.Removed)
	s.waiting = append(s.waiting, copied)
}

// suspectLoss records that messages may have been lost.
func (s *eventSource) suspectLoss(now time.Time) {
	if s.recoverable() && !s.recovering {
		s.queryAt = now
	}
	s.lossPossible = s.lossPossible || !s.recoverable() // the next event shows whether there is a gap
}

// nextQuery returns the query to send to the recovery target now: for a dump, or for the events
// after the cursor (the last applied event). number is for handleAnswer. due is false when no
// query is to be sent: there is no target, one is in flight, or its time has not come.
func (s *eventSource) nextQuery(now time.Time) (q kvevent.DynamoQuery, number uint64, due bool) {
	if !s.recoverable() || s.inFlight != 0 || now.Before(s.queryAt) {
		return q, 0, false
	}
	s.lastQuery++
	s.inFlight, s.cursorAtQuery = s.lastQuery, s.cursor
	s.counters.Queries++
	q.Worker, q.KnowsDumpFailed = s.origin.worker, true
	if s.needDump {
		s.recovering = true // queues live events, so that the dump is not older than the table
	} else {
		q.StartID, q.HasStart = s.cursor+1, true
	}
	return q, s.inFlight, true
}

// handleAnswer applies the answer to query number, or schedules a retry after its error err. It
// appends the table's changes to out. The error is err, or says why the answer was unusable. Answers
// to earlier queries are ignored.
func (s *eventSource) handleAnswer(out []kvevent.RouterEvent, number uint64, a *kvevent.QueryReply, err error, now time.Time) ([]kvevent.RouterEvent, error) {
	if number != s.inFlight {
		return out, nil
	}
	s.inFlight = 0
	if err == nil {
		out, err = s.applyAnswer(out, a)
	}
	if err != nil {
		s.counters.QueryFailures++
		return s.scheduleRetry(out, now), err
	}
	if s.recovering {
		s.counters.Recovered++
	}
	s.endRecovery(now)
	return s.applyWaiting(out, now), nil
}

// endRecovery ends a recovery or a check.
func (s *eventSource) endRecovery(now time.Time) {
	s.recovering, s.needDump, s.attempts, s.inFlight = false, false, 0, 0
	s.queryAt = now.Add(checkInterval)
}

// errUnusable marks an answer that contradicts the table. The next query asks for a dump.
var errUnusable = errors.New("answer contradicts the events")

// applyAnswer applies an answer to a query for lost events to the table, and appends the table's
// changes to out. The answer has the events after the cursor (the last applied event), or a dump
// of all blocks. After an error, which wraps errUnusable, the next query asks for a dump.
func (s *eventSource) applyAnswer(out []kvevent.RouterEvent, a *kvevent.QueryReply) ([]kvevent.RouterEvent, error) {
	for i := range a.Events {
		if e := &a.Events[i]; e.Owner.Worker() != s.origin.worker {
			s.needDump = true
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
	case a.Kind == kvevent.QueryEvents && !s.needDump:
		for i := range a.Events {
			// A gap within an answer is an event of a kind that the decoder skips.
			if e := &a.Events[i]; e.ID > s.cursor {
				out = s.apply(out, e)
			}
		}
		s.cursor = max(s.cursor, a.LastEventID)
		return out, nil
	case a.Kind == kvevent.QueryTooNew && a.LastEventID == s.cursorAtQuery && !s.recovering:
		return out, nil // nothing was lost
	}
	s.needDump = true
	return out, fmt.Errorf("%w: %s, newest event %d, cursor %d %s", errUnusable, a.Kind, a.LastEventID, s.cursor, a.Message)
}

// scheduleRetry sets the time of the next query after one that failed. During a recovery, after the
// last of maxAttempts, it applies the events that waited, despite the gap before them; the rank
// is then incomplete. From then on it asks for a dump every givenUpPause.
func (s *eventSource) scheduleRetry(out []kvevent.RouterEvent, now time.Time) []kvevent.RouterEvent {
	if !s.recovering { // a check for lost last events has failed
		s.queryAt = now.Add(checkInterval)
		if s.needDump {
			s.queryAt = now
		}
		return out
	}
	if s.attempts++; s.attempts < maxAttempts {
		s.queryAt = now.Add(backoff.Nth(backoff.Doubling(firstRetry, lastRetry), s.attempts))
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
	// One more failure gives up again.
	s.needDump, s.attempts, s.queryAt = true, maxAttempts-1, now.Add(givenUpPause)
	return out
}

// applyWaiting handles the events that waited for the end of a recovery, and appends the table's
// changes to out. A gap between them begins another recovery, for which the rest waits.
func (s *eventSource) applyWaiting(out []kvevent.RouterEvent, now time.Time) []kvevent.RouterEvent {
	waiting := s.waiting
	s.waiting = nil
	for i := range waiting {
		out = s.handle(out, &waiting[i], now)
	}
	return out
}
