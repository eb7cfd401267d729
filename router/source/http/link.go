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

// maxReconnectWait bounds the pause between two tries to reach an agent.
const maxReconnectWait = 5 * time.Second

// answerSilence is how long an answer may bring nothing. An agent makes a dump before it
// sends the first chunk.
const answerSilence = 10 * time.Second

// agentLink follows one agent. Its goroutine owns announced; Source.mu guards the rest.
type agentLink struct {
	h      *Source
	url    string
	ctx    context.Context
	cancel context.CancelFunc

	// announced are the last announcements of the agent's publishers.
	announced map[uint64]kvevent.Announcement

	connected   bool
	connections uint64
	// droppedNow counts frames that the agent dropped on this stream, dropped on earlier
	// streams.
	dropped, droppedNow uint64
	publishers          int
	err                 error
}

func newAgentLink(h *Source, url string) *agentLink {
	l := &agentLink{h: h, url: url, announced: make(map[uint64]kvevent.Announcement)}
	l.ctx, l.cancel = context.WithCancel(h.ctx)
	return l
}

func agentInfos(links map[string]*agentLink) []source.Agent {
	out := make([]source.Agent, 0, len(links))
	for _, l := range links {
		i := source.Agent{URL: l.url, Connected: l.connected, Publishers: l.publishers, Dropped: l.dropped + l.droppedNow}
		if l.err != nil && !l.connected {
			i.Error = l.err.Error()
		}
		out = append(out, i)
	}
	slices.SortFunc(out, func(a, b source.Agent) int { return cmp.Compare(a.URL, b.URL) })
	return out
}

