package consolidator

import (
	"maps"
	"strings"
	"sync"
	"testing"
	"testing/synctest"

	"github.com/blockyard-ai/blockyard/internal/kv"
	"github.com/blockyard-ai/blockyard/internal/kvevent"
)

// begin is how a recorder joins a stream that runs already: with its state.
func (r *recorder) begin(snapshot []kvevent.RouterEvent, last uint64) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for i := range snapshot {
		replayEvent(r.t, r.set, &snapshot[i])
	}
	r.lastID = last
}

// TestSinksJoinAndLeaveAtAnyTime: a sink that joins has the state and then every
// event, and one that has left gets nothing more, while the stream changes.
func TestSinksJoinAndLeaveAtAnyTime(t *testing.T) {
	first := newRecorder(t)
	s := NewStream(testOwner, first)
	var writer sync.WaitGroup
	stop := make(chan struct{})
	writer.Go(func() {
		for i := 0; ; i++ {
			select {
			case <-stop:
				return
			default:
			}
			h := treeHash(i % 100)
			if i/100%2 == 0 {
				s.Store(kv.TierHost, 0, false, 0, []kvevent.StoredBlock{{Hash: h}})
			} else {
				s.Remove(kv.TierHost, []kv.SequenceHash{h})
			}
			if i%7 == 0 {
				s.Flush()
			}
		}
	})
	var joined []*recorder
	for range 20 {
		r := newRecorder(t)
		if err := s.AddSink(r, r.begin); err != nil {
			t.Fatal(err)
		}
		joined = append(joined, r)
	}
	left := joined[:10]
	lastIDs := make([]uint64, len(left))
	for i, r := range left {
		s.RemoveSink(r)
		lastIDs[i] = r.lastID // nobody calls it any more
	}
	close(stop)
	writer.Wait()
	s.Flush()
	for i, r := range left {
		if r.lastID != lastIDs[i] {
			t.Errorf("sink %d got event %d after it had left at %d", i, r.lastID, lastIDs[i])
		}
	}
	for i, r := range append(joined[10:], first) {
		if !maps.Equal(r.resident(), first.resident()) {
			t.Errorf("sink %d holds %d pairs, the first %d", i, len(r.resident()), len(first.resident()))
		}
	}
	checkStream(t, s, first.resident())
}

// TestSinksAreBoundedAndHearOfHealth: one sink too many is an error and counted;
// all of them hear when the health changes.
func TestSinksAreBoundedAndHearOfHealth(t *testing.T) {
	s := NewStream(testOwner, nil)
	var sinks []*recorder
	for range MaxSinks {
		r := newRecorder(t)
		sinks = append(sinks, r)
		if err := s.AddSink(r, nil); err != nil {
			t.Fatal(err)
		}
	}
	err := s.AddSink(newRecorder(t), nil)
	if err == nil || !strings.Contains(err.Error(), "at most 64") || s.Stats().SinksRefused != 1 {
		t.Errorf("error %v, refused %d", err, s.Stats().SinksRefused)
	}
	s.SetHealth(kvevent.HealthDegraded)
	for i, r := range sinks {
		if len(r.health) != 1 {
			t.Errorf("sink %d was told %v", i, r.health)
		}
	}
	s.RemoveSink(sinks[3])
	s.RemoveSink(sinks[3])
	late := newRecorder(t)
	if err := s.AddSink(late, nil); err != nil || len(late.health) != 1 {
		t.Errorf("error %v; a sink that joins a degraded stream was told %v", err, late.health)
	}
}

// gatedJoin is a sink whose begin waits.
type gatedJoin struct {
	*recorder
	entered, gate chan struct{}
}

func joinGated(t *testing.T, s *Stream) (g *gatedJoin, added chan error) {
	g = &gatedJoin{newRecorder(t), make(chan struct{}), make(chan struct{})}
	added = make(chan error, 1)
	go func() {
		added <- s.AddSink(g, func(snapshot []kvevent.RouterEvent, last uint64) {
			close(g.entered)
			<-g.gate
			g.begin(snapshot, last)
		})
	}()
	<-g.entered
	return g, added
}

// TestStreamGoesOnWhileASinkJoins: what happens while begin runs does not wait for it,
// and reaches the sink after it, with the health of that time.
func TestStreamGoesOnWhileASinkJoins(t *testing.T) {
	s := NewStream(testOwner, nil)
	chain(s, kv.TierHost, 1, 3)
	g, added := joinGated(t, s)
	chain(s, kv.TierHost, 10, 12)
	unchain(s, kv.TierHost, 2)
	s.SetHealth(kvevent.HealthDegraded)
	if g.lastID != 0 || len(g.health) != 0 {
		t.Errorf("told of event %d, health %v before begin", g.lastID, g.health)
	}
	removed := make(chan struct{})
	go func() { s.RemoveSink(&recorder{}); close(removed) }() // another one does not wait
	<-removed
	close(g.gate)
	if err := <-added; err != nil {
		t.Fatal(err)
	}
	checkStream(t, s, g.resident())
	if len(g.health) != 1 {
		t.Errorf("told of health %v", g.health)
	}
	chain(s, kv.TierHost, 20, 20)
	s.RemoveSink(g)
	checkStream(t, s, g.resident())
}

// TestStreamWaitsForASinkThatJoinsTooSlowly: what is kept for it is bounded; and it is
// removed when it has joined, not before.
func TestStreamWaitsForASinkThatJoinsTooSlowly(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := NewStream(testOwner, nil)
		g, added := joinGated(t, s)
		var removed, written bool
		go func() {
			s.RemoveSink(g)
			removed = true
		}()
		synctest.Wait()
		go func() {
			for first := 0; first < maxJoiningItems; first += 512 {
				e := treeEvent(kv.TierHost, first, 512)
				s.Store(e.Tier, 0, false, 0, e.Blocks)
				s.Flush()
			}
			written = true
		}()
		synctest.Wait()
		if removed || written {
			t.Errorf("while begin runs: removed %t, too much written %t", removed, written)
		}
		close(g.gate)
		if err := <-added; err != nil {
			t.Fatal(err)
		}
		synctest.Wait()
		if !removed || !written || g.lastID == 0 {
			t.Errorf("after begin: removed %t, written %t, last event %d", removed, written, g.lastID)
		}
	})
}
