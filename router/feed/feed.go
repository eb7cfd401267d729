package feed

import (
	"fmt"
	"slices"
	"time"

	"github.com/blockyard-ai/blockyard/internal/backoff"
	"github.com/blockyard-ai/blockyard/internal/kv"
	"github.com/blockyard-ai/blockyard/internal/kvevent"
	"github.com/blockyard-ai/blockyard/router/miss"
	"github.com/blockyard-ai/blockyard/router/source"
)

// residency is the index of a feed's blocks; *index.Index implements it.
type residency interface {
	// ApplyAll applies events one after the other. It returns the number of refused events.
	ApplyAll(events []kvevent.RouterEvent) (refused int, err error)
	Replace(o kv.Owner, events []kvevent.RouterEvent) error
	Digest(o kv.Owner) (sum, pairs uint64)
	GroupDigest(o kv.Owner) (sum, pairs uint64)
	// Lost returns how many (block, tier) pairs of the owner the index lacks. It had no
	// room for them, or they contradict the blocks of other owners.
	Lost(o kv.Owner) uint64
	// HasRoom reports whether the index has room for that many more pairs.
	HasRoom(pairs uint64) bool
}

// Bounds of the events that wait while a feed recovers. After the recovery the feed queries
// for the events beyond the bounds.
const (
	maxWaitingEvents = 4096
	maxWaitingBlocks = 1 << 18
)

// Bounds of the pause between two attempts to recover a feed.
const (
	firstRetry = 200 * time.Millisecond
	lastRetry  = 5 * time.Second
	// lastRepair bounds the pause between two repairs whose digest still differs.
	lastRepair = time.Minute
	// maxBehind announcements in a row below the cursor, over at least minBehind, show that
	// the cursor is wrong. Announcements that events have overtaken come within less time.
	maxBehind = 3
	minBehind = time.Second
)

// feed follows the stream of one publisher and keeps the owner's blocks in the index equal
// to the publisher's. It does no I/O and reads no clock: callers pass in messages and the
// time, and send the queries of nextQuery. A feed is for one goroutine.
//
// A feed applies events in the order of their ids. It drops an event at or below the cursor
// and applies event cursor+1. A later event shows a gap, and waits while the feed queries
// the publisher for the missing events. The answer has the missing events, or a dump that
// replaces the owner's blocks. An announcement shows a gap at the end of the stream. When no
// event is missing, the announced digest shows whether the blocks differ.
type feed struct {
	announcement kvevent.Announcement
	// announcedAt is when the last announcement was sent: its arrival minus the age that the
	// stream reports. Pauses of the router and of the source are added to announcedAt.
	announcedAt time.Time
	source      int // the source of the last announcement; see source.Frame
	// rival is the last fenced publisher of the same owner that announced itself, at
	// rivalSeen; 0 for none.
	rival     uint64
	rivalSeen time.Time
	// announcedOffline is true when the last announcement was read from a stream while its
	// source was disconnected. A reconnection then leaves announcedAt alone.
	announcedOffline bool
	index            residency
	// model is the owner's model. Its index is index.
	model *modelFeeds
	// history remembers blocks that left the index; nil for none. moment is when the message came
	// that is being handled, delay how late the publisher's messages are.
	history *miss.History
	moment  miss.Moment
	delay   miss.Delay
	// engine is the last incarnation of the owner's engine that this publisher or the
	// previous one announced; 0 for none.
	engine uint64

	// cursor is the id of the last applied event.
	cursor uint64
	// everComplete is true once the index has had all blocks of the owner.
	everComplete bool
	// diverged is true while the blocks differ from the publisher's and no event is
	// missing.
	diverged bool
	// lostPairs is how many pairs the index lacked at the last message. The feed queries for
	// them only when the index has room, because they would evict other pairs.
	lostPairs uint64
	// refills counts attempts to get lost pairs back since lostPairs was 0. refillAt is the
	// earliest time of the next attempt.
	refills  int
	refillAt time.Time
	// repairs counts repairs since the digests last agreed. repairAt is the earliest time of
	// the next repair.
	repairs  int
	repairAt time.Time
	// behindInRow counts the last announcements in a row whose last event id is below the
	// cursor. The first of them came at firstBehindAt.
	behindInRow   int
	firstBehindAt time.Time

	recovery
	// waitsForRoom is true while the feed waits for room in the queryGate.
	waitsForRoom bool
	counters     Counters
	// contribution is this feed's part of the model's tally.
	contribution contribution
}

