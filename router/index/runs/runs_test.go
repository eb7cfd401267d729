package runs

import (
	"maps"
	"slices"
	"testing"

	"pgregory.net/rapid"
)

// TestArenaPiecesNeverOverlap: whatever is taken and given back, no two pieces in
// use share a unit, none is refused while memory may grow, and what is all given
// back can be had as pieces of the largest size.
func TestArenaPiecesNeverOverlap(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		a := NewArena(uint(rapid.IntRange(5, 7).Draw(t, "shift")))
		most := int64(rapid.IntRange(0, 40).Draw(t, "chunks")) * 1 << a.shift * UnitBytes
		mayGrow := func(n int64) bool { return a.Bytes()+n <= most }
		type piece struct {
			unit  uint32
			units int
		}
		var held []piece
		used := make(map[uint32]bool)
		t.Repeat(map[string]func(*rapid.T){
			"take": func(t *rapid.T) {
				units := rapid.IntRange(1, MaxPieceUnits).Draw(t, "units")
				unit, ok := a.Take(units, mayGrow)
				if !ok {
					if mayGrow(int64(1) << a.shift * FullUnitBytes) {
						t.Fatalf("no piece of %d units, and memory may grow", units)
					}
					return
				}
				for u := unit; u < unit+uint32(units); u++ {
					if used[u] || u >= a.end || u>>a.shift != unit>>a.shift {
						t.Fatalf("unit %d of piece %d, units %d: in use or beyond its chunk", u, unit, units)
					}
					used[u] = true
				}
				held = append(held, piece{unit, units})
			},
			"give": func(t *rapid.T) {
				if len(held) == 0 {
					t.Skip()
				}
				i := rapid.IntRange(0, len(held)-1).Draw(t, "piece")
				for u := held[i].unit; u < held[i].unit+uint32(held[i].units); u++ {
					delete(used, u)
				}
				a.Give(held[i].unit, held[i].units)
				held[i] = held[len(held)-1]
				held = held[:len(held)-1]
			},
			"": func(t *rapid.T) {
				if a.used != len(used) || a.used+a.idle != int(a.nextFresh) {
					t.Fatalf("used %d of %d, idle %d of %d", a.used, len(used), a.idle, int(a.nextFresh)-len(used))
				}
				wantTags(t, a)
				if len(held) > 0 || a.end == 0 {
					return
				}
				for range int(a.nextFresh>>a.shift<<a.shift) / MaxPieceUnits / 2 {
					unit, ok := a.Take(MaxPieceUnits, func(int64) bool { return false })
					if !ok {
						t.Fatalf("all %d units are free, and no large piece is", a.end)
					}
					held = append(held, piece{unit, MaxPieceUnits})
					for u := unit; u < unit+MaxPieceUnits; u++ {
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
		d := NewDirectory(0)
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

// TestMaskSpans: a set of positions is taken apart into its unbroken spans.
func TestMaskSpans(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		var m Mask
		in := make([]bool, MaxBlocks)
		for range rapid.IntRange(0, 5).Draw(t, "spans") {
			lo := rapid.IntRange(0, MaxBlocks).Draw(t, "lo")
			hi := rapid.IntRange(lo, MaxBlocks).Draw(t, "hi")
			m = m.Or(Span(lo, hi))
			for i := lo; i < hi; i++ {
				in[i] = true
			}
		}
		for last := -1; !m.Empty(); {
			lo, hi := m.PopSpan()
			if lo <= last || hi < MaxBlocks && in[hi] || lo > 0 && in[lo-1] {
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

// wantTags fails the test unless each free piece has the same size at both ends
// and the free pieces add up to the idle units.
func wantTags(t *rapid.T, a *Arena) {
	free := 0
	for unit, tag := range a.tags {
		if tag&tailTag != headTag {
			continue
		}
		units := tag & tagUnits
		free += int(units)
		if tail := a.tags[unit+int(units)-1]; tail&tagUnits != units {
			t.Fatalf("free piece %d of units %d ends with tag %x", unit, units, tail)
		}
	}
	if free != a.idle {
		t.Fatalf("%d units are free, counted %d", free, a.idle)
	}
}

// TestCommonPrefix: runs are compared to their first difference, with what is loaded meanwhile and without.
func TestCommonPrefix(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		words := make([]Word, rapid.SampledFrom([]int{0, 1, 15, 16, 100, MaxBlocks - 1, MaxBlocks}).Draw(t, "words"))
		for i := range words {
			words[i] = Word(i * i)
		}
		other := append(slices.Clone(words), make([]Word, rapid.IntRange(0, 200).Draw(t, "more"))...)
		other = other[:rapid.IntRange(0, len(other)).Draw(t, "other")]
		want := min(len(words), len(other))
		if at := rapid.IntRange(0, 200).Draw(t, "differs"); at < want {
			other[at] ^= 1 << rapid.IntRange(0, 63).Draw(t, "bit")
			want = at
		}
		ahead := make([]Word, rapid.SampledFrom([]int{0, 1, MaxBlocks, 5 * MaxBlocks}).Draw(t, "ahead"))
		next := make([]Word, rapid.SampledFrom([]int{0, 1, MaxBlocks}).Draw(t, "next"))
		if got := CommonPrefix(words, other, ahead, next); got != want {
			t.Fatalf("%d of %d and %d words, want %d", got, len(words), len(other), want)
		}
		if len(words) < MaxBlocks || len(other) < MaxBlocks {
			return
		}
		if got := equalRunInTurn((*[MaxBlocks]Word)(words), (*[MaxBlocks]Word)(other), ahead, next); got != (want == MaxBlocks) {
			t.Fatalf("equal without AVX2: %v, want %d common words", got, want)
		}
	})
}
