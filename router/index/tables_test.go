package index

import (
	"maps"
	"slices"
	"testing"

	"pgregory.net/rapid"

	"github.com/blockyard-ai/blockyard/internal/kv"
	"github.com/blockyard-ai/blockyard/internal/kvevent"
)

// TestArenaPiecesNeverOverlap: whatever is taken and given back, no two pieces in
// use share a unit, none is refused while memory may grow, and what is all given
// back can be had as pieces of the largest class.
func TestArenaPiecesNeverOverlap(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		a := newArena(uint(rapid.IntRange(5, 7).Draw(t, "shift")))
		most := int64(rapid.IntRange(0, 40).Draw(t, "chunks")) * 1 << a.shift * unitBytes
		mayGrow := func(n int64) bool { return a.bytes()+n <= most }
		type piece struct {
			unit  uint32
			class int
		}
		var held []piece
		used := make(map[uint32]bool)
		t.Repeat(map[string]func(*rapid.T){
			"take": func(t *rapid.T) {
				class := rapid.IntRange(1, classes).Draw(t, "class")
				unit, ok := a.take(class, mayGrow)
				if !ok {
					if mayGrow(int64(1) << a.shift * fullUnitBytes) {
						t.Fatalf("no piece of class %d, and memory may grow", class)
					}
					return
				}
				for u := unit; u < unit+uint32(class); u++ {
					if used[u] || u >= a.end || u>>a.shift != unit>>a.shift {
						t.Fatalf("unit %d of piece %d, class %d: in use or beyond its chunk", u, unit, class)
					}
					used[u] = true
				}
				held = append(held, piece{unit, class})
			},
			"give": func(t *rapid.T) {
				if len(held) == 0 {
					t.Skip()
				}
				i := rapid.IntRange(0, len(held)-1).Draw(t, "piece")
				for u := held[i].unit; u < held[i].unit+uint32(held[i].class); u++ {
					delete(used, u)
				}
				a.give(held[i].unit, held[i].class)
				held[i] = held[len(held)-1]
				held = held[:len(held)-1]
			},
			"": func(t *rapid.T) {
				if a.used != len(used) || a.used+a.idle != int(a.bump) {
					t.Fatalf("used %d of %d, idle %d of %d", a.used, len(used), a.idle, int(a.bump)-len(used))
				}
				if len(held) > 0 || a.end == 0 {
					return
				}
				for range int(a.bump>>a.shift<<a.shift) / classes / 2 {
					unit, ok := a.take(classes, func(int64) bool { return false })
					if !ok {
						t.Fatalf("all %d units are free, and no large piece is", a.end)
					}
					held = append(held, piece{unit, classes})
					for u := unit; u < unit+classes; u++ {
						used[u] = true
					}
				}
			},
		})
	})
}

// TestDirectoryKeepsWhatIsIn: entries that share home slots survive the removal
// of one another, around the end of the table too.
func TestDirectoryKeepsWhatIsIn(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		d := newDirectory(0)
		in := make(map[uint64]bool)
		t.Repeat(map[string]func(*rapid.T){
			"put": func(t *rapid.T) {
				if 4*(d.used+1) > 3*len(d.slots) {
					t.Skip()
				}
				// Few different homes, most of them near the end.
				hash := ^uint64(0) - uint64(rapid.IntRange(0, 5).Draw(t, "home"))<<58 - uint64(rapid.IntRange(0, 3).Draw(t, "fingerprint"))<<50
				v := hash&^directoryMask | uint64(rapid.IntRange(2, 100).Draw(t, "run"))<<positionBits
				alike := 0
				for other := range in {
					if (other^v)>>directoryBits == 0 {
						alike++
					}
				}
				if !in[v] && alike < maxAlike-1 {
					d.put(v)
					in[v] = true
				}
			},
			"delete": func(t *rapid.T) {
				if len(in) == 0 {
					t.Skip()
				}
				v := rapid.SampledFrom(slices.Sorted(maps.Keys(in))).Draw(t, "entry")
				d.delete(v)
				delete(in, v)
			},
			"": func(t *rapid.T) {
				if d.used != len(in) {
					t.Fatalf("%d entries, want %d", d.used, len(in))
				}
				for v := range in {
					i := d.home(v)
					for d.slots[i] != v {
						if d.slots[i] == 0 {
							t.Fatalf("%x is not found", v)
						}
						i = d.after(i)
					}
				}
			},
		})
	})
}

// TestLimboWaitsForThoseWhoWereReading: what is unlinked while somebody reads is
// kept until he is done, and not kept by those who began later.
func TestLimboWaitsForThoseWhoWereReading(t *testing.T) {
	x, err := New(Options{})
	if err != nil {
		t.Fatal(err)
	}
	waits := func(want bool) {
		t.Helper()
		x.settle()
		if got := x.limbo.len() > 0; got != want {
			t.Fatalf("something waits: %t, want %t", got, want)
		}
	}
	run := func() uint32 { return uint32(x.runs.take(x.mayGrow)) }
	x.retire(retiredRun, run(), 0)
	waits(false)
	early := x.readers.enter(1)
	x.retire(retiredRun, run(), 0)
	waits(true)
	late := x.readers.enter(2)
	waits(true)
	early.Add(-1)
	waits(false)
	// Readers that overlap without end do not keep things for ever.
	x.retire(retiredRun, run(), 0)
	for range 4 {
		next := x.readers.enter(3)
		late.Add(-1)
		late = next
		x.settle()
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
	full := x.pairs
	reader := x.readers.enter(0)
	if lost := store(1000); lost == 0 || x.pairs < full*3/4 {
		t.Errorf("%d blocks refused and %d of %d left beside a reader", lost, x.pairs, full)
	}
	reader.Add(-1)
	if lost := store(1000); lost > 0 || x.pairs < full*3/4 {
		t.Errorf("%d blocks refused and %d of %d left without a reader", lost, x.pairs, full)
	}
}

// TestMaskSpans: a set of positions is taken apart into its unbroken spans.
func TestMaskSpans(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		var m mask
		in := make([]bool, runBlocks)
		for range rapid.IntRange(0, 5).Draw(t, "spans") {
			lo := rapid.IntRange(0, runBlocks).Draw(t, "lo")
			hi := rapid.IntRange(lo, runBlocks).Draw(t, "hi")
			m = m.or(spanMask(lo, hi))
			for i := lo; i < hi; i++ {
				in[i] = true
			}
		}
		for last := -1; !m.empty(); {
			lo, hi := m.popSpan()
			if lo <= last || hi < runBlocks && in[hi] || lo > 0 && in[lo-1] {
				t.Fatalf("span %d..%d after %d", lo, hi, last)
			}
			for i := lo; i < hi; i++ {
				if !in[i] {
					t.Fatalf("%d is in span %d..%d", i, lo, hi)
				}
				in[i] = false
			}
			last = hi
		}
		for i, left := range in {
			if left {
				t.Fatalf("%d is in no span", i)
			}
		}
	})
}

// TestDigestIsTheSumOverBlocks: four at a time or one by one.
func TestDigestIsTheSumOverBlocks(t *testing.T) {
	hashes := make([]word, 11)
	want := uint64(0)
	for i := range hashes {
		hashes[i] = word(i * i)
		want += kv.Digest(kv.SequenceHash(hashes[i]), kv.TierDisk)
	}
	if got := digest(hashes, kv.TierDisk); got != want {
		t.Errorf("got %x, want %x", got, want)
	}
}
