package bodies_test

import (
	"bufio"
	"context"
	"errors"
	"io"
	"net"
	"net/http"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/blockyard-ai/blockyard/internal/bodies"
)

// One client's bodies leave room for those of another.
func TestClientsShareTheRoomForBodies(t *testing.T) {
	budget := bodies.New(100<<10, 1<<30, new(bodies.Counters))
	read := func(client string, n int) (*bodies.Body, error) {
		b := budget.Wrap(strings.NewReader(strings.Repeat("x", bodies.Free+n)), client, nil)
		_, err := io.Copy(io.Discard, b)
		return b, err
	}
	for i := range 100 {
		if _, err := read("a", 1<<10); (err != nil) != (i >= 50) {
			t.Fatalf("body %d of the first client: %v", i, err)
		}
	}
	second, err := read("b", 20<<10)
	if err != nil {
		t.Errorf("the second client: %v", err)
	}
	if _, err := read("c", 10<<10); err != nil {
		t.Errorf("the third client: %v", err)
	}
	if _, err := read("b", 10<<10); !errors.Is(err, bodies.ErrBusy) {
		t.Errorf("the second client, beyond its share: %v", err)
	}
	second.Done()
	if _, err := read("b", 10<<10); err != nil {
		t.Errorf("the second client, when its first body is done: %v", err)
	}
}

// A client that sends a byte a second loses its place soon; one that sends fast enough does
// not, until the longest time is over.
func TestSlowBodiesEnd(t *testing.T) {
	for _, c := range []struct {
		bytes int // in a second
		lasts time.Duration
	}{
		{0, bodies.Grace}, {1, bodies.Grace}, {bodies.LeastRate / 2, 2 * bodies.Grace}, {2 * bodies.LeastRate, bodies.Longest},
	} {
		synctest.Test(t, func(t *testing.T) {
			var counters bodies.Counters
			client, server := net.Pipe()
			sent := make(chan struct{})
			go func() {
				defer close(sent)
				for {
					if _, err := client.Write(make([]byte, c.bytes)); err != nil {
						return
					}
					time.Sleep(time.Second)
				}
			}()
			budget := bodies.New(1<<30, 1<<30, &counters)
			body := budget.Wrap(server, "a", func(by time.Time) { _ = server.SetReadDeadline(by) })
			begun := time.Now()
			_, err := io.Copy(io.Discard, body)
			lasted := time.Since(begun)
			if !errors.Is(err, bodies.ErrLate) || counters.Stats() != (bodies.Stats{Slow: 1}) || lasted < c.lasts-time.Second || lasted > c.lasts+2*time.Second {
				t.Errorf("%d bytes a second: %v after %s, %d counted; want the end after about %s", c.bytes, err, lasted, counters.Stats().Slow, c.lasts)
			}
			body.Done()
			if left := budget.Usage(); left != (bodies.Usage{}) {
				t.Errorf("left: %+v", left)
			}
			_ = server.Close()
			<-sent
		})
	}
}

// pipes is a listener in memory.
type pipes struct {
	conns chan net.Conn
	ended chan struct{}
}

func (p *pipes) Accept() (net.Conn, error) {
	select {
	case c := <-p.conns:
		return c, nil
	case <-p.ended:
		return nil, net.ErrClosed
	}
}

func (p *pipes) Close() error   { close(p.ended); return nil }
func (p *pipes) Addr() net.Addr { return &net.TCPAddr{} }

// The time for a body does not bound the request after the body, also without one.
func TestTheRequestOutlivesItsBody(t *testing.T) {
	for _, sent := range []string{
		"POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 0\r\n\r\n",
		"POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 3\r\n\r\nabc",
		"POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nabc\r\n0\r\n\r\n",
	} {
		synctest.Test(t, func(t *testing.T) {
			budget := bodies.New(1<<30, 1<<30, new(bodies.Counters))
			server := &http.Server{ReadTimeout: bodies.Longest, Handler: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
				body := budget.Wrap(r.Body, "a", bodies.ReadBy(w, r))
				defer body.Done()
				if _, err := io.Copy(io.Discard, body); err != nil {
					t.Error(err)
				}
				select {
				case <-r.Context().Done():
					t.Errorf("%q: %v", sent, context.Cause(r.Context()))
				case <-time.After(10 * time.Minute):
				}
			})}
			l := &pipes{make(chan net.Conn), make(chan struct{})}
			ended := make(chan error, 1)
			go func() { ended <- server.Serve(l) }()
			client, conn := net.Pipe()
			l.conns <- conn
			if _, err := io.WriteString(client, sent); err != nil {
				t.Fatal(err)
			}
			status, err := bufio.NewReader(client).ReadString('\n')
			if err != nil || !strings.Contains(status, "200") {
				t.Errorf("%q: %q, %v", sent, status, err)
			}
			if err := errors.Join(client.Close(), server.Close()); err != nil {
				t.Error(err)
			}
			<-ended
		})
	}
}
