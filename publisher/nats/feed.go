package nats

import (
	"fmt"
	"sync"
	"sync/atomic"

	"github.com/nats-io/nats.go"
	"go.uber.org/zap"

	"github.com/blockyard-ai/blockyard/internal/kv"
	"github.com/blockyard-ai/blockyard/internal/kvevent"
	"github.com/blockyard-ai/blockyard/internal/metric"
	"github.com/blockyard-ai/blockyard/publisher"
)

// Feed publishes one owner's events on a Conn.
type Feed struct {
	*publisher.Feed
	wire wire
	// Counters that publisher.FeedStats does not have.
	sharedDumps, dumpPauses atomic.Uint64

	mu       sync.Mutex
	requests *nats.Subscription // nil before Attach, and after Close
	hints    *nats.Subscription // nil before TakeHints, and after Close
	// Messages that the ended subscriptions dropped.
	dropped, droppedHints uint64

	closing  sync.Once
	closeErr error
}

// FeedStats are a feed's counters since it was made.
type FeedStats struct {
	publisher.FeedStats
	// DroppedHints are read-ahead hints that came faster than the feed passed them on.
	DroppedHints uint64 `json:"dropped_hints"`
	// Messages and Bytes were given to the connection; PublishErrors are messages that
	// the connection refused.
	Messages      uint64 `json:"messages"`
	Bytes         uint64 `json:"bytes"`
	PublishErrors uint64 `json:"publish_errors"`
	// Unsent events wait in the journal now; 0 after Close.
	Unsent uint64 `json:"unsent" metric:",gauge"`
	// SilentAnnouncements were due while no server was connected.
	SilentAnnouncements uint64 `json:"silent_announcements"`
	// SharedDumps were answered from a snapshot that another query had taken. DumpPauses
	// counts pauses that spared the readers of long dumps.
	SharedDumps uint64 `json:"shared_dumps"`
	DumpPauses  uint64 `json:"dump_pauses"`
}

// Add adds the numbers of o to s.
func (s *FeedStats) Add(o FeedStats) { metric.Add(s, &o) }

// NewFeed makes a publisher for owner, with a new random id. Nothing is sent before
// Attach.
func (n *Conn) NewFeed(owner kv.Owner, meta publisher.Meta) (*Feed, error) {
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.closing {
		return nil, fmt.Errorf("feed of %s: %w", owner, publisher.ErrClosed)
	}
	id := kv.RandomID()
	f := &Feed{wire: wire{
		conn:   n,
		events: kvevent.EventsSubject(n.opt.Cluster, id), announcements: kvevent.AnnounceSubject(n.opt.Cluster, id),
		log: n.log.With(zap.Stringer("owner", owner), zap.String("publisher", fmt.Sprintf("%016x", id))),
	}}
	f.Feed = publisher.NewFeed(publisher.FeedOptions{
		ID: id, Owner: owner, Meta: meta, AnnounceEvery: statusesPerAnnouncement * n.opt.AnnounceEvery, Transport: &f.wire,
	})
	n.feeds[f] = struct{}{}
	return f, nil
}

// Attach connects the feed with its source: announcements begin and queries are
// answered. It may be called once.
func (f *Feed) Attach(src publisher.Source) error {
	return f.AttachWith(src, func() error {
		// The server registers the subscription before it sees the announcement that
		// follows on the same connection, so a reader of that can ask at once.
		requests := make(chan *nats.Msg, queryQueue)
		n := f.wire.conn
		sub, err := n.conn.ChanSubscribe(kvevent.QuerySubject(n.opt.Cluster, f.PublisherID()), requests)
		if err != nil {
			return err
		}
		f.mu.Lock()
		f.requests = sub
		f.mu.Unlock()
		f.Go(func() { f.answer(src, requests) })
		return nil
	})
}

