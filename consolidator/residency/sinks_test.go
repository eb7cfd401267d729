package residency

import (
	"maps"
	"strings"
	"sync"
	"testing"

	"github.com/blockyard-ai/blockyard/consolidator/residency/residencytest"
	"github.com/blockyard-ai/blockyard/internal/kv"
	"github.com/blockyard-ai/blockyard/internal/kvevent"
)

// addRecorder adds a recorder to a stream that runs already, with the stream's state.
func addRecorder(s *Stream, r *residencytest.Recorder) (err error) {
	s.Update(func(tx *Tx) {
		tx.Flush()
		view := tx.table.View()
		defer view.Close()
		r.Begin(snapshotEvents(s.owner, view), tx.lastID)
		err = tx.addSink(r)
	})
	return err
}

// TestSinksJoinAndLeaveAtAnyTime: a sink that joins has the state and then every
// event, and one that has left gets nothing more, while the stream changes.
func TestSinksJoinAndLeaveAtAnyTime(t *testing.T) {
	first := residencytest.NewRecorder(t)
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
			h := residencytest.TreeHash(i % 100)
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
	var joined []*residencytest.Recorder
	for range 20 {
		r := residencytest.NewRecorder(t)
		if err := addRecorder(s, r); err != nil {
			t.Fatal(err)
		}
		joined = append(joined, r)
	}
	left := joined[:10]
	lastIDs := make([]uint64, len(left))
	for i, r := range left {
		s.RemoveSink(r)
		lastIDs[i] = r.LastID() // nobody calls it any more
	}
	close(stop)
	writer.Wait()
	s.Flush()
	for i, r := range left {
		if r.LastID() != lastIDs[i] {
			t.Errorf("sink %d got event %d after it had left at %d", i, r.LastID(), lastIDs[i])
		}
	}
	for i, r := range append(joined[10:], first) {
		if !maps.Equal(r.Resident(), first.Resident()) {
			t.Errorf("sink %d holds %d pairs, the first %d", i, len(r.Resident()), len(first.Resident()))
		}
	}
	residencytest.Check(t, s, first.Resident())
}

// TestSinksAreBoundedAndHearOfHealth: one sink too many is an error and counted;
// all of them hear when the health changes.
func TestSinksAreBoundedAndHearOfHealth(t *testing.T) {
	s := NewStream(testOwner, nil)
	var sinks []*residencytest.Recorder
	for range MaxSinks {
		r := residencytest.NewRecorder(t)
		sinks = append(sinks, r)
		if err := s.AddSink(r); err != nil {
			t.Fatal(err)
		}
	}
	err := s.AddSink(residencytest.NewRecorder(t))
	if err == nil || !strings.Contains(err.Error(), "at most 64") || s.Stats().SinksRefused != 1 {
		t.Errorf("error %v, refused %d", err, s.Stats().SinksRefused)
	}
	s.Update(func(tx *Tx) { tx.SetHealth(kvevent.HealthDegraded) })
	for i, r := range sinks {
		if len(r.Health()) != 1 {
			t.Errorf("sink %d was told %v", i, r.Health())
		}
	}
	s.RemoveSink(sinks[3])
	s.RemoveSink(sinks[3])
	late := residencytest.NewRecorder(t)
	if err := s.AddSink(late); err != nil || len(late.Health()) != 1 {
		t.Errorf("error %v; a sink that joins a degraded stream was told %v", err, late.Health())
	}
}
