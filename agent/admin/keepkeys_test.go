package admin

import (
	"maps"
	"testing"

	"github.com/blockyard-ai/blockyard/internal/kv"
)

func TestKeepNamesWhatEachGroupNeedsOfAPrompt(t *testing.T) {
	ns := kv.Namespace{Model: "m", BlockSize: 4}
	ns.Groups = []kv.Group{
		{Kind: "sliding", Window: 2*ns.BlockSize + 1, BlockSize: ns.BlockSize, BlockBytes: 64, Layers: 1},
		{Kind: "full", BlockSize: ns.BlockSize, BlockBytes: 64, Layers: 1},
		{Kind: "state", BlockSize: 2 * ns.BlockSize, BlockBytes: 64, Layers: 1},
	}
	tokens := make([]uint32, 7*ns.BlockSize+1)
	chain := promptKeys(func() *kv.Namespace { plain := ns; plain.Groups = nil; return &plain }(), &selection{Tokens: tokens})
	if len(chain) != 7 {
		t.Fatalf("%d chain blocks", len(chain))
	}
	// Six blocks are the last end of a block in all groups. A draft model's groups need one block more,
	// so that with six complete blocks a hit ends after four.
	for _, c := range []struct {
		eagle  bool
		blocks uint32
		want   map[uint32]int
	}{
		{false, 7, map[uint32]int{0: 2, 1: 6, 2: 1}},
		{true, 7, map[uint32]int{0: 3, 1: 7, 2: 1}},
		{true, 6, map[uint32]int{0: 3, 1: 5, 2: 1}},
	} {
		got := map[uint32]int{}
		ns.Groups[0].Eagle, ns.Groups[1].Eagle = c.eagle, c.eagle
		for _, key := range promptKeys(&ns, &selection{Tokens: tokens[:c.blocks*ns.BlockSize]}) {
			got[key.Group()]++
		}
		if !maps.Equal(got, c.want) {
			t.Errorf("%d blocks, eagle %t: keys by group %v, want %v", c.blocks, c.eagle, got, c.want)
		}
	}
}
