package load

import (
	"testing"
	"time"
)

// at moves the clock to s seconds after the account was made.
func (f fixture) at(s int) {
	f.clock.now = f.start.Add(time.Duration(s) * time.Second)
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

// TestAwaitedTokensKeepTheRate: a request that has to compute what another one left takes longer by as much.
func TestAwaitedTokensKeepTheRate(t *testing.T) {
	f := newFixture(t, Options{})
	for _, r := range []Request{
		{ID: "ends", Worker: worker1, Sequence: hashes(1, 2), PrefillTokens: 40, PrefillDuration: 8 * time.Second},
		{ID: "awaits", Worker: worker1, Sequence: hashes(1, 2, 3), PrefillTokens: 20, PrefillDuration: 2 * time.Second, BlockSize: 20, Awaited: Awaited{0, 2}},
	} {
		if err := f.Add(&r); err != nil {
			t.Fatal(err)
		}
	}
	f.Free("ends")
	f.expect("all 3 blocks", 3, 60)
	f.at(3)
	f.expect("half of 6 seconds later", 3, 30)
	f.RemoveWorker(worker1)
	f.empty()
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
