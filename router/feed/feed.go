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

// residency is what a feed keeps up to date; *index.Index is one.
type residency interface {
	Apply(e *kvevent.RouterEvent) error
	Replace(o kv.Owner, events []kvevent.RouterEvent) error
	Digest(o kv.Owner) (sum, pairs uint64)
	// Lost is how many (block, tier) pairs the owner was told to hold and are not
	// kept, for lack of room or because others contradict them.
	Lost(o kv.Owner) uint64
	// HasRoom reports whether so many pairs fit besides what there is.
	HasRoom(pairs uint64) bool
}

// Bounds of the events that wait while a feed recovers. What does not fit is
// asked for again afterwards.
const (
	maxWaitingEvents = 4096
	maxWaitingBlocks = 1 << 18
)

// Bounds of the time between two tries to recover a feed.
const (
	firstRetry = 200 * time.Millisecond
	lastRetry  = 5 * time.Second
	// lastRepair bounds the time between two repairs of a feed whose digest
	// stays wrong after each.
	lastRepair = time.Minute
	// A cursor is wrong when so many announcements in a row, over so long, end
	// before it: those that waited behind events come in one go.
	maxBehind = 3
	minBehind = time.Second
)

// feedState follows the stream of one publisher and keeps the blocks of its
// owner true. It is told what arrives and when, and says what to ask; it does
// no I/O, knows no clock and is for one goroutine.
//
// Events are applied in the order of their ids without holes: an id at or below
// the cursor is dropped, cursor+1 is applied, and anything above it is a gap.
// In a gap, events wait and the publisher is asked for what is missing; its
// answer is either those events or a dump of everything, which replaces what
// the owner had. An announcement finds a gap at the end of a stream, and, when
// nothing is missing, a difference between what the publisher holds and what is
// held here.
type feed struct {
	announcement kvevent.Announcement
	seen         time.Time // when the last announcement was sent, as far as that is known
	source       int       // where from; see Frame.Source
	// rival is the last fenced publisher that speaks for the same owner, and rivalSeen
	// when it did; 0 is none.
	rival     uint64
	rivalSeen time.Time
	// replayed is set when the last announcement came from a stream while its source was
	// away, so that seen holds all the same.
	replayed bool
	blocks   residency
	// model is the owner's; blocks is its index.
	model *modelFeeds
	// engine is the incarnation that was announced last of the owner's engine, by this
	// publisher or a former one; 0 is none.
	engine uint64

	// cursor is the id of the last event that the blocks contain.
	cursor uint64
	// synced is set once the blocks have been complete.
	synced bool
	// diverged is set while the blocks are known to differ from the publisher's,
	// with nothing missing to explain it.
	diverged bool
	// lost is how much of what the publisher told is not kept, when it was last
	// looked. Nobody is asked for it while there is no more room for it: what it takes
	// the place of would be missing instead.
	lost uint64
	// refills counts tries to get back what was lost since nothing was; none starts
	// before refillAt.
	refills  int
	refillAt time.Time
	// repairs counts repairs since the digests last agreed; none starts before
	// repairAt.
	repairs  int
	repairAt time.Time
	// behind counts announcements in a row that end before the cursor, the first of
	// which came at behindAt.
	behind   int
	behindAt time.Time

	recovery
	// refused is set while the feed waits for room in the queryGate of its set.
	refused  bool
	counters Counters
	// standing is what the feed counts for in its set's tally.
	standing standing
}

// recovery is the part of a feedState that has a meaning while it recovers.
type recovery struct {
	recovering bool
	cause      cause
	// dump asks for everything instead of what is missing.
	dump bool
	// query is the number of the query in flight, 0 without one; queries counts
	// them, so that a late answer is told from the one waited for.
	query, queries uint64
	failures       int
	retryAt        time.Time
	// partial is the beginning of a dump that was cut in the answer to query
	// partialOf, and partialAt when that was; nil is none.
	partial   *source.Answer
	partialOf uint64
	partialAt time.Time
	// waiting are the live events that came meanwhile, waitingBlocks their size.
	// overflowed: later ones had no room.
	waiting       []kvevent.RouterEvent
	waitingBlocks int
	overflowed    bool
}

// cause is why a feed recovers.
type cause uint8

const (
	causeFirst cause = iota
	causeGap
	causeDivergence
	causeLost
)

func (f *feed) owner() kv.Owner { return f.announcement.Owner }

// exact reports whether the blocks of the owner equal the truth, as far as
// anybody can know.
func (f *feed) exact() bool {
	return f.complete() && f.announcement.Health == kvevent.HealthExact
}

// complete reports whether the blocks are all that the publisher has told.
func (f *feed) complete() bool { return f.synced && !f.recovering && !f.diverged && f.lost == 0 }

// weigh looks how much is not kept. Others' blocks take the place of these at any
// time, so that it is done when anything is heard of the publisher.
func (f *feed) weigh() { f.lost = f.blocks.Lost(f.owner()) }

