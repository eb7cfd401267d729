package connlimit_test

import (
	"bufio"
	"io"
	"net"
	"net/http"
	"runtime"
	"testing"
	"time"

	"github.com/blockyard-ai/blockyard/internal/connlimit"
)

// bench is a server behind a Listener.
type bench struct {
	t        *testing.T
	address  string
	listener *connlimit.Listener
	hold     chan struct{} // requests for /hold end when it is closed
}

func newBench(t *testing.T, limits connlimit.Limits) *bench {
	t.Helper()
	plain, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	b := &bench{t: t, address: plain.Addr().String(), hold: make(chan struct{})}
	b.listener = connlimit.Listen(plain, limits)
	server := &http.Server{ConnState: connlimit.State, Handler: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path == "/hold" {
			_, _ = io.WriteString(w, "begun")
			_ = http.NewResponseController(w).Flush()
			<-b.hold
		}
	})}
	done := make(chan struct{})
	go func() {
		defer close(done)
		_ = server.Serve(b.listener)
	}()
	t.Cleanup(func() {
		_ = server.Close()
		<-done
		b.await("open", b.open, 0)
	})
	return b
}

func (b *bench) open() int    { return b.listener.Stats().Open }
func (b *bench) evicted() int { return int(b.listener.Stats().Closed.Idle) }
func (b *bench) refused() int { return int(b.listener.Stats().Closed.Refused) }

func (b *bench) await(what string, n func() int, want int) {
	b.t.Helper()
	for began := time.Now(); n() != want; runtime.Gosched() {
		if time.Since(began) > 30*time.Second {
			b.t.Fatalf("%s: %d, want %d", what, n(), want)
		}
	}
}

func (b *bench) dial() net.Conn {
	b.t.Helper()
	c, err := net.Dial("tcp", b.address)
	if err != nil {
		b.t.Fatal(err)
	}
	b.t.Cleanup(func() { _ = c.Close() })
	_ = c.SetDeadline(time.Now().Add(10 * time.Second))
	return c
}

// ask sends a request on c and returns whether it was answered.
func (b *bench) ask(c net.Conn, path string) bool {
	b.t.Helper()
	if _, err := io.WriteString(c, "GET "+path+" HTTP/1.1\r\nHost: a\r\n\r\n"); err != nil {
		return false
	}
	resp, err := http.ReadResponse(bufio.NewReader(c), nil)
	return err == nil && resp.StatusCode == http.StatusOK
}

// Idle connections give way to new ones, the longest idle first, and busy ones stay.
func TestIdleGivesWay(t *testing.T) {
	for name, limits := range map[string]connlimit.Limits{"all": {All: 3}, "address": {All: 100, PerAddress: 3}} {
		t.Run(name, func(t *testing.T) {
			b := newBench(t, limits)
			busy := b.dial()
			if !b.ask(busy, "/hold") {
				t.Fatal("the first request is not answered")
			}
			silent := b.dial()
			b.await("open", b.open, 2)
			kept := b.dial()
			if !b.ask(kept, "/") {
				t.Fatal("the third connection is not served")
			}
			if !b.ask(b.dial(), "/") {
				t.Error("a new connection is not served")
			}
			if _, err := silent.Read(make([]byte, 1)); err == nil || b.evicted() != 1 {
				t.Errorf("the longest idle connection: %v, %d evicted", err, b.evicted())
			}
			if !b.ask(kept, "/") {
				t.Error("a younger idle connection was closed")
			}
			close(b.hold)
		})
	}
}

// Without an idle connection a new one is closed, and the others go on.
func TestAllBusy(t *testing.T) {
	b := newBench(t, connlimit.Limits{All: 2})
	one, two := b.dial(), b.dial()
	if !b.ask(one, "/hold") || !b.ask(two, "/hold") {
		t.Fatal("the first requests are not answered")
	}
	if b.ask(b.dial(), "/") {
		t.Error("one connection too many is served")
	}
	b.await("refused", b.refused, 1)
	close(b.hold)
	_ = one.Close()
	b.await("open", b.open, 1)
	if !b.ask(b.dial(), "/") {
		t.Error("a new connection after a closed one is not served")
	}
}

// With KeepIdle no connection is closed for a new one, and one that ends makes room.
func TestKeepIdle(t *testing.T) {
	for name, limits := range map[string]connlimit.Limits{"all": {All: 2, KeepIdle: true}, "address": {PerAddress: 2, KeepIdle: true}} {
		t.Run(name, func(t *testing.T) {
			b := newBench(t, limits)
			one, two := b.dial(), b.dial()
			if !b.ask(one, "/") || !b.ask(two, "/") {
				t.Fatal("the first connections are not served")
			}
			if b.ask(b.dial(), "/") {
				t.Error("one connection too many is served")
			}
			if b.await("refused", b.refused, 1); b.evicted() != 0 || !b.ask(one, "/") || !b.ask(two, "/") {
				t.Errorf("%d idle connections were closed for a new one", b.evicted())
			}
			_ = one.Close()
			b.await("open", b.open, 1)
			if !b.ask(b.dial(), "/") {
				t.Error("a new connection after a closed one is not served")
			}
		})
	}
}

// Many idle clients do not keep others out, and cost no memory once they are gone.
func TestIdleClients(t *testing.T) {
	b := newBench(t, connlimit.Limits{All: 200})
	heap := func() uint64 {
		runtime.GC()
		var m runtime.MemStats
		runtime.ReadMemStats(&m)
		return m.HeapAlloc + m.StackInuse
	}
	before := heap()
	for range 1000 {
		b.dial()
	}
	if !b.ask(b.dial(), "/") {
		t.Error("a client beside 1,000 idle ones is not served")
	}
	b.await("evicted", b.evicted, 801)
	if n := b.open(); n != 200 {
		t.Errorf("%d connections are open, want 200", n)
	}
	const most = 32 << 20
	if after := heap(); after > before+most {
		t.Errorf("%d bytes more than before 1,000 connections, want at most %d", after-before, most)
	}
}
