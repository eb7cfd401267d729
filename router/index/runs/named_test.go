package runs

import (
	"math/rand/v2"
	"testing"

	"github.com/blockyard-ai/blockyard/internal/kv"
)

// Each hash of a set can be taken once. A hash that is named twice is in the set once.
func TestNamedHashesAreTakenOnce(t *testing.T) {
	for _, n := range []int{1, 2, 7, 8, 100, MaxNamed} {
		hashes := make([]kv.SequenceHash, n)
		for i, rng := 0, rand.New(rand.NewPCG(1, uint64(n))); i < n; i++ {
			hashes[i] = kv.SequenceHash(rng.Uint64())
		}
		if n > 2 {
			hashes[n-1] = hashes[0]
		}
		var set Named
		twice := 0
		set.Fill(hashes, func(h kv.SequenceHash) {
			if twice++; h != hashes[0] {
				t.Errorf("%d hashes: %#x is named twice", n, h)
			}
		})
		if want := min(n/3, 1); twice != want {
			t.Errorf("%d hashes: %d are named twice, want %d", n, twice, want)
		}
		if set.Take(12345) {
			t.Errorf("%d hashes: a hash that was not named is taken", n)
		}
		for i, h := range hashes[:n-twice] {
			if !set.Open(i) || !set.Take(h) || set.Open(i) || set.Take(h) {
				t.Errorf("%d hashes: hash %d cannot be taken exactly once", n, i)
			}
		}
	}
}
