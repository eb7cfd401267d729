package dynamo

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"sync"
	"sync/atomic"
	"time"

	"go.uber.org/zap"

	"github.com/blockyard-ai/blockyard/internal/kvevent"
)

// Bounds of the recovery server.
const (
	// maxConnections bounds the open connections, and maxPeerConnections those from one
	// address. A router keeps one or two.
	maxConnections     = 64
	maxPeerConnections = 32
	// maxReplies bounds the concurrent replies, each of at most 32 MiB.
	maxReplies = 8
	// idleTimeout ends a connection without requests, frameTimeout one with an unfinished
	// request, and ackTimeout one that does not read.
	idleTimeout  = 2 * time.Minute
	frameTimeout = 10 * time.Second
	ackTimeout   = 5 * time.Second
)

// recovery is the server that answers the recovery queries of all sources of a plane.
type recovery struct {
	listener    net.Listener
	anyDialBack bool
	log         *zap.Logger
	ctx         context.Context // ends with the server
	cancel      context.CancelFunc
	running     sync.WaitGroup
	replies     chan struct{} // holds one element for each unfinished reply

	connections, connectionsRefused, badRequests atomic.Uint64
	unknownPaths, overloads, dialBacksRefused    atomic.Uint64
	replyErrors                                  atomic.Uint64

	mu      sync.Mutex
	sources map[string]*Source // by path
	open    int
	peers   map[netip.Addr]int // open connections of each
}

// listenRecovery starts the server for recovery queries on o.Recovery. close ends it; the end of ctx
// does not.
func listenRecovery(ctx context.Context, o *Options) (*recovery, error) {
	var lc net.ListenConfig
	l, err := lc.Listen(ctx, "tcp", o.Recovery)
	if err != nil {
		return nil, fmt.Errorf("dynamo recovery address: %w", err)
	}
	r := &recovery{
		listener: l, anyDialBack: o.AnyDialBack, log: o.Log,
		replies: make(chan struct{}, maxReplies),
		sources: make(map[string]*Source), peers: make(map[netip.Addr]int),
	}
	r.ctx, r.cancel = context.WithCancel(context.Background())
	r.running.Go(r.accept)
	return r, nil
}

// close ends the server and waits for its goroutines.
func (r *recovery) close() error {
	r.cancel()
	err := r.listener.Close()
	r.running.Wait()
	if errors.Is(err, net.ErrClosed) {
		return nil
	}
	return err
}

func (r *recovery) add(path string, s *Source) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.sources[path] = s
}

func (r *recovery) remove(path string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	delete(r.sources, path)
}

func (r *recovery) find(path string) *Source {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.sources[path]
}

// accept accepts connections until the listener closes. It runs in a goroutine of its own.
func (r *recovery) accept() {
	for {
		c, err := r.listener.Accept()
		if err != nil {
			if r.ctx.Err() != nil {
				return
			}
			// The process is out of descriptors, or the peer has left. Only ending
			// connections free descriptors, so wait.
			r.log.Warn("recovery connection failed", zap.Error(err))
			select {
			case <-r.ctx.Done():
				return
			case <-time.After(tickEvery):
			}
			continue
		}
		if !r.admit(remoteAddr(c)) { // too many connections, of this peer or of all
			r.connectionsRefused.Add(1)
			_ = c.Close()
			continue
		}
		r.connections.Add(1)
		r.running.Go(func() { r.serve(c) })
	}
}

// admit counts a new connection from peer as open. It returns false, and counts nothing, when too
// many are open altogether or from that peer.
func (r *recovery) admit(peer netip.Addr) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.open == maxConnections || r.peers[peer] == maxPeerConnections {
		return false
	}
	r.open++
	r.peers[peer]++
	return true
}

// serve reads the requests of one connection until the peer closes it or stalls, and acknowledges
// each. The replies go over connections of their own.
func (r *recovery) serve(c net.Conn) {
	defer r.leave(remoteAddr(c)) // the peer may open another connection
	defer c.Close()
	defer context.AfterFunc(r.ctx, func() { _ = c.Close() })()
	in := bufio.NewReader(c)
	for {
		_ = c.SetReadDeadline(time.Now().Add(idleTimeout))
		if _, err := in.Peek(1); err != nil {
			return
		}
		_ = c.SetReadDeadline(time.Now().Add(frameTimeout))
		f, err := readFrame(in)
		if err != nil {
			r.badRequests.Add(1)
			return
		}
		refusal := r.handle(f, c)
		_ = c.SetWriteDeadline(time.Now().Add(ackTimeout))
		if _, err := c.Write(appendAck(nil, refusal)); err != nil {
			return
		}
	}
}

