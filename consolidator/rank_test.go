package consolidator

import (
	"cmp"
	"context"
	"math/rand/v2"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/pebbe/zmq4"
	"go.uber.org/zap"
	"go.uber.org/zap/zapcore"
	"go.uber.org/zap/zaptest/observer"

	"github.com/blockyard-ai/blockyard/consolidator/mirror"
	"github.com/blockyard-ai/blockyard/consolidator/residency"
	"github.com/blockyard-ai/blockyard/consolidator/residency/residencytest"
	"github.com/blockyard-ai/blockyard/internal/engineevent"
	"github.com/blockyard-ai/blockyard/internal/kv"
	"github.com/blockyard-ai/blockyard/internal/kvevent"
	"github.com/blockyard-ai/blockyard/internal/waittest"
)

// runningRank is a rank under test with what it emitted.
type runningRank struct {
	*Rank
	rec    *residencytest.Recorder
	cancel context.CancelFunc
	ended  chan error
}

func startRank(t *testing.T, cfg RankConfig) *runningRank {
	t.Helper()
	cfg.Worker, cfg.BlockSize = kv.Worker{ID: 7}, testBlockSize
	cfg.IdleProbe = cmp.Or(cfg.IdleProbe, 20*time.Millisecond)
	rec := residencytest.NewRecorder(t)
	r, err := NewRank(cfg, residency.NewStream(testOwner, rec))
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	run := &runningRank{Rank: r, rec: rec, cancel: cancel, ended: make(chan error, 1)}
	go func() { run.ended <- r.Run(ctx) }()
	t.Cleanup(func() { run.stop(t) })
	return run
}

func (r *runningRank) stop(t *testing.T) {
	r.cancel()
	select {
	case err := <-r.ended:
		if err != nil {
			t.Errorf("run: %v", err)
		}
		r.ended <- nil
	case <-time.After(30 * time.Second):
		t.Error("the rank does not end")
	}
}

// truth feeds batches straight into a mirror: the state a rank must reach.
func truth(t *testing.T, batches [][]engineevent.Event) residency.Status {
	t.Helper()
	s := residency.NewStream(testOwner, residencytest.NewRecorder(t))
	c := mirror.New(mirror.Config{Stream: s, BlockSize: testBlockSize, MaxBlocks: 1 << 20, Counters: new(mirror.Counters)})
	for _, events := range batches {
		c.Apply(&engineevent.Batch{Events: events})
	}
	return s.Status()
}

func (r *runningRank) await(t *testing.T, want residency.Status) {
	t.Helper()
	defer func() {
		if t.Failed() {
			t.Logf("stats %+v", r.Stats())
		}
	}()
	waittest.Until(t, "the stream to hold what the engine holds", func() bool {
		st := r.stream.Status()
		return st.Digest == want.Digest && st.Blocks == want.Blocks
	})
	residencytest.Check(t, r.stream, r.rec.Resident())
}

func TestRankRepairsDroppedFrames(t *testing.T) {
	for _, threeFrames := range []bool{false, true} {
		t.Run(map[bool]string{false: "replies with topic", true: "replies without topic"}[threeFrames], func(t *testing.T) {
			e := startEngine(t, "", "")
			e.threeFrames = threeFrames
			r := startRank(t, RankConfig{EventsEndpoint: e.events, ReplayEndpoint: e.replay, Topic: "kv"})
			e.awaitSubscriber()
			rng := rand.New(rand.NewPCG(1, 2))
			var batches [][]engineevent.Event
			for i := range 300 {
				events := []engineevent.Event{residencytest.StoredEvent(0, i*10+1, 3), residencytest.StoredEvent(i*10+2, i*10+5, 2)}
				if i > 5 {
					events = append(events, residencytest.RemovedEvent((i-5)*10+6, (i-5)*10+3))
				}
				batches = append(batches, events)
				e.publish(rng.IntN(5) == 0 && i < 299, events...)
			}
			want := truth(t, batches)
			r.await(t, want)
			waittest.Until(t, "the gap to close", func() bool { return !r.Stats().Repairing })
			s := r.Stats()
			if s.Gaps == 0 || s.Gaps != s.Repaired || s.Lost != 0 || s.Replayed == 0 || s.Restarts != 0 {
				t.Errorf("stats %+v", s)
			}
			if h := r.stream.Status().Health; h != kvevent.HealthExact {
				t.Errorf("health %s", h)
			}
		})
	}
}

