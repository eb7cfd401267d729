package consolidator

import (
	"context"
	"errors"
	"path/filepath"
	"sync/atomic"
	"testing"
	"time"

	"github.com/blockyard-ai/blockyard/consolidator/residency"
	"github.com/blockyard-ai/blockyard/consolidator/residency/residencytest"
	"github.com/blockyard-ai/blockyard/internal/engineevent"
	"github.com/blockyard-ai/blockyard/internal/kv"
	"github.com/blockyard-ai/blockyard/internal/kvevent"
	"github.com/blockyard-ai/blockyard/internal/waittest"
)

// TestRankAsksForTheListUntilItComes: a list that fails once costs the blocks only
// until the next one, with everything that was announced meanwhile.
func TestRankAsksForTheListUntilItComes(t *testing.T) {
	e := startEngine(t, "", "")
	var calls atomic.Int32
	r := startRank(t, RankConfig{EventsEndpoint: e.events, Cached: func(context.Context) ([]kv.EngineHash, error) {
		if calls.Add(1) == 1 {
			return nil, errors.New("busy")
		}
		return []kv.EngineHash{1, 2, 3, 100, 101}, nil
	}})
	e.awaitSubscriber()
	e.publish(false, residencytest.StoredEvent(0, 1, 4))
	waittest.Until(t, "the first batch", func() bool { return r.stream.Status().Blocks == 4 })
	e.publish(true, residencytest.RemovedEvent(4))
	e.publish(false, residencytest.StoredEvent(3, 100, 2))
	waittest.Until(t, "the loss", func() bool { return r.Stats().ListFailures == 1 })
	if st := r.stream.Status(); st.Blocks != 0 || st.Health != kvevent.HealthDegraded {
		t.Errorf("without a list the stream says %+v", st)
	}
	r.await(t, truth(t, [][]engineevent.Event{{residencytest.StoredEvent(0, 1, 3), residencytest.StoredEvent(3, 100, 2)}}))
	waittest.Until(t, "health exact", func() bool { return r.stream.Status().Health == kvevent.HealthExact })
	if s := r.Stats(); s.Listed != 1 || s.Unlisted != 0 || s.Lost != 1 {
		t.Errorf("stats %+v", s)
	}
}

// TestRankSettlesBadEventsByTheList: an event that cannot be decoded may have been a
// removal; the list tells. Who sends many of them is not asked every time.
func TestRankSettlesBadEventsByTheList(t *testing.T) {
	e := startEngine(t, "", "")
	r := startRank(t, RankConfig{EventsEndpoint: e.events, Cached: func(context.Context) ([]kv.EngineHash, error) {
		return []kv.EngineHash{1}, nil
	}})
	e.awaitSubscriber()
	e.publish(false, residencytest.StoredEvent(0, 1, 2))
	waittest.Until(t, "the first batch", func() bool { return r.stream.Status().Blocks == 2 })
	// ["BlockRemoved", 5]: hashes that are no list.
	bad := append([]byte{0x92, 0xcb, 0x41, 0xd9, 0x54, 0xfc, 0x40, 0, 0, 0, 0x91, 0x92, 0xac}, "BlockRemoved\x05"...)
	e.publishPayload(false, bad)
	r.await(t, truth(t, [][]engineevent.Event{{residencytest.StoredEvent(0, 1, 1)}}))
	waittest.Until(t, "health exact", func() bool { return r.stream.Status().Health == kvevent.HealthExact })
	e.publishPayload(false, bad)
	waittest.Until(t, "health degraded", func() bool { return r.stream.Status().Health == kvevent.HealthDegraded })
	if s := r.Stats(); s.Listed != 1 || s.BadEvents != 2 || r.stream.Status().Blocks != 1 {
		t.Errorf("stats %+v", s)
	}
}

// TestRankSettlesItsCheckpointByTheList: where no replay tells what has happened since
// a checkpoint, or to whom it belongs, the list does.
func TestRankSettlesItsCheckpointByTheList(t *testing.T) {
	e := startEngine(t, "", "")
	cfg := RankConfig{EventsEndpoint: e.events, Checkpoint: filepath.Join(t.TempDir(), "rank"),
		Cached: func(context.Context) ([]kv.EngineHash, error) { return []kv.EngineHash{1, 2}, nil }}
	r := startRank(t, cfg)
	e.awaitSubscriber()
	e.publish(false, residencytest.StoredEvent(0, 1, 100))
	waittest.Until(t, "the blocks", func() bool { return r.stream.Status().Blocks == 100 })
	r.stop(t)
	r = startRank(t, cfg)
	r.await(t, truth(t, [][]engineevent.Event{{residencytest.StoredEvent(0, 1, 2)}}))
	waittest.Until(t, "health exact", func() bool { return r.stream.Status().Health == kvevent.HealthExact })
	if s := r.Stats(); s.Restored != 100 || s.Listed != 1 {
		t.Errorf("stats %+v", s)
	}
}

