package descriptors

import (
	"fmt"
	"net"
	"os"
	"sync"
	"syscall"

	"go.uber.org/zap"

	"github.com/blockyard-ai/blockyard/agent/refusal"
	"github.com/blockyard-ai/blockyard/internal/proto"
)

// libzmq aborts the process when it finds no file descriptor for a context or a socket, so
// that none of what follows may use the last ones.
const (
	// maxConnections bounds the connections of all engines of a node, where there are file
	// descriptors for as many.
	maxConnections = 4096
	// connectionDescriptors are what a connection takes: its socket and the watch of its
	// process.
	connectionDescriptors = 2
	// spareDescriptors are for files that are open for a moment, for connections to another
	// NATS server and for what connects to the streams in the engines' format.
	spareDescriptors = 24
	// minHTTPConnections and maxHTTPConnections bound the HTTP connections of one listener,
	// for metrics, operators and KVBM's metrics.
	minHTTPConnections, maxHTTPConnections = 4, 1024
	// maxNATSConnections bounds the clients of the NATS server inside the agent.
	maxNATSConnections = 65536
)

// Needs says what the agent needs descriptors for.
type Needs struct {
	// Listeners is the number of HTTP listeners.
	Listeners int
	// NATS: a NATS server runs inside the agent.
	NATS bool
	// Extents is the number of files that full tiers have.
	Extents int
	// Rank is what the event streams of one engine take at most.
	Rank int
}

// Budget divides the file descriptors that the process may have (RLIMIT_NOFILE)
// between connections, event streams of sessions and all else. Half of what the agent does
// not need itself is for connections, the other half for event streams, so that a flood of
// Connections leaves room for the engines that have one.
type Budget struct {
	limit int
	rank  int // what the event streams of one engine take at most
	// own are those that the agent needs itself.
	own int
	// without is how many extents of full tiers have no descriptor in own.
	without int
	open    func() (int, error) // how many are open now

	mu      sync.Mutex
	streams int // reserved for event streams
}

// Divide divides the process's limit for an agent that has opened everything that
// it needs at its start.
func Divide(n Needs) (*Budget, error) {
	limit, err := Limit()
	if err != nil {
		return nil, err
	}
	open, err := openDescriptors()
	if err != nil {
		return nil, err
	}
	own, without := n.own(limit, open)
	return &Budget{limit: limit, own: own, without: without, rank: n.Rank, open: openDescriptors}, nil
}

// own is how many descriptors the agent needs itself, when open of the limit are
// open after its start, and how many extents of full tiers are without one.
func (n *Needs) own(limit, open int) (own, without int) {
	own = open + n.Listeners*HTTPConnections(limit) + spareDescriptors
	if n.NATS {
		own += NATSConnections(limit)
	}
	// A tier that finds no descriptor for an extent stays as large as it is.
	covered := min(n.Extents, max(0, limit-own)/2)
	return own + covered, n.Extents - covered
}

// Limit is how many file descriptors the process may have.
func (b *Budget) Limit() int { return b.limit }

// Log says how the limit is divided, and warns when it is too low.
func (b *Budget) Log(log *zap.Logger) {
	log.Info("file descriptors", zap.Int("limit", b.limit), zap.Int("own", b.own),
		zap.Int("connections", b.Connections()), zap.Int("for_event_streams", b.share()))
	if wanted := b.wanted(); wanted > 0 {
		log.Warn("too few file descriptors for full tiers and an engine's event streams: raise RLIMIT_NOFILE",
			zap.Int("limit", b.limit), zap.Int("want", wanted))
	}
}

// wanted is the limit at which the tiers can fill and an engine's event streams have room;
// 0: the limit is high enough.
func (b *Budget) wanted() int {
	wanted := max(b.limit+2*b.without, b.own+2*b.rank)
	if wanted <= b.limit {
		return 0
	}
	return wanted
}

// Limit is how many file descriptors the process may have.
func Limit() (int, error) {
	var r syscall.Rlimit
	if err := syscall.Getrlimit(syscall.RLIMIT_NOFILE, &r); err != nil {
		return 0, fmt.Errorf("limit of file descriptors: %w", err)
	}
	return int(min(r.Cur, 1<<30)), nil
}

// openDescriptors counts the open descriptors of the process.
func openDescriptors() (int, error) {
	d, err := os.Open("/proc/self/fd")
	if err != nil {
		return 0, fmt.Errorf("open file descriptors: %w", err)
	}
	defer d.Close()
	names, err := d.Readdirnames(-1)
	if err != nil {
		return 0, fmt.Errorf("open file descriptors: %w", err)
	}
	return len(names) - 1, nil // without d
}

// share is how many descriptors connections may have, and as many event streams.
func (b *Budget) share() int { return max(0, b.limit-b.own) / 2 }

// Connections is how many connections the agent may have.
func (b *Budget) Connections() int {
	return min(maxConnections, max(1, b.share()/connectionDescriptors))
}

// Reserve takes n descriptors for a session's event streams until release. The refusal
// says that there are too few, by what was reserved or by what is open now.
func (b *Budget) Reserve(n int) error {
	if n == 0 {
		return nil
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	open, err := b.open()
	if err != nil {
		return err
	}
	if b.streams+n > b.share() || open+n+spareDescriptors/2 > b.limit {
		return refusal.Retry(proto.CodeLimit, "HELLO events_endpoint: its streams take %d file descriptors, %d of %d for streams are reserved, %d are open: raise the limit of %d (RLIMIT_NOFILE)",
			n, b.streams, b.share(), open, b.limit)
	}
	b.streams += n
	return nil
}

// Release gives n descriptors back.
func (b *Budget) Release(n int) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.streams -= n
}

// HTTPConnections is how many connections one HTTP listener may have at a limit of file
// descriptors.
func HTTPConnections(limit int) int {
	return min(maxHTTPConnections, max(minHTTPConnections, limit/16))
}

// NATSConnections is how many clients the NATS server inside the agent may have at a limit
// of file descriptors.
func NATSConnections(limit int) int {
	return min(maxNATSConnections, max(minHTTPConnections, limit/8))
}

// LimitedListener accepts a connection when fewer than a number of its connections are
// open. Those beyond wait in the system's queue.
type LimitedListener struct {
	net.Listener
	slots  chan struct{}
	closed chan struct{}
	once   sync.Once
}

// LimitListener accepts no more than so many connections of l at a time.
func LimitListener(l net.Listener, connections int) *LimitedListener {
	return &LimitedListener{Listener: l, slots: make(chan struct{}, connections), closed: make(chan struct{})}
}

// Accept implements net.Listener.
func (l *LimitedListener) Accept() (net.Conn, error) {
	select {
	case l.slots <- struct{}{}:
	case <-l.closed:
		return nil, net.ErrClosed
	}
	c, err := l.Listener.Accept()
	if err != nil {
		<-l.slots
		return nil, err
	}
	return &limitedConn{Conn: c, done: func() { <-l.slots }}, nil
}

// Close implements net.Listener.
func (l *LimitedListener) Close() error {
	l.once.Do(func() { close(l.closed) })
	return l.Listener.Close()
}

type limitedConn struct {
	net.Conn
	once sync.Once
	done func()
}

// Close implements net.Conn.
func (c *limitedConn) Close() error {
	err := c.Conn.Close()
	c.once.Do(c.done)
	return err
}
