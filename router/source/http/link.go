package http

import (
	"bufio"
	"bytes"
	"cmp"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net/http"
	"slices"
	"strings"
	"time"

	"go.uber.org/zap"

	"github.com/blockyard-ai/blockyard/internal/backoff"
	"github.com/blockyard-ai/blockyard/internal/kvevent"
	"github.com/blockyard-ai/blockyard/router/source"
)

// maxLinkPublishers bounds the publishers of one agent.
const maxLinkPublishers = 4096

// maxReconnectWait bounds the pause between two attempts to reach an agent.
const maxReconnectWait = 5 * time.Second

// answerSilence bounds the wait for the next bytes of an answer. An agent prepares a whole
// dump before it sends the first chunk.
const answerSilence = 10 * time.Second

// agentLink follows one agent. Its goroutine owns announced; Source.mu guards the rest.
type agentLink struct {
	parent *Source
	url    string
	ctx    context.Context
	cancel context.CancelFunc

	// announced are the last announcements of the agent's publishers.
	announced map[uint64]kvevent.Announcement

	connected   bool
	connections uint64
	// streamDropped counts frames that the agent dropped on this stream, dropped on earlier
	// streams.
	dropped, streamDropped uint64
	publishers             int
	err                    error
}

func newAgentLink(parent *Source, url string) *agentLink {
	l := &agentLink{parent: parent, url: url, announced: make(map[uint64]kvevent.Announcement)}
	l.ctx, l.cancel = context.WithCancel(parent.ctx)
	return l
}

// describe returns the state of the links, ordered by URL. The caller has Source.mu.
func describe(links map[string]*agentLink) []source.Agent {
	out := make([]source.Agent, 0, len(links))
	for _, l := range links {
		info := source.Agent{URL: l.url, Connected: l.connected, Publishers: l.publishers, Dropped: l.dropped + l.streamDropped}
		if l.err != nil && !l.connected {
			info.Error = l.err.Error()
		}
		out = append(out, info)
	}
	slices.SortFunc(out, func(a, b source.Agent) int { return cmp.Compare(a.URL, b.URL) })
	return out
}

// run is the link's goroutine: it follows the agent, and connects again after each stream, until the
// agent leaves the list or the Source closes.
func (l *agentLink) run() {
	pauses := backoff.Jittered(l.parent.opt.ReconnectWait, maxReconnectWait)
	for l.ctx.Err() == nil {
		connected, err := l.follow()
		l.streamEnded(connected, err)
		if connected {
			pauses.Reset()
		}
		pause := time.NewTimer(pauses.NextBackOff())
		select {
		case <-pause.C:
		case <-l.ctx.Done():
			pause.Stop()
		}
	}
	l.retire()
}

// follow requests the agent's stream of events, reads it to its end and forwards its frames to the
// router. A stream without bytes for the time Silence of the options ends: the agent sends
// heartbeats. connected reports whether the stream began, err why it ended.
func (l *agentLink) follow() (connected bool, err error) {
	ctx, cancel := context.WithCancelCause(l.ctx)
	defer cancel(nil)
	idle := time.AfterFunc(l.parent.opt.Silence, func() {
		cancel(fmt.Errorf("nothing was heard for %v", l.parent.opt.Silence))
	})
	defer idle.Stop()
	stream := l.url + "/v1/events"
	if l.parent.opt.NoEvents {
		stream += "?events=none"
	}
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, stream, nil)
	if err != nil {
		return false, err
	}
	resp, err := l.parent.client.Do(req)
	if err != nil {
		return false, cmp.Or(context.Cause(ctx), err)
	}
	defer resp.Body.Close()
	if err := checkAnswer(resp); err != nil {
		return false, err
	}
	l.streamBegan()
	r := bufio.NewReaderSize(&idleReader{resp.Body, idle, l.parent.opt.Silence}, 64<<10)
	for {
		kind, body, err := kvevent.ReadStreamFrame(r, nil)
		if errors.Is(err, io.EOF) {
			err = errors.New("the agent ended its stream")
		}
		if err != nil {
			return true, cmp.Or(context.Cause(ctx), err)
		}
		// The time that the router takes for a frame is not the agent's silence.
		idle.Stop()
		if !l.forward(kind, body) {
			return true, l.ctx.Err()
		}
		idle.Reset(l.parent.opt.Silence)
	}
}

