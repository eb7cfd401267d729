package nats

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"regexp"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/nats-io/nats.go"
	"go.uber.org/zap"

	"github.com/blockyard-ai/blockyard/internal/kvevent"
	"github.com/blockyard-ai/blockyard/internal/natsauth"
	"github.com/blockyard-ai/blockyard/router/source"
)

// Options say which NATS and which cluster on it to follow.
type Options struct {
	// URL is the NATS server, or several separated by commas; see
	// natsauth.CheckServers.
	URL string
	// Cluster separates deployments on one NATS; empty means "default".
	Cluster string
	// Auth is the login and the trusted certificates.
	Auth natsauth.Settings
	// JetStream reads events and announcements from a stream, and makes the Source a
	// SnapshotStore. A missing stream is created with default limits. Stream is its name;
	// empty means kvevent.StreamName of the cluster.
	JetStream bool
	Stream    string
	// NoEvents subscribes only to announcements. JetStream must be off.
	NoEvents bool
	// Queue is how many messages may wait for the router; 0 means 65536. They have 64 MiB at most. Further
	// messages are dropped.
	Queue int
	// ConnectTimeout bounds each try to connect; 0 means 2 s. Tries repeat without end, a
	// quarter of a second apart.
	ConnectTimeout time.Duration
	// Log may be nil.
	Log *zap.Logger
}

// Validate reports the first option that is out of range.
func (o *Options) Validate() error {
	if o.URL == "" {
		return errors.New("nats url: must not be empty")
	}
	if o.Queue < 0 || o.ConnectTimeout < 0 {
		return fmt.Errorf("nats queue %d, connect timeout %v: must not be negative", o.Queue, o.ConnectTimeout)
	}
	if o.NoEvents && o.JetStream {
		return errors.New("nats jetstream: needs events")
	}
	if err := natsauth.CheckServers(o.URL); err != nil {
		return fmt.Errorf("nats %w", err)
	}
	if o.Stream != "" && !streamName.MatchString(o.Stream) {
		return fmt.Errorf("nats stream %q: want 1 to 128 of the characters A-Z a-z 0-9 _ -", o.Stream)
	}
	if o.Cluster == "" {
		return o.Auth.Validate(o.URL)
	}
	return cmp.Or(kvevent.CheckCluster(o.Cluster), o.Auth.Validate(o.URL))
}

// maxUnread bounds the messages that wait for pump. It reads them at once, and a NATS connection delivers
// thousands of small ones between two turns of pump.
const maxUnread = 1 << 14

var streamName = regexp.MustCompile(`^[A-Za-z0-9_-]{1,128}$`)

// withDefaults returns the options with defaults in place of zero values.
func (o Options) withDefaults() Options {
	o.Cluster = cmp.Or(o.Cluster, "default")
	o.Stream = cmp.Or(o.Stream, kvevent.StreamName(o.Cluster))
	o.Queue = cmp.Or(o.Queue, 1<<16)
	o.ConnectTimeout = cmp.Or(o.ConnectTimeout, 2*time.Second)
	o.Log = cmp.Or(o.Log, zap.NewNop())
	return o
}

// Source is a Transport over NATS. Events and announcements come from one channel or one
// stream, so that the messages of a publisher keep their order.
type Source struct {
	cluster string
	log     *zap.Logger
	conn    *nats.Conn
	stream  *streamReader // nil without JetStream
	// requestTimeout bounds requests of snapshots that have no time limit of their own.
	requestTimeout time.Duration
	events         *nats.Subscription
	announcements  *nats.Subscription

	messages chan *nats.Msg
	frames   chan source.Frame
	waiting  backlog // of pump
	// overflowed counts messages that found no room in waiting.
	overflowed atomic.Uint64
	// changed wakes pump after the connection changed.
	changed chan struct{}
	lost    atomic.Bool
	// connections counts the connections so far.
	connections atomic.Uint64
	// connCtxMu guards connCtx, which ends with the present connection, and endConnCtx.
	connCtxMu  sync.Mutex
	connCtx    context.Context
	endConnCtx context.CancelFunc

	closing    chan struct{}
	closeOnce  sync.Once
	goroutines sync.WaitGroup
}

var _ source.Transport = (*Source)(nil)

