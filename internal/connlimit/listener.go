package connlimit

import (
	"container/list"
	"errors"
	"net"
	"net/http"
	"sync"
	"syscall"
)

// Limits bound connections. 0 is no limit.
type Limits struct {
	All, PerAddress int
	// KeepIdle refuses a new connection at a limit and closes none for it. Set it for a server that
	// does not report to State: its connections would all count as idle.
	KeepIdle bool
}

// Stats has the numbers of a Listener.
type Stats struct {
	Open   int    `metric:"connections" help:"Open connections."`
	Closed Closed `metric:"-"`
}

// Closed counts the connections that a limit closed, by reason.
type Closed struct {
	// Idle connections were closed for a new one. Refused connections were closed at once.
	Idle    uint64 `metric:"idle"`
	Refused uint64 `metric:"refused"`
}

// Listener is a listener with limits. Make one with Listen.
type Listener struct {
	net.Listener
	limits Limits

	mu    sync.Mutex
	stats Stats
	// idle has the *conn of all idle connections, the longest idle first.
	idle      list.List
	addresses map[string]*address
}

// address is the connections of one client address.
type address struct {
	open int
	idle list.List // of *conn, the longest idle first
}

// conn is an accepted connection.
type conn struct {
	net.Conn
	listener *Listener
	name     string

	// The listener's lock guards the rest. all and own are the places in the lists of idle
	// connections, nil while the connection is busy.
	all, own *list.Element
	closed   bool
}

// Listen returns a listener that accepts from l and keeps to the limits. The server must report the
// state of connections to State, unless limits has KeepIdle.
func Listen(l net.Listener, limits Limits) *Listener {
	return &Listener{Listener: l, limits: limits, addresses: make(map[string]*address)}
}

// Stats returns the numbers of the moment.
func (l *Listener) Stats() Stats {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.stats
}

// Accept implements net.Listener. At a limit it closes the connection that has been idle longest to
// make room; without an idle one it closes the new connection and waits for the next.
func (l *Listener) Accept() (net.Conn, error) {
	for {
		accepted, err := l.Listener.Accept()
		if errors.Is(err, syscall.EMFILE) || errors.Is(err, syscall.ENFILE) {
			// Out of descriptors: one connection less lets the next Accept succeed.
			l.evict(l.longest())
		}
		if err != nil {
			return nil, err
		}
		host, _, err := net.SplitHostPort(accepted.RemoteAddr().String())
		if err != nil {
			host = accepted.RemoteAddr().String()
		}
		c := &conn{Conn: accepted, listener: l, name: host}
		for {
			victim, admitted := l.admit(c)
			if admitted {
				return c, nil
			}
			if victim == nil {
				break
			}
			l.evict(victim)
		}
		l.mu.Lock()
		l.stats.Closed.Refused++
		l.mu.Unlock()
		_ = accepted.Close() // nobody uses the connection
	}
}

// admit counts the new connection c, as an idle one, and returns true. At a limit it counts nothing
// and returns false with the idle connection to close first, nil when none is idle.
func (l *Listener) admit(c *conn) (victim *conn, admitted bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	a := l.addresses[c.name]
	switch {
	case l.limits.PerAddress > 0 && a != nil && a.open >= l.limits.PerAddress:
		return first(&a.idle), false
	case l.limits.All > 0 && l.stats.Open >= l.limits.All:
		return first(&l.idle), false
	}
	if a == nil {
		a = new(address)
		l.addresses[c.name] = a
	}
	l.stats.Open++
	a.open++
	l.idleLocked(c)
	return nil, true
}

// longest returns the connection that has been idle longest, nil without one.
func (l *Listener) longest() *conn {
	l.mu.Lock()
	defer l.mu.Unlock()
	return first(&l.idle)
}

func first(l *list.List) *conn {
	if e := l.Front(); e != nil {
		return e.Value.(*conn)
	}
	return nil
}

// evict closes an idle connection; nil is none.
func (l *Listener) evict(c *conn) {
	if c != nil {
		l.mu.Lock()
		l.stats.Closed.Idle++
		l.mu.Unlock()
		_ = c.Close() // its server sees the end
	}
}

// Close implements net.Conn.
func (c *conn) Close() error {
	c.listener.remove(c)
	return c.Conn.Close()
}

// remove ends the counting of a connection that is closed. A second call has no effect.
func (l *Listener) remove(c *conn) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if c.closed {
		return
	}
	l.busyLocked(c)
	c.closed = true
	l.stats.Open--
	a := l.addresses[c.name]
	if a.open--; a.open == 0 {
		delete(l.addresses, c.name)
	}
}

// idleLocked records that a connection is idle from now on.
func (l *Listener) idleLocked(c *conn) {
	if c.all == nil && !l.limits.KeepIdle {
		c.all = l.idle.PushBack(c)
		c.own = l.addresses[c.name].idle.PushBack(c)
	}
}

// busyLocked records that a connection is busy from now on.
func (l *Listener) busyLocked(c *conn) {
	if c.all != nil {
		l.idle.Remove(c.all)
		l.addresses[c.name].idle.Remove(c.own)
		c.all, c.own = nil, nil
	}
}

// State learns from an HTTP server which connections are idle. Set it as http.Server.ConnState, or
// call it from there. Connections of other listeners have no effect.
func State(nc net.Conn, s http.ConnState) {
	for wrapped, ok := nc.(interface{ NetConn() net.Conn }); ok; wrapped, ok = nc.(interface{ NetConn() net.Conn }) {
		nc = wrapped.NetConn()
	}
	c, ok := nc.(*conn)
	if !ok {
		return
	}
	l := c.listener
	l.mu.Lock()
	defer l.mu.Unlock()
	switch {
	case c.closed:
	case s == http.StateActive:
		l.busyLocked(c)
	case s == http.StateIdle:
		l.idleLocked(c)
	}
}
