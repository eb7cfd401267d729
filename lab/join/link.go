package join

import (
	"context"
	"errors"
	"io"
	"net"
	"sync"
	"sync/atomic"
	"time"
)

const (
	// linkPiece is what the link carries at once, and linkBuffer what waits in it. A full link holds back the
	// sender.
	linkPiece, linkBuffer = 16 << 10, 128 << 10
	// linkBurst is how long the link keeps what it did not use, so that a late wake-up costs nothing.
	linkBurst = 100 * time.Millisecond
)

// link is a TCP proxy that carries a bounded number of bytes a second from its target to its clients. All
// connections share that.
type link struct {
	listener net.Listener
	target   string
	perByte  time.Duration // in units of 1/1024 ns
	running  sync.WaitGroup

	bytes, connections atomic.Uint64

	mu   sync.Mutex
	free time.Time // when the link has carried what was given to it
	open map[net.Conn]struct{}
}

// openLink listens on a free port. The caller calls close.
func openLink(target string, bytesPerSecond int) (*link, error) {
	l, err := (&net.ListenConfig{}).Listen(context.Background(), "tcp", "127.0.0.1:0")
	if err != nil {
		return nil, err
	}
	k := &link{listener: l, target: target, perByte: 1024 * time.Second / time.Duration(bytesPerSecond), open: make(map[net.Conn]struct{})}
	k.running.Go(k.accept)
	return k, nil
}

func (k *link) address() string { return k.listener.Addr().String() }

// close ends all connections, and waits for the goroutines.
func (k *link) close() {
	_ = k.listener.Close() // accept ends
	k.mu.Lock()
	for c := range k.open {
		_ = c.Close() // nothing is worth keeping
	}
	k.open = nil
	k.mu.Unlock()
	k.running.Wait()
}

func (k *link) accept() {
	for {
		c, err := k.listener.Accept()
		if err != nil {
			return
		}
		k.running.Go(func() { k.join(c) })
	}
}

// join carries the bytes of one connection both ways until an end closes it.
func (k *link) join(client net.Conn) {
	server, err := (&net.Dialer{}).DialContext(context.Background(), "tcp", k.target)
	if err != nil {
		_ = client.Close()
		return
	}
	k.connections.Add(1)
	if !k.keep(client, server) {
		return
	}
	defer k.drop(client, server)
	// Small buffers let the sender notice soon that the link is full. Without them the link works too.
	_ = errors.Join(server.(*net.TCPConn).SetReadBuffer(linkBuffer), client.(*net.TCPConn).SetWriteBuffer(linkBuffer))
	var up sync.WaitGroup
	up.Go(func() {
		_, _ = io.Copy(server, client) // questions are small
		_ = server.Close()
	})
	k.carry(client, server)
	_ = client.Close()
	up.Wait()
}

// keep makes close end both connections. After close it ends them itself, and returns false.
func (k *link) keep(both ...net.Conn) bool {
	k.mu.Lock()
	defer k.mu.Unlock()
	for _, c := range both {
		if k.open == nil {
			_ = c.Close()
			continue
		}
		k.open[c] = struct{}{}
	}
	return k.open != nil
}

func (k *link) drop(both ...net.Conn) {
	k.mu.Lock()
	defer k.mu.Unlock()
	for _, c := range both {
		delete(k.open, c)
	}
}

// carry copies from the server to the client, at the link's pace.
func (k *link) carry(client io.Writer, server io.Reader) {
	piece := make([]byte, linkPiece)
	for {
		n, err := server.Read(piece)
		if n > 0 {
			k.bytes.Add(uint64(n))
			time.Sleep(k.reserve(n, time.Now()))
			if _, err := client.Write(piece[:n]); err != nil {
				return
			}
		}
		if err != nil {
			return
		}
	}
}

// reserve returns how long n bytes wait until the link has carried them. It is negative for a link with a
// rest of its burst.
func (k *link) reserve(n int, now time.Time) time.Duration {
	k.mu.Lock()
	defer k.mu.Unlock()
	if earliest := now.Add(-linkBurst); k.free.Before(earliest) {
		k.free = earliest
	}
	k.free = k.free.Add(time.Duration(n) * k.perByte / 1024)
	return k.free.Sub(now)
}