// recovery is the state of a feed that recovers.
type recovery struct {
	recovering bool
	cause      cause
	// needDump is true when the next query asks for a dump instead of the missing events.
	needDump bool
	// inFlight is the number of the query in flight, 0 for none. lastQuery is the last
	// number given. Numbers tell an answer to an earlier query apart.
	inFlight, lastQuery uint64
	failures            int
	retryAt             time.Time
	// partialDump is the beginning of a dump, nil for none. The answer to query partialQuery
	// was interrupted at partialAt.
	partialDump  *source.Answer
	partialQuery uint64
	partialAt    time.Time
	// parkedEvents are the live events that wait for the end of this recovery, parkedBlocks
	// the number of their blocks. parkedOverflowed is true when an event found no room.
	parkedEvents     []kvevent.RouterEvent
	parkedBlocks     int
	parkedOverflowed bool
}

// cause is the cause of a recovery.
type cause uint8

const (
	causeFirst cause = iota
	causeGap
	causeDivergence
	causeLost
)

// owner returns the owner of the blocks.
func (f *feed) owner() kv.Owner { return f.announcement.Owner }

// exact reports whether the feed is complete and its publisher exact.
func (f *feed) exact() bool {
	return f.complete() && f.announcement.Health == kvevent.HealthExact
}

// complete reports whether the index holds every block that the publisher announced.
func (f *feed) complete() bool {
	return f.everComplete && !f.recovering && !f.diverged && f.lostPairs == 0
}

// updateLost reads lost from the index. Call it for each message of the publisher: blocks
// of other owners may evict the owner's at any time.
func (f *feed) updateLost() { f.lostPairs = f.index.Lost(f.owner()) }

// handleAnnouncement handles an announcement of the feed's publisher. It compares the announced
// last event id with the cursor, the id of the last applied event, and the digest with that of the
// index. A difference begins a recovery: a query for the missing events or for a dump.
func (f *feed) handleAnnouncement(a *kvevent.Announcement, now time.Time) {
	f.announcement = *a
	f.announcedAt = now
	f.updateLost()
	switch {
	case f.recovering:
		// The index lacks events that the announced digest covers.
	case a.LastEventID < f.cursor:
		f.announcedBehind(now)
		return
	case a.LastEventID > f.cursor && !f.everComplete:
		f.beginRecovery(causeFirst, now)
	case a.LastEventID > f.cursor:
		f.beginRecovery(causeGap, now)
	default:
		f.everComplete = true
		f.compareDigest(a, now)
	}
	f.behindInRow = 0
}

