package workers

import (
	"context"
	"fmt"
	"math/rand/v2"
	"reflect"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"go.uber.org/zap"

	"github.com/blockyard-ai/blockyard/internal/backoff"
	"github.com/blockyard-ai/blockyard/internal/kv"
	"github.com/blockyard-ai/blockyard/router/source/registry"
)

const (
	// describeEvery is the period of asking a ready server for facts.
	describeEvery = 30 * time.Second
	// firstRetry and lastRetry bound the pauses between probes of a server that is not ready.
	firstRetry, lastRetry = 250 * time.Millisecond, 4 * time.Second
	// probeGap is the shortest time between two probes.
	probeGap = 100 * time.Millisecond
)

// server is one server of the directory. Its goroutine probes it and renews its
// registration.
type server struct {
	d      *Directory
	spec   Spec
	source string
	probe  prober
	log    *zap.Logger
	// wake is filled to probe now.
	wake chan struct{}
	// failed counts failed requests in a row, inflight the requests that have not ended.
	failed, inflight atomic.Int64
	// current is what was published last.
	current atomic.Pointer[Worker]

	cancel context.CancelFunc // nil before start
	ended  chan struct{}

	// mu guards the fields below. It is a leaf.
	mu     sync.Mutex
	health health
	// known is the router's worker that the server is; nil when the directory registers it.
	known *Known
	// leaving is true while the finder says so, drain while an operator does.
	leaving, drain bool
	models         []Model
	described      described
	// cached is what answers showed of Facts.CachedTokens.
	cached  Tri
	failure string

	// The server's goroutine owns the fields below.
	describes time.Time // when the facts were asked for
	reported  map[string]bool
	// registered is the id under which the server is registered, 0 for none. sent is the
	// registration, renewed when it was sent.
	registered kv.WorkerID
	renewed    time.Time
	sent       registry.Registration
	// followed is the id under which the server's events are followed, 0 for none.
	followed kv.WorkerID
}

// newServer returns the server for w. It is Starting, and nothing probes it before start.
func (d *Directory) newServer(w *wanted) *server {
	s := &server{
		d: d, spec: w.spec, source: w.source, wake: make(chan struct{}, 1), reported: make(map[string]bool),
		log:   d.log.With(zap.String("worker", w.spec.URL)),
		probe: prober{client: d.opt.Client, url: w.spec.URL, key: w.spec.key, timeout: d.opt.ProbeTimeout},
		known: w.known, leaving: w.leaving,
	}
	s.described.ranks = 1
	s.current.Store(s.workerLocked(time.Now())) // without s.mu: nobody else has s yet
	return s
}

// adopt copies health, models, facts and drain from other, an ended entry for the same URL. So a
// worker stays ready when another source names it. The locks are taken one after the other.
func (s *server) adopt(other *server) {
	other.mu.Lock()
	health, models, described, cached, drain := other.health, other.models, other.described, other.cached, other.drain
	other.mu.Unlock()
	s.mu.Lock()
	s.health, s.models, s.described, s.cached, s.drain = health, models, described, cached, drain
	s.mu.Unlock()
	s.publish()
}

// same reports whether the server is still the wanted one.
func (s *server) same(w *wanted) bool {
	return s.source == w.source && reflect.DeepEqual(s.spec, w.spec)
}

// update takes from w what may change while a server runs: the router's worker that it is, and
// whether its finder says that it leaves. A change is published, and the server is probed at once.
func (s *server) update(w *wanted) {
	s.mu.Lock()
	changed := s.leaving != w.leaving || (s.known == nil) != (w.known == nil) || w.known != nil && *s.known != *w.known
	s.known, s.leaving = w.known, w.leaving
	s.mu.Unlock()
	if changed {
		s.publish()
		notify(s.wake)
	}
}

// start begins to probe the server in a goroutine, until ctx or end ends it. Later calls have no
// effect.
func (s *server) start(ctx context.Context) {
	if s.cancel != nil {
		return
	}
	ctx, s.cancel = context.WithCancel(ctx)
	s.ended = make(chan struct{})
	s.d.running.Go(func() {
		defer close(s.ended)
		s.run(ctx)
	})
}

// end stops probing and waits for it.
func (s *server) end() {
	if s.cancel != nil {
		s.cancel()
		<-s.ended
	}
}