// TakeHints passes each read-ahead hint for the feed's owner to take, which must not wait. It is
// called once, after Attach. Close ends it.
func (f *Feed) TakeHints(take func(data []byte)) error {
	n := f.wire.conn
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.requests == nil {
		return publisher.ErrClosed
	}
	sub, err := n.conn.Subscribe(kvevent.ReadAheadSubject(n.opt.Cluster, f.PublisherID()), func(m *nats.Msg) { take(m.Data) })
	if err != nil {
		return err
	}
	f.hints = sub
	return sub.SetPendingLimits(maxPendingHints, maxPendingHints*kvevent.MaxReadAheadBytes)
}

// Close sends the queued events, announces that the owner is gone, and ends the feed. It is
// idempotent and waits for the feed's goroutines. An error means that the server did not
// confirm in time; consumers then find out by the missing announcements.
func (f *Feed) Close() error {
	f.closing.Do(func() {
		f.Feed.Close()
		f.wire.conn.forget(f)
		if f.endRequests() && f.wire.conn.Connected() {
			if err := f.wire.conn.conn.FlushTimeout(closeTimeout); err != nil {
				f.closeErr = fmt.Errorf("feed of %s: %w", f.Owner(), err)
			}
		}
	})
	return f.closeErr
}

// endRequests ends the subscription to queries; false when there was none.
func (f *Feed) endRequests() bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	sub := f.requests
	if sub == nil {
		return false
	}
	f.dropped = droppedBy(sub)
	f.requests = nil
	_ = sub.Unsubscribe() // it fails only when the connection has ended, and the subscription with it
	if f.hints != nil {
		f.droppedHints = droppedBy(f.hints)
		_ = f.hints.Unsubscribe() // likewise
		f.hints = nil
	}
	return true
}

// Stats returns the counters.
func (f *Feed) Stats() FeedStats {
	w := &f.wire
	s := FeedStats{
		Messages: w.messages.Load(), Bytes: w.bytes.Load(), PublishErrors: w.errors.Load(), SilentAnnouncements: w.silent.Load(),
		SharedDumps: f.sharedDumps.Load(), DumpPauses: f.dumpPauses.Load(),
	}
	s.FeedStats, s.Unsent = f.Feed.Stats()
	f.mu.Lock()
	defer f.mu.Unlock()
	s.DroppedQueries += f.dropped + droppedBy(f.requests)
	s.DroppedHints = f.droppedHints + droppedBy(f.hints)
	return s
}

// droppedBy returns how many messages a subscription has dropped; nil is none.
func droppedBy(sub *nats.Subscription) uint64 {
	if sub == nil {
		return 0
	}
	n, err := sub.Dropped()
	if err != nil {
		// The whole connection is closed and counts no more.
		return 0
	}
	return uint64(n)
}

// wire is the publisher.Transport of a feed. Events wait while no server is connected.
type wire struct {
	conn                  *Conn
	events, announcements string // subjects
	log                   *zap.Logger
	buf                   []byte

	messages, bytes, errors, silent atomic.Uint64
}

// Gate keeps events in the journal while no server is connected.
func (w *wire) Gate() publisher.Gate {
	if w.conn.Connected() {
		return publisher.GateOpen
	}
	return publisher.GateHeld
}

func (w *wire) MaxMessage() int { return w.conn.maxMessage() }

func (w *wire) SendEvents(e *kvevent.Envelope) bool {
	w.buf = kvevent.AppendEnvelope(w.buf[:0], e)
	return w.publish(w.events)
}

// SendAnnouncement sends an announcement. It returns false when no server is connected: another one
// follows at the next connection.
func (w *wire) SendAnnouncement(a *kvevent.Announcement) bool {
	if !w.conn.Connected() {
		w.silent.Add(1)
		return false
	}
	w.buf = kvevent.AppendAnnouncement(w.buf[:0], a)
	return w.publish(w.announcements)
}

// publish sends w.buf. A message that the connection refuses is lost; the next
// announcement shows that to the consumers.
func (w *wire) publish(subject string) bool {
	if err := w.conn.conn.Publish(subject, w.buf); err != nil {
		w.errors.Add(1)
		w.log.Debug("message is not sent", zap.String("subject", subject), zap.Error(err))
		return false
	}
	w.messages.Add(1)
	w.bytes.Add(uint64(len(w.buf)))
	return true
}
