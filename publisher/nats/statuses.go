package nats

import (
	"context"
	"fmt"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/nats-io/nats.go"
	"go.uber.org/zap"

	"github.com/blockyard-ai/blockyard/internal/kv"
	"github.com/blockyard-ai/blockyard/internal/kvevent"
	"github.com/blockyard-ai/blockyard/publisher"
)

const (
	// statusesPerAnnouncement is how many statuses of the agent go between two announcements of a feed.
	// Routers of earlier versions know announcements alone. They give the owner of a publisher that has been
	// silent for five seconds to a rival, so that four periods of a second are as many as may be.
	statusesPerAnnouncement = 4
	// askPause is the least time between two answers to routers that ask for announcements.
	askPause = 250 * time.Millisecond
	// maxPendingAsks bounds the questions that wait.
	maxPendingAsks = 64
)

// statuses are the parts of a Conn that publish the kvevent.AgentStatus of its feeds.
type statuses struct {
	agent   uint64
	every   time.Duration
	subject string
	log     *zap.Logger
	asked   publisher.Alarm
	cancel  context.CancelFunc
	running sync.WaitGroup

	// The goroutine of run owns these.
	status kvevent.AgentStatus
	held   []*Feed
	buf    []byte

	sent, silent, failed, asks, early atomic.Uint64
}

// StatusStats count an agent's statuses.
type StatusStats struct {
	// Statuses were sent. SilentStatuses were due while no server was connected. StatusErrors are statuses
	// that the connection refused.
	Statuses       uint64 `json:"statuses"`
	SilentStatuses uint64 `json:"silent_statuses"`
	StatusErrors   uint64 `json:"status_errors"`
	// AnnouncementAsks counts answered questions for all announcements. AsksDropped came too early after
	// another one.
	AnnouncementAsks uint64 `json:"announcement_asks"`
	AsksDropped      uint64 `json:"announcement_asks_dropped"`
}

func newStatuses(o *Options) statuses {
	id := kv.RandomID()
	return statuses{agent: id, every: o.AnnounceEvery, subject: kvevent.AnnounceSubject(o.Cluster, id), log: o.Log,
		asked: publisher.NewAlarm(), cancel: func() {}}
}

func (s *statuses) stats() StatusStats {
	return StatusStats{Statuses: s.sent.Load(), SilentStatuses: s.silent.Load(), StatusErrors: s.failed.Load(),
		AnnouncementAsks: s.asks.Load(), AsksDropped: s.early.Load()}
}

// end stops the goroutine and waits for it.
func (s *statuses) end() {
	s.cancel()
	s.running.Wait()
}

// startStatuses publishes the agent's status until statuses.end.
func (n *Conn) startStatuses() error {
	s := &n.statuses
	subject := kvevent.AnnounceAskSubject(n.opt.Cluster, s.agent)
	sub, err := n.conn.Subscribe(subject, func(*nats.Msg) { s.asked.Raise() })
	if err == nil {
		err = sub.SetPendingLimits(maxPendingAsks, -1)
	}
	if err != nil {
		return fmt.Errorf("nats subscribe to %s: %w", subject, err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	s.cancel = cancel
	s.running.Go(func() { n.reportStatuses(ctx) })
	return nil
}

// reportStatuses sends the agent's status every Options.AnnounceEvery, and has all feeds announce
// themselves when a router asks, until ctx ends.
func (n *Conn) reportStatuses(ctx context.Context) {
	s := &n.statuses
	tick := time.NewTicker(s.every)
	defer tick.Stop()
	var answered time.Time
	for {
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
			for part := range slices.Chunk(n.presentFeeds(), kvevent.MaxAgentStreams) {
				n.sendStatus(part)
			}
		case <-s.asked:
			if time.Since(answered) < askPause {
				s.early.Add(1)
				continue
			}
			answered = time.Now()
			s.asks.Add(1)
			n.announceAll()
		}
	}
}

// sendStatus sends one status of some feeds. The feeds wait meanwhile: an event of a feed between its
// status and the message would make consumers take the status for an old one.
func (n *Conn) sendStatus(feeds []*Feed) {
	s := &n.statuses
	if !n.Connected() {
		s.silent.Add(1)
		return
	}
	s.status.Agent, s.status.Streams = s.agent, s.status.Streams[:0]
	for _, f := range feeds {
		if one, ok := f.Hold(); ok {
			s.status.Streams = append(s.status.Streams, one)
			s.held = append(s.held, f)
		}
	}
	defer func() {
		for _, f := range s.held {
			f.Resume()
		}
		clear(s.held)
		s.held = s.held[:0]
	}()
	if len(s.held) == 0 {
		return
	}
	s.buf = kvevent.AppendAgentStatus(s.buf[:0], &s.status)
	if err := n.conn.Publish(s.subject, s.buf); err != nil { // the next status follows
		s.failed.Add(1)
		s.log.Debug("status is not sent", zap.Error(err))
		return
	}
	s.sent.Add(1)
}
