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
type Limits struct{ All, PerAddress int }

// Events are called for connections; nil functions are left out. They must be quick.
type Events struct {
	// Changed gets 1 for an opened connection and -1 for a closed one.
	Changed func(n int)
	// Evicted is called for an idle connection that was closed for a new one, Refused for a
	// new connection that was closed at once.
	Evicted, Refused func()
}

// Listener is a listener with limits. Make one with Listen.
type Listener struct {
	net.Listener
	limits Limits
	events Events

	mu   sync.Mutex
	open int
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

// Listen returns a listener that accepts from l and keeps to the limits. Functions of events may be
// nil. The server must report the state of connections to State.
func Listen(l net.Listener, limits Limits, events Events) *Listener {
	if events.Changed == nil {
		events.Changed = func(int) {}
	}
	if events.Evicted == nil {
		events.Evicted = func() {}
	}
	if events.Refused == nil {
		events.Refused = func() {}
	}
	return &Listener{Listener: l, limits: limits, events: events, addresses: make(map[string]*address)}
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
				l.events.Changed(1)
				return c, nil
			}
			if victim == nil {
				break
			}
			l.evict(victim)
		}
		l.events.Refused()
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
	case l.limits.All > 0 && l.open >= l.limits.All:
		return first(&l.idle), false
	}
	if a == nil {
		a = new(address)
		l.addresses[c.name] = a
	}
	l.open++
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
		l.events.Evicted()
		_ = c.Close() // its server sees the end
	}
}

// Close implements net.Conn.
func (c *conn) Close() error {
	if c.listener.remove(c) {
		c.listener.events.Changed(-1)
	}
	return c.Conn.Close()
}

// remove ends the counting of a connection that is closed. It returns false when the connection was
// removed before.
func (l *Listener) remove(c *conn) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	if c.closed {
		return false
	}
	l.busyLocked(c)
	c.closed = true
	l.open--
	a := l.addresses[c.name]
	if a.open--; a.open == 0 {
		delete(l.addresses, c.name)
	}
	return true
}

// idleLocked records that a connection is idle from now on.
func (l *Listener) idleLocked(c *conn) {
	if c.all == nil {
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
	if wrapped, ok := nc.(interface{ NetConn() net.Conn }); ok {
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