// TestRankRepairsMoreThanTheEngineQueues: a ROUTER drops replies beyond its
// high-water mark, and may drop the end mark too; the rank asks again from where
// the hole begins, as long as that brings something.
func TestRankRepairsMoreThanTheEngineQueues(t *testing.T) {
	for name, live := range map[string]bool{"idle engine": false, "gap before a live frame": true} {
		t.Run(name, func(t *testing.T) {
			e := startEngine(t, "", "")
			cfg := RankConfig{EventsEndpoint: e.events, ReplayEndpoint: e.replay, ReplayTimeout: time.Second}
			if live {
				cfg.IdleProbe = time.Hour
			}
			r := startRank(t, cfg)
			e.awaitSubscriber()
			var batches [][]engineevent.Event
			for i := range 4000 {
				batches = append(batches, []engineevent.Event{residencytest.StoredEvent(0, i*20+1, 20)})
				e.publish(!live || i < 3999, batches[i]...)
			}
			r.await(t, truth(t, batches))
			waittest.Until(t, "the gap to close", func() bool { return !r.Stats().Repairing })
			if s := r.Stats(); s.Lost != 0 || s.Gaps != s.Repaired {
				t.Errorf("stats %+v", s)
			} else {
				t.Logf("%d requests, %d of them not answered to the end", s.Replays, s.ReplayFailures)
			}
		})
	}
}

func TestRankClearsWhatTheHistoryNoLongerHolds(t *testing.T) {
	e := startEngine(t, "", "")
	e.steps = 3
	r := startRank(t, RankConfig{EventsEndpoint: e.events, ReplayEndpoint: e.replay})
	e.awaitSubscriber()
	e.publish(false, residencytest.StoredEvent(0, 1, 2))
	waittest.Until(t, "the first batch", func() bool { return r.stream.Status().Blocks == 2 })
	for i := range 6 {
		e.publish(true, residencytest.StoredEvent(0, 100+10*i, 1))
	}
	last := []engineevent.Event{residencytest.StoredEvent(2, 3, 1), residencytest.StoredEvent(0, 500, 4)}
	e.publish(false, last...)
	// The history holds two of the lost batches and the last one, whose first
	// event hangs on a block from before the loss.
	r.await(t, truth(t, [][]engineevent.Event{{residencytest.StoredEvent(0, 140, 1)}, {residencytest.StoredEvent(0, 150, 1)}, {residencytest.StoredEvent(0, 500, 4)}}))
	s := r.Stats()
	if s.Lost != 1 || s.Gaps != 1 || s.Parked != 1 {
		t.Errorf("stats %+v", s)
	}
	if h := r.stream.Status().Health; h != kvevent.HealthDegraded {
		t.Errorf("health %s", h)
	}
	if !strings.Contains(r.rec.Take(), "cleared\n") {
		t.Error("no cleared event")
	}
}

func TestRankWithoutReplayLosesAGap(t *testing.T) {
	e := startEngine(t, "", "")
	r := startRank(t, RankConfig{EventsEndpoint: e.events})
	e.awaitSubscriber()
	e.publish(false, residencytest.StoredEvent(0, 1, 2))
	e.publish(true, residencytest.StoredEvent(0, 10, 2))
	e.publish(false, residencytest.StoredEvent(0, 20, 2))
	r.await(t, truth(t, [][]engineevent.Event{{residencytest.StoredEvent(0, 20, 2)}}))
	if s, h := r.Stats(), r.stream.Status().Health; s.Lost != 1 || h != kvevent.HealthDegraded {
		t.Errorf("health %s, stats %+v", h, s)
	}
}

func TestRankForgetsTheEngineBeforeARestart(t *testing.T) {
	old := startEngine(t, "", "")
	r := startRank(t, RankConfig{EventsEndpoint: old.events, ReplayEndpoint: old.replay, ReplayTimeout: 200 * time.Millisecond})
	old.awaitSubscriber()
	for i := range 5 {
		old.publish(false, residencytest.StoredEvent(0, 1+i, 1))
	}
	waittest.Until(t, "the old engine's blocks", func() bool { return r.stream.Status().Blocks == 5 })
	old.stopEngine()

	// The new engine publishes more than the old one had before anybody listens,
	// and then nothing: only the replay can tell.
	e := startEngine(t, old.events, old.replay)
	var batches [][]engineevent.Event
	for i := range 8 {
		batches = append(batches, []engineevent.Event{residencytest.StoredEvent(0, 100+i, 1)})
		e.publish(true, batches[i]...)
	}
	r.await(t, truth(t, batches))
	if s := r.Stats(); s.Restarts != 1 {
		t.Errorf("stats %+v", s)
	}
	if h := r.stream.Status().Health; h != kvevent.HealthExact {
		t.Errorf("health %s", h)
	}
}

