package zmq

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"syscall"
	"time"

	"go.uber.org/zap"

	"github.com/blockyard-ai/blockyard/consolidator"
	"github.com/blockyard-ai/blockyard/internal/kv"
	"github.com/blockyard-ai/blockyard/internal/kvevent"
	"github.com/blockyard-ai/blockyard/publisher"
	"github.com/blockyard-ai/blockyard/router/source"
)

const (
	// rankDescriptors are the file descriptors that following one rank takes, replays
	// included.
	rankDescriptors = 20
	// maxEngineRanks bounds the ranks of one engine.
	maxEngineRanks = 1024
)

// ErrClosed is the error of Follow after Close.
var ErrClosed = errors.New("zmq source is closed")

// Options configure a Source. The zero value is ready for use.
type Options struct {
	// AnnounceEvery is the period of announcements; 0 means 1 s.
	AnnounceEvery time.Duration
	// MaxRanks bounds the ranks that are followed. 0 means as many as half of the
	// process's file descriptors allow.
	MaxRanks int
	// Log may be nil.
	Log *zap.Logger
}

// Source follows engines and is the source.Transport of their events.
type Source struct {
	opt    Options
	log    *zap.Logger
	frames chan source.Frame

	ctx     context.Context
	cancel  context.CancelFunc
	running sync.WaitGroup

	mu      sync.Mutex
	engines map[kv.WorkerID]*engine
	// leaving are the engines that were followed last and have not said goodbye.
	leaving map[kv.WorkerID]*engine
	// publishers are the ranks by publisher id, until their goodbye.
	publishers map[uint64]*rank
	closed     bool
	ended      Stats // counters of ranks that ended
}

var (
	_ source.Transport = (*Source)(nil)
	_ source.Measured  = (*Source)(nil)
)

// New returns a Source that follows nothing yet: Follow adds engines. By default it follows at most
// as many ranks as half of the process's file descriptors suffice for. Close must be called.
func New(o Options) (*Source, error) {
	if o.AnnounceEvery < 0 || o.MaxRanks < 0 {
		return nil, fmt.Errorf("zmq announce period %v, max ranks %d: one is negative", o.AnnounceEvery, o.MaxRanks)
	}
	o.AnnounceEvery = cmp.Or(o.AnnounceEvery, time.Second)
	if o.MaxRanks == 0 {
		var limit syscall.Rlimit
		if err := syscall.Getrlimit(syscall.RLIMIT_NOFILE, &limit); err != nil {
			return nil, fmt.Errorf("limit of file descriptors: %w", err)
		}
		o.MaxRanks = int(min(limit.Cur, 1<<20)) / 2 / rankDescriptors // half of the descriptors
	}
	o.Log = cmp.Or(o.Log, zap.NewNop())
	s := &Source{
		opt: o, log: o.Log, frames: make(chan source.Frame),
		engines: make(map[kv.WorkerID]*engine), leaving: make(map[kv.WorkerID]*engine), publishers: make(map[uint64]*rank),
	}
	s.ctx, s.cancel = context.WithCancel(context.Background())
	return s, nil
}

