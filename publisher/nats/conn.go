package nats

import (
	"context"
	"errors"
	"fmt"
	"os"
	"sync"
	"sync/atomic"
	"time"

	"github.com/nats-io/nats.go"
	"go.uber.org/zap"
	"golang.org/x/sync/errgroup"

	"github.com/blockyard-ai/blockyard/internal/kvevent"
	"github.com/blockyard-ai/blockyard/internal/natsauth"
)

// Conn is a connection to NATS that feeds share.
type Conn struct {
	opt    Options
	log    *zap.Logger
	conn   *nats.Conn
	closed chan struct{} // closed when conn has ended
	// keeper keeps the JetStream stream; nil without one.
	keeper      *streamKeeper
	connections atomic.Uint64
	// nameClaims counts agents that were refused Options.Node.
	nameClaims atomic.Uint64
	statuses   statuses

	mu      sync.Mutex
	feeds   map[*Feed]struct{}
	closing bool
}

// Connect connects to a server. If none answers within the connect timeout, it returns a
// Conn that tries for ever; feeds work, and their events wait in the journals.
//
// It returns an error when an option is bad, when client and server refuse one another,
// when another agent has the node's name, when the server takes only small messages, when
// it lacks the JetStream that was asked for, and when ctx is cancelled. Cancelling ctx does
// not shorten the connect timeout.
func Connect(ctx context.Context, o Options) (*Conn, error) {
	if err := o.Validate(); err != nil {
		return nil, err
	}
	o.setDefaults()
	login, err := o.Auth.Login()
	if err != nil {
		return nil, err
	}
	n := &Conn{opt: o, log: o.Log, feeds: make(map[*Feed]struct{}), closed: make(chan struct{}), statuses: newStatuses(&o)}
	if o.JetStream != nil {
		n.keeper = newStreamKeeper(o.Cluster, *o.JetStream, o.Log)
	}
	if err := n.dial(login); err != nil {
		return nil, fmt.Errorf("nats: %w", err)
	}
	if n.Connected() {
		err = n.checkServer(ctx)
	}
	if errors.Is(ctx.Err(), context.Canceled) {
		err = fmt.Errorf("nats: %w", ctx.Err())
	}
	if err != nil {
		return nil, errors.Join(err, n.Close())
	}
	if err := n.claimName(ctx); err != nil {
		return nil, errors.Join(err, n.Close())
	}
	if n.keeper != nil {
		n.keeper.start(n.conn)
	}
	if err := n.startStatuses(); err != nil {
		return nil, errors.Join(err, n.Close())
	}
	return n, nil
}

// serverName returns the server's host and port. The client library's "redacted" URL would
// show a token, because it takes the token for a user name.
func serverName(c *nats.Conn) string { return c.ConnectedAddr() }

// checkServer checks that the connected server takes messages of minPayload, and makes the JetStream
// stream there if one is configured.
func (n *Conn) checkServer(ctx context.Context) error {
	if limit := n.conn.MaxPayload(); limit < minPayload {
		return fmt.Errorf("nats server %s: max_payload %d is below %d", serverName(n.conn), limit, minPayload)
	}
	if n.keeper == nil {
		return nil
	}
	return n.keeper.ensure(ctx, n.conn)
}

// dial connects to one of the servers, or leaves the connection to try in the background. At each
// connection the JetStream stream is checked, if there is one, and all feeds announce themselves:
// consumers may have missed messages. The error says that client and server refuse one another.
func (n *Conn) dial(login nats.Option) (err error) {
	up := func(c *nats.Conn) {
		n.connections.Add(1)
		n.log.Info("connected to NATS", zap.String("server", serverName(c)))
		if n.keeper != nil {
			n.keeper.check.Raise()
		}
		n.announceAll()
	}
	n.conn, err = natsauth.Connect(n.opt.URL, login,
		func(err error) { n.log.Warn("no NATS server answers yet", zap.Error(err)) },
		nats.Name(n.opt.Name),
		nats.Timeout(n.opt.ConnectTimeout),
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
			n.log.Warn("NATS reports an error", zap.Error(err))
		}),
		nats.ClosedHandler(func(*nats.Conn) { close(n.closed) }),
	)
	return err
}

// Connected reports whether a server is connected now.
func (n *Conn) Connected() bool { return n.conn.IsConnected() }

// Close closes all feeds, which announce that their owners are gone, and then
// the connection. It is idempotent and waits for every goroutine.
func (n *Conn) Close() error {
	n.statuses.end()
	var closing errgroup.Group
	for _, f := range n.stopFeeds() {
		closing.Go(f.Close)
	}
	err := closing.Wait()
	if n.keeper != nil {
		n.keeper.close()
	}
	n.conn.Close()
	<-n.closed
	return err
}

// stopFeeds refuses new feeds and returns the existing ones.
func (n *Conn) stopFeeds() []*Feed {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.closing = true
	return n.feedsLocked()
}

func (n *Conn) feedsLocked() []*Feed {
	feeds := make([]*Feed, 0, len(n.feeds))
	for f := range n.feeds {
		feeds = append(feeds, f)
	}
	return feeds
}

func (n *Conn) forget(f *Feed) {
	n.mu.Lock()
	defer n.mu.Unlock()
	delete(n.feeds, f)
}

// announceAll makes every feed announce its source at once.
func (n *Conn) announceAll() {
	for _, f := range n.presentFeeds() {
		f.Announce()
	}
}

