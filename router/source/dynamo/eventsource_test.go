package dynamo

import (
	"errors"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/blockyard-ai/blockyard/internal/kv"
	"github.com/blockyard-ai/blockyard/internal/kvevent"
)

var start = time.Unix(1_000_000, 0)

// follower is a source with a consumer of what it says.
type follower struct {
	*eventSource
	counters Counters
	consumer held
	now      time.Time
}

func follow(w *fakeWorker, recoverable bool) *follower {
	f := &follower{consumer: make(held), now: start}
	o := origin{publisher: 5, worker: w.worker}
	if recoverable {
		o.target = target{address: "here", path: "there"}
	}
	f.eventSource = newEventSource(o, newTable(&budget{free: 1 << 20}, &f.counters), &f.counters, f.now)
	return f
}

func (f *follower) take(events ...kvevent.RouterEvent) {
	f.consumer.apply(f.eventSource.applyMessage(nil, events, f.now))
}

// ask lets the source send its query, if one is due, and hands it the answer.
func (f *follower) ask(w *fakeWorker, err error) bool {
	q, number, due := f.nextQuery(f.now)
	if !due {
		return false
	}
	var a *kvevent.QueryReply
	if err == nil {
		a = w.answer(&q)
	}
	out, _ := f.handleAnswer(nil, number, a, err, f.now)
	f.consumer.apply(out)
	return true
}

// TestSourceConverges: whatever is lost, repeated or refused on the way, a
// source that can be asked ends up with what its worker holds, without a further
// event; and never calls itself exact with less than the events it has seen.
func TestSourceConverges(t *testing.T) {
	refused := errors.New("refused")
	rapid.Check(t, func(t *rapid.T) {
		w := newFakeWorker(kv.Worker{ID: 7, Rank: 1}, rapid.IntRange(1, 12).Draw(t, "ring"))
		for range rapid.IntRange(0, 10).Draw(t, "earlier") {
			play(t, w)
		}
		f := follow(w, true)
		var asked []func()
		for range rapid.IntRange(1, 80).Draw(t, "steps") {
			switch rapid.IntRange(0, 9).Draw(t, "step") {
			case 0: // an event is lost
				play(t, w)
			case 1: // an event comes twice
				if n := len(w.events); n > 0 {
					f.take(w.events[rapid.IntRange(0, n-1).Draw(t, "which")])
				}
			case 2:
				f.ask(w, refused)
			case 3: // a query is sent; its answer is made now and comes later
				if q, number, due := f.nextQuery(f.now); due {
					a := w.answer(&q)
					asked = append(asked, func() {
						out, _ := f.handleAnswer(nil, number, a, nil, f.now)
						f.consumer.apply(out)
					})
				}
			case 4:
				for _, answer := range asked {
					answer()
				}
				asked = nil
			case 5:
				f.now = f.now.Add(time.Duration(rapid.IntRange(0, 20_000).Draw(t, "ms")) * time.Millisecond)
			case 6:
				f.suspectLoss(f.now)
			default:
				f.take(play(t, w))
			}
			if f.exact() && f.cursor == w.last() {
				checkHeld(t, "exact", f.consumer, w.truth(), f.table)
			}
		}
		for _, answer := range asked {
			answer()
		}
		// A check, at most one repair that it leads to, and a check of that.
		for range 10 {
			f.now = f.now.Add(givenUpPause)
			f.ask(w, nil)
		}
		checkHeld(t, "at the end", f.consumer, w.truth(), f.table)
		if !f.exact() {
			t.Fatalf("not exact: %+v", f.eventSource)
		}
	})
}

// TestSourceWithoutTargetIsExactOnlyWhenItSawEverything: the first event of a
// publisher that cannot be asked may have any id, and a hole empties the rank.
func TestSourceWithoutTargetIsExactOnlyWhenItSawEverything(t *testing.T) {
	w := newFakeWorker(kv.Worker{ID: 7}, 8)
	first := w.store(kv.TierDevice, 0, 100, 1, 2, 3)
	second := w.store(kv.TierHost, 0, 100, 1, 2, 3)
	f := follow(w, false)
	f.take(first, second)
	if !f.exact() || len(f.consumer) != 6 {
		t.Errorf("from the first event on: exact %v, %d pairs", f.exact(), len(f.consumer))
	}
	f.suspectLoss(f.now)
	if f.exact() {
		t.Error("exact while the last events may be lost")
	}
	f.take(w.remove(kv.TierDevice, 102))
	if !f.exact() || len(f.consumer) != 5 {
		t.Errorf("the next event shows that nothing was lost: exact %v, %d pairs", f.exact(), len(f.consumer))
	}
	w.store(kv.TierDevice, 102, 103, 4) // lost
	f.take(w.store(kv.TierDevice, 0, 200, 9))
	if f.exact() || len(f.consumer) != 1 || f.counters.Gaps != 1 {
		t.Errorf("after a hole: exact %v, %d pairs, %d gaps", f.exact(), len(f.consumer), f.counters.Gaps)
	}
	f.take(w.clear())
	if !f.exact() || len(f.consumer) != 0 {
		t.Errorf("a clear makes whole: exact %v, %d pairs", f.exact(), len(f.consumer))
	}
	late := follow(w, false)
	late.take(w.store(kv.TierDevice, 0, 300, 5))
	if late.exact() || len(late.consumer) != 1 {
		t.Errorf("from a later event on: exact %v, %d pairs", late.exact(), len(late.consumer))
	}
	if _, _, due := late.nextQuery(start.Add(time.Hour)); due {
		t.Error("a source without a target is asked")
	}
}

