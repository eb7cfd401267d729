package tier

import (
	"testing"

	"go.uber.org/zap"

	"github.com/blockyard-ai/blockyard/blockmgr/policy"
	"github.com/blockyard-ai/blockyard/blockmgr/registry"
	"github.com/blockyard-ai/blockyard/blockmgr/storage"
	"github.com/blockyard-ai/blockyard/internal/kv"
)

const testBlockBytes = 4096

// testNamespace has blocks of testBlockBytes.
func testNamespace() *kv.Namespace {
	return &kv.Namespace{Layers: 1, OuterDim: 1, BlockSize: 1, InnerDim: testBlockBytes, DTypeBytes: 1}
}

// orderedStores records the blocks of BlockStored by the first letter of their keys.
type orderedStores struct{ order string }

func (o *orderedStores) BlockStored(_ kv.NamespaceID, _ kv.Tier, b Block) {
	o.order += string(rune(b.Key.Block()[0]))
}

func (*orderedStores) BlockRemoved(kv.NamespaceID, kv.Tier, Block) {}

// namedBlock returns a block with a key of one letter. parent is 0 for the first of a sequence.
func namedBlock(name, parent byte, position uint32) *Block {
	key := kv.BlockKey{name}
	return &Block{Key: key.InGroup(0), Parent: kv.BlockKey{parent}, Position: position}
}

// recoveringSet returns a set with a host tier of three slots, a disk tier of one, and block R
// in host memory, which was recovered and not announced.
func recoveringSet(t *testing.T) (*Set, *orderedStores) {
	t.Helper()
	arena, err := storage.OpenHostArena(storage.ArenaConfig{
		Dir: t.TempDir(), Bytes: 4 * testBlockBytes, ExtentBytes: 4 * testBlockBytes, Log: zap.NewNop(),
	})
	if err != nil {
		t.Fatal(err)
	}
	ns, err := arena.Namespace(kv.NamespaceID{1}, testBlockBytes)
	if err != nil {
		t.Fatal(err)
	}
	made, err := arena.Grow(ns, testBlockBytes, 1, 3)
	if err != nil {
		t.Fatal(err)
	}
	onDisk, err := arena.Grow(ns, testBlockBytes, 1, 1)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = arena.Close([]storage.HostExtent{made, onDisk}, false) })
	extentOf := func(e storage.HostExtent) *Extent {
		return &Extent{ID: e.ID, Records: e.Slots, Host: e.Extent}
	}

	before := NewSet(testNamespace(), nil, zap.NewNop())
	before.Host = New(registry.Host, ns, 0, policy.RuleLRU, new(Usage))
	before.Host.Add(extentOf(made))
	root := namedBlock('R', 0, 0)
	storeNamed(before, before.Host, root)

	sink := &orderedStores{}
	set := NewSet(testNamespace(), sink, zap.NewNop())
	set.Host = New(registry.Host, ns, 0, policy.RuleLRU, new(Usage))
	set.Disk = New(registry.Disk, ns, 0, policy.RuleLRU, new(Usage))
	set.Disk.Add(extentOf(onDisk))
	set.Recover(set.Host, extentOf(made), func(ref registry.Ref, s *Slot, r *storage.Record, _ bool) {
		if r.State != storage.StateSealed || !set.Adopt(set.Host, ref, s, r) {
			set.ReturnFree(set.Host, ref)
		}
	})
	set.OrderRecovered()
	if set.Unannounced() != 1 {
		t.Fatalf("%d blocks recovered, want 1", set.Unannounced())
	}
	return set, sink
}

// storeNamed stores a block in a slot of a tier.
func storeNamed(set *Set, tier *Tier, b *Block) registry.Ref {
	ref := set.Alloc(tier)
	r := set.RecordOf(b)
	set.Occupy(tier, ref, b, storage.StateGranted, 0, r)
	set.Store(tier, ref, r)
	return ref
}

// announceAll announces the recovered blocks and then their children.
func announceAll(set *Set) {
	set.Announce(registry.Host, set.Host.ByPosition())
	for set.AnnounceWaiting(1) {
	}
}

// A slot that is reused during the announcement loses its turn: its new block may be a child
// of a block that waits behind the old one.
func TestReusedSlotWaitsForItsNewParent(t *testing.T) {
	set, sink := recoveringSet(t)
	a := storeNamed(set, set.Host, namedBlock('A', 'R', 1))
	storeNamed(set, set.Host, namedBlock('B', 'R', 1))
	set.Drop(set.Host, a, storage.StateFree) // announces A
	if c := storeNamed(set, set.Host, namedBlock('C', 'B', 2)); c != a {
		t.Fatalf("block C has slot %d, want the slot %d of A", c, a)
	}
	announceAll(set)
	if sink.order != "ARBC" || set.Unannounced() != 0 {
		t.Errorf("announced %q, %d left, want ARBC", sink.order, set.Unannounced())
	}
}

// Blocks of both tiers wait in one order: a parent may be on disk only, and its child in host
// memory.
func TestChildInHostMemoryWaitsForParentOnDisk(t *testing.T) {
	set, sink := recoveringSet(t)
	parent := namedBlock('P', 'R', 1)
	host := storeNamed(set, set.Host, parent)
	storeNamed(set, set.Disk, parent)
	set.Drop(set.Host, host, storage.StateFree) // announces P in host memory
	storeNamed(set, set.Host, namedBlock('C', 'P', 2))
	announceAll(set)
	if sink.order != "PRPC" || set.Unannounced() != 0 {
		t.Errorf("announced %q, %d left, want PRPC", sink.order, set.Unannounced())
	}
}

// The list of waiting slots is bounded by the blocks that wait.
func TestReusedSlotsDoNotFillTheWaitingList(t *testing.T) {
	set, _ := recoveringSet(t)
	for range 100 * minWaiting {
		set.Drop(set.Host, storeNamed(set, set.Host, namedBlock('A', 'R', 1)), storage.StateFree)
	}
	if n := len(set.announcing.waiting); n > minWaiting {
		t.Errorf("%d slots in the list, none waits", n)
	}
}
