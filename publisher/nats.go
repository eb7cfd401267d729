package publisher

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/nats-io/nats.go"
	"go.uber.org/zap"
	"golang.org/x/sync/errgroup"

	"github.com/blockyard-ai/blockyard/internal/kv"
	"github.com/blockyard-ai/blockyard/internal/kvevent"
)

// ErrClosed is the error of using a NATS or a Feed after its Close.
var ErrClosed = errors.New("publisher is closed")

// NATSOptions say how to reach a NATS server. The zero value is a server on this
// machine.
type NATSOptions struct {
	// URL names the server, or several separated by commas; user and password, or
	// a token, may be part of it. See kvevent.CheckServers. Default
	// nats://127.0.0.1:4222.
	URL string
	// Cluster keeps deployments that share a server apart; default "default".
	Cluster string
	// Name is the connection's name in the server's monitoring; default "blockyard".
	Name string
	// ConnectTimeout is how long ConnectNATS waits for the first connection before
	// it leaves connecting to the background; default 2 s.
	ConnectTimeout time.Duration
	// ReconnectWait is the pause between attempts to connect; default 250 ms.
	ReconnectWait time.Duration
	// ReconnectBuffer bounds the bytes that wait for a lost connection to return;
	// default 1 MiB.
	ReconnectBuffer int
	// AnnounceEvery is the period of announcements; default 1 s.
	AnnounceEvery time.Duration
	// Log receives connections coming and going; nil: none. Credentials are never
	// logged.
	Log *zap.Logger
}

const (
	defaultConnectTimeout  = 2 * time.Second
	defaultReconnectWait   = 250 * time.Millisecond
	defaultReconnectBuffer = 1 << 20
	defaultAnnounceEvery   = time.Second
	// minPayload is the least message limit of a server that one event fits.
	minPayload = 64 << 10
	// defaultPayload is assumed until a server has told its limit.
	defaultPayload = 1 << 20
	// closeTimeout bounds each wait for the server while closing.
	closeTimeout = time.Second
)

// Validate checks the fields; the error names the first bad one and shows no
// credentials.
func (o *NATSOptions) Validate() error {
	if o.Cluster != "" {
		if err := kvevent.CheckCluster(o.Cluster); err != nil {
			return fmt.Errorf("nats %w", err)
		}
	}
	if o.URL != "" {
		if err := kvevent.CheckServers(o.URL); err != nil {
			return fmt.Errorf("nats %w", err)
		}
	}
	for _, f := range []struct {
		name string
		v    int64
	}{
		{"connect timeout", int64(o.ConnectTimeout)},
		{"reconnect wait", int64(o.ReconnectWait)},
		{"reconnect buffer", int64(o.ReconnectBuffer)},
		{"announce period", int64(o.AnnounceEvery)},
	} {
		if f.v < 0 {
			return fmt.Errorf("nats %s: %d is negative", f.name, f.v)
		}
	}
	return nil
}

func (o *NATSOptions) setDefaults() {
	set := func(d *time.Duration, v time.Duration) {
		if *d == 0 {
			*d = v
		}
	}
	set(&o.ConnectTimeout, defaultConnectTimeout)
	set(&o.ReconnectWait, defaultReconnectWait)
	set(&o.AnnounceEvery, defaultAnnounceEvery)
	if o.URL == "" {
		o.URL = "nats://127.0.0.1:4222"
	}
	if o.Cluster == "" {
		o.Cluster = "default"
	}
	if o.Name == "" {
		o.Name = "blockyard"
	}
	if o.ReconnectBuffer == 0 {
		o.ReconnectBuffer = defaultReconnectBuffer
	}
	if o.Log == nil {
		o.Log = zap.NewNop()
	}
}

// NATS is a connection that feeds share.
type NATS struct {
	opt    NATSOptions
	log    *zap.Logger
	conn   *nats.Conn
	closed chan struct{} // closed when conn has ended

	mu      sync.Mutex
	feeds   map[*Feed]struct{}
	closing bool
}

