package feed

import (
	"fmt"
	"slices"
	"time"

	"github.com/blockyard-ai/blockyard/internal/backoff"
	"github.com/blockyard-ai/blockyard/internal/kv"
	"github.com/blockyard-ai/blockyard/internal/kvevent"
	"github.com/blockyard-ai/blockyard/router/source"
)

// residency is the index of a feed's blocks; *index.Index implements it.
type residency interface {
	Apply(e *kvevent.RouterEvent) error
	Replace(o kv.Owner, events []kvevent.RouterEvent) error
	Digest(o kv.Owner) (sum, pairs uint64)
	// Lost returns how many (block, tier) pairs of the owner the index does not hold:
	// there was no room for them, or they contradict the blocks of other owners.
	Lost(o kv.Owner) uint64
	// HasRoom reports whether the index has room for that many more pairs.
	HasRoom(pairs uint64) bool
}

// Bounds of the events that wait while a feed recovers. The feed asks for events
// beyond them once more, after the recovery.
const (
	maxWaitingEvents = 4096
	maxWaitingBlocks = 1 << 18
)

// Bounds of the pause between two tries to recover a feed.
const (
	firstRetry = 200 * time.Millisecond
	lastRetry  = 5 * time.Second
	// lastRepair bounds the pause between two repairs whose digest still differs.
	lastRepair = time.Minute
	// A cursor is wrong after maxBehind announcements in a row that end before it,
	// over at least minBehind. Announcements that waited behind events come at once.
	maxBehind = 3
	minBehind = time.Second
)

// feed follows the stream of one publisher and keeps the blocks of the owner equal
// to what the publisher holds. Callers pass in messages and the time, and send the
// queries that nextQuery returns. A feed does no I/O and reads no clock. It is for
// one goroutine.
//
// A feed applies events in the order of their ids, without holes. An event at or
// below the cursor is dropped, cursor+1 is applied, and an event above that shows a
// gap. In a gap events wait while the feed asks the publisher for the missing ones.
// The answer is those events or a dump, which replaces the owner's blocks. An
// announcement shows a gap at the end of the stream. When no event is missing, the
// announced digest shows whether the blocks differ.
type feed struct {
	announcement kvevent.Announcement
	// seen is when the last announcement was sent: the time of its arrival minus the age
	// that the stream reports. seen moves on while the router or the source pauses.
	seen   time.Time
	source int // the source of the last announcement; see source.Frame
	// rival is the last fenced publisher of the same owner that announced itself, 0 for
	// none. rivalSeen is when it did.
	rival     uint64
	rivalSeen time.Time
	// replayed is true when the last announcement was read from a stream while its
	// source was disconnected. A reconnection does not renew seen then.
	replayed bool
	blocks   residency
	// model is the owner's model. Its index is blocks.
	model *modelFeeds
	// engine is the last announced incarnation of the owner's engine, by this publisher
	// or the previous one; 0 for none.
	engine uint64

	// cursor is the id of the last applied event.
	cursor uint64
	// synced is true once the blocks have been complete.
	synced bool
	// diverged is true while the blocks differ from the publisher's and no event is
	// missing.
	diverged bool
	// lost is how many pairs the index does not hold, as of the last message. The feed
	// asks for them only when the index has room: they would evict others.
	lost uint64
	// refills counts tries to get lost pairs back since lost was 0. The next try is not
	// before refillAt.
	refills  int
	refillAt time.Time
	// repairs counts repairs since the digests last agreed. The next one is not before
	// repairAt.
	repairs  int
	repairAt time.Time
	// behind counts the latest announcements in a row whose last event id is below the
	// cursor. The first of them came at behindAt.
	behind   int
	behindAt time.Time

	recovery
	// waitsForRoom is true while the feed waits for room in the queryGate.
	waitsForRoom bool
	counters     Counters
	// contribution is what the tally of the model counts for this feed.
	contribution contribution
}

