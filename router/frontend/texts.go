package frontend

import (
	"bytes"
	"crypto/tls"
	"fmt"
	"net"
	"net/http"
	"strconv"

	"github.com/blockyard-ai/blockyard/router/frontend/openai"
)

// net/http itself answers a request that it cannot parse, with one write of a line of text.
const (
	statusStart = "HTTP/1.1 "
	textHeaders = "\r\nContent-Type: text/plain; charset=utf-8\r\nConnection: close\r\n\r\n"
	maxText     = 512
)

// shapedListener gives clients OpenAI's errors where net/http would send a line of text. It leaves
// connections with HTTP/2 as they are, because net/http serves it only on a *tls.Conn.
type shapedListener struct{ net.Listener }

// Accept implements net.Listener.
func (l shapedListener) Accept() (net.Conn, error) {
	c, err := l.Listener.Accept()
	if err != nil {
		return nil, err
	}
	encrypted, ok := c.(*tls.Conn)
	if !ok {
		return shapedConn{c}, nil
	}
	state := encrypted.ConnectionState()
	if !state.HandshakeComplete || state.NegotiatedProtocol == "h2" {
		return c, nil
	}
	return shapedTLSConn{shapedConn{c}, state}, nil
}

// shapedTLSConn tells net/http about TLS, for http.Request.TLS.
type shapedTLSConn struct {
	shapedConn
	state tls.ConnectionState
}

// ConnectionState is what net/http asks for.
func (c shapedTLSConn) ConnectionState() tls.ConnectionState { return c.state }

type shapedConn struct{ net.Conn }

// NetConn returns the connection below, for connlimit.State.
func (c shapedConn) NetConn() net.Conn { return c.Conn }

// Write implements net.Conn.
func (c shapedConn) Write(p []byte) (int, error) {
	shaped := shapedError(p)
	if shaped == nil {
		return c.Conn.Write(p)
	}
	if _, err := c.Conn.Write(shaped); err != nil {
		return 0, err
	}
	return len(p), nil
}

// shapedError returns the answer to send for an error text of net/http, nil for other bytes. Answers
// of handlers are other bytes: they have a Date.
func shapedError(p []byte) []byte {
	if len(p) > maxText || !bytes.HasPrefix(p, []byte(statusStart)) {
		return nil
	}
	line, text, found := bytes.Cut(p[len(statusStart):], []byte(textHeaders))
	if !found || len(line) < 3 || bytes.ContainsAny(line, "\r\n") {
		return nil
	}
	status, err := strconv.Atoi(string(line[:3]))
	if err != nil {
		return nil
	}
	f := fault{Status: status, Kind: kindInvalid, Message: string(text)}
	if status == http.StatusRequestHeaderFieldsTooLarge {
		f = headersTooLarge.refusal(fmt.Sprintf("the headers of the request have more than %d bytes", maxHeader)).fault
	}
	body := f.encode(openai.Other)
	return fmt.Appendf(nil, "%s%d %s\r\nContent-Type: application/json\r\nContent-Length: %d\r\nConnection: close\r\n\r\n%s",
		statusStart, status, http.StatusText(status), len(body), body)
}
