package http

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"
	"sync"
	"time"

	"go.uber.org/zap"

	"github.com/blockyard-ai/blockyard/internal/kvevent"
	"github.com/blockyard-ai/blockyard/router/source"
)

// Options configure a Source.
type Options struct {
	// Agents are the base URLs of agents' admin servers, such as http://node-7:9400. The
	// list may be empty; see SetAgents.
	Agents []string
	// ReconnectWait is the pause after the first failed attempt to reach an agent; 0
	// means 250 ms. It doubles with each failure, up to 5 s.
	ReconnectWait time.Duration
	// Silence is how long a stream may bring nothing, not even heartbeats, before the
	// Source reconnects; 0 means 5 s.
	Silence time.Duration
	// NoEvents asks the agents only for announcements and loads.
	NoEvents bool
	// Log may be nil.
	Log *zap.Logger
}

// Validate reports the first option that is out of range.
func (o *Options) Validate() error {
	if o.ReconnectWait < 0 || o.Silence < 0 {
		return fmt.Errorf("http reconnect wait %v, silence %v: must not be negative", o.ReconnectWait, o.Silence)
	}
	return source.CheckAgents(o.Agents)
}

// withDefaults returns the options with defaults in place of zero values.
func (o Options) withDefaults() Options {
	o.ReconnectWait = cmp.Or(o.ReconnectWait, 250*time.Millisecond)
	o.Silence = cmp.Or(o.Silence, 5*time.Second)
	o.Log = cmp.Or(o.Log, zap.NewNop())
	return o
}

// Source is a Transport over the HTTP streams of a list of agents.
//
// The loss of one agent does not disconnect the Source. The Source announces the agent's
// publishers as degraded, and they fall silent. The router forgets silent publishers after
// its timeout, because a dead agent cannot be told from one that is cut off. The loss of
// the last agent disconnects the Source: then the fault may be at the router, and the
// router forgets no publisher.
type Source struct {
	opt    Options
	log    *zap.Logger
	client *http.Client
	frames chan source.Frame

	ctx        context.Context
	cancel     context.CancelFunc
	goroutines sync.WaitGroup

	// reportMu is held while a FrameDisconnected or FrameConnected is sent, so that they
	// keep their order. reportedDisconnected is true after FrameDisconnected.
	reportMu             sync.Mutex
	reportedDisconnected bool

	mu         sync.Mutex
	links      map[string]*agentLink
	publishers map[uint64]*agentLink
	closed     bool
	// dropped and reconnects are the sums over links that have ended.
	dropped, reconnects uint64
}

var _ source.Transport = (*Source)(nil)

// Connect starts to follow the agents, without waiting for a connection. The error is a
// bad option. Close must be called.
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
			return http.ErrUseLastResponse // an agent does not redirect: the status is an error
		}},
		links: make(map[string]*agentLink), publishers: make(map[uint64]*agentLink),
	}
	h.ctx, h.cancel = context.WithCancel(context.Background())
	if err := h.SetAgents(o.Agents); err != nil {
		return nil, err
	}
	return h, nil
}

// SetAgents replaces the list of agents. The Source follows the new agents. The
// publishers of removed agents fall silent. After an error, which names the bad URL,
// nothing has changed.
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
		u = strings.TrimRight(u, "/")
		want[u] = true
		if h.links[u] == nil {
			l := newAgentLink(h, u)
			h.links[u] = l
			h.goroutines.Go(l.run)
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

// Close ends all streams and waits for their goroutines. It may be called twice.
func (h *Source) Close() error {
	h.mu.Lock()
	h.closed = true
	h.mu.Unlock()
	h.cancel()
	h.goroutines.Wait()
	h.client.CloseIdleConnections()
	return nil
}

// Frames implements source.Transport.
func (h *Source) Frames() <-chan source.Frame { return h.frames }

// Stats implements source.Transport. The Source is connected when at least one agent is,
// or when the list is empty. Dropped counts frames that agents report as dropped.
func (h *Source) Stats() source.Stats {
	h.mu.Lock()
	defer h.mu.Unlock()
	s := source.Stats{Connected: !h.disconnectedLocked(), Dropped: h.dropped, Reconnects: h.reconnects}
	for _, l := range h.links {
		s.Dropped += l.dropped + l.streamDropped
		s.Reconnects += max(1, l.connections) - 1
	}
	return s
}

// Agents describes the streams, ordered by URL.
func (h *Source) Agents() []source.Agent {
	h.mu.Lock()
	defer h.mu.Unlock()
	return describe(h.links)
}

// disconnectedLocked reports whether the Source has agents and none is connected.
func (h *Source) disconnectedLocked() bool {
	for _, l := range h.links {
		if l.connected {
			return false
		}
	}
	return len(h.links) > 0
}

// reportConnection tells the router, by FrameDisconnected or FrameConnected, whether agents are
// connected, if that has changed since the last report. reportMu keeps the reports in order.
func (h *Source) reportConnection() {
	h.reportMu.Lock()
	defer h.reportMu.Unlock()
	h.mu.Lock()
	disconnected := h.disconnectedLocked()
	h.mu.Unlock()
	if disconnected == h.reportedDisconnected {
		return
	}
	kind := source.FrameConnected
	if disconnected {
		kind = source.FrameDisconnected
	}
	if h.send(source.Frame{Kind: kind}) {
		h.reportedDisconnected = disconnected
	}
}

// send passes a frame to the router. It returns false when the Source closes first. While
// send waits for a slow router, the agents' queues may overflow. The agents count that.
func (h *Source) send(f source.Frame) bool {
	select {
	case h.frames <- f:
		return true
	case <-h.ctx.Done():
		return false
	}
}

// Query implements source.Transport. It asks the agent that announced the publisher last.
func (h *Source) Query(ctx context.Context, publisher uint64, q kvevent.QueryRequest) (*source.Answer, error) {
	h.mu.Lock()
	l := h.publishers[publisher]
	h.mu.Unlock()
	if l == nil {
		return nil, fmt.Errorf("query publisher %016x: no agent has announced the publisher", publisher)
	}
	a, err := l.query(ctx, publisher, q)
	if err != nil {
		return nil, fmt.Errorf("query publisher %016x at %s: %w", publisher, l.url, err)
	}
	return a, nil
}

// Hint implements source.Hinter.
func (h *Source) Hint(ctx context.Context, publisher uint64, data []byte) error {
	h.mu.Lock()
	l := h.publishers[publisher]
	h.mu.Unlock()
	if l == nil {
		return source.ErrNoHints
	}
	if err := l.hint(ctx, publisher, data); err != nil {
		return fmt.Errorf("read-ahead hint to publisher %016x at %s: %w", publisher, l.url, err)
	}
	return nil
}

// idleReader restarts a timer with each read. The timer cancels an idle request.
type idleReader struct {
	io.Reader
	timer *time.Timer
	limit time.Duration
}

// Read implements io.Reader.
func (w *idleReader) Read(b []byte) (int, error) {
	n, err := w.Reader.Read(b)
	if n > 0 {
		w.timer.Reset(w.limit)
	}
	return n, err
}