// recovery is the state of a feed that recovers.
type recovery struct {
	recovering bool
	cause      cause
	// dump is true when the feed asks for everything, not only for missing events.
	dump bool
	// query is the number of the query in flight, 0 for none. queries counts queries, so
	// that the answer to an earlier query is recognized.
	query, queries uint64
	failures       int
	retryAt        time.Time
	// partial is the beginning of a dump whose answer broke off at partialAt, in answer
	// to query partialOf; nil for none.
	partial   *source.Answer
	partialOf uint64
	partialAt time.Time
	// waiting are the live events of this recovery, waitingBlocks their blocks.
	// overflowed is true when an event found no room.
	waiting       []kvevent.RouterEvent
	waitingBlocks int
	overflowed    bool
}

// cause is the reason of a recovery.
type cause uint8

const (
	causeFirst cause = iota
	causeGap
	causeDivergence
	causeLost
)

func (f *feed) owner() kv.Owner { return f.announcement.Owner }

// exact reports whether the feed is complete and its publisher exact.
func (f *feed) exact() bool {
	return f.complete() && f.announcement.Health == kvevent.HealthExact
}

// complete reports whether the index holds every block that the publisher announced.
func (f *feed) complete() bool { return f.synced && !f.recovering && !f.diverged && f.lost == 0 }

// updateLost updates lost. Blocks of other owners may evict these at any time, so each
// message of the publisher calls updateLost.
func (f *feed) updateLost() { f.lost = f.blocks.Lost(f.owner()) }

// handleAnnouncement compares the feed with an announcement of its publisher: the last
// event id with the cursor, and the digest with that of the index. A difference begins a
// recovery.
func (f *feed) handleAnnouncement(a *kvevent.Announcement, now time.Time) {
	f.announcement = *a
	f.seen = now
	f.updateLost()
	switch {
	case f.recovering:
		// The index lacks events that the announced digest covers.
	case a.LastEventID < f.cursor:
		f.announcedBehind(now)
		return
	case a.LastEventID > f.cursor && !f.synced:
		f.beginRecovery(causeFirst, now)
	case a.LastEventID > f.cursor:
		f.beginRecovery(causeGap, now)
	default:
		f.synced = true
		f.compareDigest(a, now)
	}
	f.behind = 0
}

// announcedBehind counts an announcement whose last event id is below the cursor. One such
// announcement may have been overtaken by an event. maxBehind of them in a row mean that
// the cursor is wrong, and then announcedBehind begins a repair.
func (f *feed) announcedBehind(now time.Time) {
	if f.behind == 0 {
		f.behindAt = now
	}
	f.behind++
	if f.behind < maxBehind || now.Sub(f.behindAt) < minBehind {
		return
	}
	f.diverged = true
	f.repair(now)
}

// repair begins a recovery with a dump, unless the last repair was too recent. The pause
// between repairs grows until the digests agree.
func (f *feed) repair(now time.Time) {
	if now.Before(f.repairAt) {
		return
	}
	f.repairs++
	f.repairAt = now.Add(backoff.Nth(backoff.Doubling(firstRetry, lastRepair), f.repairs))
	f.beginRecovery(causeDivergence, now)
}

// compareDigest compares the digest of the owner in the index with that of announcement a,
// whose last event id is the cursor. Different digests begin a repair. While pairs are
// lost, compareDigest never finds a difference: the digest may count a lost pair twice or
// not at all.
func (f *feed) compareDigest(a *kvevent.Announcement, now time.Time) {
	sum, pairs := f.blocks.Digest(a.Owner)
	f.diverged = f.lost == 0 && (sum != a.Digest || pairs != a.Blocks)
	if !f.diverged {
		f.repairs = 0
		return
	}
	f.repair(now)
}

// handleEvent takes in one live event of the publisher's stream. The feed copies what it
// keeps of e. A foreign event and an event at or below the cursor are only counted. A
// cleared event needs no earlier event. The event after the cursor is applied. Any other
// event shows a gap, and waits with all later events until the recovery ends.
func (f *feed) handleEvent(e *kvevent.RouterEvent, now time.Time) {
	switch {
	case e.Owner != f.owner():
		f.counters.Foreign++
	case e.ID <= f.cursor:
		f.counters.Stale++
	case e.Kind == kvevent.Cleared:
		f.handleCleared(e, now)
	case f.recovering:
		f.park(e)
	case e.ID == f.cursor+1:
		f.apply(e)
	default:
		f.beginRecovery(causeGap, now)
		f.park(e)
	}
}

