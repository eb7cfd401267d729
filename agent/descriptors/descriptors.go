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

// libzmq aborts the process when it finds no descriptor for a context or a socket. The bounds
// below leave some for it.
const (
	// maxConnections bounds the connections of all engines of a node.
	maxConnections = 4096
	// connectionDescriptors are the descriptors of a connection: its socket and the watch of its
	// process.
	connectionDescriptors = 2
	// spareDescriptors are for files that are open for a moment, for reconnects to NATS and
	// for subscribers of ZMQ streams.
	spareDescriptors = 24
	// minHTTPConnections and maxHTTPConnections bound the connections of one HTTP listener.
	minHTTPConnections, maxHTTPConnections = 4, 1024
	// maxNATSConnections bounds the clients of the embedded NATS server.
	maxNATSConnections = 65536
)

// Needs lists the uses of descriptors by an agent.
type Needs struct {
	// Listeners is the number of HTTP listeners.
	Listeners int
	// NATS says that a NATS server runs in the agent.
	NATS bool
	// Extents is the number of files that full tiers have.
	Extents int
	// Rank is the most that the event streams of one engine take.
	Rank int
}

// Budget divides the file descriptors of the process (RLIMIT_NOFILE). What the agent does not
// need itself is divided in two: one half for connections, the other for event streams. A
// flood of connections leaves room for the engines that have one. Any goroutine may call its
// methods; mu is a leaf.
type Budget struct {
	limit int
	rank  int // the most descriptors of the event streams of one engine
	// own is the number of descriptors of the agent itself.
	own int
	// without is the number of extents of full tiers without a descriptor in own.
	without int
	open    func() (int, error) // counts the open descriptors

	mu      sync.Mutex
	streams int // reserved for event streams
}

// Divide makes the budget of the process: what the agent needs itself (n and the descriptors
// that are open now), and a half of the rest each for connections and for event streams. The
// agent must have opened everything that it opens at its start, except the HTTP listeners.
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

// own returns how many descriptors the agent needs itself. Of its limit, open are in use.
// Extents, the files of growing tiers, get at most half of what is left; without is the number
// of extents that get none.
func (n *Needs) own(limit, open int) (own, without int) {
	own = open + n.Listeners*HTTPConnections(limit) + spareDescriptors
	if n.NATS {
		own += NATSConnections(limit)
	}
	// A tier without a descriptor for its next extent does not grow.
	covered := min(n.Extents, max(0, limit-own)/2)
	return own + covered, n.Extents - covered
}

// Limit returns the limit of the process.
func (b *Budget) Limit() int { return b.limit }

// Log logs the division, and warns when the limit is too low.
func (b *Budget) Log(log *zap.Logger) {
	log.Info("file descriptors are shared out", zap.Int("limit", b.limit), zap.Int("own", b.own),
		zap.Int("connections", b.Connections()), zap.Int("for_event_streams", b.share()))
	if wanted := b.wanted(); wanted > 0 {
		log.Warn("too few file descriptors for full tiers and an engine's event streams: raise RLIMIT_NOFILE",
			zap.Int("limit", b.limit), zap.Int("want", wanted))
	}
}

// wanted returns the limit that full tiers and one engine's event streams need; 0 when the
// limit is high enough.
func (b *Budget) wanted() int {
	// Extents get half of what is left, and event streams the half of what is left after them.
	wanted := max(b.limit+2*b.without, b.own+2*b.rank)
	if wanted <= b.limit {
		return 0
	}
	return wanted
}

// Limit returns the limit of the process: RLIMIT_NOFILE.
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

// share returns how many descriptors connections may have. Event streams may have as many.
func (b *Budget) share() int { return max(0, b.limit-b.own) / 2 }

// Connections returns how many connections engines may have.
func (b *Budget) Connections() int {
	return min(maxConnections, max(1, b.share()/connectionDescriptors))
}

// Reserve takes n descriptors for the event streams of a session, until Release. It refuses
// when reservations leave too few of the streams' share, or when open descriptors leave too few
// of the limit. Half of the spare descriptors always stay free.
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
		return refusal.Retry(proto.CodeLimit, "HELLO events_endpoint: its streams need %d file descriptors; %d of %d for streams are reserved, %d of the process are open: raise its limit of %d (RLIMIT_NOFILE)",
			n, b.streams, b.share(), open, b.limit)
	}
	b.streams += n
	return nil
}

// Release returns n descriptors to the budget.
func (b *Budget) Release(n int) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.streams -= n
}

// HTTPConnections returns how many connections one HTTP listener may have at a limit.
func HTTPConnections(limit int) int {
	return min(maxHTTPConnections, max(minHTTPConnections, limit/16))
}

// NATSConnections returns how many clients the embedded NATS server may have at a limit.
func NATSConnections(limit int) int {
	return min(maxNATSConnections, max(minHTTPConnections, limit/8))
}

// limitedListener has at most cap(slots) open connections. Further ones wait in the system's
// queue.
type limitedListener struct {
	net.Listener
	slots  chan struct{}
	closed chan struct{}
	once   sync.Once
}

// LimitListener accepts at most connections open connections of l at a time. Further ones wait
// in the system's queue.
func LimitListener(l net.Listener, connections int) net.Listener {
	return &limitedListener{Listener: l, slots: make(chan struct{}, connections), closed: make(chan struct{})}
}

// Accept implements net.Listener. While the listener has as many open connections as it may
// have, Accept waits until one of them closes.
func (l *limitedListener) Accept() (net.Conn, error) {
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
func (l *limitedListener) Close() error {
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