// presentFeeds returns the feeds that have not been closed.
func (n *Conn) presentFeeds() []*Feed {
	n.mu.Lock()
	defer n.mu.Unlock()
	return n.feedsLocked()
}

// Publish sends data to a subject. While the connection is lost it puts data into the
// buffer of Options.ReconnectBuffer. data is not kept. An error means that the message is
// lost: the buffer is full, the connection is closed, or data is longer than MaxPayload.
func (n *Conn) Publish(subject string, data []byte) error {
	if err := n.conn.Publish(subject, data); err != nil {
		return fmt.Errorf("nats publish to %s: %w", subject, err)
	}
	return nil
}

// MaxPayload returns the longest message in bytes that the server takes. Before the first
// connection it returns the default limit of servers.
func (n *Conn) MaxPayload() int64 { return int64(n.maxMessage()) }

// Stats are a connection's gauges and counters.
type Stats struct {
	Connected bool `json:"connected"`
	// Reconnects counts connections after the first.
	Reconnects uint64 `json:"reconnects"`
	// StreamReady: the JetStream stream existed at the last check. StreamErrors counts
	// failed tries to make it.
	StreamReady bool `json:"stream_ready"`
	// NameClaims counts agents that were refused this node's name.
	NameClaims   uint64 `json:"name_claims"`
	StreamErrors uint64 `json:"stream_errors"`
	StatusStats
}

// Stats returns the gauges and counters.
func (n *Conn) Stats() Stats {
	s := Stats{Connected: n.Connected(), Reconnects: max(1, n.connections.Load()) - 1, NameClaims: n.nameClaims.Load(),
		StatusStats: n.statuses.stats()}
	if n.keeper != nil {
		s.StreamReady, s.StreamErrors = n.keeper.ready.Load(), n.keeper.failures.Load()
	}
	return s
}

// maxMessage returns how many bytes one message may have.
func (n *Conn) maxMessage() int {
	if limit := n.conn.MaxPayload(); limit > 0 {
		return int(limit)
	}
	return defaultPayload
}

// nameTimeout bounds the wait for an answer of another agent with the node's
// name. An agent whose process or host is gone does not answer.
const nameTimeout = time.Second

// claimName claims Options.Node, the node name under which this agent's pools are known in the
// cluster. It returns an error when another agent answers for the name. Otherwise this agent
// answers for it from now on, so that another agent with the name does not start. Two agents
// get the same name when they start at the same moment or cannot reach each other. Routers report
// such pools as ambiguous.
func (n *Conn) claimName(ctx context.Context) error {
	if n.opt.Node == "" {
		return nil
	}
	subject := kvevent.NodeSubject(n.opt.Cluster, n.opt.Node)
	self := selfClaim(n.opt.Node)
	if n.Connected() {
		if err := n.askForName(ctx, subject, self); err != nil {
			return err
		}
	}
	_, err := n.conn.Subscribe(subject, func(m *nats.Msg) {
		other, err := kvevent.DecodeNodeClaim(m.Data)
		if err != nil || m.Reply == "" || other.Node != n.opt.Node { // no question about our name
			return
		}
		n.nameClaims.Add(1)
		n.log.Warn("another agent was refused this node's name", zap.String("node", other.Node),
			zap.String("host", other.Host), zap.Uint64("pid", other.PID))
		if err := n.conn.Publish(m.Reply, kvevent.AppendNodeClaim(nil, &self)); err != nil {
			n.log.Warn("the other agent is not told", zap.Error(err))
		}
	})
	if err != nil {
		return fmt.Errorf("nats subscribe to %s: %w", subject, err)
	}
	if n.Connected() {
		// After the flush the next agent that asks gets an answer. A slow server takes the
		// subscription later; that must not keep this agent from starting.
		if err := n.conn.FlushTimeout(nameTimeout); err != nil {
			n.log.Info("the server has not taken the claim of this node's name yet", zap.String("node", n.opt.Node), zap.Error(err))
		}
	}
	return nil
}

// askForName asks on subject whether another agent has this node's name, and returns an error if
// one answers, even in a format of another version. No answer within nameTimeout means that none
// has the name. self is this agent's claim, which the other agent logs.
func (n *Conn) askForName(ctx context.Context, subject string, self kvevent.NodeClaim) error {
	ctx, cancel := context.WithTimeout(ctx, nameTimeout)
	defer cancel()
	m, err := n.conn.RequestWithContext(ctx, subject, kvevent.AppendNodeClaim(nil, &self))
	switch {
	case errors.Is(err, nats.ErrNoResponders):
		return nil
	case err != nil:
		n.log.Info("no agent answers for this node's name", zap.String("node", n.opt.Node), zap.Error(err))
		return nil
	}
	other, err := kvevent.DecodeNodeClaim(m.Data)
	if err != nil {
		return fmt.Errorf("node %q: another agent of cluster %q has this name: %w", n.opt.Node, n.opt.Cluster, err)
	}
	return fmt.Errorf("node %q: another agent of cluster %q has this name, process %d on host %q; want a name for each node",
		n.opt.Node, n.opt.Cluster, other.PID, other.Host)
}

func selfClaim(node string) kvevent.NodeClaim {
	host, err := os.Hostname()
	if err != nil {
		host = "unknown"
	}
	return kvevent.NodeClaim{Node: node, Host: host, PID: uint64(os.Getpid())}
}
