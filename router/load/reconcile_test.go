package load

import (
	"testing"
	"time"
)

// TestPhantomPrefillsEndWithTheEnginesWord: an engine that has fewer requests than the
// account, for longer than a request or its end is on its way, is believed.
func TestPhantomPrefillsEndWithTheEnginesWord(t *testing.T) {
	var ended []string
	f := newFixture(t, Options{Ended: func(id string) { ended = append(ended, id) }})
	report := func(has uint64, seconds, want int) {
		t.Helper()
		got := 0
		for range seconds {
			f.clock.advance(time.Second)
			got += f.Reconcile(worker1, has, 0)
		}
		if got != want {
			t.Errorf("%d phantoms, want %d", got, want)
		}
	}
	f.add("decodes", worker1, 100, 1)
	f.prefillDone("decodes")
	f.add("gone", worker1, 1000, 2)
	f.add("there", worker1, 10, 3)
	report(3, 20, 0)
	f.expect("all are there", 3, 1010)
	report(2, 3, 0)
	report(3, 1, 0) // the surplus was news on its way
	report(2, 5, 0)
	report(2, 1, 1)
	f.expect("one is gone", 3, 10)
	report(2, 20, 0) // it is accounted for, and the others stay
	f.expect("one is gone", 3, 10)
	if len(ended) != 1 || ended[0] != "gone" {
		t.Errorf("ended %q", ended)
	}
	f.prefillDone("gone") // it was not, after all
	report(3, 20, 0)
	report(0, 4, 0)
	f.add("fresh", worker1, 7, 4)
	report(0, 2, 1) // that one is on its way
	f.expect("all but the fresh one are gone", 4, 7)
	for _, id := range []string{"decodes", "gone", "there", "fresh"} {
		f.Free(id)
	}
	report(0, 1, 0)
	f.empty()
}

// TestARequestThatWaitsInItsEngineIsNoPhantom: a client that vanishes while its request
// decodes leaves the account with one too many. Who waits in the engine is not taken
// for it.
func TestARequestThatWaitsInItsEngineIsNoPhantom(t *testing.T) {
	f := newFixture(t, Options{})
	f.add("left while it decoded", worker1, 100, 1)
	f.prefillDone("left while it decoded")
	f.add("left before it began", worker1, 10, 2)
	f.add("waits", worker1, 1000, 3)
	phantoms := 0
	for range 20 {
		f.clock.advance(time.Second)
		phantoms += f.Reconcile(worker1, 0, 1)
	}
	f.expect("it waits still", 3, 1000)
	if phantoms != 1 {
		t.Errorf("%d phantoms, want 1", phantoms)
	}
	for _, id := range []string{"left while it decoded", "left before it began", "waits"} {
		f.Free(id)
	}
	f.empty()
}