// checkAnswer returns an error unless resp comes from an agent that serves its events.
func checkAnswer(resp *http.Response) error {
	if resp.StatusCode != http.StatusOK {
		text, err := io.ReadAll(io.LimitReader(resp.Body, 512))
		return errors.Join(fmt.Errorf("status %d: %s", resp.StatusCode, bytes.TrimSpace(text)), err)
	}
	if got := resp.Header.Get("Content-Type"); !strings.HasPrefix(got, "application/x-blockyard-frames") {
		return fmt.Errorf("content type %.100q: not the events of an agent", got)
	}
	return nil
}

// forward passes a frame of the agent to the router, or records the agent's count of dropped
// frames. It returns false when the link ends.
func (l *agentLink) forward(kind kvevent.StreamKind, body []byte) bool {
	switch kind {
	case kvevent.StreamEvents:
		return l.parent.send(source.Frame{Kind: source.FrameEvents, Data: body})
	case kvevent.StreamLoad:
		return l.parent.send(source.Frame{Kind: source.FrameLoad, Data: body})
	case kvevent.StreamAnnouncement:
		l.remember(body)
		return l.parent.send(source.Frame{Kind: source.FrameAnnouncement, Data: body})
	case kvevent.StreamHeartbeat:
		if len(body) == 8 {
			l.parent.mu.Lock()
			l.streamDropped = binary.LittleEndian.Uint64(body)
			l.parent.mu.Unlock()
		}
	}
	return l.ctx.Err() == nil
}

// remember records the publisher of an announcement, so that queries reach it over this link. The
// router counts announcements that cannot be decoded.
func (l *agentLink) remember(body []byte) {
	a, err := kvevent.DecodeAnnouncement(body)
	if err != nil {
		return
	}
	l.parent.mu.Lock()
	defer l.parent.mu.Unlock()
	_, known := l.announced[a.PublisherID]
	switch {
	case a.Health == kvevent.HealthGone:
		delete(l.announced, a.PublisherID)
		l.forgetPublisherLocked(a.PublisherID)
	case known || len(l.announced) < maxLinkPublishers: // others cannot be queried
		l.announced[a.PublisherID] = a
		l.parent.publishers[a.PublisherID] = l
	}
	l.publishers = len(l.announced)
}

// forgetPublisherLocked ends queries to a publisher over this link. Another link may bring the
// publisher by now, and keeps it.
func (l *agentLink) forgetPublisherLocked(publisher uint64) {
	if l.parent.publishers[publisher] == l {
		delete(l.parent.publishers, publisher)
	}
}

// streamBegan records a new stream and forgets the publishers of the last one. The agent
// announces all its publishers on each new stream, and a restarted agent has others.
func (l *agentLink) streamBegan() {
	l.parent.mu.Lock()
	for id := range l.announced {
		l.forgetPublisherLocked(id)
	}
	clear(l.announced)
	l.publishers = 0
	l.connected = true
	l.connections++
	l.err = nil
	l.parent.mu.Unlock()
	l.parent.log.Info("agent is connected", zap.String("agent", l.url))
	l.parent.reportConnection()
}

