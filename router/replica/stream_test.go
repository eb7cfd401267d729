package replica

import (
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/blockyard-ai/blockyard/internal/kv"
	"github.com/blockyard-ai/blockyard/router/load"
)

// pair returns two routers of a fleet without faults, of which the first has booked ids, and the messages
// about that. The second has heard nothing.
func pair(t *rapid.T, ids ...string) (f *fleet, first, second *member, sent []Outgoing) {
	f = newFleet(t, 2)
	first, second = f.routers[0], f.routers[1]
	for _, id := range ids {
		f.bookAs(first, id)
	}
	return f, first, second, first.Outgoing(nil, f.now)
}

func (f *fleet) bookAs(m *member, id string) {
	m.scheduler.WithAccount(func(a *load.Account) (released kv.Worker, ok bool) {
		if err := a.Add(&load.Request{ID: id, Worker: f.members.List[0].Worker, PrefillTokens: 9}); err != nil {
			f.t.Fatal(err)
		}
		return released, false
	})
}

// once runs a deterministic test that uses a fleet.
func once(t *testing.T, test func(t *rapid.T)) {
	ran := false
	rapid.Check(t, func(t *rapid.T) {
		if !ran {
			test(t)
		}
		ran = true
	})
}

func (m *member) ids() (ids []string) {
	for _, a := range m.active() {
		ids = append(ids, a.ID)
	}
	return ids
}

// TestEndOvertakesItsPage: a booking that ends while its page is on the way is not booked again.
func TestEndOvertakesItsPage(t *testing.T) {
	once(t, func(t *rapid.T) {
		f, first, second, _ := pair(t, "r1", "r2") // the messages about both are lost
		f.bookAs(first, "r3")
		for _, m := range first.Outgoing(nil, f.now) {
			second.Receive(m.Data, f.now)
		}
		asks := second.Tick(f.now)
		if len(asks) != 1 {
			t.Fatalf("%d questions, want 1", len(asks))
		}
		page, err := first.Answer(asks[0].Data, nil)
		first.scheduler.Free("r1")
		for _, m := range first.Outgoing(nil, f.now) {
			second.Receive(m.Data, f.now)
		}
		if next := second.Answered(&asks[0], page, err, f.now); len(next) > 0 {
			t.Fatalf("%d more pages", len(next))
		}
		if ids := second.ids(); len(ids) != 2 {
			t.Errorf("booked %q, want r2 and r3", ids)
		}
		if s := second.Stats(); s.Restatements != 1 || s.Booked != 2 {
			t.Errorf("%+v", s)
		}
	})
}

// TestProgressOvertakesItsPage: the page brings the booking, and the message before it the progress.
func TestProgressOvertakesItsPage(t *testing.T) {
	once(t, func(t *rapid.T) {
		f, first, second, _ := pair(t, "r1")
		f.bookAs(first, "r2")
		for _, m := range first.Outgoing(nil, f.now) {
			second.Receive(m.Data, f.now)
		}
		asks := second.Tick(f.now)
		page, err := first.Answer(asks[0].Data, nil)
		if err := first.scheduler.MarkPrefillCompleted("r1"); err != nil {
			t.Fatal(err)
		}
		for _, m := range first.Outgoing(nil, f.now) {
			second.Receive(m.Data, f.now)
		}
		second.Answered(&asks[0], page, err, f.now)
		for _, a := range second.active() {
			if want := map[string]int64{"r1": 0, "r2": 9}[a.ID]; a.PrefillTokens != want {
				t.Errorf("%s has %d tokens to compute, want %d", a.ID, a.PrefillTokens, want)
			}
		}
	})
}

// TestDigestFindsADifference: bookings that differ although no message is missing are read again.
func TestDigestFindsADifference(t *testing.T) {
	once(t, func(t *rapid.T) {
		f, first, second, sent := pair(t, "r1", "r2")
		for _, m := range sent {
			second.Receive(m.Data, f.now)
		}
		st := second.models[model].streams[first.router]
		st.end(1) // as a mistake would
		f.now = f.now.Add(stateEvery)
		for _, m := range first.Outgoing(nil, f.now) {
			second.Receive(m.Data, f.now)
		}
		f.now = f.now.Add(minRetry)
		asks := second.Tick(f.now)
		if len(asks) != 1 || second.Stats().Divergences != 1 {
			t.Fatalf("%d questions, %+v", len(asks), second.Stats())
		}
		page, err := first.Answer(asks[0].Data, nil)
		second.Answered(&asks[0], page, err, f.now)
		if ids := second.ids(); len(ids) != 2 {
			t.Errorf("booked %q, want r1 and r2", ids)
		}
	})
}

// TestRestatementsThatDoNotHelpPause: what finds no room is not asked for all the time.
func TestRestatementsThatDoNotHelpPause(t *testing.T) {
	s := &stream{}
	var sum time.Duration
	for range 12 {
		p := s.pause()
		if p < minRetry || p > maxRetry {
			t.Fatalf("pause %v", p)
		}
		sum += p
	}
	if sum < 5*maxRetry {
		t.Errorf("twelve restatements in %v", sum)
	}
}

// TestFullQueueIsALoss: changes that find no room show as a missing message.
func TestFullQueueIsALoss(t *testing.T) {
	j := newJournal(make(chan struct{}, 1))
	for n := range uint64(maxQueued + 1) {
		j.Ended(n)
	}
	if len(j.queue) != 1 || j.dropped != maxQueued {
		t.Errorf("%d changes wait, %d dropped", len(j.queue), j.dropped)
	}
	if m, _, _ := j.take(); m.number != 2 {
		t.Errorf("message %d, want 2", m.number)
	}
}
