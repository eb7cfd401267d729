package servertls

import (
	"context"
	"crypto/tls"
	"errors"
	"io"
	"net"
	"sync"
	"time"

	"go.uber.org/zap"
)

// handshakeTimeout bounds a handshake.
const handshakeTimeout = 5 * time.Second

// listener accepts connections whose handshake has ended, so that a server knows the protocol when it gets one. A
// handshake that waits holds up no other. The listener below bounds their number.
type listener struct {
	net.Listener
	config *tls.Config
	log    *zap.Logger
	accept chan accepted
	// ctx ends with Close, and so do all handshakes.
	ctx     context.Context
	end     context.CancelFunc
	running sync.WaitGroup
}

// accepted is a result of Accept.
type accepted struct {
	conn net.Conn
	err  error
}

// newListener returns a listener on l. Its goroutines run until Close.
func newListener(l net.Listener, config *tls.Config, log *zap.Logger) *listener {
	t := &listener{Listener: l, config: config, log: log, accept: make(chan accepted)}
	t.ctx, t.end = context.WithCancel(context.Background())
	t.running.Go(t.run)
	return t
}

// run accepts connections until the listener below is closed.
func (l *listener) run() {
	for {
		c, err := l.Listener.Accept()
		if err == nil {
			l.running.Go(func() { l.handshake(tls.Server(c, l.config)) })
			continue
		}
		if !l.deliver(accepted{err: err}) || errors.Is(err, net.ErrClosed) {
			return
		}
	}
}

// deliver gives Accept a result. It returns false when the listener is closed.
func (l *listener) deliver(a accepted) bool {
	select {
	case l.accept <- a:
		return true
	case <-l.ctx.Done():
		return false
	}
}

// handshake delivers a connection after its handshake. It closes a connection whose handshake fails.
func (l *listener) handshake(c *tls.Conn) {
	ctx, cancel := context.WithTimeout(l.ctx, handshakeTimeout)
	defer cancel()
	err := c.HandshakeContext(ctx)
	if err == nil && l.deliver(accepted{conn: c}) {
		return
	}
	var header tls.RecordHeaderError
	if errors.As(err, &header) && header.Conn != nil && isHTTP(header.RecordHeader) {
		// A client that speaks no TLS reads why, or has gone.
		_, _ = io.WriteString(header.Conn, "HTTP/1.0 400 Bad Request\r\n\r\nThis port speaks HTTPS.\n")
		err = errors.New("the client sent HTTP without TLS")
	}
	if err != nil && l.ctx.Err() == nil {
		l.log.Info("TLS handshake error", zap.Stringer("from", c.RemoteAddr()), zap.Error(err))
	}
	_ = c.NetConn().Close() // nobody uses the connection
}

// isHTTP reports whether the first bytes of a connection are of an HTTP request.
func isHTTP(b [5]byte) bool {
	switch string(b[:]) {
	case "GET /", "HEAD ", "POST ", "PUT /", "OPTIO":
		return true
	}
	return false
}

// Accept implements net.Listener.
func (l *listener) Accept() (net.Conn, error) {
	select {
	case a := <-l.accept:
		return a.conn, a.err
	case <-l.ctx.Done():
		return nil, net.ErrClosed
	}
}

// Close implements net.Listener. It ends the handshakes.
func (l *listener) Close() error {
	l.end()
	err := l.Listener.Close()
	l.running.Wait()
	return err
}
