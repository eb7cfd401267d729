package feed

import (
	"errors"
	"time"

	"github.com/blockyard-ai/blockyard/internal/backoff"
	"github.com/blockyard-ai/blockyard/internal/kvevent"
	"github.com/blockyard-ai/blockyard/router/source"
)

// nextQuery returns the query to send now and its number, and marks the query as in flight.
// The query asks for the rest of a partial dump, else for the events after the cursor. When the
// feed needs a dump, the query is zero, which asks for a whole dump.
// due is false when the feed has no query to send.
func (f *feed) nextQuery(now time.Time) (q kvevent.QueryRequest, number uint64, due bool) {
	if !f.due(now) {
		return q, 0, false
	}
	f.lastQuery++
	f.inFlight = f.lastQuery
	f.counters.Queries++
	switch {
	case f.partialDump != nil:
		q.DumpID, q.FirstChunk = f.partialDump.DumpID, f.partialDump.NextChunk
		f.partialQuery = f.inFlight
	case !f.needDump:
		q.StartID, q.HasStart = f.cursor+1, true
	case f.parkedOverflowed:
		// The dump will include the waiting events. Make room for the events that come while
		// the dump is read.
		f.parkedEvents, f.parkedBlocks, f.parkedOverflowed = nil, 0, false
	}
	return q, f.inFlight, true
}

// due reports whether the feed has a query to send now.
func (f *feed) due(now time.Time) bool {
	return f.recovering && f.inFlight == 0 && !now.Before(f.retryAt)
}

// errUnusable marks an answer that arrived and is unusable. The next query asks for a dump.
var errUnusable = errors.New("answer is unusable")

// handleAnswer applies the answer to query number, or handles the error of the query. The
// result is err, or says why the answer was unusable; the feed then asks again after a
// pause. Answers to earlier queries are ignored.
//
// An answer that closes a part of the gap leaves the feed recovering, and the next query is due at
// once. Any other answer ends the recovery: the publisher has sent all it has. If a gap remains,
// the next event or announcement finds it and begins another recovery.
//
// An answer with err is the beginning of an interrupted dump. The next query asks for the
// rest.
func (f *feed) handleAnswer(number uint64, a *source.Answer, err error, now time.Time) error {
	if number != f.inFlight || !f.recovering {
		return nil
	}
	f.inFlight = 0
	before := f.cursor
	if a != nil && f.partialDump != nil { // a is the rest of the dump that the feed has begun to read
		f.partialDump.Extend(a)
		a = f.partialDump
	}
	switch {
	case err == nil:
		f.partialDump = nil
		err = f.applyAnswer(a)
	case a != nil:
		f.keepPartial(number, a, now)
	}
	if err != nil {
		f.failures++
		f.counters.QueryFailures++
		f.retryAt = now.Add(backoff.Nth(backoff.Jittered(firstRetry, lastRetry), f.failures))
		f.needDump = f.needDump || errors.Is(err, errUnusable)
		return err
	}
	f.everComplete = true
	if a.Kind == kvevent.QueryEvents && before < f.cursor && f.cursor < f.lastMissing() {
		f.failures = 0 // The answer closed a part of the gap.
		return nil
	}
	f.endRecovery(now)
	f.updateLost()
	return nil
}

// keepPartial keeps a, the beginning of an interrupted dump that answered query number, so that
// the next query asks only for the rest. A beginning above source.MaxAnswerBlocks is dropped.
func (f *feed) keepPartial(number uint64, a *source.Answer, now time.Time) {
	f.counters.CutDumps++
	f.failures = 0 // the recovery has made progress
	f.needDump = true
	f.partialDump, f.partialQuery, f.partialAt = a, number, now
	if a.Size() > source.MaxAnswerBlocks {
		f.partialDump = nil
	}
}

// lastMissing returns the id of the last event of the first gap. The gap ends before the
// first waiting event, or with the last announced event.
func (f *feed) lastMissing() uint64 {
	last := f.announcement.LastEventID
	if len(f.parkedEvents) > 0 {
		last = min(last, f.parkedEvents[0].ID-1)
	}
	return last
}

// Bounds of the pause between two attempts to get lost pairs back. Pairs that contradict
// the blocks of other owners are lost again each time.
const (
	firstRefill = 10 * time.Second
	lastRefill  = time.Hour
)

// refillLocked begins a recovery if the index lacks (block, tier) pairs of the owner and has room
// for them now. The Set calls it at each announcement. One feed refills at a time, because two
// would count the same room.
func (s *Set) refillLocked(f *feed, now time.Time) {
	if f.lostPairs == 0 {
		f.refills = 0
		return
	}
	otherRefills := s.refillingFeed != nil && s.refillingFeed.recovering && now.Before(s.refillingFeed.refillAt)
	if f.recovering || now.Before(f.refillAt) || otherRefills || !f.index.HasRoom(f.lostPairs) {
		return
	}
	s.refillingFeed = f
	f.refills++
	f.refillAt = now.Add(backoff.Nth(backoff.Doubling(firstRefill, lastRefill), f.refills))
	f.beginRecovery(causeLost, now)
}