// announced takes in an announcement of this publisher.
func (f *feed) announced(a *kvevent.Announcement, now time.Time) {
	f.announcement = *a
	f.seen = now
	f.weigh()
	switch {
	case f.recovering:
		// Not comparable yet.
	case a.LastEventID < f.cursor:
		f.ended(now)
		return
	case a.LastEventID > f.cursor && !f.synced:
		f.recover(causeFirst, now)
	case a.LastEventID > f.cursor:
		f.recover(causeGap, now)
	default:
		f.synced = true
		f.compare(a, now)
	}
	f.behind = 0
}

// ended takes in that an announcement ends before the cursor. It may be older than
// what has arrived since; when that goes on, the cursor is that of something else.
func (f *feed) ended(now time.Time) {
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

// repair asks for everything, with growing pauses.
func (f *feed) repair(now time.Time) {
	if now.Before(f.repairAt) {
		return
	}
	f.repairs++
	f.repairAt = now.Add(backoff.Nth(backoff.Doubling(firstRetry, lastRepair), f.repairs))
	f.recover(causeDivergence, now)
}

// compare checks the digest of an announcement that is as old as the blocks. While
// something is lost, digests prove nothing: what became of it may have been counted
// twice, or not at all.
func (f *feed) compare(a *kvevent.Announcement, now time.Time) {
	sum, pairs := f.blocks.Digest(a.Owner)
	f.diverged = f.lost == 0 && (sum != a.Digest || pairs != a.Blocks)
	if !f.diverged {
		f.repairs = 0
		return
	}
	f.repair(now)
}

// event takes in a live event, which is only borrowed.
func (f *feed) event(e *kvevent.RouterEvent, now time.Time) {
	switch {
	case e.Owner != f.owner():
		f.counters.Foreign++
	case e.ID <= f.cursor:
		f.counters.Stale++
	case e.Kind == kvevent.Cleared:
		f.cleared(e, now)
	case f.recovering:
		f.wait(e)
	case e.ID == f.cursor+1:
		f.apply(e)
	default:
		f.recover(causeGap, now)
		f.wait(e)
	}
}

// cleared applies an event before which nothing matters, gap or not.
func (f *feed) cleared(e *kvevent.RouterEvent, now time.Time) {
	if e.ID != f.cursor+1 && !f.recovering {
		f.recover(causeGap, now)
	}
	f.apply(e)
	f.synced, f.diverged = true, false
	if f.recovering {
		f.waiting = nil
		f.recovered(now)
	}
}

func (f *feed) apply(e *kvevent.RouterEvent) {
	f.cursor = e.ID
	if err := f.blocks.Apply(e); err != nil {
		// The blocks are short of something; the next digest says so too.
		f.counters.Unstored++
		f.diverged = true
		return
	}
	f.counters.Applied++
}

func (f *feed) wait(e *kvevent.RouterEvent) {
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

// recover begins a recovery: the next nextQuery asks for what is missing, or
// for everything when that is not a matter of ids.
func (f *feed) recover(c cause, now time.Time) {
	// Who begins with a snapshot lacks only what came after it.
	dump := c == causeDivergence || c == causeLost || c == causeFirst && f.cursor == 0
	f.recovery = recovery{recovering: true, cause: c, dump: dump, queries: f.queries, retryAt: now}
	switch c {
	case causeGap:
		f.counters.Gaps++
	case causeDivergence:
		f.counters.Divergences++
	}
}

// takeIn makes the blocks what the answer says they are.
func (f *feed) takeIn(a *source.Answer) error {
	switch a.Kind {
	case kvevent.QueryTreeDump:
		if err := f.blocks.Replace(f.owner(), a.Events); err != nil {
			return fmt.Errorf("%w: %w", errVoid, err)
		}
		f.cursor = a.LastEventID
		f.diverged = false
		f.counters.Dumps++
		return nil
	case kvevent.QueryEvents:
		for i := range a.Events {
			e := &a.Events[i]
			if e.Owner != f.owner() {
				return fmt.Errorf("%w: event %d is of %s", errVoid, e.ID, e.Owner)
			}
			if e.ID > f.cursor+1 && e.Kind != kvevent.Cleared {
				return fmt.Errorf("%w: event %d follows event %d", errVoid, e.ID, f.cursor)
			}
			if e.ID > f.cursor {
				f.apply(e)
			}
		}
		if f.cursor < a.LastEventID {
			return fmt.Errorf("%w: it ends with event %d of %d", errVoid, f.cursor, a.LastEventID)
		}
		return nil
	}
	return fmt.Errorf("%w: %s: %s", errVoid, a.Kind, a.Message)
}

// recovered ends a recovery and takes in the events that waited for it.
func (f *feed) recovered(now time.Time) {
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
		f.event(&waiting[i], now)
	}
}
