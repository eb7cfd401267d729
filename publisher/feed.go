package publisher

import (
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"github.com/blockyard-ai/blockyard/internal/kv"
	"github.com/blockyard-ai/blockyard/internal/kvevent"
	"github.com/blockyard-ai/blockyard/internal/metric"
)

// Gate says whether waiting events are sent, kept or discarded.
type Gate int

// The gates of a Transport.
const (
	// GateOpen: events are sent.
	GateOpen Gate = iota
	// GateHeld: events wait in the journal. Those that leave it meanwhile are skipped.
	GateHeld
	// GateDiscard: no consumer wants events. A later consumer asks for them.
	GateDiscard
)

// Transport carries the messages of a Feed. Only one goroutine at a time calls a
// transport, without the feed's lock. A transport keeps nothing of its arguments.
type Transport interface {
	Gate() Gate
	// MaxMessage is the largest message in bytes.
	MaxMessage() int
	// SendEvents and SendAnnouncement report whether the message left. A message that
	// did not leave is lost: the next announcement tells the consumers.
	SendEvents(*kvevent.Envelope) bool
	SendAnnouncement(*kvevent.Announcement) bool
}

// FeedOptions are what a Feed is made of. All fields are required.
type FeedOptions struct {
	// ID is the publisher id, from 1 to 2^53-1 and new at every start.
	ID    uint64
	Owner kv.Owner
	Meta  Meta
	// AnnounceEvery is the period of announcements.
	AnnounceEvery time.Duration
	Transport     Transport
}

// Feed publishes one owner's events: the part that does not depend on how messages
// travel. publisher/nats and publisher/httpfeed embed it.
type Feed struct {
	opt         FeedOptions
	wake        Alarm // there are events to send
	announceNow Alarm
	stop        chan struct{} // closed when Close begins
	ended       chan struct{} // closed when Close is done
	running     sync.WaitGroup
	sequence    atomic.Uint64 // number of the next envelope

	mu      sync.Mutex
	journal *Journal[kvevent.RouterEvent]
	copies  slab
	unsent  uint64 // id of the first event that was not sent
	source  Source
	closing bool
	count   FeedStats

	// The sending goroutine owns these, and Close after it.
	batch    []kvevent.RouterEvent
	envelope kvevent.Envelope
}

// NewFeed returns a feed. Nothing is sent before Attach.
func NewFeed(o FeedOptions) *Feed {
	return &Feed{
		opt: o, wake: NewAlarm(), announceNow: NewAlarm(),
		stop: make(chan struct{}), ended: make(chan struct{}),
		journal: newEventJournal(),
	}
}

// PublisherID returns the feed's id, from 1 to 2^53-1.
func (f *Feed) PublisherID() uint64 { return f.opt.ID }

// Owner returns the owner whose events the feed publishes.
func (f *Feed) Owner() kv.Owner { return f.opt.Owner }

// Meta returns what the feed's announcements say besides the status.
func (f *Feed) Meta() Meta { return f.opt.Meta }

// Publish queues copies of events. It never blocks. Events after Close are counted and
// otherwise ignored.
func (f *Feed) Publish(events []kvevent.RouterEvent) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.closing {
		f.count.AfterClose += uint64(len(events))
		return
	}
	for i := range events {
		f.journal.Append(events[i].ID, f.copies.clone(&events[i]))
	}
	f.wake.Raise()
}

// HealthChanged makes the feed announce its source at once. It never blocks.
func (f *Feed) HealthChanged(kvevent.Health) { f.Announce() }

// Announce makes the feed announce its source at once. It never blocks.
func (f *Feed) Announce() { f.announceNow.Raise() }

// Attach connects the feed with its source: announcements begin and queries are
// answered. It may be called once.
func (f *Feed) Attach(src Source) error { return f.AttachWith(src, nil) }

