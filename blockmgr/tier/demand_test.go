package tier

import (
	"fmt"
	"testing"

	"go.uber.org/zap"
	"pgregory.net/rapid"

	"github.com/blockyard-ai/blockyard/blockmgr/policy"
	"github.com/blockyard-ai/blockyard/blockmgr/registry"
	"github.com/blockyard-ai/blockyard/blockmgr/storage"
	"github.com/blockyard-ai/blockyard/internal/kv"
)

// told is an eviction order that records what it is told: the blocks that the tier has, with their
// parents, and how often each block was asked for since the order was made.
type told struct {
	policy.Evictor
	blocks map[registry.Ref]toldBlock
	hits   map[uint64]int
}

type toldBlock struct {
	parent registry.Ref
	hash   uint64
}

func (o *told) Enter(ref, parent registry.Ref, hash uint64) {
	if _, twice := o.blocks[ref]; twice {
		panic(fmt.Sprintf("slot %d is entered twice", ref))
	}
	if _, known := o.blocks[parent]; parent != registry.NoRef && !known {
		panic(fmt.Sprintf("slot %d is entered before its parent %d", ref, parent))
	}
	o.blocks[ref] = toldBlock{parent, hash}
	o.Evictor.Enter(ref, parent, hash)
}

func (o *told) Place(ref registry.Ref, priority uint32, tick uint64) {
	if _, known := o.blocks[ref]; !known {
		panic(fmt.Sprintf("slot %d is placed before it is entered", ref))
	}
	o.Evictor.Place(ref, priority, tick)
}

func (o *told) Leave(ref registry.Ref) {
	if _, known := o.blocks[ref]; !known {
		panic(fmt.Sprintf("slot %d leaves and was not entered", ref))
	}
	delete(o.blocks, ref)
	o.Evictor.Leave(ref)
}

func (o *told) Hit(ref registry.Ref) {
	o.hits[o.blocks[ref].hash]++
	o.Evictor.Hit(ref)
}

// listen makes the orders of a set's tiers record what they are told.
func listen(t *Tier) *told {
	o := &told{Evictor: policy.RuleAdaptive.New(), blocks: map[registry.Ref]toldBlock{}, hits: map[uint64]int{}}
	t.evictionOrder, t.rule = o, policy.RuleAdaptive
	return o
}

// demandNode is a node whose agent restarts, with a naive twin of what its eviction orders must know.
type demandNode struct {
	*Set
	ns         uint32
	extents    [registry.NumLevels]storage.HostExtent
	host, disk *told
	// asked counts, for each tier, the uses of the blocks that the tier has had since they came.
	asked [registry.NumLevels]map[byte]int
}

func (n *demandNode) orders() map[*Tier]*told { return map[*Tier]*told{n.Host: n.host, n.Disk: n.disk} }

// open makes the set. restart recovers what the last set had.
func (n *demandNode) open(restart bool) {
	n.Set = NewSet(testNamespace(), nil, zap.NewNop())
	n.Host, n.Disk = New(registry.Host, n.ns, 0, policy.RuleAdaptive, new(Usage)), New(registry.Disk, n.ns, 0, policy.RuleAdaptive, new(Usage))
	n.host, n.disk = listen(n.Host), listen(n.Disk)
	for lv, t := range n.Tiers() {
		e := n.extents[lv]
		added := &Extent{ID: e.ID, Records: e.Slots, Host: e.Extent}
		n.asked[lv] = map[byte]int{}
		if !restart {
			t.Add(added)
			continue
		}
		n.Recover(t, added, func(ref registry.Ref, s *Slot, r *storage.Record, damaged bool) {
			if damaged || r.State != storage.StateSealed || !n.Adopt(t, ref, s, r) {
				n.ReturnFree(t, ref)
			}
		})
	}
	n.OrderRecovered()
}

const treeBlocks = 12

// block draws a block of a tree of treeBlocks, in which the parent of block k is block k/2.
func (n *demandNode) block(t *rapid.T) *Block {
	k := rapid.ByteRange(1, treeBlocks).Draw(t, "block")
	return namedBlock(k, k/2, uint32(k/2))
}

func (n *demandNode) id(b *Block) registry.ID { return n.Registry.Find(&b.Key) }