// run probes the server and tells the router the result, until ctx ends. Then the server is
// unregistered. Probes come every ProbeEvery while the server is ready, and sooner otherwise.
func (s *server) run(ctx context.Context) {
	defer s.leave()
	retries := backoff.Jittered(firstRetry, lastRetry)
	for {
		s.look(ctx)
		if ctx.Err() != nil {
			return
		}
		s.publish()
		s.register(time.Now())
		wait := jitter(s.d.opt.ProbeEvery)
		if s.current.Load().State == Ready {
			retries.Reset()
		} else {
			wait = min(wait, retries.NextBackOff())
		}
		// pause ignores s.wake, so that failing requests do not cause probes without a gap.
		if !backoff.Wait(ctx, min(probeGap, wait)) || !s.sleep(ctx, wait-probeGap) {
			return
		}
	}
}

// sleep waits for the time wait, or until s.wake asks for a probe at once. It returns false when
// ctx ended.
func (s *server) sleep(ctx context.Context, wait time.Duration) bool {
	timer := time.NewTimer(max(0, wait))
	defer timer.Stop()
	select {
	case <-ctx.Done():
		return false
	case <-s.wake:
	case <-timer.C:
	}
	return true
}

// jitter returns a time of three to five quarters of t.
func jitter(t time.Duration) time.Duration {
	return t*3/4 + time.Duration(rand.Int64N(int64(t)/2+1))
}

// look probes the server once and updates its health and models. It also asks for the facts, when
// the server was not ready before, and every describeEvery. Only the server's goroutine calls
// look, and it holds no lock during requests.
func (s *server) look(ctx context.Context) {
	models, engine, err := s.probe.alive(ctx)
	if ctx.Err() != nil {
		return
	}
	s.mu.Lock()
	before := s.health.state()
	s.mu.Unlock()
	described, asked := described{}, false
	if err == nil && (before != Ready || time.Since(s.describes) >= describeEvery) {
		if described, asked = s.probe.describe(ctx, engine), true; ctx.Err() != nil {
			return
		}
		s.describes = time.Now()
	}
	s.mu.Lock()
	s.health.probed(err != nil, err != nil && decisive(err))
	if err != nil {
		s.failure = err.Error()
	} else {
		s.failure, s.models = "", models
	}
	if asked {
		described.keep(&s.described)
		s.described = described
	}
	s.countLocked()
	s.mu.Unlock()
	if asked {
		s.report(&described)
	}
}

// countLocked updates the health from the count of failed requests.
func (s *server) countLocked() {
	failed := s.failed.Load()
	if next := int64(s.health.requests(int(failed), time.Now())); next != failed {
		s.failed.CompareAndSwap(failed, next)
	}
}

// stateLocked returns the state of the server.
func (s *server) stateLocked() State {
	state := s.health.state()
	if state == Ready && (s.drain || s.leaving) {
		return Draining
	}
	return state
}

// publish makes the state of the server visible to readers, if it has changed: it stores a new
// Worker in s.current and has the directory make a new snapshot. It logs a change of state.
func (s *server) publish() {
	s.mu.Lock()
	before, w := s.current.Load(), s.workerLocked(time.Now())
	if before.State == w.State {
		w.Since = before.Since // the time of the last change of state
	}
	changed := !reflect.DeepEqual(before, w)
	if changed {
		s.current.Store(w)
	}
	s.mu.Unlock()
	if changed {
		notify(s.d.dirty)
	}
	if changed && (before.State != w.State || w.State != Ready && before.Problem != w.Problem) {
		s.logState(before, w)
	}
}

// logState logs that the server has a new state, or a new reason why it is not ready. before and w
// are the published worker before and now.
func (s *server) logState(before, w *Worker) {
	fields := []zap.Field{zap.Stringer("state", w.State), zap.Stringer("before", before.State), zap.Uint64("id", uint64(w.ID))}
	switch w.State {
	case Unhealthy, Starting:
		s.log.Warn("worker gets no requests", append(fields, zap.String("reason", w.Problem))...)
	case Draining:
		s.log.Info("worker finishes its requests and gets no new ones", append(fields, zap.String("reason", w.Problem))...)
	default:
		s.log.Info("worker is ready", append(fields, zap.String("model", w.Model), zap.String("engine", w.Facts.Engine),
			zap.String("version", w.Facts.Version), zap.Int("block size", w.Facts.BlockSize), zap.Uint32("ranks", w.Ranks))...)
	}
}

