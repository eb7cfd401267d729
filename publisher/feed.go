package publisher

import (
	"fmt"
	"math"
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
	// GateHeld: events wait in the journal. Events that the journal drops are
	// counted as FeedStats.Skipped.
	GateHeld
	// GateDiscard: no consumer is connected, so events are not sent. A later consumer
	// queries for them.
	GateDiscard
)

// Transport carries the messages of a Feed. Only one goroutine at a time calls a
// transport, without the feed's lock. A transport keeps nothing of its arguments.
type Transport interface {
	Gate() Gate
	// MaxMessage is the largest message in bytes.
	MaxMessage() int
	// SendEvents and SendAnnouncement report whether the message was sent. A message that
	// was not sent is lost: consumers notice the gap with the next announcement.
	SendEvents(*kvevent.Envelope) bool
	SendAnnouncement(*kvevent.Announcement) bool
}

// FeedOptions configure a Feed. All fields are required.
type FeedOptions struct {
	// ID is the publisher id, from 1 to 2^53-1 and new at every start.
	ID    uint64
	Owner kv.Owner
	Meta  Meta
	// AnnounceEvery is the period of announcements.
	AnnounceEvery time.Duration
	Transport     Transport
}

// Feed publishes the events and announcements of one owner over a Transport. It keeps the
// journal, batches events and counts. publisher/nats and publisher/httpfeed embed a Feed.
// A Feed is safe for concurrent use.
type Feed struct {
	opt         FeedOptions
	wake        Alarm         // raised when there are events to send
	announceNow Alarm         // raised when an announcement is due before AnnounceEvery
	stop        chan struct{} // closed when Close begins
	ended       chan struct{} // closed when Close is done
	running     sync.WaitGroup
	sequence    atomic.Uint64 // number of the next envelope

	// sending is locked while messages are sent. It is locked before mu.
	sending sync.Mutex

	mu      sync.Mutex
	journal *Journal[kvevent.RouterEvent]
	copies  slab   // memory of the events in journal
	unsent  uint64 // id of the first event that was not sent; 0 before the first batch
	source  Source
	closing bool
	count   FeedStats

	// Who holds sending owns these.
	batch    []kvevent.RouterEvent
	envelope kvevent.Envelope
}

// NewFeed returns a feed that will publish the events of o.Owner over o.Transport. Nothing is sent
// before Attach.
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

// Meta returns the part of the announcements that does not change.
func (f *Feed) Meta() Meta { return f.opt.Meta }

// Publish queues copies of events for the sending goroutine. The stream calls Publish under its
// own lock, so Publish never blocks. Events after Close are counted and otherwise ignored.
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

// HealthChanged implements residency.HealthObserver: the feed announces its source at once. It
// never blocks.
func (f *Feed) HealthChanged(kvevent.Health) { f.Announce() }

// Announce makes the feed announce its source at once. It never blocks.
func (f *Feed) Announce() { f.announceNow.Raise() }

// Attach connects the feed with its source: announcements begin and queries are
// answered. It may be called once.
func (f *Feed) Attach(src Source) error { return f.AttachWith(src, nil) }

// AttachWith is Attach, but calls prepare before the first announcement, unless prepare is nil.
// prepare starts what consumers use after an announcement, such as a subscription to queries.
// An error of prepare leaves the feed without a source. prepare runs under the feed's lock: it
// may call Go, but no method that takes the lock.
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
	if prepare != nil { // before f.source is set: an error leaves the feed as it was
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

// Close waits for the feed's goroutines, sends the events that are still unsent, and announces
// that the owner is gone. Events that the transport does not take count as skipped. Further calls
// wait for the first one.
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
		f.sending.Lock()
		f.sendPending(math.MaxUint64)
		f.sendAnnouncement(status)
		f.sending.Unlock()
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	f.count.Skipped += f.unsentLocked()
	_, f.unsent = f.journal.Held() // Stats no longer reports the skipped events as waiting
}

// send sends the queued events, and an announcement of src every AnnounceEvery and when one is due
// at once, until Close. It runs in its own goroutine.
func (f *Feed) send(src Source) {
	tick := time.NewTicker(f.opt.AnnounceEvery)
	defer tick.Stop()
	for {
		select {
		case <-f.stop:
			return
		case <-f.wake:
			f.sending.Lock()
			f.sendPending(math.MaxUint64)
			f.sending.Unlock()
		case <-f.announceNow:
			f.announce(src)
		case <-tick.C:
			f.announce(src)
		}
	}
}

// announce sends the events up to the source's status, and then announces that status.
func (f *Feed) announce(src Source) {
	f.sending.Lock()
	defer f.sending.Unlock()
	status := src.Status()
	f.sendPending(status.LastEventID)
	f.sendAnnouncement(status)
}

