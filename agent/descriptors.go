package agent

import (
	"cmp"
	"fmt"
	"net"
	"os"
	"sync"
	"syscall"

	"github.com/blockyard-ai/blockyard/agent/refusal"
	"github.com/blockyard-ai/blockyard/blockmgr"
	"github.com/blockyard-ai/blockyard/internal/proto"
)

// libzmq aborts the process when it finds no file descriptor for a context or a socket, so
// that none of what follows may use the last ones.
const (
	// connectionDescriptors are what a connection takes: its socket and the watch of its
	// process.
	connectionDescriptors = 2
	// eventDescriptors are what following an engine's events takes, replays included;
	// outputDescriptors what a stream in the engines' format takes, with some peers.
	eventDescriptors  = 20
	outputDescriptors = 20
	// spareDescriptors are for files that are open for a moment, for connections to another
	// NATS server and for what connects to the streams in the engines' format.
	spareDescriptors = 24
	// minHTTPConnections and maxHTTPConnections bound the HTTP connections of one listener,
	// for metrics, operators and KVBM's metrics.
	minHTTPConnections, maxHTTPConnections = 4, 1024
	// maxNATSConnections bounds the clients of the NATS server inside the agent.
	maxNATSConnections = 65536
)

// descriptors divides the file descriptors that the process may have (RLIMIT_NOFILE)
// between connections, event streams of sessions and all else. Half of what the agent does
// not need itself is for connections, the other half for event streams, so that a flood of
// connections leaves room for the engines that have one.
type descriptors struct {
	limit int
	// own are those that the agent needs itself.
	own int
	// without is how many extents of full tiers have no descriptor in own.
	without int
	open    func() (int, error) // how many are open now

	mu      sync.Mutex
	streams int // reserved for event streams
}

// newDescriptors divides the process's limit for an agent that has opened everything that
// it needs at its start.
func newDescriptors(c *Config) (*descriptors, error) {
	limit, err := fileLimit()
	if err != nil {
		return nil, err
	}
	open, err := openDescriptors()
	if err != nil {
		return nil, err
	}
	own, without := ownDescriptors(c, limit, open)
	return &descriptors{limit: limit, own: own, without: without, open: openDescriptors}, nil
}

// ownDescriptors is how many descriptors the agent needs itself, when open of the limit are
// open after its start, and how many extents of full tiers are without one.
func ownDescriptors(c *Config, limit, open int) (own, without int) {
	listeners := 2 // metrics and operators
	if c.KVBM.Metrics != "" {
		listeners++
	}
	own = open + listeners*httpConnections(limit) + spareDescriptors
	if c.Events.Embedded != nil {
		own += natsConnections(limit)
	}
	// A tier that finds no descriptor for an extent stays as large as it is.
	extents := extentFiles(c)
	covered := min(extents, max(0, limit-own)/2)
	return own + covered, extents - covered
}

// wanted is the limit at which the tiers can fill and an engine's event streams have room;
// 0: the limit is high enough.
func (d *descriptors) wanted() int {
	wanted := max(d.limit+2*d.without, d.own+2*(eventDescriptors+outputDescriptors))
	if wanted <= d.limit {
		return 0
	}
	return wanted
}

// fileLimit is how many file descriptors the process may have.
func fileLimit() (int, error) {
	var r syscall.Rlimit
	if err := syscall.Getrlimit(syscall.RLIMIT_NOFILE, &r); err != nil {
		return 0, fmt.Errorf("limit of file descriptors: %w", err)
	}
	return int(min(r.Cur, 1<<30)), nil
}

// extentFiles is how many extents the tiers have when they are full; each is an open file.
func extentFiles(c *Config) int {
	files := 0
	for _, bytes := range []uint64{c.HostBytes, c.DiskBytes} {
		files += int(bytes / cmp.Or(c.ExtentBytes, blockmgr.ExtentBytesFor(bytes)))
	}
	return files
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
func (d *descriptors) share() int { return max(0, d.limit-d.own) / 2 }

// connections is how many connections the agent may have.
func (d *descriptors) connections() int {
	return min(maxConnections, max(1, d.share()/connectionDescriptors))
}

// reserve takes n descriptors for a session's event streams until release. The refusal
// says that there are too few, by what was reserved or by what is open now.
func (d *descriptors) reserve(n int) error {
	if n == 0 {
		return nil
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	open, err := d.open()
	if err != nil {
		return err
	}
	if d.streams+n > d.share() || open+n+spareDescriptors/2 > d.limit {
		return refusal.Retry(proto.CodeLimit, "HELLO events_endpoint: its streams take %d file descriptors, %d of %d for streams are reserved, %d are open: raise the limit of %d (RLIMIT_NOFILE)",
			n, d.streams, d.share(), open, d.limit)
	}
	d.streams += n
	return nil
}

func (d *descriptors) release(n int) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.streams -= n
}

// streamDescriptors is what the event streams of an engine that said hello take.
func (o *outputs) streamDescriptors(h *proto.Hello) (n int) {
	if h.EventsEndpoint != "" {
		n += eventDescriptors
	}
	if bind, err := o.sinkEndpoint(h); bind != "" && err == nil {
		n += outputDescriptors
	}
	return n
}

// httpConnections is how many connections one HTTP listener may have at a limit of file
// descriptors.
func httpConnections(limit int) int {
	return min(maxHTTPConnections, max(minHTTPConnections, limit/16))
}

// natsConnections is how many clients the NATS server inside the agent may have at a limit
// of file descriptors.
func natsConnections(limit int) int {
	return min(maxNATSConnections, max(minHTTPConnections, limit/8))
}

// limitedListener accepts a connection when fewer than a number of its connections are
// open. Those beyond wait in the system's queue.
type limitedListener struct {
	net.Listener
	slots  chan struct{}
	closed chan struct{}
	once   sync.Once
}

func limitListener(l net.Listener, connections int) *limitedListener {
	return &limitedListener{Listener: l, slots: make(chan struct{}, connections), closed: make(chan struct{})}
}

// Accept implements net.Listener.
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
