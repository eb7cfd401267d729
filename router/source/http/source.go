package http

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"sync"
	"time"

	"go.uber.org/zap"

	"github.com/blockyard-ai/blockyard/internal/kvevent"
	"github.com/blockyard-ai/blockyard/router/source"
)

// HTTPOptions say which agents to listen to over HTTP, without NATS.
type Options struct {
	// Agents are the base URLs of the agents' admin servers, such as
	// http://node-7:9400. There may be none at first; see SetAgents.
	Agents []string
	// ReconnectWait is the pause after the first failed try to reach an agent; 0
	// means 250 ms. It doubles with each further failure, up to 5 s.
	ReconnectWait time.Duration
	// Silence is how long a stream may bring nothing, not even a heartbeat, before it
	// is given up and made anew; 0 means 5 s.
	Silence time.Duration
	// NoEvents asks the agents for announcements and loads alone.
	NoEvents bool
	// Log may be nil.
	Log *zap.Logger
}

// Validate reports the first option that is out of range.
func (o *Options) Validate() error {
	if o.ReconnectWait < 0 || o.Silence < 0 {
		return fmt.Errorf("http reconnect wait %v, silence %v: one is negative", o.ReconnectWait, o.Silence)
	}
	return source.CheckAgents(o.Agents)
}

func (o Options) withDefaults() Options {
	if o.ReconnectWait == 0 {
		o.ReconnectWait = 250 * time.Millisecond
	}
	if o.Silence == 0 {
		o.Silence = 5 * time.Second
	}
	if o.Log == nil {
		o.Log = zap.NewNop()
	}
	return o
}

// HTTP is the Transport over the HTTP streams of a list of agents, for routers
// without NATS.
//
// An agent that cannot be reached is no outage of the transport: its publishers are
// announced as degraded here, in their own name, and fall silent, so that the router
// forgets them after its timeout as it does over NATS; nobody can tell an agent that
// has ended from one that is cut off. Only while no agent at all can be reached, the
// transport counts as disconnected and nobody is forgotten: the fault is then as
// likely here, and requests that go on as before are better served than none.
type Source struct {
	opt    Options
	log    *zap.Logger
	client *http.Client
	frames chan source.Frame

	ctx     context.Context
	cancel  context.CancelFunc
	running sync.WaitGroup

	// telling is held while frames about the whole transport are sent, so that they
	// keep their order. offline says that FrameDisconnected was the last of them.
	telling sync.Mutex
	offline bool

	mu         sync.Mutex
	links      map[string]*agentLink
	publishers map[uint64]*agentLink
	closed     bool
	// What links that are gone have counted.
	dropped, reconnects uint64
}

var _ source.Transport = (*Source)(nil)

// ConnectHTTP begins to listen. It does not wait for any agent; the error is a bad
// option. Close must be called.
func Connect(o Options) (*Source, error) {
	if err := o.Validate(); err != nil {
		return nil, err
	}
	o = o.withDefaults()
	transport := &http.Transport{
		DialContext:         (&net.Dialer{Timeout: 2 * time.Second}).DialContext,
		TLSHandshakeTimeout: 5 * time.Second,
		MaxIdleConnsPerHost: 2,
		IdleConnTimeout:     30 * time.Second,
		DisableCompression:  true,
	}
	h := &Source{
		opt: o, log: o.Log, frames: make(chan source.Frame),
		client: &http.Client{Transport: transport, CheckRedirect: func(*http.Request, []*http.Request) error {
			return http.ErrUseLastResponse
		}},
		links: make(map[string]*agentLink), publishers: make(map[uint64]*agentLink),
	}
	h.ctx, h.cancel = context.WithCancel(context.Background())
	if err := h.SetAgents(o.Agents); err != nil {
		return nil, err
	}
	return h, nil
}

// SetAgents changes the list of agents. Those that are new are listened to; those that
// are missing are not any more, and their publishers fall silent. The error names the
// URL that is bad; nothing is changed then.
func (h *Source) SetAgents(urls []string) error {
	if err := source.CheckAgents(urls); err != nil {
		return err
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.closed {
		return errors.New("agents: the transport is closed")
	}
	want := make(map[string]bool, len(urls))
	for _, u := range urls {
		u = trimSlash(u)
		want[u] = true
		if h.links[u] == nil {
			l := newAgentLink(h, u)
			h.links[u] = l
			h.running.Go(l.run)
		}
	}
	for u, l := range h.links {
		if !want[u] {
			delete(h.links, u)
			l.cancel()
		}
	}
	return nil
}

func trimSlash(u string) string {
	for len(u) > 0 && u[len(u)-1] == '/' {
		u = u[:len(u)-1]
	}
	return u
}

// Close ends all streams and waits for their goroutines. It may be called twice.
func (h *Source) Close() error {
	h.mu.Lock()
	h.closed = true
	h.mu.Unlock()
	h.cancel()
	h.running.Wait()
	h.client.CloseIdleConnections()
	return nil
}

// Frames is the Transport's.
func (h *Source) Frames() <-chan source.Frame { return h.frames }

// Stats is the Transport's: connected means that at least one agent is, or that
// there is none to connect to; dropped are the frames that agents say they dropped.
func (h *Source) Stats() source.Stats {
	h.mu.Lock()
	defer h.mu.Unlock()
	s := source.Stats{Connected: !h.awayLocked(), Dropped: h.dropped, Reconnects: h.reconnects}
	for _, l := range h.links {
		s.Dropped += l.dropped + l.droppedNow
		s.Reconnects += max(1, l.connections) - 1
	}
	return s
}

// Agents describes the streams, ordered by URL.
func (h *Source) Agents() []source.Agent {
	h.mu.Lock()
	defer h.mu.Unlock()
	return agentInfos(h.links)
}

func (h *Source) awayLocked() bool {
	for _, l := range h.links {
		if l.connected {
			return false
		}
	}
	return len(h.links) > 0
}

// tell sends word of the whole transport's state, if that has changed.
func (h *Source) tell() {
	h.telling.Lock()
	defer h.telling.Unlock()
	h.mu.Lock()
	away := h.awayLocked()
	h.mu.Unlock()
	if away == h.offline {
		return
	}
	kind := source.FrameConnected
	if away {
		kind = source.FrameDisconnected
	}
	if h.send(source.Frame{Kind: kind}) {
		h.offline = away
	}
}

// send hands a frame to the router; false when the transport closes first. It
// waits: a slow router makes the agents' queues overflow, and they say so.
func (h *Source) send(f source.Frame) bool {
	select {
	case h.frames <- f:
		return true
	case <-h.ctx.Done():
		return false
	}
}

// Query is the Transport's.
func (h *Source) Query(ctx context.Context, publisher uint64, q kvevent.QueryRequest) (*source.Answer, error) {
	h.mu.Lock()
	l := h.publishers[publisher]
	h.mu.Unlock()
	if l == nil {
		return nil, fmt.Errorf("query publisher %016x: no agent has announced it", publisher)
	}
	a, err := l.query(ctx, publisher, q)
	if err != nil {
		return nil, fmt.Errorf("query publisher %016x at %s: %w", publisher, l.url, err)
	}
	return a, nil
}

// watched ends a request whose answer brings nothing for too long.
type watched struct {
	io.Reader
	timer *time.Timer
	limit time.Duration
}

// Read reads on and grants the answer another while.
func (w *watched) Read(b []byte) (int, error) {
	n, err := w.Reader.Read(b)
	if n > 0 {
		w.timer.Reset(w.limit)
	}
	return n, err
}