// workerLocked returns what the directory publishes about the server: its spec, what the server
// told, and what the router knows, which wins. now becomes Since. The caller holds s.mu.
func (s *server) workerLocked(now time.Time) *Worker {
	d := &s.described
	w := &Worker{
		ID: s.spec.id(), URL: s.spec.URL, Models: s.models, Facts: d.facts, FirstRank: d.firstRank, Ranks: d.ranks,
		Role: s.spec.Role, State: s.stateLocked(), Source: s.source, Taints: s.spec.Taints, Since: now,
		Problem: s.problemLocked(), Model: s.spec.Model, key: s.spec.key,
	}
	if w.Model == "" && len(s.models) > 0 {
		w.Model = s.models[0].Name
	}
	if w.Role == RoleBoth {
		w.Role = d.role
	}
	if w.Facts.CachedTokens == Unknown {
		w.Facts.CachedTokens = s.cached
	}
	w.Facts.BlockSize = s.blockSizeLocked()
	if k := s.known; k != nil {
		w.ID, w.Model, w.FirstRank, w.Ranks = k.ID, k.Model, k.FirstRank, k.Ranks
		w.Pool, w.MaxBatchedTokens = k.Pool, int(k.MaxBatchedTokens)
	}
	if s.spec.Events != "" {
		w.Facts.Events = s.spec.eventsOf(w.FirstRank, w.Ranks)
	}
	if _, ok := w.serves(w.Model); !ok && len(w.Models) > 0 {
		// The router knows the worker by a name that the server does not use.
		w.Models = slices.Concat([]Model{{Name: w.Model, MaxLen: w.Models[0].MaxLen}}, w.Models)
	}
	return w
}

// problemLocked returns why the server gets no requests, as one line for people; empty for a ready
// server. The caller holds s.mu.
func (s *server) problemLocked() string {
	switch {
	case s.failure != "":
		return s.failure
	case s.health.open:
		return fmt.Sprintf("its last %d requests failed", maxFailedRequests)
	case s.leaving:
		return "its discovery says that the server leaves"
	case s.drain:
		return "an operator drains the worker"
	}
	return ""
}

// blockSizeLocked returns the block size in tokens; 0 is unknown. The first known one counts: that
// of the router's worker, of the server, of the spec, of the router's configuration. The caller
// holds s.mu.
func (s *server) blockSizeLocked() int {
	switch {
	case s.known != nil:
		return int(s.known.BlockSize)
	case s.described.facts.BlockSize > 0:
		return s.described.facts.BlockSize
	case s.spec.BlockSize > 0:
		return int(s.spec.BlockSize)
	}
	return int(s.d.opt.BlockSize)
}

// report warns about settings of the engine that make routing worse, and names the flag to set.
// Each warning is logged once for a server. d has the server's facts.
func (s *server) report(d *described) {
	say := func(what, text string, fields ...zap.Field) {
		if !s.reported[what] {
			s.reported[what] = true
			s.log.Warn(text, fields...)
		}
	}
	s.mu.Lock()
	announced, cached := s.known != nil, s.cached
	s.mu.Unlock()
	vllm := d.facts.Engine == EngineVLLM
	switch {
	case announced || s.spec.Events != "" || len(d.facts.Events) > 0: // the router gets the events
	case d.eventsErr != nil:
		say("events", "the worker does not tell where it publishes KV events; give the endpoint with events= of --worker", zap.Error(d.eventsErr))
	case vllm, d.facts.Engine == EngineSGLang:
		say("events", "the worker publishes no KV events, so the router predicts what the worker caches; start the worker with --kv-events-config")
	default:
		say("events", "the worker publishes no KV events, so the router predicts what the worker caches")
	}
	if d.facts.PrefixCaching == No {
		flag := "--enable-prefix-caching"
		if d.facts.Engine == EngineSGLang {
			flag = "no --disable-radix-cache"
		}
		say("prefix caching", "the worker keeps no blocks of finished requests; start the worker with "+flag)
	}
	if vllm && !d.facts.Render {
		say("render", "the worker renders no prompts, so the router asks for tokens with /tokenize; start the worker with --enable-scale-out")
	}
	if vllm && cached == No {
		say("cached tokens", "the worker does not tell how many tokens were cached; start the worker with --enable-prompt-tokens-details")
	}
	if d.facts.Engine == EngineSGLang && d.facts.CachedTokens == No {
		say("cached tokens", "the worker does not tell how many tokens were cached; start the worker with --enable-cache-report")
	}
	if size := s.spec.BlockSize; size > 0 && d.facts.BlockSize > 0 && int(size) != d.facts.BlockSize {
		say("block size", "block-size= of the worker has no effect, because the worker tells another",
			zap.Uint32("given", size), zap.Int("told", d.facts.BlockSize))
	}
}