// streamEnded records the end of the agent's stream or, if connected is false, a failed attempt to
// open one; err says why. After a stream it announces the agent's publishers as degraded to the
// router, because their later events are missing. Repeated failures are logged once.
func (l *agentLink) streamEnded(connected bool, err error) {
	if l.ctx.Err() != nil { // retire follows
		return
	}
	l.parent.mu.Lock()
	alreadyLogged := l.err != nil && !connected // the attempt before failed too
	l.connected = false
	l.err = err
	l.dropped += l.streamDropped
	l.streamDropped = 0
	l.parent.mu.Unlock()
	if !alreadyLogged {
		l.parent.log.Warn("agent cannot be reached; retrying", zap.String("agent", l.url), zap.Error(err))
	}
	if connected {
		l.announceAll(kvevent.HealthDegraded)
	}
	l.parent.reportConnection()
}

// announceAll repeats the last announcement of every publisher of the agent, with this health.
func (l *agentLink) announceAll(health kvevent.Health) {
	for _, a := range l.announced {
		a.Health = health
		if !l.parent.send(source.Frame{Kind: source.FrameAnnouncement, Data: kvevent.AppendAnnouncement(nil, &a)}) {
			return
		}
	}
}

// retire ends the link of an agent that left the list. Its publishers fall silent, unless
// another link brings them.
func (l *agentLink) retire() {
	l.announceAll(kvevent.HealthDegraded)
	l.parent.mu.Lock()
	l.connected = false
	for id := range l.announced {
		l.forgetPublisherLocked(id)
	}
	l.parent.dropped += l.dropped + l.streamDropped
	l.parent.reconnects += max(1, l.connections) - 1
	l.parent.mu.Unlock()
	l.parent.reportConnection()
}

// query sends q to one of the agent's publishers and returns the whole answer. It gives up when ctx
// ends, or when no bytes come for answerSilence.
func (l *agentLink) query(ctx context.Context, publisher uint64, q kvevent.QueryRequest) (*source.Answer, error) {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	idle := time.AfterFunc(answerSilence, func() { cancel(fmt.Errorf("nothing came for %v", answerSilence)) })
	defer idle.Stop()
	target := fmt.Sprintf("%s/v1/events/query?publisher=%016x", l.url, publisher)
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, target, bytes.NewReader(kvevent.AppendQueryRequest(nil, &q)))
	if err != nil {
		return nil, err
	}
	resp, err := l.parent.client.Do(req)
	if err != nil {
		return nil, cmp.Or(context.Cause(ctx), err)
	}
	defer resp.Body.Close()
	if err := checkAnswer(resp); err != nil {
		return nil, err
	}
	r := bufio.NewReaderSize(&idleReader{resp.Body, idle, answerSilence}, 64<<10)
	a := source.NewAssembly(publisher, &q)
	var buf []byte
	for done := false; !done; {
		var kind kvevent.StreamKind
		kind, buf, err = kvevent.ReadStreamFrame(r, buf)
		if err == nil && kind != kvevent.StreamReply {
			err = fmt.Errorf("a frame of kind %d, want %d", kind, kvevent.StreamReply)
		}
		var reply kvevent.QueryReply
		if err == nil {
			reply, err = kvevent.DecodeQueryReply(buf)
		}
		if err == nil {
			done, err = a.Add(&reply)
		}
		if err != nil {
			return nil, fmt.Errorf("chunk %d: %w", a.Answer().NextChunk, cmp.Or(context.Cause(ctx), err))
		}
	}
	return a.Answer(), nil
}

// hint sends a read-ahead hint to a publisher of the agent.
func (l *agentLink) hint(ctx context.Context, publisher uint64, data []byte) error {
	target := fmt.Sprintf("%s/v1/events/read-ahead?publisher=%016x", l.url, publisher)
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, target, bytes.NewReader(data))
	if err != nil {
		return err
	}
	resp, err := l.parent.client.Do(req)
	if err != nil {
		return err
	}
	defer resp.Body.Close()
	if resp.StatusCode == http.StatusNotFound {
		return source.ErrNoHints
	}
	if resp.StatusCode != http.StatusAccepted {
		return fmt.Errorf("status %s", resp.Status)
	}
	return nil
}
