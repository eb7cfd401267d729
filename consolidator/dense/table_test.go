package dense

import (
	"runtime"
	"testing"

	"pgregory.net/rapid"
)

// testValue is an entry of the tests' tables; in a free slot refs is 0.
type testValue struct{ slot, number, refs uint32 }

// TestDenseEqualsAMap: whatever is inserted and removed, a dense table holds what
// a map would, under slots that do not change, and a free slot's value is zero.
// Few shards are hit, so that probes collide, wrap around and are shifted back.
func TestDenseEqualsAMap(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		var table Table[testValue]
		model := make(map[uint64]uint32)
		slots := make(map[uint64]uint32)
		keys := crowdedKeys(rapid.IntRange(1, 400).Draw(rt, "keys"))
		pick := rapid.SampledFrom(keys)
		value := uint32(0)
		rt.Repeat(map[string]func(*rapid.T){
			"insert": func(rt *rapid.T) {
				for range rapid.IntRange(1, 60).Draw(rt, "times") {
					k := pick.Draw(rt, "key")
					if _, there := model[k]; there {
						continue
					}
					slot, ok := table.Insert(k)
					if !ok || *table.At(slot) != (testValue{}) {
						rt.Fatalf("insert %x: slot %d, %t, value %+v", k, slot, ok, *table.At(slot))
					}
					value++
					table.At(slot).number, table.At(slot).refs = value, 1
					model[k], slots[k] = value, slot
				}
			},
			"remove": func(rt *rapid.T) {
				for range rapid.IntRange(1, 60).Draw(rt, "times") {
					k := pick.Draw(rt, "key")
					if slot, ok := table.Find(k); ok {
						table.Remove(slot)
						delete(model, k)
					}
				}
			},
			"clear": func(rt *rapid.T) {
				if rapid.IntRange(0, 9).Draw(rt, "really") == 0 {
					table.Clear()
					clear(model)
				}
			},
			"": func(rt *rapid.T) {
				if table.Len() != len(model) {
					rt.Fatalf("%d entries, want %d", table.Len(), len(model))
				}
				for _, k := range keys {
					want, there := model[k]
					slot, ok := table.Find(k)
					if ok != there {
						rt.Fatalf("key %x: found %t, want %t", k, ok, there)
					}
					if ok && (slot != slots[k] || table.At(slot).number != want || table.Key(slot) != k) {
						rt.Fatalf("key %x: slot %d, value %d; want %d, %d", k, slot, table.At(slot).number, slots[k], want)
					}
				}
				live := 0
				for slot := range table.Slots() {
					if table.At(slot).refs != 0 {
						live++
					}
				}
				if live != len(model) {
					rt.Fatalf("%d slots are taken, want %d", live, len(model))
				}
			},
		})
	})
}

// crowdedKeys returns n keys of one shard.
func crowdedKeys(n int) []uint64 {
	var keys []uint64
	for k := uint64(0); len(keys) < n; k++ {
		if mixKey(k)>>56 == 0 {
			keys = append(keys, k)
		}
	}
	return keys
}

// TestDenseGrowsWhenEntriesLieTooFarFromHome: keys with the same home, more than
// one entry's distance can count, are all found.
func TestDenseGrowsWhenEntriesLieTooFarFromHome(t *testing.T) {
	var table Table[testValue]
	byHome := make(map[int][]uint64)
	const words = 1 << 12
	var keys []uint64
	for k := uint64(0); len(keys) <= maxDistance+1; k++ {
		h := mixKey(k)
		if h>>56 != 0 {
			continue
		}
		home := homeOf(h, words)
		if byHome[home] = append(byHome[home], k); len(byHome[home]) > len(keys) {
			keys = byHome[home]
		}
		if k > 40_000_000 {
			break
		}
	}
	for _, k := range keys {
		slot, ok := table.Insert(k)
		if !ok {
			t.Fatal("full")
		}
		table.At(slot).refs = 1
	}
	for _, k := range keys {
		if _, ok := table.Find(k); !ok {
			t.Errorf("key %x is lost", k)
		}
	}
	t.Logf("%d keys of one home, %d words", len(keys), len(table.shards[0].words))
}

// TestDenseIsSmall: the index and what the chunks leave free cost little.
func TestDenseIsSmall(t *testing.T) {
	const n = 1_000_000
	before := heap()
	table := new(Table[testValue])
	for k := range uint64(n) {
		if _, ok := table.Insert(k * 0x9e3779b97f4a7c15); !ok {
			t.Fatal("full")
		}
	}
	perEntry := float64(heap()-before) / n
	runtime.KeepAlive(table)
	t.Logf("%.1f bytes for entries of 20", perEntry)
	if perEntry > 27 {
		t.Errorf("%.1f bytes per entry", perEntry)
	}
}

// heap is the number of bytes of live objects.
func heap() uint64 {
	runtime.GC()
	runtime.GC()
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return m.HeapAlloc
}