// Connect connects and subscribes. Without a server it connects in the background, and
// the Source begins with FrameDisconnected. The error is a bad option, or a server that
// refuses the credentials.
func Connect(o Options) (*Source, error) {
	if err := o.Validate(); err != nil {
		return nil, err
	}
	o = o.withDefaults()
	n := &Source{
		cluster:        o.Cluster,
		log:            o.Log,
		messages:       make(chan *nats.Msg, min(o.Queue, maxUnread)),
		waiting:        backlog{most: o.Queue},
		requestTimeout: streamTimeout,
		frames:         make(chan source.Frame),
		changed:        make(chan struct{}, 1),
		closing:        make(chan struct{}),
	}
	n.connCtx, n.endConnCtx = context.WithCancel(context.Background())
	login, err := o.Auth.Login()
	if err != nil {
		return nil, err
	}
	if o.JetStream {
		n.stream = newStreamReader(&o, n.wake)
	}
	if err := n.dial(&o, login); err != nil {
		return nil, fmt.Errorf("nats %s: %w", WithoutCredentials(o.URL), err)
	}
	if n.stream != nil {
		n.stream.conn = n.conn
		n.goroutines.Go(n.stream.run)
	} else if err := n.subscribe(!o.NoEvents); err != nil {
		n.conn.Close()
		return nil, fmt.Errorf("nats %s: %w", WithoutCredentials(o.URL), err)
	}
	n.goroutines.Go(n.pump)
	return n, nil
}

// dial connects: now, or in the background when no server answers. It sets n.conn.
func (n *Source) dial(o *Options, login nats.Option) (err error) {
	retrying := func(err error) {
		n.log.Warn("no NATS server answers; retrying, without cache events until then",
			zap.String("servers", WithoutCredentials(o.URL)), zap.Error(err))
		n.lost.Store(true)
		n.wake()
	}
	n.conn, err = natsauth.Connect(o.URL, login, retrying,
		nats.Name("blockyard router"),
		nats.Timeout(o.ConnectTimeout),
		nats.ReconnectWait(250*time.Millisecond),
		nats.ReconnectBufSize(-1), // a query without a connection fails at once
		nats.PingInterval(5*time.Second),
		nats.DisconnectErrHandler(n.disconnected),
		nats.ConnectHandler(n.connected),
		nats.ReconnectHandler(n.connected),
		nats.ErrorHandler(n.reportError),
	)
	return err
}

// WithoutCredentials removes logins from a list of URLs, for logs and errors.
func WithoutCredentials(urls string) string {
	parts := strings.Split(urls, ",")
	for i, p := range parts {
		if at := strings.LastIndex(p, "@"); at >= 0 {
			scheme, _, found := strings.Cut(p, "://")
			if parts[i] = p[at+1:]; found {
				parts[i] = scheme + "://" + parts[i]
			}
		}
	}
	return strings.Join(parts, ",")
}

// subscribe subscribes to the cluster's announcements, and to its events if events is true. It
// waits until the server has the subscriptions, so that a query after it misses no event.
func (n *Source) subscribe(events bool) (err error) {
	if events {
		if n.events, err = n.conn.ChanSubscribe(kvevent.AllEventsSubject(n.cluster), n.messages); err != nil {
			return fmt.Errorf("subscribe to events: %w", err)
		}
	}
	if n.announcements, err = n.conn.ChanSubscribe(kvevent.AllAnnounceSubject(n.cluster), n.messages); err != nil {
		return fmt.Errorf("subscribe to announcements: %w", err)
	}
	if !n.conn.IsConnected() {
		return nil // nats.go subscribes when it connects
	}
	if err := n.conn.Flush(); err != nil && n.conn.IsConnected() {
		return fmt.Errorf("subscribe: %w", err)
	}
	return nil
}

// Close ends the connection and waits for its goroutines. It may be called twice.
func (n *Source) Close() error {
	n.closeOnce.Do(func() {
		close(n.closing)
		if n.stream != nil {
			n.stream.stop()
		}
	})
	n.goroutines.Wait()
	n.conn.Close()
	n.cancelQueries()
	return nil
}

