package feed

import (
	"errors"
	"time"

	"github.com/blockyard-ai/blockyard/internal/backoff"
	"github.com/blockyard-ai/blockyard/internal/kvevent"
	"github.com/blockyard-ai/blockyard/router/source"
)

// nextQuery is the query to send now, if there is one, and its number.
func (f *feed) nextQuery(now time.Time) (q kvevent.QueryRequest, number uint64, due bool) {
	if !f.due(now) {
		return q, 0, false
	}
	f.queries++
	f.query = f.queries
	f.counters.Queries++
	switch {
	case f.partial != nil:
		q.DumpID, q.FirstChunk = f.partial.DumpID, f.partial.NextChunk
		f.partialOf = f.query
	case !f.dump:
		q.StartID, q.HasStart = f.cursor+1, true
	case f.overflowed:
		// A dump that is asked for now includes these events. Their room is for the events
		// that come while the dump is read.
		f.waiting, f.waitingBlocks, f.overflowed = nil, 0, false
	}
	return q, f.query, true
}

// due reports whether there is a query to send now.
func (f *feed) due(now time.Time) bool {
	return f.recovering && f.query == 0 && !now.Before(f.retryAt)
}

// errVoid is wrapped by errors of answers that arrived and were of no use, so
// that asking the same again would be of no use either.
var errVoid = errors.New("answer is void")

// answered takes in the answer to query number, or the error that came instead.
// The result is the error, or why the answer was of no use; nil for an answer
// that nobody waits for any more.
func (f *feed) answered(number uint64, a *source.Answer, err error, now time.Time) error {
	if number != f.query || !f.recovering {
		return nil
	}
	f.query = 0
	before := f.cursor
	if a != nil && f.partial != nil {
		f.partial.Extend(a)
		a = f.partial
	}
	switch {
	case err == nil:
		f.partial = nil
		err = f.takeIn(a)
	case a != nil:
		f.cutShort(number, a, now)
	}
	if err != nil {
		f.failures++
		f.counters.QueryFailures++
		f.retryAt = now.Add(backoff.Nth(backoff.Jittered(firstRetry, lastRetry), f.failures))
		f.dump = f.dump || errors.Is(err, errVoid)
		return err
	}
	f.synced = true
	if a.Kind == kvevent.QueryEvents && before < f.cursor && f.cursor < f.known() {
		f.failures = 0 // The answer was a part of what is missing.
		return nil
	}
	f.recovered(now)
	f.weigh()
	return nil
}

// cutShort keeps the beginning of an answer for the next query, which asks for the
// rest of it.
func (f *feed) cutShort(number uint64, a *source.Answer, now time.Time) {
	f.counters.CutDumps++
	f.failures = 0
	f.dump = true
	f.partial, f.partialOf, f.partialAt = a, number, now
	if a.Size() > source.MaxAnswerBlocks {
		f.partial = nil
	}
}

// known is the id of the last event that is known to be missing, up to the first one
// that waits.
func (f *feed) known() uint64 {
	last := f.announcement.LastEventID
	if len(f.waiting) > 0 {
		last = min(last, f.waiting[0].ID-1)
	}
	return last
}

// Bounds of the time between two tries to get back what the index did not keep of an
// owner. What contradicts other owners' blocks is lost again each time.
const (
	firstRefill = 10 * time.Second
	lastRefill  = time.Hour
)

// refillLocked asks a publisher for everything when the index has lost some of it and
// has room for that now. One feed at a time: the room of several would be the same.
func (s *Set) refillLocked(f *feed, now time.Time) {
	switch {
	case f.lost == 0:
		f.refills = 0
		return
	case f.recovering, now.Before(f.refillAt),
		s.refilling != nil && s.refilling.recovering && now.Before(s.refilling.refillAt),
		!f.blocks.HasRoom(f.lost):
		return
	}
	s.refilling = f
	f.refills++
	f.refillAt = now.Add(backoff.Nth(backoff.Doubling(firstRefill, lastRefill), f.refills))
	f.recover(causeLost, now)
}
