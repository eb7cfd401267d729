package httpfeed

import (
	"fmt"
	"math"
	"sync"
	"sync/atomic"
	"time"

	"github.com/blockyard-ai/blockyard/internal/kv"
	"github.com/blockyard-ai/blockyard/internal/kvevent"
	"github.com/blockyard-ai/blockyard/internal/metric"
	"github.com/blockyard-ai/blockyard/publisher"
)

// noByteLimit is for messages that are bounded by their events and blocks alone.
const noByteLimit = math.MaxInt

// Feed publishes one owner's events.
type Feed struct {
	hub   *Hub
	id    uint64
	owner kv.Owner
	meta  publisher.Meta
	card  kvevent.ModelCard
	count feedCounters

	wake        chan struct{} // room for one: there are events to send
	announceNow chan struct{} // room for one
	stop        chan struct{}
	running     sync.WaitGroup
	ended       chan struct{} // closed when Close is done
	// dumps has an element for each snapshot that is being written, answers counts the
	// queries that are being answered.
	dumps   chan struct{}
	answers sync.WaitGroup
	// sequence is the number of the next envelope.
	sequence atomic.Uint64

	mu      sync.Mutex
	journal publisher.Journal
	unsent  uint64 // id of the first event that no frame was made of
	source  publisher.Source
	closing bool
	// answering is how many queries are being answered, next the snapshot that those
	// wait for who asked for a dump since the last one was taken.
	answering int
	next      *snapshot

	batch []kvevent.RouterEvent // of the sending goroutine, and of Close after it
}

// feedCounters are FeedStats while they count.
type feedCounters struct {
	events, skipped, afterClose, announcements            atomic.Uint64
	queries, dumps, badQueries, droppedQueries, voidReply atomic.Uint64
	snapshots                                             atomic.Uint64
}

func newFeed(h *Hub, id uint64, owner kv.Owner, meta publisher.Meta, card kvevent.ModelCard) *Feed {
	return &Feed{
		hub: h, id: id, owner: owner, meta: meta, card: card,
		wake: make(chan struct{}, 1), announceNow: make(chan struct{}, 1),
		stop: make(chan struct{}), ended: make(chan struct{}), dumps: make(chan struct{}, maxDumps),
	}
}

// PublisherID is the feed's id, from 1 to 2^53-1.
func (f *Feed) PublisherID() uint64 { return f.id }

// Publish queues events, which are copied. It never blocks; events after Close are
// counted and otherwise ignored.
func (f *Feed) Publish(events []kvevent.RouterEvent) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.closing {
		f.count.afterClose.Add(uint64(len(events)))
		return
	}
	for i := range events {
		f.journal.Add(&events[i])
	}
	signal(f.wake)
}

// HealthChanged makes the feed announce its source at once. It never blocks.
func (f *Feed) HealthChanged(kvevent.Health) { signal(f.announceNow) }

// Attach connects the feed with what it speaks for: announcements begin and queries
// are answered. It may be called once.
func (f *Feed) Attach(src publisher.Source) error {
	if src.Owner() != f.owner {
		return fmt.Errorf("feed of %s: the source is %s", f.owner, src.Owner())
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	switch {
	case f.closing:
		return fmt.Errorf("feed of %s: %w", f.owner, ErrClosed)
	case f.source != nil:
		return fmt.Errorf("feed of %s: already attached", f.owner)
	}
	f.source = src
	signal(f.announceNow)
	f.running.Go(func() { f.send(src) })
	return nil
}

// Close sends what is queued, announces that the owner is gone, and ends the feed.
// It is idempotent and waits for the feed's goroutine and for the answers under way.
func (f *Feed) Close() {
	f.mu.Lock()
	first := !f.closing
	f.closing = true
	src := f.source
	f.mu.Unlock()
	if !first {
		<-f.ended
		return
	}
	defer close(f.ended)
	close(f.stop)
	f.running.Wait()
	defer f.hub.forget(f)
	defer f.answers.Wait() // none begins any more
	if src == nil {
		return
	}
	status := src.Status()
	status.Health = kvevent.HealthGone
	f.sendPending()
	f.sendAnnouncement(status)
}

// send is the sending goroutine.
func (f *Feed) send(src publisher.Source) {
	tick := time.NewTicker(f.hub.opt.AnnounceEvery)
	defer tick.Stop()
	for {
		select {
		case <-f.stop:
			return
		case <-f.wake:
			f.sendPending()
		case <-f.announceNow:
			f.announce(src)
		case <-tick.C:
			f.announce(src)
		}
	}
}

// announce flushes the source, sends what it had, and then says where it is.
func (f *Feed) announce(src publisher.Source) {
	status := src.Status()
	f.sendPending()
	f.sendAnnouncement(status)
}

// sendPending makes frames of the events that were not sent. Without a client that
// wants them none is made: who comes later asks for what it missed.
func (f *Feed) sendPending() {
	wanted := f.hub.wantsEvents()
	for f.takeBatch(wanted) {
		f.hub.broadcastEvents(f.envelope(f.batch))
		f.count.events.Add(uint64(len(f.batch)))
		clear(f.batch)
	}
}

// takeBatch moves the next message's events to f.batch; false: there are none, or
// nobody is there to have them.
func (f *Feed) takeBatch(wanted bool) bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	first, next := f.journal.Held()
	if !wanted {
		f.unsent = next
		return false
	}
	if f.unsent < first {
		if f.unsent > 0 {
			f.count.skipped.Add(first - f.unsent)
		}
		f.unsent = first
	}
	if !f.journal.Holds(f.unsent) {
		return false
	}
	f.batch = f.journal.AppendMessage(f.batch[:0], f.unsent, next-1, noByteLimit)
	f.unsent += uint64(len(f.batch))
	return true
}

