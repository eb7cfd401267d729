package tier

import (
	"testing"

	"pgregory.net/rapid"

	"github.com/blockyard-ai/blockyard/internal/kv"
)

// A block of a group ends at a chain block, and stands on the last block of the primary group that
// ends no later: for the primary group itself, before it.
func TestGroupBlocksStandOnThePrimaryGroup(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		ns := testNamespace()
		ns.BlockSize = rapid.Uint32Range(1, 3).Draw(t, "page")
		kinds := []string{"sliding", "full", "state", "full"}
		for i := range rapid.IntRange(2, 4).Draw(t, "groups") {
			g := kv.Group{Kind: kinds[i], BlockSize: ns.BlockSize * rapid.SampledFrom([]uint32{1, 2, 3, 4}).Draw(t, "pages"), BlockBytes: 1, Layers: 1}
			if g.Kind == "sliding" {
				g.Window = 8
			}
			ns.Groups = append(ns.Groups, g)
		}
		const primary = 1
		gs := ns.KVGroups()
		chain := make([]Block, 24)
		for i := range chain {
			chain[i] = *namedBlock(byte(i+1), byte(i), uint32(i))
			chain[i].Seq = kv.SequenceHash(100 + i)
		}
		ancestry := AncestryOf(ns)
		for g := range gs {
			pages := gs[g].BlockSize / ns.BlockSize
			for i := range uint32(len(chain)) / pages {
				b := GroupBlock(gs, ns.BlockSize, chain, uint32(g), i)
				end := (i+1)*pages - 1
				if b.Key != (kv.BlockKey{byte(end + 1)}).InGroup(uint32(g)) || b.Position != end || b.Seq != chain[end].Seq {
					t.Fatalf("group %d block %d: %+v, want the name of chain block %d", g, i, b, end)
				}
				// The parent by looking at every block of the primary group.
				parent := -1
				for k := range uint32(len(chain)) / (gs[primary].BlockSize / ns.BlockSize) {
					at := gs[primary].ChainBlock(k, ns.BlockSize)
					if at < end || at == end && g != primary {
						parent = int(at)
					}
				}
				key, ok := ancestry.Parent(b.Key, b.Parent, b.Position)
				if ok != (parent >= 0) || key != (kv.BlockKey{byte(parent + 1)}).InGroup(primary) {
					t.Fatalf("group %d block %d stands on %s, %t, want chain block %d", g, i, key, ok, parent)
				}
				if ok && b.ParentSeq != chain[parent].Seq {
					t.Fatalf("group %d block %d: parent hash %d", g, i, b.ParentSeq)
				}
			}
		}
	})
	plain := Ancestry{}
	for position, want := range []bool{false, true, true} {
		if _, ok := plain.Parent(kv.StoredKey{}, kv.BlockKey{}, uint32(position)); ok != want {
			t.Errorf("without groups, position %d: has a parent: %t", position, ok)
		}
	}
}
