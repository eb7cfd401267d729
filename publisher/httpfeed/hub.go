package httpfeed

import (
	"cmp"
	"errors"
	"fmt"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"go.uber.org/zap"

	"github.com/blockyard-ai/blockyard/internal/kv"
	"github.com/blockyard-ai/blockyard/internal/kvevent"
	"github.com/blockyard-ai/blockyard/publisher"
)

// ErrClosed is the error of using a Hub or a Feed after its Close.
var ErrClosed = errors.New("hub is closed")

// Options configure a Hub. The zero value is ready for use.
type Options struct {
	// AnnounceEvery is the period of announcements and heartbeats; 0 means 1 s.
	AnnounceEvery time.Duration
	// MaxClients bounds the streams that are served at a time; 0 means 64.
	MaxClients int
	// ClientBytes bounds the bytes of the frames that wait for one client; 0 means 8 MiB.
	// One frame always has room.
	ClientBytes int
	// Log may be nil.
	Log *zap.Logger
}

// Validate reports the first option that is out of range.
func (o *Options) Validate() error {
	for _, f := range []struct {
		name string
		v    int64
	}{
		{"announce period", int64(o.AnnounceEvery)},
		{"max clients", int64(o.MaxClients)},
		{"client bytes", int64(o.ClientBytes)},
	} {
		if f.v < 0 {
			return fmt.Errorf("http feed %s: %d is negative", f.name, f.v)
		}
	}
	return nil
}

// withDefaults returns the options with defaults in place of zero values.
func (o Options) withDefaults() Options {
	o.AnnounceEvery = cmp.Or(o.AnnounceEvery, time.Second)
	o.MaxClients = cmp.Or(o.MaxClients, 64)
	o.ClientBytes = cmp.Or(o.ClientBytes, 8<<20)
	o.Log = cmp.Or(o.Log, zap.NewNop())
	return o
}

// Hub is the stream of one agent.
type Hub struct {
	opt   Options
	log   *zap.Logger
	count hubCounters
	// readTimeout is the time in which a client reads nothing before its stream or answer ends.
	readTimeout time.Duration
	// ended is closed when the last frames are in the clients' queues. closed is closed
	// when Close is done.
	ended, closed chan struct{}
	serving       sync.WaitGroup // handlers

	mu      sync.Mutex
	feeds   map[uint64]*Feed
	clients map[*client]struct{}
	closing bool
	gone    FeedStats // of feeds that have ended
}

// hubCounters are the counters of Stats.
type hubCounters struct {
	frames, bytes, dropped, refused, cut atomic.Uint64
}

// New makes a hub without feeds. Close must be called.
func New(o Options) (*Hub, error) {
	if err := o.Validate(); err != nil {
		return nil, err
	}
	o = o.withDefaults()
	return &Hub{
		opt: o, log: o.Log, readTimeout: writeTimeout, ended: make(chan struct{}), closed: make(chan struct{}),
		feeds: make(map[uint64]*Feed), clients: make(map[*client]struct{}),
	}, nil
}

// NewFeed makes a publisher for owner. id is its publisher id, from 1 to 2^53-1 and used by
// no other feed of the hub; 0 stands for a new random id. A feed of publisher/nats for the
// same stream should have the same id, so that a consumer of both sees one publisher.
// Nothing is sent before Attach.
func (h *Hub) NewFeed(id uint64, owner kv.Owner, meta publisher.Meta) (*Feed, error) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if id == 0 {
		id = kv.RandomID()
	}
	switch {
	case h.closing:
		return nil, fmt.Errorf("feed of %s: %w", owner, ErrClosed)
	case id >= 1<<53:
		return nil, fmt.Errorf("feed of %s: publisher id %d is not in 1..%d", owner, id, uint64(1<<53-1))
	case h.feeds[id] != nil:
		return nil, fmt.Errorf("feed of %s: publisher id %016x is in use", owner, id)
	}
	f := &Feed{hub: h, dumps: make(chan struct{}, maxDumps)}
	f.Feed = publisher.NewFeed(publisher.FeedOptions{ID: id, Owner: owner, Meta: meta, AnnounceEvery: h.opt.AnnounceEvery, Transport: wire{h}})
	h.feeds[id] = f
	return f, nil
}

// PublishLoad sends a load report to all clients. It never blocks.
func (h *Hub) PublishLoad(r *kvevent.LoadReport) {
	if !h.hasClients() {
		return
	}
	frame := kvevent.AppendLoadReport(kvevent.BeginStreamFrame(nil, kvevent.StreamLoad), r)
	h.broadcast(kvevent.EndStreamFrame(frame, 0))
}

// Close closes every feed, which announces that its owner is gone, then ends the clients'
// streams and waits for the handlers. The order lets clients read these announcements. Further
// calls wait for the first one.
func (h *Hub) Close() error {
	h.mu.Lock()
	first := !h.closing
	h.closing = true
	feeds := h.feedsLocked()
	h.mu.Unlock()
	if !first {
		<-h.closed
		return nil
	}
	for _, f := range feeds {
		f.Close()
	}
	close(h.ended)
	h.mu.Lock()
	for c := range h.clients {
		c.endWrite() // a client that does not read must not delay Close
	}
	h.mu.Unlock()
	h.serving.Wait()
	close(h.closed)
	return nil
}

