package disk

import (
	"testing"

	"github.com/blockyard-ai/blockyard/internal/kv"
)

func TestPromptsAreChainsOfTheirOwn(t *testing.T) {
	seen := map[kv.StoredKey]bool{}
	for _, prompt := range []uint64{0, 1, 2, firstStored, firstStored + 1} {
		blocks := appendPrompt(nil, prompt, 0, 50)
		for i, b := range blocks {
			if seen[b.Key] {
				t.Fatalf("block %d of prompt %d was there before", i, prompt)
			}
			seen[b.Key] = true
			if i > 0 && (b.Parent != blocks[i-1].Key.Block() || b.ParentSeq != blocks[i-1].Seq || b.Position != uint32(i)) {
				t.Errorf("block %d of prompt %d does not follow the one before it", i, prompt)
			}
		}
		if part := appendPrompt(nil, prompt, 20, 1)[0]; part != blocks[20] {
			t.Errorf("block 20 of prompt %d alone is another one", prompt)
		}
	}
}

func TestNamespacesHaveBlocksOfTheSizeAskedFor(t *testing.T) {
	for _, size := range append(DefaultSizes(), tinyBlock, 4096) {
		ns := namespaceOf("model", size)
		if err := ns.Validate(); err != nil || ns.BlockBytes() != size {
			t.Errorf("blocks of %d bytes, %v, want %d", ns.BlockBytes(), err, size)
		}
	}
}

func TestStampShowsWhatIsNotTheBlock(t *testing.T) {
	blocks := appendPrompt(nil, 7, 0, 2)
	data := make([]byte, 3*4096)
	stamp(data, &blocks[0])
	if !stamped(data, &blocks[0]) || stamped(data, &blocks[1]) {
		t.Error("the stamp does not tell the blocks apart")
	}
	data[2*4096]++
	if stamped(data, &blocks[0]) {
		t.Error("a page with another stamp was not noticed")
	}
}