// Follow announces an engine and follows its events. It does not wait for the engine. For
// an engine that is followed already, an equal e changes nothing, another card is
// announced, and any other change ends the old worker and begins a new one. The error
// names the field that is out of range; nothing changes then.
func (s *Source) Follow(e source.Engine) error {
	e.Ranks = slices.Clone(e.Ranks)
	e.Card.Silent, e.Card.Source = false, source.FromEngine
	if err := check(&e); err != nil {
		return err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closed {
		return ErrClosed
	}
	old := s.engines[e.Worker]
	if old != nil && old.sameEvents(&e) {
		old.setCard(e.Card)
		return nil
	}
	ranks := len(e.Ranks)
	for id, o := range s.engines {
		if id != e.Worker {
			ranks += len(o.Ranks)
		}
	}
	for _, o := range s.leaving { // their sockets may still be open
		ranks += len(o.Ranks)
	}
	if ranks > s.opt.MaxRanks {
		return fmt.Errorf("engine ranks: there would be %d followed ranks, want at most %d: "+
			"each takes %d file descriptors", ranks, s.opt.MaxRanks, rankDescriptors)
	}
	if old != nil {
		s.leaveLocked(old)
	}
	s.beginLocked(e)
	return nil
}

// check returns an error that names the first field of e that is out of range.
func check(e *source.Engine) error {
	switch {
	case e.Model == "" || len(e.Model) > kvevent.MaxModel:
		return fmt.Errorf("engine model: %d bytes, want 1 to %d", len(e.Model), kvevent.MaxModel)
	case len(e.Card.Endpoint) > kvevent.MaxEndpoint:
		return fmt.Errorf("engine endpoint: %d bytes, want at most %d", len(e.Card.Endpoint), kvevent.MaxEndpoint)
	case len(e.Ranks) < 1 || len(e.Ranks) > maxEngineRanks:
		return fmt.Errorf("engine ranks: %d is not in 1..%d", len(e.Ranks), maxEngineRanks)
	}
	known := make(map[kv.DPRank]bool, len(e.Ranks))
	for i := range e.Ranks {
		r := &e.Ranks[i]
		if known[r.Rank] {
			return fmt.Errorf("engine ranks: rank %d comes twice", r.Rank)
		}
		known[r.Rank] = true
		if err := source.CheckEndpoint(r.Events); err != nil {
			return fmt.Errorf("events endpoint of rank %d: %w", r.Rank, err)
		}
		if r.Replay != "" {
			if err := source.CheckEndpoint(r.Replay); err != nil {
				return fmt.Errorf("replay endpoint of rank %d: %w", r.Rank, err)
			}
		}
		c := rankConfig(e, r)
		if err := c.Validate(); err != nil {
			return err
		}
	}
	return nil
}

// rankConfig returns how one rank of an engine is followed.
func rankConfig(e *source.Engine, r *source.EngineRank) consolidator.RankConfig {
	return consolidator.RankConfig{
		Worker: kv.Worker{ID: e.Worker, Rank: r.Rank}, BlockSize: int(e.BlockSize),
		EventsEndpoint: r.Events, ReplayEndpoint: r.Replay, Topic: r.Topic,
	}
}

// Unfollow ends an engine: the router forgets its worker. A worker that is not followed is
// left alone.
func (s *Source) Unfollow(worker kv.WorkerID) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if e := s.engines[worker]; e != nil {
		s.leaveLocked(e)
	}
}

// Close ends all engines and waits for their goroutines. It may be called twice.
func (s *Source) Close() error {
	s.mu.Lock()
	s.closed = true
	s.mu.Unlock()
	s.cancel()
	s.running.Wait()
	return nil
}

// Frames implements source.Transport.
func (s *Source) Frames() <-chan source.Frame { return s.frames }

// send passes a frame to the router; false when the Source closes first. While send waits
// for a slow router, events wait in the feed's journal.
func (s *Source) send(f source.Frame) bool {
	select {
	case s.frames <- f:
		return true
	case <-s.ctx.Done():
		return false
	}
}

// Query implements source.Transport. It asks the feed in this process.
func (s *Source) Query(_ context.Context, id uint64, q kvevent.QueryRequest) (*source.Answer, error) {
	s.mu.Lock()
	r := s.publishers[id]
	s.mu.Unlock()
	if r == nil {
		return nil, fmt.Errorf("query publisher %s: it has ended", source.PublisherName(id))
	}
	return r.answer(&q), nil
}

// answer returns the events that q asks for if the feed's journal has them, else a dump of the
// rank's blocks.
func (r *rank) answer(q *kvevent.QueryRequest) *source.Answer {
	r.feed.Count(func(c *publisher.FeedStats) { c.Queries++ })
	if q.HasStart {
		if reply, events, ok := r.feed.AnswerRange(r.stream, q); ok {
			return &source.Answer{Kind: reply.Kind, LastEventID: reply.LastEventID, Message: reply.Message, Events: events, NextChunk: 1}
		}
	}
	r.feed.Count(func(c *publisher.FeedStats) { c.Dumps++; c.Snapshots++ })
	d := publisher.TakeDump(r.stream)
	return &source.Answer{Kind: kvevent.QueryTreeDump, LastEventID: d.Last, Events: d.Events, NextChunk: 1}
}
