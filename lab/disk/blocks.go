package disk

import (
	"encoding/binary"
	"math/rand/v2"

	"github.com/blockyard-ai/blockyard/blockmgr"
	"github.com/blockyard-ai/blockyard/blockmgr/storage"
	"github.com/blockyard-ai/blockyard/internal/kv"
)

// namespaceOf is a namespace of blocks of so many bytes, at least 16.
func namespaceOf(model string, blockBytes uint64) kv.Namespace {
	tokens, width := uint32(1), uint32(2)
	if blockBytes%(16*2) == 0 {
		tokens = 16
	}
	return kv.Namespace{
		Model: model, Weights: "none", DType: "bfloat16", Layers: 1, OuterDim: 1, BlockSize: tokens,
		InnerDim: uint32(blockBytes / uint64(tokens*width)), DTypeBytes: width, Layout: "fully_contiguous",
		TP: 1, PP: 1, DCP: 1, KVFormat: "bench",
	}
}

// appendPrompt appends blocks from to from+n of a prompt. Its number is all that
// is needed to make the same ones again: keys are as good as random to the
// manager, and hashing tokens is not what is measured.
func appendPrompt(to []blockmgr.Block, prompt uint64, from, n int) []blockmgr.Block {
	for i := from; i < from+n; i++ {
		b := blockmgr.Block{
			Key: promptKey(prompt, i).InGroup(0), Parent: promptKey(prompt, i-1), Position: uint32(i),
			Local: kv.LocalHash(mix(prompt, i, 2)), Seq: kv.SequenceHash(mix(prompt, i, 3)),
		}
		if i > 0 {
			b.ParentSeq = kv.SequenceHash(mix(prompt, i-1, 3))
		}
		to = append(to, b)
	}
	return to
}

// promptKey is the key of a prompt's block i; -1 is the root.
func promptKey(prompt uint64, i int) kv.BlockKey {
	var k kv.BlockKey
	binary.LittleEndian.PutUint64(k[:], mix(prompt, i, 0))
	binary.LittleEndian.PutUint64(k[8:], mix(prompt, i, 1))
	return k
}

// mix is a random number of its own for all its arguments.
func mix(prompt uint64, i int, what uint64) uint64 {
	// The finalizer of SplitMix64, a bijection of 64 bits.
	x := prompt<<24 ^ uint64(i+1)<<2 ^ what
	x += 0x9e3779b97f4a7c15
	x = (x ^ x>>30) * 0xbf58476d1ce4e5b9
	x = (x ^ x>>27) * 0x94d049bb133111eb
	return x ^ x>>31
}

// fillRandom fills b, but for less than eight bytes at its end, with what no
// device compresses.
func fillRandom(b []byte, seed uint64) {
	rng := rand.NewPCG(seed, 1)
	for ; len(b) >= 8; b = b[8:] {
		binary.LittleEndian.PutUint64(b, rng.Uint64())
	}
}

// stamp writes the block's identity into every page of its bytes.
func stamp(data []byte, b *blockmgr.Block) {
	for page := 0; page < len(data); page += storage.PageSize {
		binary.LittleEndian.PutUint64(data[page:], uint64(b.Seq)+uint64(page))
	}
}

// stamped reports whether data is what stamp left there.
func stamped(data []byte, b *blockmgr.Block) bool {
	for page := 0; page < len(data); page += storage.PageSize {
		if binary.LittleEndian.Uint64(data[page:]) != uint64(b.Seq)+uint64(page) {
			return false
		}
	}
	return true
}