// AttachWith does so and calls prepare, if not nil, before the first announcement. An
// error of prepare leaves the feed without a source.
func (f *Feed) AttachWith(src Source, prepare func() error) error {
	if src.Owner() != f.opt.Owner {
		return fmt.Errorf("feed of %s: the source is %s", f.opt.Owner, src.Owner())
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	switch {
	case f.closing:
		return fmt.Errorf("feed of %s: %w", f.opt.Owner, ErrClosed)
	case f.source != nil:
		return fmt.Errorf("feed of %s: already attached", f.opt.Owner)
	}
	if prepare != nil {
		if err := prepare(); err != nil {
			return fmt.Errorf("feed of %s: %w", f.opt.Owner, err)
		}
	}
	f.source = src
	f.announceNow.Raise()
	f.running.Go(func() { f.send(src) })
	return nil
}

// Source returns the feed's source, nil before Attach.
func (f *Feed) Source() Source {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.source
}

// Go runs fn in a goroutine that Close waits for. prepare of AttachWith may call it.
// fn returns when Stopping is closed.
func (f *Feed) Go(fn func()) { f.running.Go(fn) }

// Stopping returns a channel that is closed when Close begins.
func (f *Feed) Stopping() <-chan struct{} { return f.stop }

// Stopped reports whether Close has begun.
func (f *Feed) Stopped() bool {
	select {
	case <-f.stop:
		return true
	default:
		return false
	}
}

// Close sends what is queued, announces that the owner is gone, and ends the feed. It
// is idempotent and waits for the feed's goroutines.
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
	if src != nil {
		status := src.Status()
		status.Health = kvevent.HealthGone
		f.sendPending()
		f.sendAnnouncement(status)
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	f.count.Skipped += f.unsentLocked()
	_, f.unsent = f.journal.Held()
}

// send is the sending goroutine.
func (f *Feed) send(src Source) {
	tick := time.NewTicker(f.opt.AnnounceEvery)
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

// announce sends the source's events until now, and then its status.
func (f *Feed) announce(src Source) {
	status := src.Status()
	f.sendPending()
	f.sendAnnouncement(status)
}

// sendPending sends the events that were not sent, as far as the gate is open.
func (f *Feed) sendPending() {
	for f.takeBatch(f.opt.Transport.Gate()) {
		f.envelope = f.Envelope(f.batch)
		if f.opt.Transport.SendEvents(&f.envelope) {
			f.Count(func(s *FeedStats) { s.Events += uint64(len(f.batch)) })
		}
		clear(f.batch)
	}
}

// takeBatch moves the next message's events to f.batch; false when there are none, or
// the gate keeps them.
func (f *Feed) takeBatch(gate Gate) bool {
	if gate == GateHeld {
		return false
	}
	left := NewBudget(f.opt.Transport.MaxMessage())
	f.mu.Lock()
	defer f.mu.Unlock()
	first, next := f.journal.Held()
	if gate == GateDiscard {
		f.unsent = next
		return false
	}
	if f.unsent < first {
		if f.unsent > 0 {
			f.count.Skipped += first - f.unsent
		}
		f.unsent = first
	}
	f.batch = f.batch[:0]
	for id, e := range f.journal.From(f.unsent) {
		if !left.Take(e) {
			break
		}
		f.batch = append(f.batch, *e)
		f.unsent = id + 1
	}
	return len(f.batch) > 0
}

// Envelope returns the next message with events, which fit into one.
func (f *Feed) Envelope(events []kvevent.RouterEvent) kvevent.Envelope {
	return kvevent.Envelope{
		PublisherID: f.opt.ID,
		Sequence:    f.sequence.Add(1) - 1,
		PublishedAt: uint64(time.Now().UnixMilli()),
		Topic:       kvevent.Topic,
		Events:      events,
	}
}

func (f *Feed) sendAnnouncement(s Status) {
	meta := &f.opt.Meta
	sent := f.opt.Transport.SendAnnouncement(&kvevent.Announcement{
		PublisherID: f.opt.ID,
		Owner:       f.opt.Owner,
		Pool:        meta.Pool,
		Namespace:   meta.Namespace,
		Model:       meta.Model,
		BlockSize:   meta.BlockSize,
		Card:        meta.Card,
		LastEventID: s.LastEventID,
		Digest:      s.Digest,
		Blocks:      s.Blocks,
		Health:      s.Health,
	})
	if sent {
		f.Count(func(s *FeedStats) { s.Announcements++ })
	}
}

// FeedStats are the counters that every feed has, since it was made.
type FeedStats struct {
	// Events were sent. Skipped events left the journal before they could be sent, or
	// waited in it at Close. AfterClose events came too late.
	Events     uint64 `json:"events"`
	Skipped    uint64 `json:"skipped"`
	AfterClose uint64 `json:"after_close"`
	// Announcements were sent.
	Announcements uint64 `json:"announcements"`
	// Queries were accepted, and Dumps of them were answered by a dump. Snapshots counts
	// how often the source was asked for everything. BadQueries could not be read,
	// DroppedQueries came faster than they could be answered, VoidAnswers were not sent
	// to the end.
	Queries        uint64 `json:"queries"`
	Dumps          uint64 `json:"dumps"`
	Snapshots      uint64 `json:"snapshots"`
	BadQueries     uint64 `json:"bad_queries"`
	DroppedQueries uint64 `json:"dropped_queries"`
	VoidAnswers    uint64 `json:"void_answers"`
}

// Add adds the numbers of o to s.
func (s *FeedStats) Add(o FeedStats) { metric.Add(s, &o) }

// Count changes the feed's counters.
func (f *Feed) Count(change func(*FeedStats)) {
	f.mu.Lock()
	defer f.mu.Unlock()
	change(&f.count)
}

// Stats returns the counters, and how many events wait in the journal to be sent.
func (f *Feed) Stats() (s FeedStats, unsent uint64) {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.count, f.unsentLocked()
}

func (f *Feed) unsentLocked() uint64 {
	first, next := f.journal.Held()
	return next - max(f.unsent, first)
}
