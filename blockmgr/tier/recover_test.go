package tier

import (
	"testing"

	"go.uber.org/zap"
	"pgregory.net/rapid"

	"github.com/blockyard-ai/blockyard/blockmgr/policy"
	"github.com/blockyard-ai/blockyard/blockmgr/registry"
	"github.com/blockyard-ai/blockyard/blockmgr/storage"
	"github.com/blockyard-ai/blockyard/internal/kv"
)

// TestRecoveredParentsInACircle: recovery drops one block of each circle of damaged records, keeps all
// other blocks, and each of them can be evicted.
func TestRecoveredParentsInACircle(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		const slots = 8
		parents := rapid.SliceOfN(rapid.IntRange(-1, slots-1), 1, slots).Draw(rt, "parents") // -1: none
		order := make([]int, len(parents))
		for i := range order {
			order[i] = i
		}
		order = rapid.Permutation(order).Draw(rt, "order")
		rule := rapid.SampledFrom([]policy.Rule{policy.RuleLRU, policy.RuleAdaptive}).Draw(rt, "rule")
		set := recoverBlocks(t, parents, order, slots, rule)
		dropped := circles(parents)
		if got := set.Counters.RecoveryCircular; got != uint64(dropped) {
			rt.Errorf("%d blocks dropped, want %d", got, dropped)
		}
		if got := set.Registry.Blocks(); got != len(parents)-dropped {
			rt.Errorf("%d blocks kept, want %d", got, len(parents)-dropped)
		}
		set.Host.Each(func(ref registry.Ref, s *Slot) {
			if s.State == storage.StateSealed && !s.entered {
				rt.Errorf("the order does not know slot %d", ref)
			}
		})
		for range slots {
			if set.Alloc(set.Host) == registry.NoRef {
				rt.Fatal("a block cannot be evicted")
			}
		}
	})
}

// circles counts the circles of a function from blocks to parents.
func circles(parents []int) (n int) {
	for i := range parents {
		at, least := parents[i], i
		for steps := 0; at >= 0 && at < len(parents) && at != i && steps < len(parents); steps++ {
			least = min(least, at)
			at = parents[at]
		}
		if at == i && least == i { // counted once, at its least member
			n++
		}
	}
	return n
}

// recoverBlocks recovers a host tier of a slot for each block of order, whose records name the parents.
func recoverBlocks(t *testing.T, parents, order []int, slots int, rule policy.Rule) *Set {
	t.Helper()
	bytes := uint64(slots * testBlockBytes)
	arena, err := storage.OpenHostArena(storage.ArenaConfig{Dir: t.TempDir(), Bytes: bytes, ExtentBytes: bytes, Log: zap.NewNop()})
	if err != nil {
		t.Fatal(err)
	}
	ns, err := arena.Namespace(kv.NamespaceID{1}, testBlockBytes)
	if err != nil {
		t.Fatal(err)
	}
	made, err := arena.Grow(ns, testBlockBytes, 1, uint64(slots))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = arena.Close([]storage.HostExtent{made}, false) })
	set := NewSet(testNamespace(), nil, zap.NewNop())
	for slot, block := range order {
		position := uint32(0)
		if parents[block] >= 0 {
			position = uint32(block) + 1
		}
		r := set.RecordOf(namedBlock(byte(block+1), byte(parents[block]+1), position))
		r.State, r.Namespace, r.Generation = storage.StateSealed, ns, 1
		made.Slots.Put(uint32(slot), &r)
	}
	set.Host = New(registry.Host, ns, 0, rule, new(Usage))
	e := &Extent{ID: made.ID, Records: made.Slots, Host: made.Extent}
	set.Recover(set.Host, e, func(ref registry.Ref, s *Slot, r *storage.Record, damaged bool) {
		if damaged || r.State != storage.StateSealed || !set.Adopt(set.Host, ref, s, r) {
			set.ReturnFree(set.Host, ref)
		}
	})
	set.OrderRecovered()
	return set
}
