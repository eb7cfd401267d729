package consolidator

import (
	"maps"
	"strings"
	"sync"
	"testing"

	"github.com/blockyard-ai/blockyard/internal/kv"
	"github.com/blockyard-ai/blockyard/internal/kvevent"
)

// join adds a recorder to a stream that runs already, with the stream's state.
func (r *recorder) join(s *Stream) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.tx.Flush()
	view := s.tx.table.View()
	defer view.Close()
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, e := range snapshotEvents(s.owner, view) {
		replayEvent(r.t, r.set, &e)
	}
	r.lastID = s.tx.lastID
	return s.tx.addSink(r)
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
		if err := r.join(s); err != nil {
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
		if err := s.AddSink(r); err != nil {
			t.Fatal(err)
		}
	}
	err := s.AddSink(newRecorder(t))
	if err == nil || !strings.Contains(err.Error(), "at most 64") || s.Stats().SinksRefused != 1 {
		t.Errorf("error %v, refused %d", err, s.Stats().SinksRefused)
	}
	s.Update(func(tx *Tx) { tx.SetHealth(kvevent.HealthDegraded) })
	for i, r := range sinks {
		if len(r.health) != 1 {
			t.Errorf("sink %d was told %v", i, r.health)
		}
	}
	s.RemoveSink(sinks[3])
	s.RemoveSink(sinks[3])
	late := newRecorder(t)
	if err := s.AddSink(late); err != nil || len(late.health) != 1 {
		t.Errorf("error %v; a sink that joins a degraded stream was told %v", err, late.health)
	}
}
