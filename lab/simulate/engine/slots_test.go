package engine

import (
	"testing"

	"pgregory.net/rapid"

	"github.com/blockyard-ai/blockyard/internal/kv"
)

// TestSlotsAreAMap: whatever is put and removed, with hashes that share their homes.
func TestSlotsAreAMap(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		table, twin := newSlots(rapid.IntRange(0, 4).Draw(t, "room")), map[kv.SequenceHash]uint32{}
		hash := func(t *rapid.T) kv.SequenceHash {
			return kv.SequenceHash(rapid.Uint64Range(0, 9).Draw(t, "home") | rapid.Uint64Range(0, 5).Draw(t, "rest")<<32)
		}
		t.Repeat(map[string]func(*rapid.T){
			"put": func(t *rapid.T) {
				h, slot := hash(t), rapid.Uint32Range(0, 100).Draw(t, "slot")
				table.put(h, slot)
				twin[h] = slot
			},
			"remove": func(t *rapid.T) {
				h := hash(t)
				table.remove(h)
				delete(twin, h)
			},
			"": func(t *rapid.T) {
				if table.n != len(twin) {
					t.Fatalf("%d blocks, want %d", table.n, len(twin))
				}
				for home := range uint64(10) {
					for rest := range uint64(6) {
						h := kv.SequenceHash(home | rest<<32)
						want, known := twin[h]
						if slot, ok := table.get(h); ok != known || ok && slot != want {
							t.Fatalf("block %x has slot %d, %v; want %d, %v", uint64(h), slot, ok, want, known)
						}
					}
				}
			},
		})
	})
}
