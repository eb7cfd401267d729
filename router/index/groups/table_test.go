package groups

import (
	"maps"
	"sync"
	"testing"

	"pgregory.net/rapid"

	"github.com/blockyard-ai/blockyard/internal/kv"
)

// held is what the naive twin of a Table has.
type held struct {
	block Block
	owner uint32
	tier  kv.Tier
}

// TestTableEqualsASet drives a table and a set of (block, owner, tier) with the same changes. Few
// hashes share the low bits, so that probes collide.
func TestTableEqualsASet(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		var table Table
		twin := make(map[held]bool)
		limit := int64(rapid.IntRange(1, 1<<14).Draw(rt, "limit"))
		mayGrow := func(bytes int64) bool { return table.Bytes()+bytes <= limit }
		draw := func(rt *rapid.T) held {
			hash := kv.SequenceHash(rapid.IntRange(0, 40).Draw(rt, "hash"))
			return held{
				Block{hash << rapid.SampledFrom([]int{0, 8}).Draw(rt, "shift"), rapid.Uint32Range(1, 3).Draw(rt, "group")},
				rapid.Uint32Range(1, 4).Draw(rt, "owner"), rapid.SampledFrom(kv.Tiers[:]).Draw(rt, "tier"),
			}
		}
		rt.Repeat(map[string]func(*rapid.T){
			"store": func(rt *rapid.T) {
				k := draw(rt)
				added, ok := table.Store(k.block, k.owner, k.tier, mayGrow)
				if added == twin[k] && ok {
					rt.Fatalf("%+v: added %t, was there %t", k, added, twin[k])
				}
				if ok {
					twin[k] = true
				}
			},
			"remove": func(rt *rapid.T) {
				k := draw(rt)
				if removed := table.Remove(k.block, k.owner, k.tier); removed != twin[k] {
					rt.Fatalf("%+v: removed %t, was there %t", k, removed, twin[k])
				}
				delete(twin, k)
			},
			"drop owner": func(rt *rapid.T) {
				owner := rapid.Uint32Range(1, 4).Draw(rt, "owner")
				table.DropOwner(owner)
				maps.DeleteFunc(twin, func(k held, _ bool) bool { return k.owner == owner })
			},
			"": func(rt *rapid.T) {
				all := make(map[held]bool)
				for b, h := range table.All() {
					for _, tier := range kv.Tiers {
						if h.Tiers.Has(tier) {
							all[held{b, h.Owner, tier}] = true
						}
					}
				}
				if !maps.Equal(all, twin) {
					rt.Fatalf("table has %v, want %v", all, twin)
				}
				for k := range twin {
					if !table.Holds(k.block, k.owner) || table.Holds(k.block, 9) {
						rt.Fatalf("%+v is not found, or found for another owner", k)
					}
				}
				if table.Bytes() > limit {
					rt.Fatalf("%d bytes, limit %d", table.Bytes(), limit)
				}
			},
		})
	})
}

// TestReadersSeeWhatStays: a reader finds a block that stays while others come and go, and the
// table is rebuilt.
func TestReadersSeeWhatStays(t *testing.T) {
	var table Table
	grow := func(int64) bool { return true }
	stays := Block{Hash: 7, Group: 1}
	table.Store(stays, 1, kv.TierHost, grow)
	stop := make(chan struct{})
	var readers sync.WaitGroup
	for range 2 {
		readers.Go(func() {
			for {
				select {
				case <-stop:
					return
				default:
					if !table.Holds(stays, 1) || table.Holds(stays, 2) {
						t.Error("a block that stays is not found, or found for another owner")
						return
					}
				}
			}
		})
	}
	for i := range 5000 {
		b := Block{Hash: kv.SequenceHash(7 + 64*(i%500)), Group: 2}
		table.Store(b, 2, kv.TierDevice, grow)
		if i%3 == 0 {
			table.Remove(b, 2, kv.TierDevice)
		}
	}
	close(stop)
	readers.Wait()
}

func TestHoldsAllocatesNothing(t *testing.T) {
	var table Table
	for i := range 100 {
		table.Store(Block{Hash: kv.SequenceHash(i), Group: 1}, 1, kv.TierDevice, func(int64) bool { return true })
	}
	if n := testing.AllocsPerRun(100, func() { table.Holds(Block{Hash: 50, Group: 1}, 1) }); n != 0 {
		t.Errorf("%v allocations", n)
	}
}
