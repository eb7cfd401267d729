package load

import (
	"testing"
	"time"
)

// at moves the clock to s seconds after the account was made.
func (f fixture) at(s int) {
	f.clock.now = f.start.Add(time.Duration(s) * time.Second)
}

// TestModelledBacklogRunsDown: the anchor's time runs down the whole backlog,
// beyond the anchor's own tokens.
func TestModelledBacklogRunsDown(t *testing.T) {
	f := newFixture(t, Options{})
	f.addModelled("p1", worker1, 100, 10*time.Second)
	f.at(2)
	f.addModelled("p2", worker1, 60, 6*time.Second)
	for _, c := range []struct {
		at, tokens int
	}{{2, 140}, {5, 110}, {12, 40}, {17, 0}, {100, 0}} {
		f.at(c.at)
		f.expect("backlog", 0, int64(c.tokens))
	}
}

func TestUnmodelledPrefillDoesNotRunDown(t *testing.T) {
	f := newFixture(t, Options{})
	f.addModelled("p1", worker1, 100, 10*time.Second)
	f.add("p2", worker1, 60)
	f.at(5)
	f.expect("half of the anchor", 0, 110)
	f.at(12)
	f.expect("the unmodelled one", 0, 60)
	f.prefillDone("p1")
	f.at(30)
	f.expect("the unmodelled one as anchor", 0, 60)
	f.prefillDone("p2")
	f.expect("done", 0, 0)
}

// TestAnchorKeepsItsTimeBesideUnmodelledPrefill: only its own tokens run down
// then, so what another took does not matter.
func TestAnchorKeepsItsTimeBesideUnmodelledPrefill(t *testing.T) {
	f := newFixture(t, Options{})
	f.addModelled("p1", worker1, 100, 10*time.Second)
	f.add("p2", worker1, 60)
	f.addModelled("p3", worker1, 40, 4*time.Second)
	f.at(5)
	f.expect("before", 0, 150)
	f.prefillDone("p3")
	f.expect("after", 0, 110)
}

// TestNextPrefillBecomesTheAnchor: it runs down from when the one before it was
// done, requests without prefill are passed over.
func TestNextPrefillBecomesTheAnchor(t *testing.T) {
	f := newFixture(t, Options{})
	f.addModelled("p1", worker1, 100, 10*time.Second)
	f.addModelled("done", worker1, 50, 5*time.Second)
	f.add("none", worker1, 0)
	f.addModelled("p2", worker1, 40, 8*time.Second)
	f.prefillDone("done")
	f.at(3)
	f.prefillDone("p1")
	f.expect("re-anchored", 0, 40)
	f.at(5)
	f.expect("two seconds on", 0, 30)
	f.Free("p2")
	f.expect("freed", 0, 0)
	f.addModelled("p3", worker1, 40, 8*time.Second)
	f.at(7)
	f.expect("a new anchor", 0, 30)
	f.RemoveWorker(worker1)
	f.empty()
}

// TestPrefillDoneOutOfTurnTookTheAnchorsTime: the total goes on as before.
func TestPrefillDoneOutOfTurnTookTheAnchorsTime(t *testing.T) {
	f := newFixture(t, Options{})
	f.addModelled("p1", worker1, 100, 10*time.Second)
	f.addModelled("p2", worker1, 40, 4*time.Second)
	f.at(5)
	f.expect("before", 0, 90)
	f.prefillDone("p2")
	f.expect("after", 0, 90)
	f.addModelled("p3", worker1, 1, time.Hour)
	f.prefillDone("p3")
	f.expect("the anchor starts now at the latest", 0, 100)
	f.at(6)
	f.expect("and runs on", 0, 90)
}

// TestHugePrefillsDoNotOverflow: the product of tokens and nanoseconds has more
// than 64 bits.
func TestHugePrefillsDoNotOverflow(t *testing.T) {
	f := newFixture(t, Options{})
	f.addModelled("p", worker1, 1<<30, 1<<40)
	f.clock.advance(1 << 39)
	f.expect("half", 0, 1<<29)
	f.clock.advance(1 << 60)
	f.expect("long over", 0, 0)
}