func TestRankSurvivesMalformedFrames(t *testing.T) {
	core, logs := observer.New(zapcore.WarnLevel)
	e := startEngine(t, "", "")
	r := startRank(t, RankConfig{EventsEndpoint: e.events, ReplayEndpoint: e.replay, Log: zap.New(core)})
	e.awaitSubscriber()
	batches := [][]engineevent.Event{{residencytest.StoredEvent(0, 1, 2)}, {residencytest.StoredEvent(2, 3, 1)}}
	good := e.publish(false, batches[0]...)
	kvTopic := []byte("kv")
	e.send(kvTopic)
	e.send(kvTopic, seqFrame(1))
	e.send(kvTopic, seqFrame(1), good, good)
	e.send(kvTopic, []byte{1, 2, 3}, good)
	e.send(kvTopic, seqFrame(1), []byte("garbage"))
	e.send(kvTopic, seqFrame(0), []byte{})
	e.send(kvTopic, seqFrame(77), good[:len(good)/2])
	e.publish(false, batches[1]...)
	r.await(t, truth(t, batches))
	waittest.Until(t, "all frames", func() bool { return r.Stats().Frames == 9 })
	if s := r.Stats(); s.BadFrames != 7 || s.Lost != 0 || s.Restarts != 0 {
		t.Errorf("stats %+v", s)
	}
	// At most one line a second; a slow machine may need more than one.
	if n := logs.Len(); n == 0 || n > 3 {
		t.Errorf("%d log lines", n)
	}
}

func TestRankDropsBatchesOfAnotherRank(t *testing.T) {
	e := startEngine(t, "", "")
	r := startRank(t, RankConfig{EventsEndpoint: e.events, ReplayEndpoint: e.replay})
	e.awaitSubscriber()
	e.publishPayload(false, engineevent.AppendBatch(nil, &engineevent.Batch{Rank: 3, HasRank: true, Events: []engineevent.Event{residencytest.StoredEvent(0, 1, 2)}}))
	waittest.Until(t, "the batch", func() bool { return r.Stats().Batches == 1 })
	if s := r.Stats(); s.Dropped["foreign_rank"] != 2 || r.stream.Status().Blocks != 0 {
		t.Errorf("stats %+v", s)
	}
}

func TestRankBindsForEnginesThatConnect(t *testing.T) {
	endpoint := "ipc://" + filepath.Join(t.TempDir(), "events")
	r := startRank(t, RankConfig{EventsEndpoint: endpoint, Bind: true})
	zctx, err := zmq4.NewContext()
	if err != nil {
		t.Fatal(err)
	}
	pub, err := zctx.NewSocket(zmq4.XPUB)
	if err != nil {
		t.Fatal(err)
	}
	e := &testEngine{t: t, pub: pub, ctx: zctx, steps: 10}
	defer func() {
		if err := pub.Close(); err != nil {
			t.Error(err)
		}
		if err := zctx.Term(); err != nil {
			t.Error(err)
		}
	}()
	if err := pub.SetLinger(0); err != nil {
		t.Fatal(err)
	}
	if err := pub.Connect(endpoint); err != nil {
		t.Fatal(err)
	}
	e.awaitSubscriber()
	e.publish(false, residencytest.StoredEvent(0, 1, 3))
	r.await(t, truth(t, [][]engineevent.Event{{residencytest.StoredEvent(0, 1, 3)}}))
}

// A rank ends when it is told to, and not at its next timer, which is an hour away.
func TestRankEndsPromptly(t *testing.T) {
	e := startEngine(t, "", "")
	r := startRank(t, RankConfig{EventsEndpoint: e.events, ReplayEndpoint: e.replay, IdleProbe: time.Hour})
	e.awaitSubscriber()
	r.stop(t)
}

func TestRankConfigErrorsNameTheField(t *testing.T) {
	good := RankConfig{Worker: kv.Worker{ID: 1}, BlockSize: 16, EventsEndpoint: "tcp://127.0.0.1:1"}
	for field, edit := range map[string]func(*RankConfig){
		"worker":          func(c *RankConfig) { c.Worker.ID = 0 },
		"block size":      func(c *RankConfig) { c.BlockSize = 5000 },
		"events endpoint": func(c *RankConfig) { c.EventsEndpoint = "" },
		"max blocks":      func(c *RankConfig) { c.MaxBlocks = -1 },
		"idle probe":      func(c *RankConfig) { c.IdleProbe = -1 },
	} {
		cfg := good
		edit(&cfg)
		if err := cfg.Validate(); err == nil || !strings.Contains(err.Error(), field) {
			t.Errorf("%s: error %v", field, err)
		}
	}
	if _, err := NewRank(good, residency.NewStream(kv.PoolOwner(1), nil)); err == nil {
		t.Error("a pool's stream was accepted")
	}
	cfg := good
	cfg.EventsEndpoint = "nonsense"
	r, err := NewRank(cfg, residency.NewStream(kv.WorkerOwner(cfg.Worker), nil))
	if err != nil {
		t.Fatal(err)
	}
	if err := r.Run(t.Context()); err == nil || !strings.Contains(err.Error(), "nonsense") {
		t.Errorf("run: %v", err)
	}
}
