package consolidator

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"sync/atomic"
	"testing"
	"time"

	"github.com/blockyard-ai/blockyard/consolidator/checkpoint"
	"github.com/blockyard-ai/blockyard/consolidator/residency/residencytest"
	"github.com/blockyard-ai/blockyard/consolidator/tokens"
	"github.com/blockyard-ai/blockyard/internal/engineevent"
	"github.com/blockyard-ai/blockyard/internal/kv"
	"github.com/blockyard-ai/blockyard/internal/kvevent"
	"github.com/blockyard-ai/blockyard/internal/waittest"
)

// TestRankSurvivesItsAgent: an agent that is killed begins with its last
// checkpoint and learns the rest by replay; without replay it keeps what it knows
// and is degraded until the next frame continues the sequence.
func TestRankSurvivesItsAgent(t *testing.T) {
	for name, replay := range map[string]bool{"replay": true, "no replay": false} {
		t.Run(name, func(t *testing.T) {
			path := filepath.Join(t.TempDir(), "rank")
			e := startEngine(t, "", "")
			cfg := RankConfig{EventsEndpoint: e.events, Checkpoint: path, CheckpointEvery: time.Millisecond}
			if replay {
				cfg.ReplayEndpoint = e.replay
			}
			r := startRank(t, cfg)
			e.awaitSubscriber()
			batches := [][]engineevent.Event{{residencytest.StoredEvent(0, 1, 3)}, {residencytest.StoredEvent(3, 4, 2), residencytest.RemovedEvent(5)}}
			for _, b := range batches {
				e.publish(false, b...)
			}
			r.await(t, truth(t, batches))
			waittest.Until(t, "a checkpoint", func() bool { return r.Stats().Checkpoints > 0 && r.Stats().Batches == 2 })
			saved := awaitFile(t, path, 4)
			// A kill leaves the file as it is; an orderly end would write another one.
			r.stop(t)
			if err := os.WriteFile(path, saved, 0o600); err != nil {
				t.Fatal(err)
			}
			if replay {
				batches = append(batches, []engineevent.Event{residencytest.StoredEvent(4, 6, 1), residencytest.RemovedEvent(1)})
				e.publish(true, batches[2]...)
			}
			r = startRank(t, cfg)
			e.awaitSubscriber()
			waittest.Until(t, "the checkpoint to be read", func() bool { return r.Stats().Restored == 4 })
			if !replay {
				if h := r.stream.Status().Health; h != kvevent.HealthDegraded {
					t.Errorf("health %s before the engine has said anything", h)
				}
			}
			batches = append(batches, []engineevent.Event{residencytest.StoredEvent(4, 9, 1)})
			e.publish(false, batches[len(batches)-1]...)
			r.await(t, truth(t, batches))
			waittest.Until(t, "health exact", func() bool { return r.stream.Status().Health == kvevent.HealthExact })
			if s := r.Stats(); s.Lost > 0 || s.Restarts > 0 || s.CheckpointsRejected > 0 {
				t.Errorf("stats %+v", s)
			}
		})
	}
}

// awaitFile returns a checkpoint with n engine blocks.
func awaitFile(t *testing.T, path string, n int) (b []byte) {
	t.Helper()
	waittest.Until(t, "the checkpoint", func() bool {
		var err error
		if b, err = os.ReadFile(path); err != nil {
			return false
		}
		ck, err := checkpoint.Parse(b, checkpoint.ID{Worker: kv.Worker{ID: 7}, BlockSize: testBlockSize})
		return err == nil && len(ck.EngineBlocks) == n
	})
	return b
}

