package workers

import (
	"reflect"
	"time"

	"go.uber.org/zap"

	"github.com/blockyard-ai/blockyard/internal/kv"
	"github.com/blockyard-ai/blockyard/internal/kvevent"
	"github.com/blockyard-ai/blockyard/router/source"
	"github.com/blockyard-ai/blockyard/router/source/registry"
)

const (
	// registerFor is how long a registration holds, renewEvery how often it is renewed.
	registerFor = 30 * time.Second
	renewEvery  = 8 * time.Second
)

// register keeps up to date how the router knows the server. A ready server that nobody
// announces is followed, if it publishes events, and else registered. The registration also
// speaks for ranks without events: an announced publisher wins over it.
func (s *server) register(now time.Time) {
	s.mu.Lock()
	announced := s.known != nil
	s.mu.Unlock()
	w := s.current.Load()
	if announced || w.State != Ready {
		s.leave()
		return
	}
	if w.Facts.BlockSize == 0 {
		s.refuse("the worker does not tell its block size and gets no requests; give it with block-size= of --worker or with --router-block-size")
		s.leave()
		return
	}
	if s.follow(w) {
		s.unregister()
		return
	}
	s.renew(w, now)
}

// renew registers a worker, or renews its registration when that is due.
func (s *server) renew(w *Worker, now time.Time) {
	r := s.d.opt.Registry
	if r == nil {
		return
	}
	if s.registered != 0 && s.registered != w.ID {
		s.unregister()
	}
	g := registration(w)
	if s.registered != 0 && now.Sub(s.renewed) < renewEvery && reflect.DeepEqual(&s.sent, &g) {
		return
	}
	if err := r.Register(&g, registerFor); err != nil {
		s.refuse("the worker is not registered and gets no requests", zap.Error(err))
		return
	}
	isNew := s.registered == 0 || !reflect.DeepEqual(&s.sent, &g)
	s.registered, s.renewed, s.sent = w.ID, now, g
	if isNew {
		r.AnnounceSoon()
	}
}

// follow has the router follow the events of a worker. It returns true when that covers
// every rank.
func (s *server) follow(w *Worker) bool {
	f := s.d.opt.Follower
	if f == nil {
		return false
	}
	e := engine(w)
	if s.followed != 0 && (s.followed != w.ID || len(e.Ranks) == 0) {
		s.unfollow()
	}
	if len(e.Ranks) == 0 {
		return false
	}
	if err := f.Follow(e); err != nil {
		s.refuse("the worker's KV events are not followed, so the router predicts what the worker caches", zap.Error(err))
		s.unfollow()
		return false
	}
	s.followed = w.ID
	return len(e.Ranks) == int(w.Ranks)
}

// engine says where the ranks of a worker publish events.
func engine(w *Worker) source.Engine {
	e := source.Engine{Worker: w.ID, Model: w.Model, BlockSize: uint32(w.Facts.BlockSize), Card: kvevent.ModelCard{
		Endpoint: w.URL, Ranks: w.Ranks, DeviceBlocks: uint64(w.Facts.DeviceBlocks),
	}}
	// A specification with bad taints is an error before.
	e.Card.Taints, _ = kvevent.NewTaints(w.Taints)
	for _, r := range w.Facts.Events {
		if r.Rank >= w.FirstRank && r.Rank-w.FirstRank < w.Ranks {
			e.Ranks = append(e.Ranks, source.EngineRank{Rank: kv.DPRank(r.Rank), Events: r.Endpoint, Replay: r.Replay, Topic: r.Topic})
		}
	}
	return e
}

// leave ends what register began.
func (s *server) leave() {
	s.unregister()
	s.unfollow()
}

// unfollow ends following the server's events.
func (s *server) unfollow() {
	if s.followed != 0 {
		s.d.opt.Follower.Unfollow(s.followed)
		s.followed = 0
	}
}

// refuse logs once why the server is not registered.
func (s *server) refuse(text string, fields ...zap.Field) {
	if !s.reported[text] {
		s.reported[text] = true
		s.log.Error(text, fields...)
	}
}

// registration returns the registration of a worker.
func registration(w *Worker) registry.Registration {
	return registry.Registration{
		WorkerID: uint64(w.ID), FirstRank: w.FirstRank, Ranks: w.Ranks, Model: w.Model, BlockSize: uint32(w.Facts.BlockSize),
		Endpoint: w.URL, DeviceBlocks: uint64(w.Facts.DeviceBlocks), Taints: w.Taints,
	}
}

// unregister ends the registration of the server, if there is one.
func (s *server) unregister() {
	if s.registered == 0 {
		return
	}
	id := uint64(s.registered)
	s.registered = 0
	if s.d.opt.Registry.Unregister(id) {
		s.d.opt.Registry.AnnounceSoon()
	}
}