// run follows the agent until the link is cancelled.
func (l *agentLink) run() {
	pauses := backoff.Jittered(l.h.opt.ReconnectWait, maxReconnectWait)
	for l.ctx.Err() == nil {
		connected, err := l.follow()
		l.end(connected, err)
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
	l.leave()
}

// follow reads one stream to its end. connected reports whether there was a stream, err
// why it ended.
func (l *agentLink) follow() (connected bool, err error) {
	ctx, cancel := context.WithCancelCause(l.ctx)
	defer cancel(nil)
	watch := time.AfterFunc(l.h.opt.Silence, func() {
		cancel(fmt.Errorf("nothing was heard for %v", l.h.opt.Silence))
	})
	defer watch.Stop()
	stream := l.url + "/v1/events"
	if l.h.opt.NoEvents {
		stream += "?events=none"
	}
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, stream, nil)
	if err != nil {
		return false, err
	}
	resp, err := l.h.client.Do(req)
	if err != nil {
		return false, cmp.Or(context.Cause(ctx), err)
	}
	defer resp.Body.Close()
	if err := checkAnswer(resp); err != nil {
		return false, err
	}
	l.begin()
	r := bufio.NewReaderSize(&idleReader{resp.Body, watch, l.h.opt.Silence}, 64<<10)
	for {
		kind, body, err := kvevent.ReadStreamFrame(r, nil)
		if errors.Is(err, io.EOF) {
			err = errors.New("the agent ended its stream")
		}
		if err != nil {
			return true, cmp.Or(context.Cause(ctx), err)
		}
		// The router's time is not the agent's silence.
		watch.Stop()
		if !l.frame(kind, body) {
			return true, l.ctx.Err()
		}
		watch.Reset(l.h.opt.Silence)
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

// frame passes a frame on; false when the link ends.
func (l *agentLink) frame(kind kvevent.StreamKind, body []byte) bool {
	switch kind {
	case kvevent.StreamEvents:
		return l.h.send(source.Frame{Kind: source.FrameEvents, Data: body})
	case kvevent.StreamLoad:
		return l.h.send(source.Frame{Kind: source.FrameLoad, Data: body})
	case kvevent.StreamAnnouncement:
		l.remember(body)
		return l.h.send(source.Frame{Kind: source.FrameAnnouncement, Data: body})
	case kvevent.StreamHeartbeat:
		if len(body) == 8 {
			l.h.mu.Lock()
			l.droppedNow = binary.LittleEndian.Uint64(body)
			l.h.mu.Unlock()
		}
	}
	return l.ctx.Err() == nil
}

// remember notes which agent has a publisher. The router counts announcements that
// cannot be decoded.
func (l *agentLink) remember(body []byte) {
	a, err := kvevent.DecodeAnnouncement(body)
	if err != nil {
		return
	}
	l.h.mu.Lock()
	defer l.h.mu.Unlock()
	_, known := l.announced[a.PublisherID]
	switch {
	case a.Health == kvevent.HealthGone:
		delete(l.announced, a.PublisherID)
		l.disownLocked(a.PublisherID)
	case known || len(l.announced) < maxLinkPublishers:
		l.announced[a.PublisherID] = a
		l.h.publishers[a.PublisherID] = l
	}
	l.publishers = len(l.announced)
}

func (l *agentLink) disownLocked(publisher uint64) {
	if l.h.publishers[publisher] == l {
		delete(l.h.publishers, publisher)
	}
}

// begin begins a new stream. A restarted agent has other publishers, and announces all
// of them on the new stream.
func (l *agentLink) begin() {
	l.h.mu.Lock()
	for id := range l.announced {
		l.disownLocked(id)
	}
	clear(l.announced)
	l.publishers = 0
	l.connected = true
	l.connections++
	l.err = nil
	l.h.mu.Unlock()
	l.h.log.Info("agent is connected", zap.String("agent", l.url))
	l.h.reportConnection()
}

// end ends a stream and announces the agent's publishers as degraded.
func (l *agentLink) end(connected bool, err error) {
	if l.ctx.Err() != nil {
		return
	}
	l.h.mu.Lock()
	repeated := l.err != nil && !connected
	l.connected = false
	l.err = err
	l.dropped += l.droppedNow
	l.droppedNow = 0
	l.h.mu.Unlock()
	if !repeated {
		l.h.log.Warn("agent cannot be reached; trying again", zap.String("agent", l.url), zap.Error(err))
	}
	if connected {
		l.announceAll(kvevent.HealthDegraded)
	}
	l.h.reportConnection()
}

// announceAll announces a health for every publisher of the agent.
func (l *agentLink) announceAll(health kvevent.Health) {
	for _, a := range l.announced {
		a.Health = health
		if !l.h.send(source.Frame{Kind: source.FrameAnnouncement, Data: kvevent.AppendAnnouncement(nil, &a)}) {
			return
		}
	}
}

// leave ends the link of an agent that left the list. Its publishers become silent; they
// may be heard over another link.
func (l *agentLink) leave() {
	l.announceAll(kvevent.HealthDegraded)
	l.h.mu.Lock()
	l.connected = false
	for id := range l.announced {
		l.disownLocked(id)
	}
	l.h.dropped += l.dropped + l.droppedNow
	l.h.reconnects += max(1, l.connections) - 1
	l.h.mu.Unlock()
	l.h.reportConnection()
}

// query asks one of the agent's publishers.
func (l *agentLink) query(ctx context.Context, publisher uint64, q kvevent.QueryRequest) (*source.Answer, error) {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	watch := time.AfterFunc(answerSilence, func() { cancel(fmt.Errorf("nothing came for %v", answerSilence)) })
	defer watch.Stop()
	target := fmt.Sprintf("%s/v1/events/query?publisher=%016x", l.url, publisher)
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, target, bytes.NewReader(kvevent.AppendQueryRequest(nil, &q)))
	if err != nil {
		return nil, err
	}
	resp, err := l.h.client.Do(req)
	if err != nil {
		return nil, cmp.Or(context.Cause(ctx), err)
	}
	defer resp.Body.Close()
	if err := checkAnswer(resp); err != nil {
		return nil, err
	}
	r := bufio.NewReaderSize(&idleReader{resp.Body, watch, answerSilence}, 64<<10)
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