// leave counts a connection of peer as closed.
func (r *recovery) leave(peer netip.Addr) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.open--
	if r.peers[peer]--; r.peers[peer] == 0 {
		delete(r.peers, peer)
	}
}

// uncountCheck resets the counters after the plane's own check. No router was counted, because
// no record names the address yet.
func (r *recovery) uncountCheck() {
	r.connections.Store(0)
	r.unknownPaths.Store(0)
}

// handle starts a goroutine that replies to a router's request f, and returns "". When it refuses
// the request it returns the reason, for the acknowledgement. c is the connection of the request:
// the reply may only go to the host that asked (checkDialBack), unless the options allow any.
func (r *recovery) handle(f frame, c net.Conn) (refusal string) {
	s := r.find(f.path)
	if s == nil {
		r.unknownPaths.Add(1)
		return "Unknown endpoint: " + f.path
	}
	q, err := decodeRequest(f.payload)
	if err != nil {
		r.badRequests.Add(1)
		return err.Error()
	}
	if !r.anyDialBack {
		if err := checkDialBack(q.address, remoteAddr(c), isLocal); err != nil {
			r.dialBacksRefused.Add(1)
			r.log.Warn("recovery query refused", zap.Error(err))
			return err.Error()
		}
	}
	select {
	case r.replies <- struct{}{}:
	default: // maxReplies are not finished
		r.overloads.Add(1)
		return "Server overloaded"
	}
	r.running.Go(func() {
		defer func() { <-r.replies }()
		if err := r.reply(s, &q); err != nil && r.ctx.Err() == nil {
			r.replyErrors.Add(1)
			r.log.Warn("recovery answer is not sent", zap.String("to", q.address), zap.Error(err))
		}
	})
	return ""
}

const (
	dialTimeout = 5 * time.Second
	// replyTimeout bounds the sending of a reply, lingerTimeout the wait for its reader to
	// close.
	replyTimeout  = time.Minute
	lingerTimeout = 5 * time.Second
	// maxLinger bounds the bytes that a reader may send back. They are discarded.
	maxLinger = 1 << 20
)

// reply sends the answer of source s to the address that the request names, over a connection of
// its own, as Dynamo wants it. The response stream has five two-part messages: a handshake, a
// prologue without error, the answer, an end mark and the word sentinel.
func (r *recovery) reply(s *Source, q *request) error {
	ctx, cancel := context.WithTimeout(r.ctx, dialTimeout)
	defer cancel()
	var d net.Dialer
	c, err := d.DialContext(ctx, "tcp", q.address)
	if err != nil {
		return err
	}
	defer c.Close()
	defer context.AfterFunc(r.ctx, func() { _ = c.Close() })()
	_ = c.SetDeadline(time.Now().Add(replyTimeout))
	handshake, err := json.Marshal(struct {
		Subject string `json:"subject"`
		Stream  string `json:"stream_type"`
	}{q.subject, "response"})
	if err != nil {
		return fmt.Errorf("handshake: %w", err)
	}
	head := appendTwoPart(nil, handshake, nil)
	head = appendTwoPart(head, []byte(`{"error":null}`), nil)
	if _, err := c.Write(head); err != nil {
		return err
	}
	item := s.answer(&q.query)
	body := appendTwoPart(nil, nil, item)
	body = appendTwoPart(body, nil, kvevent.AppendDynamoFinal(nil))
	if _, err := c.Write(body); err != nil {
		return err
	}
	// The router has its answer and may close before it reads this: that is no error.
	if _, err := c.Write(appendTwoPart(nil, []byte(`"sentinel"`), nil)); err != nil {
		return nil
	}
	linger(c) // a close at once could discard what the router has not read yet
	return nil
}

// linger waits until the reader of an answer closes the connection, and discards the reader's
// bytes. Closing a connection with unread bytes resets it, and the reader could lose the end of
// the answer.
func linger(c net.Conn) {
	if t, ok := c.(*net.TCPConn); ok && t.CloseWrite() == nil {
		_ = c.SetReadDeadline(time.Now().Add(lingerTimeout))
		_, _ = io.CopyN(io.Discard, c, maxLinger)
	}
}
