package engine

import (
	"testing"

	"pgregory.net/rapid"
)

// TestSlotsAreAMap: whatever is put and removed.
func TestSlotsAreAMap(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		var table slots
		twin := map[uint32]uint32{}
		numbers := rapid.SampledFrom([]uint32{0, 1, 2, pageSize - 1, pageSize, 5000})
		t.Repeat(map[string]func(*rapid.T){
			"put": func(t *rapid.T) {
				n, slot := numbers.Draw(t, "number"), rapid.Uint32Range(0, 100).Draw(t, "slot")
				table.put(n, slot)
				twin[n] = slot
			},
			"remove": func(t *rapid.T) {
				n := numbers.Draw(t, "number")
				table.remove(n)
				delete(twin, n)
			},
			"": func(t *rapid.T) {
				if table.n != len(twin) {
					t.Fatalf("%d blocks, want %d", table.n, len(twin))
				}
				for _, n := range []uint32{0, 1, 2, 3, pageSize - 1, pageSize, pageSize + 1, 5000, 9000} {
					want, known := twin[n]
					if slot, ok := table.get(n); ok != known || ok && slot != want {
						t.Fatalf("block %d has slot %d, %v; want %d, %v", n, slot, ok, want, known)
					}
				}
			},
		})
	})
}
