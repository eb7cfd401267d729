package replica

import (
	"fmt"
	"testing"

	"pgregory.net/rapid"

	"github.com/blockyard-ai/blockyard/internal/kv"
	"github.com/blockyard-ai/blockyard/router/load"
)

// TestAReceiverBoundsWhatOthersSend: whatever another router sends, this one keeps a bounded part and counts
// the rest.
func TestAReceiverBoundsWhatOthersSend(t *testing.T) {
	once(t, func(t *rapid.T) {
		f := newFleet(t, 1)
		m := f.routers[0]
		send := func(s *message) {
			if s.model == (Model{}) {
				s.model = model
			}
			m.Receive(appendMessage(nil, s), f.now)
		}
		want := func(what string, got, want uint64) {
			if got != want {
				t.Errorf("%d %s, want %d", got, what, want)
			}
		}
		m.Receive(make([]byte, maxReceivedBytes+1), f.now)
		if _, err := m.Answer(make([]byte, maxReceivedBytes+1), nil); err == nil {
			t.Error("no error for a question of more than a mebibyte")
		}
		want("oversized", m.Stats().Oversized, 2)

		send(&message{router: 9, number: 1, changes: make([]change, maxChanges+1)})
		send(&message{router: 9, number: maxNumber + 1, changes: make([]change, 1)})
		send(&message{router: 9, number: 1, changes: []change{{kind: ended, Booking: load.Booking{Number: maxNumber + 1}}}})
		want("malformed", m.Stats().Malformed, 3)

		send(&message{router: 9, model: Model{"another", 16}, state: &state{}})
		want("ignored", m.Stats().Ignored, 1)
		if len(m.models) != 1 {
			t.Errorf("%d models, want 1", len(m.models))
		}

		for router := range uint64(maxStreams + 3) {
			send(&message{router: 100 + router, state: &state{}})
		}
		want("messages of too many routers", m.Stats().Excess, 3)
		want("routers", uint64(m.Stats().Routers), maxStreams)
	})
}

// TestEarlyMessagesOfAllRoutersAreBounded: many routers whose first messages are lost do not fill the memory.
func TestEarlyMessagesOfAllRoutersAreBounded(t *testing.T) {
	once(t, func(t *rapid.T) {
		f := newFleet(t, 1)
		m := f.routers[0]
		long := make([]kv.SequenceHash, maxSequence)
		for router := uint64(2); router < 12; router++ {
			m.Receive(appendMessage(nil, &message{router: router, model: model, state: &state{}}), f.now)
			for n := range uint64(maxEarly) {
				c := change{booked, load.Booking{Number: n + 1, Request: load.Request{ID: fmt.Sprint(n), Sequence: long}}}
				m.Receive(appendMessage(nil, &message{router: router, model: model, number: n + 2, changes: []change{c}}), f.now)
			}
			if m.earlyBytes > maxEarlyBytes {
				t.Fatalf("%d bytes of early messages, limit %d", m.earlyBytes, maxEarlyBytes)
			}
		}
		if m.Stats().Early == 0 {
			t.Error("no message found the room full")
		}
		f.now = f.now.Add(lease + 1)
		m.Tick(f.now)
		if m.earlyBytes != 0 {
			t.Errorf("%d bytes of early messages of routers that left", m.earlyBytes)
		}
	})
}

// TestAModelThatIsOpenedAgainIsFollowed: the goodbye is lost, and numbers begin again.
func TestAModelThatIsOpenedAgainIsFollowed(t *testing.T) {
	once(t, func(t *rapid.T) {
		f, first, second, sent := pair(t, "r1", "r2")
		deliver := func(all []Outgoing) {
			for _, o := range all {
				second.Receive(o.Data, f.now)
			}
		}
		deliver(sent)
		first.Close(model) // the goodbye is lost
		f.open(first)
		f.bookAs(first, "r3")
		deliver(first.Outgoing(nil, f.now))
		if ids := second.ids(); len(ids) != 1 || ids[0] != "r3" {
			t.Errorf("booked %q, want r3", ids)
		}
		deliver(sent) // a repeated message of the opening before
		if ids := second.ids(); len(ids) != 1 || second.Stats().Outdated == 0 {
			t.Errorf("booked %q, %d outdated messages", ids, second.Stats().Outdated)
		}
	})
}