// Hold sends the events up to the source's status and returns that status. The feed then sends nothing
// before the caller has called Resume, so that the status is the last that consumers hear of. One goroutine
// may hold several feeds. The result is false before Attach and after Close: nothing is held then.
func (f *Feed) Hold() (s kvevent.StreamStatus, ok bool) {
	src := f.Source()
	if src == nil {
		return s, false
	}
	f.sending.Lock()
	if f.Stopped() { // the last word is the goodbye
		f.sending.Unlock()
		return s, false
	}
	s = kvevent.StreamStatus{PublisherID: f.opt.ID, Kind: f.opt.Owner.Kind, Status: src.Status()}
	f.sendPending(s.LastEventID)
	return s, true
}

// Resume ends a successful Hold.
func (f *Feed) Resume() { f.sending.Unlock() }

// sendPending sends the unsent events up to id last, one message at a time, while the gate is open. Events
// after a status go out after it, or consumers would take the status for an old one. The caller holds f.sending.
func (f *Feed) sendPending(last uint64) {
	for f.takeBatch(f.opt.Transport.Gate(), last) {
		f.envelope = f.Envelope(f.batch)
		if f.opt.Transport.SendEvents(&f.envelope) {
			f.Count(func(s *FeedStats) { s.Events += uint64(len(f.batch)) })
		}
		clear(f.batch)
	}
}

// takeBatch copies the unsent events up to id last that fit the next message from the journal to f.batch. It
// returns false when there is no event to send or the transport's gate is not open. GateHeld
// leaves the events unsent. GateDiscard marks them as sent: consumers query for them.
func (f *Feed) takeBatch(gate Gate, last uint64) bool {
	if gate == GateHeld {
		return false
	}
	room := NewBudget(f.opt.Transport.MaxMessage())
	f.mu.Lock()
	defer f.mu.Unlock()
	first, next := f.journal.Held()
	if gate == GateDiscard {
		f.unsent = next
		return false
	}
	if f.unsent < first { // the journal dropped unsent events
		if f.unsent > 0 { // else nothing was sent yet, and the stream begins with event first
			f.count.Skipped += first - f.unsent
		}
		f.unsent = first
	}
	f.batch = f.batch[:0]
	for id, e := range f.journal.From(f.unsent) {
		if id > last || !room.Take(e) {
			break
		}
		f.batch = append(f.batch, *e)
		f.unsent = id + 1
	}
	return len(f.batch) > 0
}

// Envelope returns the next message, with events. The caller has checked with a Budget that
// the events fit into one message.
func (f *Feed) Envelope(events []kvevent.RouterEvent) kvevent.Envelope {
	return kvevent.Envelope{
		PublisherID: f.opt.ID,
		Sequence:    f.sequence.Add(1) - 1,
		PublishedAt: uint64(time.Now().UnixMilli()),
		Topic:       kvevent.Topic,
		Events:      events,
	}
}

// sendAnnouncement announces the owner to consumers: the constant fields of Meta and the status s,
// by which consumers see what they lack. An announcement that the transport does not take is not
// counted.
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
		GroupDigest: s.GroupDigest,
		GroupBlocks: s.GroupBlocks,
		Health:      s.Health,
	})
	if sent {
		f.Count(func(s *FeedStats) { s.Announcements++ })
	}
}

// FeedStats are the counters of a feed since NewFeed.
type FeedStats struct {
	// Events counts sent events. Skipped counts events that the journal dropped before they
	// were sent, or that were unsent at Close. AfterClose counts events published after Close.
	Events     uint64 `json:"events"`
	Skipped    uint64 `json:"skipped"`
	AfterClose uint64 `json:"after_close"`
	// Announcements counts sent announcements.
	Announcements uint64 `json:"announcements"`
	// Queries counts accepted queries, and Dumps those answered by a dump. Snapshots counts
	// snapshots of the source. BadQueries could not be decoded. DroppedQueries came faster
	// than the feed answers. VoidAnswers were not sent to the end.
	Queries        uint64 `json:"queries"`
	Dumps          uint64 `json:"dumps"`
	Snapshots      uint64 `json:"snapshots"`
	BadQueries     uint64 `json:"bad_queries"`
	DroppedQueries uint64 `json:"dropped_queries"`
	VoidAnswers    uint64 `json:"void_answers"`
}

// Add adds the numbers of o to s.
func (s *FeedStats) Add(o FeedStats) { metric.Add(s, &o) }

// Count calls change with the feed's counters, under the feed's lock.
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

// unsentLocked returns the number of events in the journal that were not sent. The caller
// holds f.mu.
func (f *Feed) unsentLocked() uint64 {
	first, next := f.journal.Held()
	return next - max(f.unsent, first)
}