// connectionContext returns a context that ends with the present connection.
func (n *Source) connectionContext() context.Context {
	n.connCtxMu.Lock()
	defer n.connCtxMu.Unlock()
	return n.connCtx
}

// cancelQueries ends the queries in flight.
func (n *Source) cancelQueries() {
	n.connCtxMu.Lock()
	defer n.connCtxMu.Unlock()
	n.endConnCtx()
	n.connCtx, n.endConnCtx = context.WithCancel(context.Background())
}

// disconnected handles a lost connection: pump reports it to the router, and queries in flight end.
func (n *Source) disconnected(_ *nats.Conn, err error) {
	select {
	case <-n.closing:
		return
	default:
	}
	n.lost.Store(true)
	n.wake()
	n.cancelQueries()
	n.log.Warn("nats connection lost", zap.Error(err))
}

// connected handles each new connection.
func (n *Source) connected(c *nats.Conn) {
	n.lost.Store(false)
	n.wake()
	n.connections.Add(1)
	n.log.Info("nats is connected", zap.String("server", c.ConnectedAddr()))
}

// reportError logs the other errors of nats.go. The subscriptions count dropped messages.
func (n *Source) reportError(_ *nats.Conn, _ *nats.Subscription, err error) {
	n.log.Warn("nats reports an error", zap.Error(err))
}

// wake makes pump compare the state of the connection with the last frame.
func (n *Source) wake() {
	select {
	case n.changed <- struct{}{}:
	default:
	}
}

// pump is the goroutine that delivers frames until Close: messages of the subscriptions or of the
// stream, FrameDisconnected when the connection is lost or the stream brings only old messages, and
// FrameConnected when that is over. Messages wait in n.waiting while the router is busy. The stream is read
// no faster than the router takes its messages.
func (n *Source) pump() {
	disconnected := false          // FrameDisconnected was delivered last, and no FrameConnected since
	var streamed chan source.Frame // nil without JetStream, and then never ready
	if n.stream != nil {
		streamed = n.stream.frames
	}
	for {
		old, changed := streamed, n.changed
		var out chan source.Frame
		var next source.Frame
		if n.waiting.full() {
			changed = nil
		}
		if n.waiting.len() > 0 {
			out, old, next = n.frames, nil, n.waiting.peek()
		}
		select {
		case <-n.closing:
			return
		case m := <-n.messages:
			if n.waiting.full() {
				n.overflowed.Add(1)
				continue
			}
			f := source.Frame{Kind: source.FrameEvents, Data: m.Data}
			if m.Sub == n.announcements {
				f.Kind = source.FrameAnnouncement
			}
			n.waiting.push(f)
		case f := <-old:
			n.waiting.push(f)
		case <-changed:
			if disconnected == n.behind() { // nothing has changed for the router
				continue
			}
			disconnected = !disconnected
			f := source.Frame{Kind: source.FrameConnected}
			if disconnected {
				f.Kind = source.FrameDisconnected
			}
			n.waiting.push(f)
		case out <- next:
			n.waiting.pop()
		}
	}
}

// behind reports whether the Source is disconnected or still reads old messages.
func (n *Source) behind() bool {
	return n.lost.Load() || n.stream != nil && n.stream.behind.Load()
}

// Frames implements source.Transport.
func (n *Source) Frames() <-chan source.Frame { return n.frames }

// Stats returns whether the source has a connection and recent messages, and its counters.
func (n *Source) Stats() source.Stats {
	s := source.Stats{Connected: n.conn.IsConnected(), Reconnects: max(1, n.connections.Load()) - 1}
	if n.stream != nil {
		s.Connected = s.Connected && !n.stream.behind.Load() // old messages are as good as none
		s.StreamFailures, s.SnapshotBytes = n.stream.failures.Load(), n.stream.snapshotBytes.Load()
		s.SnapshotReplacements, s.SnapshotBucketLimited = n.stream.replacements.Load(), n.stream.bucketLimited.Load()
		return s
	}
	s.Dropped = n.overflowed.Load()
	for _, sub := range []*nats.Subscription{n.events, n.announcements} {
		// An error means that the subscription is closed, which drops nothing.
		if dropped, err := sub.Dropped(); err == nil {
			s.Dropped += uint64(dropped)
		}
	}
	return s
}
