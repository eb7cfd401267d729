package tier

import (
	"testing"

	"go.uber.org/zap"

	"github.com/blockyard-ai/blockyard/blockmgr/policy"
	"github.com/blockyard-ai/blockyard/blockmgr/registry"
	"github.com/blockyard-ai/blockyard/blockmgr/storage"
	"github.com/blockyard-ai/blockyard/internal/kv"
)

// TestRecoveredParentsInACircle: recovery ends, and keeps every block, when records name each other as
// parents.
func TestRecoveredParentsInACircle(t *testing.T) {
	arena, err := storage.OpenHostArena(storage.ArenaConfig{Dir: t.TempDir(), Bytes: 8 * testBlockBytes, ExtentBytes: 8 * testBlockBytes, Log: zap.NewNop()})
	if err != nil {
		t.Fatal(err)
	}
	ns, err := arena.Namespace(kv.NamespaceID{1}, testBlockBytes)
	if err != nil {
		t.Fatal(err)
	}
	made, err := arena.Grow(ns, testBlockBytes, 1, 8)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = arena.Close([]storage.HostExtent{made}, false) }()
	open := func() (*Set, *Extent) {
		set := NewSet(testNamespace(), nil, zap.NewNop())
		set.Host = New(registry.Host, ns, 0, policy.RuleAdaptive)
		return set, &Extent{ID: made.ID, Records: made.Slots, Host: made.Extent}
	}
	set, e := open()
	set.Host.Add(e)
	for _, b := range []*Block{namedBlock(1, 0, 0), namedBlock(2, 3, 1), namedBlock(3, 2, 2), namedBlock(4, 3, 3)} {
		set.Tick()
		ref, r := set.Alloc(set.Host), RecordOf(b, testBlockBytes)
		set.Occupy(set.Host, ref, b, storage.StateGranted, 0, r)
		set.Store(set.Host, ref, r)
	}
	set, e = open()
	set.Recover(set.Host, e, func(ref registry.Ref, s *Slot, r *storage.Record, damaged bool) {
		if damaged || r.State != storage.StateSealed || !set.Adopt(set.Host, ref, s, r) {
			set.ReturnFree(set.Host, ref)
		}
	})
	set.OrderRecovered()
	if set.Counters.RecoveredHost != 4 {
		t.Errorf("%d blocks recovered, want 4", set.Counters.RecoveredHost)
	}
	set.Host.Each(func(ref registry.Ref, s *Slot) {
		if s.State == storage.StateSealed && !s.entered {
			t.Errorf("the order does not know slot %d", ref)
		}
	})
}