func (n *demandNode) resident(b *Block, lv registry.Level) registry.Ref {
	if id := n.id(b); id != registry.None {
		return n.Registry.At(id).Slots[lv]
	}
	return registry.NoRef
}

func (n *demandNode) actions() map[string]func(*rapid.T) {
	return map[string]func(*rapid.T){
		"store": func(t *rapid.T) {
			b, which := n.block(t), rapid.IntRange(1, 3).Draw(t, "tiers")
			n.Tick()
			for lv, tier := range n.Tiers() {
				if which>>lv&1 == 0 || n.resident(b, tier.Level) != registry.NoRef {
					continue
				}
				if ref := n.AllocFor(tier, b); ref != registry.NoRef {
					r := n.RecordOf(b)
					n.Occupy(tier, ref, b, storage.StateGranted, 0, r)
					n.Store(tier, ref, r)
				}
			}
		},
		"use": func(t *rapid.T) {
			b := n.block(t)
			id := n.id(b)
			if id == registry.None || !n.Registry.At(id).Occupied() {
				t.Skip("is not stored")
			}
			n.Tick()
			for range rapid.IntRange(1, 2).Draw(t, "times") { // the second one is the same use
				if !n.Touch(id) {
					t.Fatalf("block %d is not resident", b.Key[0])
				}
			}
			for lv := range n.asked {
				if n.resident(b, registry.Level(lv)) != registry.NoRef {
					n.asked[lv][b.Key[0]]++
				}
			}
		},
		"drop": func(t *rapid.T) {
			b, lv := n.block(t), rapid.SampledFrom([]registry.Level{registry.Host, registry.Disk}).Draw(t, "tier")
			if ref := n.resident(b, lv); ref != registry.NoRef && n.Registry.At(n.id(b)).Children[lv] == 0 {
				n.Drop(n.Tier(lv), ref, storage.StateFree)
			}
		},
		"reset": func(t *rapid.T) {
			for r := n.BeginReset(n.Tiers()); n.ResetSlice(r); {
			}
		},
		"restart": func(*rapid.T) { n.open(true) },
		"": func(t *rapid.T) {
			if err := n.Check(); err != nil {
				t.Fatal(err)
			}
			for tier, o := range n.orders() {
				n.compare(t, tier, o)
			}
		},
	}
}

// compare compares what an order was told with the slots of its tier and the uses.
func (n *demandNode) compare(t *rapid.T, tier *Tier, o *told) {
	blocks := 0
	tier.Each(func(ref registry.Ref, s *Slot) {
		if s.Entry == registry.None {
			return
		}
		blocks++
		if b, ok := o.blocks[ref]; !ok || byte(b.hash) != n.Registry.At(s.Entry).Key[0] {
			t.Fatalf("%s slot %d has block %d, the order knows %v", tier.Kind, ref, n.Registry.At(s.Entry).Key[0], b)
		}
	})
	if blocks != len(o.blocks) {
		t.Fatalf("%s has %d blocks, the order knows %d", tier.Kind, blocks, len(o.blocks))
	}
	for k := byte(1); k <= treeBlocks; k++ {
		if got, want := o.hits[uint64(k)], n.asked[tier.Level][k]; got != want {
			t.Fatalf("%s: block %d was asked for %d times, the order knows of %d", tier.Kind, k, want, got)
		}
	}
}

// TestOrdersKnowBlocksAndUses: whatever is stored, used, dropped, reset and recovered, the order of each
// tier knows the blocks of the tier, each after its parent, and every use of them, whichever tier
// serves the use.
func TestOrdersKnowBlocksAndUses(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		arena, err := storage.OpenHostArena(storage.ArenaConfig{Dir: t.TempDir(), Bytes: 20 * testBlockBytes, ExtentBytes: 20 * testBlockBytes, Log: zap.NewNop()})
		if err != nil {
			rt.Fatal(err)
		}
		n := &demandNode{}
		if n.ns, err = arena.Namespace(kv.NamespaceID{1}, testBlockBytes); err != nil {
			rt.Fatal(err)
		}
		for lv, slots := range []uint64{6, 8} {
			if n.extents[lv], err = arena.Grow(n.ns, testBlockBytes, 1, slots); err != nil {
				rt.Fatal(err)
			}
		}
		defer func() { _ = arena.Close(n.extents[:], false) }()
		n.open(false)
		rt.Repeat(n.actions())
	})
}