// handleCleared applies an event that removes all blocks of the owner. The missing events
// before e no longer matter, so a recovery ends here.
func (f *feed) handleCleared(e *kvevent.RouterEvent, now time.Time) {
	if e.ID != f.cursor+1 && !f.recovering {
		f.beginRecovery(causeGap, now)
	}
	f.apply(e)
	f.synced, f.diverged = true, false
	if f.recovering {
		f.waiting = nil
		f.endRecovery(now)
	}
}

// apply applies an event to the index and moves the cursor to it.
// apply applies e to the index and moves the cursor to e. An event that the index refuses
// leaves the feed diverged.
func (f *feed) apply(e *kvevent.RouterEvent) {
	f.cursor = e.ID
	if err := f.blocks.Apply(e); err != nil {
		// The next digest differs too and begins a repair.
		f.counters.Unstored++
		f.diverged = true
		return
	}
	f.counters.Applied++
}

// park keeps a copy of an event until the recovery ends. An event beyond maxWaitingEvents or
// maxWaitingBlocks is dropped and overflowed is set: the feed then asks the publisher for the event.
// park keeps a copy of e until the recovery ends. An event beyond the bounds is dropped and
// counted; the feed asks for the event again.
func (f *feed) park(e *kvevent.RouterEvent) {
	if len(f.waiting) >= maxWaitingEvents || f.waitingBlocks+e.NumBlocks() > maxWaitingBlocks {
		f.counters.Overflowed++
		f.overflowed = true
		return
	}
	kept := *e
	kept.Blocks = slices.Clone(e.Blocks)
	kept.Removed = slices.Clone(e.Removed)
	f.waiting = append(f.waiting, kept)
	f.waitingBlocks += e.NumBlocks()
}

// beginRecovery begins a recovery for cause c. The next query is due now. A gap is closed
// by the missing events. A divergence, lost pairs and a first feed without a cursor need a
// dump.
func (f *feed) beginRecovery(c cause, now time.Time) {
	// A first feed with a cursor is from a snapshot and lacks only later events.
	dump := c == causeDivergence || c == causeLost || c == causeFirst && f.cursor == 0
	f.recovery = recovery{recovering: true, cause: c, dump: dump, queries: f.queries, retryAt: now}
	switch c {
	case causeGap:
		f.counters.Gaps++
	case causeDivergence:
		f.counters.Divergences++
	}
}

// applyAnswer applies the events of an answer, or replaces the owner's blocks by a dump. An
// error wraps errUnusable. Events before the error stay applied.
func (f *feed) applyAnswer(a *source.Answer) error {
	switch a.Kind {
	case kvevent.QueryTreeDump:
		if err := f.blocks.Replace(f.owner(), a.Events); err != nil {
			return fmt.Errorf("%w: %w", errUnusable, err)
		}
		f.cursor = a.LastEventID
		f.diverged = false
		f.counters.Dumps++
		return nil
	case kvevent.QueryEvents:
		for i := range a.Events {
			e := &a.Events[i]
			if e.Owner != f.owner() {
				return fmt.Errorf("%w: event %d is of %s", errUnusable, e.ID, e.Owner)
			}
			if e.ID > f.cursor+1 && e.Kind != kvevent.Cleared {
				return fmt.Errorf("%w: event %d follows event %d", errUnusable, e.ID, f.cursor)
			}
			if e.ID > f.cursor {
				f.apply(e)
			}
		}
		if f.cursor < a.LastEventID {
			return fmt.Errorf("%w: it ends with event %d of %d", errUnusable, f.cursor, a.LastEventID)
		}
		return nil
	}
	return fmt.Errorf("%w: %s: %s", errUnusable, a.Kind, a.Message)
}

// endRecovery ends a recovery and takes in the events that waited. They may show the next
// gap, which begins another recovery.
func (f *feed) endRecovery(now time.Time) {
	switch f.cause {
	case causeGap:
		f.counters.GapsRepaired++
	case causeDivergence:
		f.counters.DivergencesRepaired++
	case causeLost:
		f.counters.Refills++
	}
	waiting := f.waiting
	f.recovery = recovery{queries: f.queries}
	for i := range waiting {
		f.handleEvent(&waiting[i], now)
	}
}
