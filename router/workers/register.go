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

// register tells the router about the server after each probe. A ready server that no agent
// announces is followed if all its ranks publish KV events, and else registered. Ranks with
// events are followed also when others are registered: a publisher of events wins over the
// registration.
func (s *server) register(now time.Time) {
	s.mu.Lock()
	announced := s.known != nil // an agent or another source tells the router
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

// renew registers w with the router. A registration expires, so renew sends it again when it has
// changed or when renewEvery has passed.
func (s *server) renew(w *Worker, now time.Time) {
	r := s.d.opt.Registry
	if r == nil {
		return
	}
	if s.registered != 0 && s.registered != w.ID { // the worker got another id
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

// follow has the router follow the KV events of w. It returns true when every rank publishes
// events and is followed, so that w needs no registration. It ends an earlier following that no
// longer fits.
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

// engine returns the description of w for the follower: its model, and where its ranks publish KV
// events. Ranks that w does not have are left out.
func engine(w *Worker) source.Engine {
	e := source.Engine{Worker: w.ID, Model: w.Model, BlockSize: uint32(w.Facts.BlockSize), Card: kvevent.ModelCard{
		Endpoint: w.URL, Ranks: w.Ranks, DeviceBlocks: uint64(w.Facts.DeviceBlocks), MaxBatchedTokens: uint64(w.Facts.BatchedTokens),
		Eagle: w.Facts.Pairs,
	}}
	// Spec.set has checked the taints.
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
		MaxBatchedTokens: uint64(w.Facts.BatchedTokens), IsEagle: w.Facts.Pairs,
	}
}

// unregister ends the server's registration with the router, if there is one, and has that
// announced.
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