// TestRankForgetsTheCheckpointOfAnotherEngine: when the engine was replaced while
// the agent was away, its checkpoint is void.
func TestRankForgetsTheCheckpointOfAnotherEngine(t *testing.T) {
	path := filepath.Join(t.TempDir(), "rank")
	old := startEngine(t, "", "")
	cfg := RankConfig{EventsEndpoint: old.events, ReplayEndpoint: old.replay, Checkpoint: path}
	r := startRank(t, cfg)
	old.awaitSubscriber()
	for i := range 3 {
		old.publish(false, residencytest.StoredEvent(0, 1+i, 1))
	}
	waittest.Until(t, "the old engine's blocks", func() bool { return r.stream.Status().Blocks == 3 })
	r.stop(t)
	old.stopEngine()
	awaitFile(t, path, 3)

	e := startEngine(t, old.events, old.replay)
	var batches [][]engineevent.Event
	for i := range 5 {
		batches = append(batches, []engineevent.Event{residencytest.StoredEvent(0, 100+i, 1)})
		e.publish(true, batches[i]...)
	}
	r = startRank(t, cfg)
	r.await(t, truth(t, batches))
	waittest.Until(t, "health exact", func() bool { return r.stream.Status().Health == kvevent.HealthExact })
	if s := r.Stats(); s.Restarts != 1 || s.Restored != 3 {
		t.Errorf("stats %+v", s)
	}
	r.stop(t)
	awaitFile(t, path, 5)
}

// TestRankCountsBadCheckpoints: a damaged file is no reason not to begin, and a
// file that cannot be written is counted.
func TestRankCountsBadCheckpoints(t *testing.T) {
	dir := t.TempDir()
	path := filepath.Join(dir, "rank")
	if err := os.WriteFile(path, []byte("torn"), 0o600); err != nil {
		t.Fatal(err)
	}
	e := startEngine(t, "", "")
	r := startRank(t, RankConfig{EventsEndpoint: e.events, ReplayEndpoint: e.replay, Checkpoint: path, CheckpointEvery: time.Millisecond})
	e.awaitSubscriber()
	if err := os.MkdirAll(path+".new/x", 0o700); err != nil {
		t.Fatal(err)
	}
	batch := []engineevent.Event{residencytest.StoredEvent(0, 1, 3)}
	e.publish(false, batch...)
	r.await(t, truth(t, [][]engineevent.Event{batch}))
	waittest.Until(t, "the failure to be counted", func() bool {
		s := r.Stats()
		return s.CheckpointsRejected == 1 && s.CheckpointFailures > 0
	})
}

// TestRankAsksForTheList: after a loss beyond replay, what the engine lists is
// kept; without an answer everything is forgotten, and it is not asked again at
// once.
func TestRankAsksForTheList(t *testing.T) {
	e := startEngine(t, "", "")
	var fail atomic.Bool
	cached := func(ctx context.Context) ([]kv.EngineHash, error) {
		if _, ok := ctx.Deadline(); !ok || fail.Load() {
			return nil, errors.New("no answer")
		}
		return []kv.EngineHash{1, 2, 20, 21}, nil
	}
	var raw int
	tokens := tokens.New(0)
	r := startRank(t, RankConfig{EventsEndpoint: e.events, Cached: cached, Tokens: tokens, Raw: func([]byte) { raw++ }})
	e.awaitSubscriber()
	e.publish(false, residencytest.StoredEvent(0, 1, 3))
	waittest.Until(t, "the first batch", func() bool { return r.stream.Status().Blocks == 3 })
	e.publish(true, residencytest.RemovedEvent(3))
	e.publish(false, residencytest.StoredEvent(0, 20, 2))
	r.await(t, truth(t, [][]engineevent.Event{{residencytest.StoredEvent(0, 1, 2)}, {residencytest.StoredEvent(0, 20, 2)}}))
	waittest.Until(t, "health exact", func() bool { return r.stream.Status().Health == kvevent.HealthExact })
	if s := r.Stats(); s.Lost != 1 || s.Listed != 1 || s.Unlisted != 0 {
		t.Errorf("stats %+v", s)
	}
	fail.Store(true)
	for i := range 2 {
		e.publish(true, residencytest.RemovedEvent(1))
		e.publish(false, residencytest.StoredEvent(0, 40+10*i, 1))
		r.await(t, truth(t, [][]engineevent.Event{{residencytest.StoredEvent(0, 40+10*i, 1)}}))
	}
	if s, h := r.Stats(), r.stream.Status().Health; s.Lost != 3 || s.Listed != 1 || s.ListFailures == 0 || h != kvevent.HealthDegraded {
		t.Errorf("health %s, stats %+v", h, s)
	}
	r.stop(t)
	if raw != 4 {
		t.Errorf("%d raw payloads, want 4", raw)
	}
	if s := tokens.Stats(); s.Stored != 7 {
		t.Errorf("the tokens of %d blocks came in, want 7", s.Stored)
	}
}