// announcedBehind counts an announcement whose last event id is below the cursor. An event
// may have overtaken one such announcement. maxBehind of them in a row show that the cursor
// is wrong, and begin a repair.
func (f *feed) announcedBehind(now time.Time) {
	if f.behindInRow == 0 {
		f.firstBehindAt = now
	}
	f.behindInRow++
	if f.behindInRow < maxBehind || now.Sub(f.firstBehindAt) < minBehind {
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

// compareDigest compares the owner's digests in the index with announcement a, whose last
// event id is the cursor. Different digests begin a repair. While the index lacks (block, tier)
// pairs for want of room, the digest says nothing: it may count a lost pair twice or not at all.
func (f *feed) compareDigest(a *kvevent.Announcement, now time.Time) {
	sum, pairs := f.index.Digest(a.Owner)
	groupSum, groupPairs := f.index.GroupDigest(a.Owner)
	equal := sum == a.Digest && pairs == a.Blocks && groupSum == a.GroupDigest && groupPairs == a.GroupBlocks
	f.diverged = f.lostPairs == 0 && !equal
	if !f.diverged {
		f.repairs = 0
		return
	}
	f.repair(now)
}

// handleEvents handles live events of the publisher's stream. It does not keep them. It applies events that follow
// each other together.
func (f *feed) handleEvents(events []kvevent.RouterEvent, now time.Time) {
	for len(events) > 0 {
		n := 0
		for n < len(events) && f.isNext(&events[n], uint64(n)) {
			n++
		}
		if n > 0 {
			f.apply(events[:n])
		} else {
			n = 1
			f.handleOther(&events[0], now)
		}
		events = events[n:]
	}
}

// isNext reports whether the feed applies e once it has applied so many events more. The cursor is the id of the
// last applied event.
func (f *feed) isNext(e *kvevent.RouterEvent, more uint64) bool {
	return !f.recovering && e.Owner == f.owner() && e.Kind != kvevent.Cleared && e.ID == f.cursor+more+1
}

// handleOther handles a live event that is not the next one, or clears the owner. Events of another owner, and events
// at or below the cursor, are only counted. An event that clears the owner is applied. Any other event shows a gap,
// and waits with all later events until a query has brought the missing ones.
func (f *feed) handleOther(e *kvevent.RouterEvent, now time.Time) {
	switch {
	case e.Owner != f.owner():
		f.counters.Foreign++
	case e.ID <= f.cursor:
		f.counters.Stale++
	case e.Kind == kvevent.Cleared:
		f.handleCleared(e, now)
	case f.recovering:
		f.park(e)
	default:
		f.beginRecovery(causeGap, now)
		f.park(e)
	}
}

// handleCleared applies an event that removes all blocks of the owner. The missing events
// before e are obsolete, so a recovery ends.
func (f *feed) handleCleared(e *kvevent.RouterEvent, now time.Time) {
	if e.ID != f.cursor+1 && !f.recovering {
		f.beginRecovery(causeGap, now)
	}
	f.apply([]kvevent.RouterEvent{*e})
	f.everComplete, f.diverged = true, false
	if f.recovering {
		f.parkedEvents = nil
		f.endRecovery(now)
	}
}

// apply applies events to the index and moves the cursor to the last one. If the index refuses an event, the feed is
// diverged: its blocks differ from the publisher's.
func (f *feed) apply(events []kvevent.RouterEvent) {
	for i := range events {
		f.cursor = events[i].ID
		f.record(&events[i])
	}
	refused, err := f.index.ApplyAll(events)
	if err != nil {
		// The next announced digest will differ and begin a repair.
		f.counters.Unstored += uint64(refused)
		f.diverged = true
	}
	f.counters.Applied += uint64(len(events) - refused)
}

// record tells the model's history of an event that the index is about to apply.
func (f *feed) record(e *kvevent.RouterEvent) {
	h := f.history
	if h == nil || e.Group != 0 { // a block of another KV group has the primary block's hash
		return
	}
	switch e.Kind {
	case kvevent.Removed:
		h.Removed(e.Owner, e.Tier, e.Removed, f.moment)
	case kvevent.Stored:
		h.Stored(e.Owner, e.Tier, e.Blocks, f.moment)
	case kvevent.Cleared:
		h.Dropped(e.Owner, f.model.Index(), f.moment)
	}
}

// park keeps a copy of e until the recovery ends. An event beyond the bounds is dropped and
// counted, and the feed queries for the event later.
func (f *feed) park(e *kvevent.RouterEvent) {
	if len(f.parkedEvents) >= maxWaitingEvents || f.parkedBlocks+e.NumBlocks() > maxWaitingBlocks {
		f.counters.Overflowed++
		f.parkedOverflowed = true
		return
	}
	copied := *e
	copied.Blocks = slices.Clone(e.Blocks)
	copied.Removed = slices.Clone(e.Removed)
	f.parkedEvents = append(f.parkedEvents, copied)
	f.parkedBlocks += e.NumBlocks()
}

// beginRecovery makes the feed query its publisher at once, because of c. A gap needs the missing
// events. A new feed needs a dump, and so do a digest that differs though no event is missing and
// blocks that the index had no room for.
func (f *feed) beginRecovery(c cause, now time.Time) {
	// A first feed with a cursor is from a snapshot and lacks only later events.
	dump := c == causeDivergence || c == causeLost || c == causeFirst && f.cursor == 0
	f.recovery = recovery{recovering: true, cause: c, needDump: dump, lastQuery: f.lastQuery, retryAt: now}
	switch c {
	case causeGap:
		f.counters.Gaps++
	case causeDivergence:
		f.counters.Divergences++
	}
}

// applyAnswer applies the events of an answer to the index, or replaces the owner's blocks there by
// a dump. The cursor, the id of the last applied event, follows. An error wraps errUnusable: the
// next query then asks for a dump. Events before the error stay applied.
func (f *feed) applyAnswer(a *source.Answer) error {
	switch a.Kind {
	case kvevent.QueryTreeDump:
		if f.history != nil {
			f.history.Replaced(f.owner(), f.model.Index(), f.moment)
		}
		if err := f.index.Replace(f.owner(), a.Events); err != nil {
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
			// A Cleared event removes all blocks, so events before it need not be known.
			if e.ID > f.cursor+1 && e.Kind != kvevent.Cleared {
				return fmt.Errorf("%w: event %d follows event %d", errUnusable, e.ID, f.cursor)
			}
			if e.ID > f.cursor {
				f.apply(a.Events[i : i+1])
			}
		}
		if f.cursor < a.LastEventID {
			return fmt.Errorf("%w: last event is %d, want %d", errUnusable, f.cursor, a.LastEventID)
		}
		return nil
	}
	return fmt.Errorf("%w: %s: %s", errUnusable, a.Kind, a.Message)
}

// endRecovery ends a recovery: the missing events or a dump are applied. It then handles the live
// events that waited. One of them may show the next gap, which begins another recovery.
func (f *feed) endRecovery(now time.Time) {
	switch f.cause {
	case causeGap:
		f.counters.GapsRepaired++
	case causeDivergence:
		f.counters.DivergencesRepaired++
	case causeLost:
		f.counters.Refills++
	}
	waiting := f.parkedEvents
	f.recovery = recovery{lastQuery: f.lastQuery}
	f.handleEvents(waiting, now)
}
