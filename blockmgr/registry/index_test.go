package registry

import (
	"encoding/binary"
	"math/rand/v2"
	"testing"

	"pgregory.net/rapid"

	"github.com/blockyard-ai/blockyard/internal/kv"
)

// checkIndex fails unless every word is where a search finds it and the
// directory agrees with the segments.
func checkIndex(t rapid.TB, ix *index, want int) {
	if len(ix.dir) != 1<<ix.depth {
		t.Fatalf("directory of %d places has depth %d", len(ix.dir), ix.depth)
	}
	if len(ix.dir) > directoryRatio*len(ix.states) {
		t.Fatalf("directory of %d places for %d segments", len(ix.dir), len(ix.states))
	}
	words := 0
	reached := map[uint32]bool{}
	for i, root := range ix.dir {
		depth := ix.states[root].depth
		places := len(ix.dir) >> depth
		if first := i / places * places; ix.dir[first] != root {
			t.Fatalf("places %d and %d name segments %d and %d", first, i, ix.dir[first], root)
		}
		if reached[root] {
			continue
		}
		for s := root; ; s = ix.states[s].next {
			reached[s] = true
			words += checkSegment(t, ix, s, uint32(i/places), depth)
			if ix.states[s].next == 0 {
				break
			}
		}
	}
	if words != want || len(reached) != len(ix.states) {
		t.Fatalf("%d words in %d segments, want %d in %d", words, len(reached), want, len(ix.states))
	}
}

func checkSegment(t rapid.TB, ix *index, s, prefix uint32, depth uint8) (used int) {
	seg := ix.segment(s)
	for at, w := range seg {
		if w == 0 {
			continue
		}
		used++
		if got := w.fingerprint() >> (32 - depth); got != prefix {
			t.Fatalf("segment %d holds fingerprint %x, want prefix %x", s, w.fingerprint(), prefix)
		}
		for p := home(w.fingerprint()); p != uint32(at); p = follow(p) {
			if seg[p] == 0 {
				t.Fatalf("segment %d: a gap before fingerprint %x", s, w.fingerprint())
			}
		}
	}
	if used != int(ix.states[s].used) || used > segmentLimit {
		t.Fatalf("segment %d has %d words, counted %d, limit %d", s, used, ix.states[s].used, segmentLimit)
	}
	return used
}

// numbered is a key that differs from others in its last four bytes alone.
func numbered(n int) kv.StoredKey { return kv.BlockKey{1, 2, 3}.InGroup(uint32(n)) }

// fingerprints that a hash would not give in a lifetime.
var uneven = map[string]func(n int) uint32{
	"all equal":        func(int) uint32 { return 0x12345678 },
	"equal high half":  func(n int) uint32 { return 0xffff0000 | uint32(n)&0xffff },
	"equal homes":      func(n int) uint32 { return uint32(n)<<homeBits | 0x3ff },
	"two far clusters": func(n int) uint32 { return uint32(n)<<31 | uint32(n)&0xfff },
	"rising":           func(n int) uint32 { return uint32(n) },
}

func TestUnevenFingerprintsCostNeitherBlocksNorDirectory(t *testing.T) {
	const n = 6000
	for name, fingerprint := range uneven {
		t.Run(name, func(t *testing.T) {
			ix, entries := newIndex(), slab{free: None}
			for i := range n {
				ix.insert(fingerprint(i), entries.take(numbered(i)))
			}
			checkIndex(t, &ix, n)
			segments := len(ix.states)
			if limit := 4*n/segmentLimit + maxDepth; segments > limit {
				t.Errorf("%d segments for %d words, want at most %d", segments, n, limit)
			}
			order := rand.New(rand.NewPCG(1, 2)).Perm(n)
			for _, i := range order[:n/2] {
				ix.remove(fingerprint(i), ID(i))
			}
			checkIndex(t, &ix, n/2)
			for at, i := range order {
				key, want := numbered(i), None
				if at >= n/2 {
					want = ID(i)
				}
				if got := ix.find(fingerprint(i), &key, &entries); got != want {
					t.Fatalf("key %d is entry %d, want %d", i, got, want)
				}
			}
			for _, i := range order[:n/2] {
				ix.insert(fingerprint(i), ID(i))
			}
			checkIndex(t, &ix, n)
			if len(ix.states) > segments+1 {
				t.Errorf("%d segments after words came back, before %d", len(ix.states), segments)
			}
		})
	}
}

func TestFindAllSeesContinuedSegments(t *testing.T) {
	r := New()
	var keys []kv.StoredKey
	for i := range 3 * segmentLimit {
		keys = append(keys, numbered(i))
		r.Occupy(keys[i], false, kv.StoredKey{}, Host, 1)
	}
	// Move the words of a segment to one that continues it.
	next := r.index.grow(r.index.states[0].depth)
	*r.index.segment(next), *r.index.segment(0) = *r.index.segment(0), segment{}
	r.index.states[next].used, r.index.states[0].used = r.index.states[0].used, 0
	r.index.states[0].next = next
	r.index.continued++
	checkIndex(t, &r.index, len(keys))
	ids := make([]ID, len(keys))
	r.FindAll(keys, ids)
	for i := range keys {
		if ids[i] == None || ids[i] != r.Find(&keys[i]) {
			t.Fatalf("key %d: FindAll says %d, Find %d", i, ids[i], r.Find(&keys[i]))
		}
	}
}

func TestSegmentFindsWhatWasNotRemoved(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		// Homes around the end of the segment, so that runs wrap.
		fingerprint := rapid.Custom(func(t *rapid.T) uint32 {
			return rapid.Uint32Max(3).Draw(t, "high")<<30 | (segmentWords-6+rapid.Uint32Max(11).Draw(t, "home"))%segmentWords
		})
		ix, entries := newIndex(), slab{free: None}
		want := map[ID]uint32{}
		t.Repeat(map[string]func(*rapid.T){
			"": func(t *rapid.T) {
				checkIndex(t, &ix, len(want))
				for id, fp := range want {
					if got := ix.find(fp, &entries.at(id).Key, &entries); got != id {
						t.Fatalf("entry %d is found as %d", id, got)
					}
				}
			},
			"insert": func(t *rapid.T) {
				fp := fingerprint.Draw(t, "fingerprint")
				id := entries.take(numbered(int(entries.made)))
				ix.insert(fp, id)
				want[id] = fp
			},
			"remove": func(t *rapid.T) {
				if len(want) == 0 {
					t.Skip("empty")
				}
				id := ID(rapid.Uint32Max(uint32(entries.made)-1).Draw(t, "id"))
				fp, ok := want[id]
				if !ok {
					t.Skip("removed before")
				}
				ix.remove(fp, id)
				delete(want, id)
			},
		})
	})
}

// spread is the i-th key of a sequence, as evenly spread as a hash.
func spread(i int) (key kv.StoredKey) {
	x := uint64(i)*0x9e3779b97f4a7c15 + 0x1234567
	x = (x ^ x>>31) * 0xbf58476d1ce4e5b9
	binary.LittleEndian.PutUint64(key[:], x^x>>29)
	binary.LittleEndian.PutUint64(key[8:], uint64(i))
	return key
}