// TestSourceGivesUpAsItsTargetDoesNotAnswer: after eight tries over 25 s the
// events that waited are taken as they are, and the target is tried later.
func TestSourceGivesUpAsItsTargetDoesNotAnswer(t *testing.T) {
	w := newFakeWorker(kv.Worker{ID: 7}, 8)
	w.store(kv.TierDevice, 0, 100, 1)
	f := follow(w, true)
	f.take(w.store(kv.TierDevice, 0, 200, 2))
	refused := errors.New("refused")
	for tries := 0; f.recovering; f.now = f.now.Add(100 * time.Millisecond) {
		if f.ask(w, refused) {
			tries++
		}
		if tries > maxAttempts {
			t.Fatalf("%d tries", tries)
		}
	}
	if waited := f.now.Sub(start); waited < 25*time.Second || waited > 26*time.Second || f.exact() {
		t.Errorf("given up after %v, exact %v", waited, f.exact())
	}
	if len(f.consumer) != 1 || f.counters.GivenUp != 1 {
		t.Errorf("%d pairs, %+v", len(f.consumer), f.counters)
	}
	f.now = f.now.Add(givenUpPause)
	if !f.ask(w, nil) || !f.exact() {
		t.Error("the target is not tried again")
	}
	checkHeld(t, "after that", f.consumer, w.truth(), f.table)
}

// TestSourceDropsMessagesOfAnotherRank: a publisher that speaks for somebody
// else must change nobody's blocks.
func TestSourceDropsMessagesOfAnotherRank(t *testing.T) {
	w, other := newFakeWorker(kv.Worker{ID: 7}, 8), newFakeWorker(kv.Worker{ID: 7, Rank: 1}, 8)
	f := follow(w, true)
	f.ask(w, nil)
	f.take(w.store(kv.TierDevice, 0, 100, 1), other.store(kv.TierDevice, 0, 100, 1))
	if len(f.consumer) != 0 || f.counters.Foreign != 1 {
		t.Errorf("%d pairs, %+v", len(f.consumer), f.counters)
	}
	f.now = f.now.Add(checkInterval)
	f.ask(w, nil)
	checkHeld(t, "found by the next check", f.consumer, w.truth(), f.table)
}

// TestSourceBoundsWhatWaits: the oldest events make room, and the hole that this
// leaves is asked for.
func TestSourceBoundsWhatWaits(t *testing.T) {
	w := newFakeWorker(kv.Worker{ID: 7}, 1<<12)
	f := follow(w, true)
	q, number, _ := f.nextQuery(f.now)
	first := w.answer(&q)
	for i := range kv.SequenceHash(maxWaitingEvents + 50) {
		f.take(w.store(kv.TierDevice, 0, 1000+i, kv.LocalHash(i+1)))
	}
	if len(f.waiting) != maxWaitingEvents || f.counters.Overflowed != 50 {
		t.Errorf("%d wait, %+v", len(f.waiting), f.counters)
	}
	out, err := f.handleAnswer(nil, number, first, nil, f.now)
	if f.consumer.apply(out); err != nil || f.exact() {
		t.Errorf("error %v, exact %v with a hole", err, f.exact())
	}
	f.ask(w, nil)
	checkHeld(t, "after asking for the hole", f.consumer, w.truth(), f.table)
}

// TestSourceTakesAnAnswersHolesForWhatIsNotModelled: an event that an answer
// leaves out has its id used up, and is not asked for again and again.
func TestSourceTakesAnAnswersHolesForWhatIsNotModelled(t *testing.T) {
	w := newFakeWorker(kv.Worker{ID: 7}, 8)
	f := follow(w, true)
	f.ask(w, nil)
	f.take(w.store(kv.TierDevice, 0, 100, 1))
	foreign := w.emit(kvevent.RouterEvent{Kind: kvevent.Stored}) // never seen
	f.take(w.store(kv.TierDevice, 0, 200, 2))
	q, number, due := f.nextQuery(f.now)
	if !due || q.StartID != foreign.ID {
		t.Fatalf("due %v, asks from %d, want from %d", due, q.StartID, foreign.ID)
	}
	a := w.answer(&q)
	a.Events, a.LastEventID = nil, foreign.ID
	out, err := f.handleAnswer(nil, number, a, nil, f.now)
	f.consumer.apply(out)
	if err != nil || !f.exact() || f.cursor != w.last() {
		t.Errorf("error %v, exact %v, cursor %d of %d", err, f.exact(), f.cursor, w.last())
	}
	checkHeld(t, "after that", f.consumer, w.truth(), f.table)
}
