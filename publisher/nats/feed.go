package nats

import (
	"fmt"
	"sync"
	"time"

	"github.com/nats-io/nats.go"
	"go.uber.org/zap"

	"github.com/blockyard-ai/blockyard/internal/kv"
	"github.com/blockyard-ai/blockyard/internal/kvevent"
	"github.com/blockyard-ai/blockyard/publisher"
)

// Feed publishes one owner's events.
type Feed struct {
	nats  *Conn
	id    uint64
	owner kv.Owner
	meta  publisher.Meta
	log   *zap.Logger
	count feedCounters

	wake        chan struct{} // room for one: there are events to send
	announceNow chan struct{} // room for one
	stop        chan struct{}
	running     sync.WaitGroup
	// ended is closed when Close is done.
	ended chan struct{}

	mu       sync.Mutex
	journal  publisher.Journal
	unsent   uint64 // id of the first event that was not sent
	source   publisher.Source
	requests *nats.Subscription
	closing  bool

	// What follows belongs to the sending goroutine, and to Close after it.
	sequence uint64
	batch    []kvevent.RouterEvent
	buf      []byte
}

func newFeed(n *Conn, id uint64, owner kv.Owner, meta publisher.Meta) *Feed {
	return &Feed{
		nats: n, id: id, owner: owner, meta: meta,
		log:         n.log.With(zap.Stringer("owner", owner), zap.String("publisher", fmt.Sprintf("%016x", id))),
		wake:        make(chan struct{}, 1),
		announceNow: make(chan struct{}, 1),
		stop:        make(chan struct{}),
		ended:       make(chan struct{}),
	}
}

// PublisherID is the feed's id, from 1 to 2^53-1.
func (f *Feed) PublisherID() uint64 { return f.id }

// Publish queues events, which are copied. It never blocks; events after Close
// are counted and otherwise ignored.
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

// Attach connects the feed with what it speaks for: announcements begin and
// queries are answered. It may be called once.
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
	// The server registers the subscription before it sees the announcement that
	// follows on the same connection, so that who reads that can ask at once.
	requests := make(chan *nats.Msg, queryQueue)
	sub, err := f.nats.conn.ChanSubscribe(kvevent.QuerySubject(f.nats.opt.Cluster, f.id), requests)
	if err != nil {
		return fmt.Errorf("feed of %s: %w", f.owner, err)
	}
	f.source, f.requests = src, sub
	signal(f.announceNow)
	f.running.Add(2)
	go f.send(src)
	go f.answer(src, requests)
	return nil
}

// Close sends what is queued, announces that the owner is gone, and ends the
// feed. It is idempotent and waits for the feed's goroutines. The error is that
// the server did not confirm in time; the consumers will then notice by the
// missing announcements.
func (f *Feed) Close() error {
	src, first := f.beginClose()
	if !first {
		<-f.ended
		return nil
	}
	defer close(f.ended)
	defer f.skipUnsent()
	close(f.stop)
	f.running.Wait()
	f.nats.forget(f)
	if src == nil {
		return nil
	}
	f.endRequests()
	if !f.nats.Connected() {
		return nil
	}
	status := src.Status()
	status.Health = kvevent.HealthGone
	f.sendPending()
	f.sendAnnouncement(status)
	if err := f.nats.conn.FlushTimeout(closeTimeout); err != nil {
		return fmt.Errorf("feed of %s: %w", f.owner, err)
	}
	return nil
}

func (f *Feed) beginClose() (src publisher.Source, first bool) {
	f.mu.Lock()
	defer f.mu.Unlock()
	first = !f.closing
	f.closing = true
	return f.source, first
}

// endRequests gives up the subscription to queries. It can fail only if the
// connection has ended, and then there is nothing to give up.
func (f *Feed) endRequests() {
	f.mu.Lock()
	sub := f.requests
	f.count.droppedQueries.Add(droppedBy(sub))
	f.requests = nil
	f.mu.Unlock()
	_ = sub.Unsubscribe()
}

// send is the sending goroutine.
func (f *Feed) send(src publisher.Source) {
	defer f.running.Done()
	tick := time.NewTicker(f.nats.opt.AnnounceEvery)
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

// signal fills a channel that has room for one.
func signal(c chan struct{}) {
	select {
	case c <- struct{}{}:
	default:
	}
}