// join adds client c to the hub, whose queue then gets every frame, until leave. The error, for an
// answer to the client, says that the hub is closed or has Options.MaxClients clients.
func (h *Hub) join(c *client) error {
	h.mu.Lock()
	defer h.mu.Unlock()
	switch {
	case h.closing:
		return ErrClosed
	case len(h.clients) >= h.opt.MaxClients:
		h.count.refused.Add(1)
		return fmt.Errorf("there are %d clients already", len(h.clients))
	}
	h.clients[c] = struct{}{}
	h.serving.Add(1)
	for _, f := range h.feeds {
		f.Announce() // the client learns of every publisher at once
	}
	return nil
}

// leave removes a client that join added.
func (h *Hub) leave(c *client) {
	h.mu.Lock()
	delete(h.clients, c)
	h.mu.Unlock()
	h.serving.Done()
}

// hasClients reports whether the hub has any client.
func (h *Hub) hasClients() bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	return len(h.clients) > 0
}

// wantsEvents reports whether any client wants events.
func (h *Hub) wantsEvents() bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	for c := range h.clients {
		if !c.noEvents {
			return true
		}
	}
	return false
}

// wire is the publisher.Transport of a hub's feeds.
type wire struct{ hub *Hub }

// Gate lets events leave while a client wants them.
func (w wire) Gate() publisher.Gate {
	if w.hub.wantsEvents() {
		return publisher.GateOpen
	}
	return publisher.GateDiscard
}

// MaxMessage implements publisher.Transport: events and blocks alone bound a message.
func (w wire) MaxMessage() int { return noByteLimit }

// SendEvents queues events for the clients that want them. It returns true even when a client has
// no room: that client finds the gap and queries.
func (w wire) SendEvents(e *kvevent.Envelope) bool {
	w.hub.offer(eventFrame(e), func(c *client) bool { return !c.noEvents })
	return true
}

// SendAnnouncement queues an announcement for every client. It returns false without clients.
func (w wire) SendAnnouncement(a *kvevent.Announcement) bool {
	if !w.hub.hasClients() {
		return false
	}
	frame := kvevent.AppendAnnouncement(kvevent.BeginStreamFrame(nil, kvevent.StreamAnnouncement), a)
	w.hub.broadcast(kvevent.EndStreamFrame(frame, 0))
	return true
}

// eventFrame returns the frame of an envelope.
func eventFrame(e *kvevent.Envelope) []byte {
	frame := kvevent.AppendEnvelope(kvevent.BeginStreamFrame(nil, kvevent.StreamEvents), e)
	return kvevent.EndStreamFrame(frame, 0)
}

// broadcast puts a frame into every client's queue. The clients share the frame.
func (h *Hub) broadcast(frame []byte) { h.offer(frame, func(*client) bool { return true }) }

// offer puts a frame into the queues of the clients for which wanted returns true, and counts the
// queues without room.
func (h *Hub) offer(frame []byte, wanted func(*client) bool) {
	h.mu.Lock()
	defer h.mu.Unlock()
	for c := range h.clients {
		if wanted(c) && !c.offer(frame) {
			h.count.dropped.Add(1)
		}
	}
}

// feed returns the feed with a publisher id, or nil.
func (h *Hub) feed(id uint64) *Feed {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.feeds[id]
}

// forget removes a feed that has ended, and keeps its counters for Stats.
func (h *Hub) forget(f *Feed) {
	h.mu.Lock()
	defer h.mu.Unlock()
	delete(h.feeds, f.PublisherID())
	h.gone.Add(f.Stats())
}

// feedsLocked returns the feeds, ordered by owner.
func (h *Hub) feedsLocked() []*Feed {
	feeds := make([]*Feed, 0, len(h.feeds))
	for _, f := range h.feeds {
		feeds = append(feeds, f)
	}
	slices.SortFunc(feeds, func(a, b *Feed) int { return a.Owner().Compare(b.Owner()) })
	return feeds
}

// Stats are a hub's gauges and counters since it was made.
type Stats struct {
	// Clients is the number of streams that are served now.
	Clients int `json:"clients" metric:"-"`
	// Frames and Bytes were written to clients. Dropped frames found no room in a client's
	// queue.
	Frames  uint64 `json:"frames"`
	Bytes   uint64 `json:"bytes"`
	Dropped uint64 `json:"dropped"`
	// Refused clients were beyond the bound. Cut clients read nothing for too long.
	Refused uint64 `json:"refused" metric:"clients_refused"`
	Cut     uint64 `json:"cut" metric:"clients_cut"`
	// Totals are the counters of all feeds, ended feeds included.
	Totals FeedStats `json:"totals"`
}

// Stats returns the hub's counters. Totals are the sums over all feeds, closed ones included.
func (h *Hub) Stats() Stats {
	c := &h.count
	s := Stats{
		Frames: c.frames.Load(), Bytes: c.bytes.Load(), Dropped: c.dropped.Load(),
		Refused: c.refused.Load(), Cut: c.cut.Load(),
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	s.Clients, s.Totals = len(h.clients), h.gone
	for _, f := range h.feeds {
		s.Totals.Add(f.Stats())
	}
	return s
}