// TestRankRejectsTheCheckpointOfAnotherIncarnation: what one engine held says nothing
// about another one with its worker id.
func TestRankRejectsTheCheckpointOfAnotherIncarnation(t *testing.T) {
	e := startEngine(t, "", "")
	cfg := RankConfig{EventsEndpoint: e.events, Checkpoint: filepath.Join(t.TempDir(), "rank"), Identity: 5}
	r := startRank(t, cfg)
	e.awaitSubscriber()
	e.publish(false, residencytest.StoredEvent(0, 1, 10))
	waittest.Until(t, "the blocks", func() bool { return r.stream.Status().Blocks == 10 })
	r.stop(t)
	cfg.Identity = 6
	r = startRank(t, cfg)
	waittest.Until(t, "the checkpoint to be rejected", func() bool { return r.Stats().CheckpointsRejected == 1 })
	if s := r.Stats(); s.Restored != 0 || r.stream.Status().Blocks != 0 {
		t.Errorf("stats %+v", s)
	}
}

// TestRankIsDegradedUntilItsEngineIsThere: nothing is known of an engine that cannot
// be reached; one that is there and idle holds nothing.
func TestRankIsDegradedUntilItsEngineIsThere(t *testing.T) {
	gone := startEngine(t, "", "")
	gone.stopEngine()
	r := startRank(t, RankConfig{EventsEndpoint: gone.events, ReplayEndpoint: gone.replay, ReplayTimeout: 50 * time.Millisecond})
	waittest.Until(t, "a replay that fails", func() bool { return r.Stats().ReplayFailures > 0 })
	if h := r.stream.Status().Health; h != kvevent.HealthDegraded {
		t.Errorf("health %s though nobody is there", h)
	}
	startEngine(t, gone.events, gone.replay)
	waittest.Until(t, "health exact", func() bool { return r.stream.Status().Health == kvevent.HealthExact })
	if n := r.Stats().Frames; n != 0 {
		t.Errorf("%d frames of an idle engine", n)
	}
}

// TestRankThatCannotRunClaimsNothing: the stream of a rank whose Run failed is empty
// and degraded.
func TestRankThatCannotRunClaimsNothing(t *testing.T) {
	s := residency.NewStream(testOwner, nil)
	r, err := NewRank(RankConfig{Worker: kv.Worker{ID: 7}, BlockSize: testBlockSize, EventsEndpoint: "nonsense"}, s)
	if err != nil {
		t.Fatal(err)
	}
	s.Store(kv.TierDevice, 0, false, 0, []kvevent.StoredBlock{{Hash: 1}, {Hash: 2}})
	if err := r.Run(t.Context()); err == nil {
		t.Error("no error")
	}
	if st := s.Status(); st.Blocks != 0 || st.Health != kvevent.HealthDegraded {
		t.Errorf("nobody follows the engine, and the stream says %+v", st)
	}
}

// TestRawHasOnlyBatchesOfItsRank: another rank's batch does not go out under this
// rank's name.
func TestRawHasOnlyBatchesOfItsRank(t *testing.T) {
	var raw int
	r, err := NewRank(RankConfig{Worker: kv.Worker{ID: 7}, BlockSize: testBlockSize, EventsEndpoint: "tcp://127.0.0.1:1",
		Raw: func([]byte) { raw++ }}, residency.NewStream(testOwner, nil))
	if err != nil {
		t.Fatal(err)
	}
	for rank, want := range []int{1, 1} {
		b := engineevent.Batch{Rank: kv.DPRank(rank), HasRank: true, Events: []engineevent.Event{residencytest.StoredEvent(0, 1, 1)}}
		if !(&loop{Rank: r}).Apply(engineevent.AppendBatch(nil, &b)) || raw != want {
			t.Errorf("after a batch of rank %d: %d payloads, want %d", rank, raw, want)
		}
	}
	if s := r.Stats(); s.Dropped["foreign_rank"] != 1 {
		t.Errorf("stats %+v", s)
	}
}