// envelope is the frame of some events, at most as many as go into one message.
func (f *Feed) envelope(events []kvevent.RouterEvent) []byte {
	frame := kvevent.AppendEnvelope(kvevent.BeginStreamFrame(nil, kvevent.StreamEvents), &kvevent.Envelope{
		PublisherID: f.id,
		Sequence:    f.sequence.Add(1) - 1,
		PublishedAt: uint64(time.Now().UnixMilli()),
		Topic:       kvevent.Topic,
		Events:      events,
	})
	return kvevent.EndStreamFrame(frame, 0)
}

func (f *Feed) sendAnnouncement(s publisher.Status) {
	if !f.hub.listened() {
		return
	}
	frame := kvevent.AppendAnnouncement(kvevent.BeginStreamFrame(nil, kvevent.StreamAnnouncement), &kvevent.Announcement{
		PublisherID: f.id,
		Owner:       f.owner,
		Pool:        f.meta.Pool,
		Namespace:   f.meta.Namespace,
		Model:       f.meta.Model,
		BlockSize:   f.meta.BlockSize,
		LastEventID: s.LastEventID,
		Digest:      s.Digest,
		Blocks:      s.Blocks,
		Health:      s.Health,
		Card:        f.card,
	})
	f.hub.broadcast(kvevent.EndStreamFrame(frame, 0))
	f.count.announcements.Add(1)
}

// rangeFrom copies the events from start to end, at most those of one message;
// false when the journal does not hold the first or the last.
func (f *Feed) rangeFrom(start, end uint64) ([]kvevent.RouterEvent, bool) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if !f.journal.Holds(start) || !f.journal.Holds(end) || end < start {
		return nil, false
	}
	return f.journal.AppendMessage(nil, start, end, noByteLimit), true
}

// newest is the id of the last event in the journal, 0 before the first.
func (f *Feed) newest() uint64 {
	f.mu.Lock()
	defer f.mu.Unlock()
	_, next := f.journal.Held()
	return max(next, 1) - 1
}

// FeedStats are a feed's counters since it was made.
type FeedStats struct {
	// Events are those that frames were made of. Skipped are events that left the
	// journal before, AfterClose those that came too late.
	Events     uint64 `json:"events"`
	Skipped    uint64 `json:"skipped"`
	AfterClose uint64 `json:"after_close"`
	// Announcements are those made while there was a client.
	Announcements uint64 `json:"announcements"`
	// Queries are requests answered, Dumps those among them that got a dump, and
	// Snapshots how often the source was asked for everything: dumps share one.
	// BadQueries could not be read; DroppedQueries found too many others being
	// answered; VoidAnswers could not be written to the end.
	Queries        uint64 `json:"queries"`
	Dumps          uint64 `json:"dumps"`
	Snapshots      uint64 `json:"snapshots"`
	BadQueries     uint64 `json:"bad_queries"`
	DroppedQueries uint64 `json:"dropped_queries"`
	VoidAnswers    uint64 `json:"void_answers"`
}

// Add adds the numbers of o to s.
func (s *FeedStats) Add(o FeedStats) { metric.Add(s, &o) }

// Stats returns the counters.
func (f *Feed) Stats() FeedStats {
	c := &f.count
	return FeedStats{
		Events: c.events.Load(), Skipped: c.skipped.Load(), AfterClose: c.afterClose.Load(),
		Announcements: c.announcements.Load(),
		Queries:       c.queries.Load(), Dumps: c.dumps.Load(), Snapshots: c.snapshots.Load(), BadQueries: c.badQueries.Load(),
		DroppedQueries: c.droppedQueries.Load(), VoidAnswers: c.voidReply.Load(),
	}
}
