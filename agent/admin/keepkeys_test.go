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
	got := map[uint32]int{}
	for _, key := range promptKeys(&ns, &selection{Tokens: tokens}) {
		got[key.Group()]++
	}
	// Six blocks are the last end of a block in all groups.
	if want := (map[uint32]int{0: 2, 1: 6, 2: 1}); !maps.Equal(got, want) {
		t.Errorf("keys by group %v, want %v", got, want)
	}
}
