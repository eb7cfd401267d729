package nats

import (
	"sync/atomic"

	"github.com/nats-io/nats.go"

	"github.com/blockyard-ai/blockyard/internal/metric"
)

// FeedStats are a feed's counters since it was made.
type FeedStats struct {
	// Events, Messages and Bytes are what was handed to the connection.
	Events   uint64 `json:"events"`
	Messages uint64 `json:"messages"`
	Bytes    uint64 `json:"bytes"`
	// Skipped are events that left the journal, or were left in it by Close,
	// before they could be sent; AfterClose those that came too late. Unsent is how
	// many wait in the journal now, 0 after Close.
	Skipped    uint64 `json:"skipped"`
	AfterClose uint64 `json:"after_close"`
	Unsent     uint64 `json:"unsent" metric:",gauge"`
	// PublishErrors are messages that the connection refused.
	PublishErrors uint64 `json:"publish_errors"`
	// Announcements are those sent, SilentAnnouncements those that were due while
	// no server was connected.
	Announcements       uint64 `json:"announcements"`
	SilentAnnouncements uint64 `json:"silent_announcements"`
	// Queries are requests answered, Dumps those among them that got a dump;
	// Snapshots is how often the source was asked for everything, SharedDumps are
	// dumps that came from a snapshot taken for another asker; DumpPauses counts
	// pauses that spared the askers of long dumps. BadQueries could not be read or had no reply subject; DroppedQueries came
	// faster than they could be answered; VoidAnswers could not be sent to the end.
	Queries        uint64 `json:"queries"`
	Dumps          uint64 `json:"dumps"`
	Snapshots      uint64 `json:"snapshots"`
	SharedDumps    uint64 `json:"shared_dumps"`
	DumpPauses     uint64 `json:"dump_pauses"`
	BadQueries     uint64 `json:"bad_queries"`
	DroppedQueries uint64 `json:"dropped_queries"`
	VoidAnswers    uint64 `json:"void_answers"`
}

// Add adds the numbers of o to s.
func (s *FeedStats) Add(o FeedStats) { metric.Add(s, &o) }

// feedCounters are FeedStats while they count.
type feedCounters struct {
	events, messages, bytes                 atomic.Uint64
	skipped, afterClose, publishErrors      atomic.Uint64
	announcements, silent                   atomic.Uint64
	queries, dumps, badQueries, voidAnswers atomic.Uint64
	snapshots, sharedDumps, dumpPauses      atomic.Uint64
	// droppedQueries are those beyond maxAskers, and those of a subscription that
	// has ended.
	droppedQueries atomic.Uint64
}

// Stats returns the counters.
func (f *Feed) Stats() FeedStats {
	c := &f.count
	s := FeedStats{
		Events: c.events.Load(), Messages: c.messages.Load(), Bytes: c.bytes.Load(),
		PublishErrors: c.publishErrors.Load(),
		Announcements: c.announcements.Load(), SilentAnnouncements: c.silent.Load(),
		Snapshots: c.snapshots.Load(), SharedDumps: c.sharedDumps.Load(), DumpPauses: c.dumpPauses.Load(),
		Queries: c.queries.Load(), Dumps: c.dumps.Load(), BadQueries: c.badQueries.Load(), VoidAnswers: c.voidAnswers.Load(),
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	s.Skipped, s.AfterClose = c.skipped.Load(), c.afterClose.Load()
	s.Unsent = f.unsentLocked()
	s.DroppedQueries = c.droppedQueries.Load() + droppedBy(f.requests)
	return s
}

func (f *Feed) unsentLocked() uint64 {
	first, next := f.journal.Held()
	return next - max(f.unsent, first)
}

// skipUnsent gives up what waits in the journal.
func (f *Feed) skipUnsent() {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.count.skipped.Add(f.unsentLocked())
	_, f.unsent = f.journal.Held()
}

// droppedBy is how many messages a subscription has dropped; nil is none.
func droppedBy(sub *nats.Subscription) uint64 {
	if sub == nil {
		return 0
	}
	n, err := sub.Dropped()
	if err != nil {
		// It is closed, with the whole connection, and counts no more.
		return 0
	}
	return uint64(n)
}