// ConnectNATS connects to a server. If none answers within the connect timeout,
// it returns a NATS that goes on trying for ever; feeds work, and what they have
// to say waits in their journals. It returns an error when an option is bad,
// when the server refuses the credentials or takes too small messages, and when
// ctx is cancelled (which does not shorten the connect timeout).
func ConnectNATS(ctx context.Context, o NATSOptions) (*NATS, error) {
	if err := o.Validate(); err != nil {
		return nil, err
	}
	o.setDefaults()
	n := &NATS{opt: o, log: o.Log, feeds: make(map[*Feed]struct{})}
	err := n.dial(false)
	switch {
	case err == nil:
		err = n.checkServer()
	case errors.Is(err, nats.ErrAuthorization):
		return nil, fmt.Errorf("nats: %w", err)
	default:
		n.log.Warn("no NATS server answers yet", zap.Error(err))
		if err = n.dial(true); err != nil {
			return nil, fmt.Errorf("nats: %w", err)
		}
	}
	if errors.Is(ctx.Err(), context.Canceled) {
		err = fmt.Errorf("nats: %w", ctx.Err())
	}
	if err != nil {
		return nil, errors.Join(err, n.Close())
	}
	return n, nil
}

// serverName is the server's host and port. The client's own "redacted" form of
// a URL shows a token, which stands where a user name would.
func serverName(c *nats.Conn) string { return c.ConnectedAddr() }

// checkServer looks at what the connected server told of itself.
func (n *NATS) checkServer() error {
	if limit := n.conn.MaxPayload(); limit < minPayload {
		return fmt.Errorf("nats server %s: max_payload %d is below %d", serverName(n.conn), limit, minPayload)
	}
	return nil
}

// dial makes the connection; with retry it does not wait for a server.
func (n *NATS) dial(retry bool) error {
	n.closed = make(chan struct{})
	up := func(c *nats.Conn) {
		n.log.Info("connected to NATS", zap.String("server", serverName(c)))
		n.announceAll()
	}
	closed := n.closed
	conn, err := nats.Connect(n.opt.URL,
		nats.Name(n.opt.Name),
		nats.Timeout(n.opt.ConnectTimeout),
		nats.RetryOnFailedConnect(retry),
		nats.MaxReconnects(-1),
		nats.IgnoreAuthErrorAbort(),
		nats.ReconnectWait(n.opt.ReconnectWait),
		nats.ReconnectBufSize(n.opt.ReconnectBuffer),
		nats.ConnectHandler(up),
		nats.ReconnectHandler(up),
		nats.DisconnectErrHandler(func(_ *nats.Conn, err error) {
			if err != nil {
				n.log.Warn("NATS connection lost", zap.Error(err))
			}
		}),
		nats.ErrorHandler(func(_ *nats.Conn, _ *nats.Subscription, err error) {
			n.log.Warn("NATS error", zap.Error(err))
		}),
		nats.ClosedHandler(func(*nats.Conn) { close(closed) }),
	)
	if err != nil {
		return err
	}
	n.conn = conn
	return nil
}

// Connected reports whether a server is connected now.
func (n *NATS) Connected() bool { return n.conn.IsConnected() }

// NewFeed makes a publisher for owner, with a new random id. Nothing is sent
// before Attach.
func (n *NATS) NewFeed(owner kv.Owner, meta Meta) (*Feed, error) {
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.closing {
		return nil, fmt.Errorf("feed of %s: %w", owner, ErrClosed)
	}
	f := newFeed(n, kv.RandomID(), owner, meta)
	n.feeds[f] = struct{}{}
	return f, nil
}

// Close closes all feeds, which announce that their owners are gone, and then
// the connection. It is idempotent and waits for every goroutine.
func (n *NATS) Close() error {
	var closing errgroup.Group
	for _, f := range n.stopFeeds() {
		closing.Go(f.Close)
	}
	err := closing.Wait()
	n.conn.Close()
	<-n.closed
	return err
}

// stopFeeds refuses further feeds and returns those there are.
func (n *NATS) stopFeeds() []*Feed {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.closing = true
	return n.feedsLocked()
}

func (n *NATS) feedsLocked() []*Feed {
	feeds := make([]*Feed, 0, len(n.feeds))
	for f := range n.feeds {
		feeds = append(feeds, f)
	}
	return feeds
}

func (n *NATS) forget(f *Feed) {
	n.mu.Lock()
	defer n.mu.Unlock()
	delete(n.feeds, f)
}

func (n *NATS) announceAll() {
	n.mu.Lock()
	feeds := n.feedsLocked()
	n.mu.Unlock()
	for _, f := range feeds {
		signal(f.announceNow)
	}
}

// maxMessage is how many bytes one message may have.
func (n *NATS) maxMessage() int {
	if limit := n.conn.MaxPayload(); limit > 0 {
		return int(limit)
	}
	return defaultPayload
}
