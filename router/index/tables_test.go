package index

import (
	"testing"

	"github.com/blockyard-ai/blockyard/internal/kv"
	"github.com/blockyard-ai/blockyard/internal/kvevent"
)

// TestLimboWaitsForThoseWhoWereReading: what is unlinked while somebody reads is
// kept until he is done, and not kept by those who began later.
func TestLimboWaitsForThoseWhoWereReading(t *testing.T) {
	x, err := New(Options{})
	if err != nil {
		t.Fatal(err)
	}
	waits := func(want bool) {
		t.Helper()
		x.freeRetired()
		if got := x.limbo.len() > 0; got != want {
			t.Fatalf("something waits: %t, want %t", got, want)
		}
	}
	run := func() uint32 { return uint32(x.runs.Take(x.mayGrow)) }
	x.retire(retiredRun, run(), 0)
	waits(false)
	early := x.readers.Enter(1)
	x.retire(retiredRun, run(), 0)
	waits(true)
	late := x.readers.Enter(2)
	waits(true)
	early.Add(-1)
	waits(false)
	// Readers that overlap without end do not keep things for ever.
	x.retire(retiredRun, run(), 0)
	for range 4 {
		next := x.readers.Enter(3)
		late.Add(-1)
		late = next
		x.freeRetired()
	}
	late.Add(-1)
	waits(false)
}

// TestOneReaderThatStandsStillDoesNotEmptyTheIndex: at the budget, while what was
// evicted waits for him, new blocks are refused rather than all old ones evicted;
// when he is gone they are taken in again.
func TestOneReaderThatStandsStillDoesNotEmptyTheIndex(t *testing.T) {
	x, err := New(Options{MaxBytes: 1 << 20})
	if err != nil {
		t.Fatal(err)
	}
	next := uint64(0)
	store := func(prompts int) (lost uint64) {
		before := x.counts.Lost
		for range prompts {
			e := kvevent.RouterEvent{Owner: kv.PoolOwner(1), Kind: kvevent.Stored, Blocks: make([]kvevent.StoredBlock, 100)}
			for i := range e.Blocks {
				next++
				e.Blocks[i] = kvevent.StoredBlock{Hash: kv.SequenceHash(next), Local: kv.LocalHash(next)}
			}
			if err := x.Apply(&e); err != nil {
				t.Fatal(err)
			}
		}
		return x.counts.Lost - before
	}
	store(1000)
	full := x.heldPairs
	reader := x.readers.Enter(0)
	if lost := store(1000); lost == 0 || x.heldPairs < full*3/4 {
		t.Errorf("%d blocks refused and %d of %d left beside a reader", lost, x.heldPairs, full)
	}
	reader.Add(-1)
	if lost := store(1000); lost > 0 || x.heldPairs < full*3/4 {
		t.Errorf("%d blocks refused and %d of %d left without a reader", lost, x.heldPairs, full)
	}
}
