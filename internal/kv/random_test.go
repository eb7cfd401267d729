package kv

import (
	"encoding/binary"
	"testing"
)

func TestRandomIDsAreDistinctAndExactInJSON(t *testing.T) {
	seen := make(map[uint64]bool)
	var bits uint64
	for range 1000 {
		id := RandomID()
		if id == 0 || id >= 1<<53 || uint64(float64(id)) != id {
			t.Fatalf("id %d is not in 1..2^53-1", id)
		}
		if seen[id] {
			t.Fatalf("id %d was drawn twice", id)
		}
		seen[id] = true
		bits |= id
	}
	if bits != 1<<53-1 {
		t.Errorf("only the bits %#x are ever set", bits)
	}
}

func TestRandomIDIsDrawnAgainWhenItIsZero(t *testing.T) {
	draws := []uint64{0, 1<<11 - 1, 7 << 11} // the second one is 0 in its upper 53 bits
	id := randomID(func(b []byte) (int, error) {
		binary.LittleEndian.PutUint64(b, draws[0])
		draws = draws[1:]
		return len(b), nil
	})
	if id != 7 || len(draws) != 0 {
		t.Errorf("got id %d with %d draws left, want 7 with none", id, len(draws))
	}
}
