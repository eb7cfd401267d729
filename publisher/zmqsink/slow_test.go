package zmqsink

import (
	"maps"
	"path/filepath"
	"sync/atomic"
	"testing"
	"time"

	"github.com/blockyard-ai/blockyard/internal/backoff"
	"github.com/blockyard-ai/blockyard/internal/kv"
	"github.com/blockyard-ai/blockyard/internal/waittest"
	"github.com/blockyard-ai/blockyard/publisher"
)

// startNarrowSink is a sink that has little room for a subscriber that does not read, and no longer
// waits for room when giveUp says so.
func startNarrowSink(t *testing.T, s *stream, giveUp func(seq uint64, waited time.Duration) bool) *Sink {
	t.Helper()
	return startSink(t, s, func(o *Options) {
		o.Bind = "ipc://" + filepath.Join(t.TempDir(), "events")
		o.HWM, o.giveUp = 2, giveUp
	})
}

// untilItReads gives up on a subscriber at once until reads is true, and then never. The time that
// the subscriber takes has no effect.
func untilItReads(reads *atomic.Bool) func(seq uint64, waited time.Duration) bool {
	return func(uint64, time.Duration) bool { return !reads.Load() }
}

// subscribeNarrow is a subscriber that has room for one batch and gets the first one.
// It may miss batches.
func subscribeNarrow(t *testing.T, sink *Sink) *subscriber {
	t.Helper()
	s := newSubscriber(t)
	s.gaps = true
	if err := s.sub.SetRcvhwm(1); err != nil {
		t.Fatal(err)
	}
	s.connect(sink.Endpoint())
	s.read()
	return s
}

// storeRun stores run i of the chain, in one batch of about 60 KiB.
func (s *stream) storeRun(i int) (last place) {
	first := kv.SequenceHash(2000*i + 1)
	s.store(device, first, first+1999)
	return place{first + 1999, device}
}

// untilHoldsAll reads until the subscriber holds what the stream holds.
func (s *subscriber) untilHoldsAll(of *stream) {
	s.t.Helper()
	s.until(func() bool { return len(s.held) == len(of.held) && maps.Equal(s.held, of.held) })
}

// TestSlowSubscriberHearsTheStateWhenItReads: what a subscriber had no room for is
// counted. When it reads again it gets the whole state, and then each event.
func TestSlowSubscriberHearsTheStateWhenItReads(t *testing.T) {
	s := newStream()
	var reads atomic.Bool
	sink := startNarrowSink(t, s, untilItReads(&reads))
	sub := subscribeNarrow(t, sink)
	s.storeRun(0)
	s.store(host, 7, 7)
	runs := 1
	for ; sink.Stats().Missed == 0; runs++ {
		s.storeRun(runs)
		waittest.Until(t, "the run", func() bool { return sink.Stats().Said == 2000*uint64(runs+1) })
	}
	// The subscriber has heard of this block and does not hear that it goes.
	s.remove(host, 7)
	s.storeRun(runs)
	if st := sink.Stats(); st.Held == 0 {
		t.Errorf("%+v: nothing waited", st)
	}
	reads.Store(true)
	sub.untilHoldsAll(s)
	s.store(host, 8, 8)
	sub.untilHoldsAll(s)
	if st := sink.Stats(); st.SendErrors > 0 || st.Reannounced < 2 {
		t.Errorf("%+v", st)
	}
}

// TestSlowSubscriberTakesNothingFromOthers: a subscriber that reads gets every batch
// while another does not read. The other gets the whole state when it reads. The sink gives up on
// the slow one only when the reading one has read all batches before: so it has room, however late
// it reads.
func TestSlowSubscriberTakesNothingFromOthers(t *testing.T) {
	s := newStream()
	other := newSubscriber(t)
	var bothRead atomic.Bool
	sink := startNarrowSink(t, s, func(seq uint64, _ time.Duration) bool {
		return !bothRead.Load() && other.next.Load() >= seq
	})
	slow := subscribeNarrow(t, sink)
	other.connect(sink.Endpoint())
	other.untilHolds()
	hears := func(p place) {
		t.Helper()
		other.until(func() bool {
			_, held := other.held[p]
			return held
		})
	}
	runs := 0
	for ; sink.Stats().Missed == 0; runs++ {
		hears(s.storeRun(runs))
	}
	for i := range 3 {
		hears(s.storeRun(runs + i))
	}
	bothRead.Store(true)
	waittest.Until(t, "the slow subscriber has the state", func() bool {
		other.readWaiting()
		slow.readWaiting()
		return maps.Equal(slow.held, s.held) && maps.Equal(other.held, s.held)
	})
}

// TestSlowSubscriberOfAPassthrough: there is no state to say. What a subscriber misses
// is counted, and the numbers show where.
func TestSlowSubscriberOfAPassthrough(t *testing.T) {
	var reads atomic.Bool
	sink, err := New(Options{
		Bind: "ipc://" + filepath.Join(t.TempDir(), "events"), Worker: testWorker, BlockSize: 4, Topic: "kv",
		HWM: 2, giveUp: untilItReads(&reads),
	}, publisher.Source(nil), nil)
	if err != nil {
		t.Fatal(err)
	}
	defer sink.Close()
	sub := newSubscriber(t)
	sub.gaps = true
	if err := sub.sub.SetRcvhwm(1); err != nil {
		t.Fatal(err)
	}
	sub.connect(sink.Endpoint())
	waittest.Until(t, "the subscription", func() bool { return sink.Stats().Subscribers == 1 })
	sent := uint64(0)
	for ; sink.Stats().Missed == 0; sent++ {
		sink.Raw(make([]byte, 64<<10))
		waittest.Until(t, "the payload", func() bool { return sink.Stats().Next == sent+1 })
	}
	reads.Store(true)
	for i := 0; ; i++ {
		// What comes after the gap shows it.
		sink.Raw([]byte{1})
		if seq, _ := sub.read(); seq != uint64(i) {
			return
		}
	}
}

func TestCatchUpPausesDouble(t *testing.T) {
	now := time.Unix(1000, 0)
	var s slowSubscribers
	if s.stateAnnounced(now); !s.next.IsZero() {
		t.Error("the state is said again though nobody missed anything")
	}
	s.pauses = backoff.Doubling(2*time.Minute, maxCatchUp)
	s.next = now
	for _, want := range []time.Duration{2 * time.Minute, 4 * time.Minute, 8 * time.Minute, maxCatchUp, maxCatchUp} {
		if s.stateAnnounced(now); s.next.Sub(now) != want {
			t.Errorf("the next after %s, want %s", s.next.Sub(now), want)
		}
	}
	if s.forget(); !s.next.IsZero() {
		t.Error("the state is said again to nobody")
	}
}
