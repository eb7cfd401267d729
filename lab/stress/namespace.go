package stress

import (
	"encoding/binary"
	"fmt"
	"math/rand/v2"

	"github.com/blockyard-ai/blockyard/blockmgr"
	"github.com/blockyard-ai/blockyard/internal/kv"
)

// namespace is a namespace with the blocks that its clients use.
type namespace struct {
	desc   kv.Namespace
	id     kv.NamespaceID
	chains [chains][]blockmgr.Block
}

// makeNamespaces returns n namespaces, no two of which have a block's key in common. Their blocks
// are shorter than their slots, so that padding is tested. The slots of every second namespace
// are two pages long.
func makeNamespaces(n int) []*namespace {
	made := make([]*namespace, n)
	for i := range made {
		inner := uint32(36)
		if i%2 == 1 {
			inner = 100
		}
		ns := &namespace{desc: kv.Namespace{
			Model: fmt.Sprintf("model-%d", i), Weights: "stress", DType: "float16", Layers: 1, OuterDim: 2, BlockSize: 16,
			InnerDim: inner, DTypeBytes: 2, Layout: "fully_contiguous", TP: 1, PP: 1, DCP: 1, KVFormat: "stress",
		}}
		ns.id = ns.desc.ID()
		for c := range ns.chains {
			ns.chains[c] = makeChain(ns.id, c)
		}
		made[i] = ns
	}
	return made
}

// makeChain returns the sequence of blocks number c in a namespace. Sequences 2i and 2i+1 share
// their first chainShared blocks, as prompts with a common prefix do.
func makeChain(ns kv.NamespaceID, c int) []blockmgr.Block {
	keyer := kv.NewKeyer()
	parent, seq := keyer.Root(ns, "", ""), kv.SequenceHash(0)
	blocks := make([]blockmgr.Block, chainLen)
	for i := range blocks {
		token := uint32(c)
		if i < chainShared {
			token = uint32(c / 2 * 2)
		}
		local := kv.LocalHash(uint64(token)<<8 | uint64(i) + 1)
		b := &blocks[i]
		*b = blockmgr.Block{
			Key: keyer.Next(parent, []uint32{token, uint32(i)}, nil).InGroup(0), Parent: parent,
			Local: local, Seq: kv.SequenceHash(local), Position: uint32(i), Seed: kv.HashSeed,
		}
		if i > 0 {
			b.ParentSeq, b.Seq = seq, kv.Chain(seq, local)
		}
		parent, seq = b.Key.Block(), b.Seq
	}
	return blocks
}

// run returns the blocks of an operation.
func (ns *namespace) run(o *operation) []blockmgr.Block {
	return ns.chains[o.chain][o.first:o.end]
}

// fill writes the content of a commit: the nonce, then words that each depend on key
// and nonce. No part of it equals a part of another content. The length of data is a
// multiple of 8.
func fill(data []byte, key kv.StoredKey, nonce uint64) {
	binary.LittleEndian.PutUint64(data, nonce)
	words := rand.NewPCG(binary.LittleEndian.Uint64(key[:]), nonce)
	for i := 8; i < len(data); i += 8 {
		binary.LittleEndian.PutUint64(data[i:], words.Uint64())
	}
}

// nonceOf returns the nonce that content claims.
func nonceOf(data []byte) uint64 { return binary.LittleEndian.Uint64(data) }

// holds reports whether data has every byte that fill writes for the block key in the commit nonce.
func holds(data []byte, key kv.StoredKey, nonce uint64) bool {
	if nonceOf(data) != nonce {
		return false
	}
	words := rand.NewPCG(binary.LittleEndian.Uint64(key[:]), nonce)
	for i := 8; i < len(data); i += 8 {
		if binary.LittleEndian.Uint64(data[i:]) != words.Uint64() {
			return false
		}
	}
	return true
}

// scribble fills data with bytes of no commit: nonces are never 0.
func scribble(data []byte, rng *rand.Rand) {
	clear(data[:8])
	for i := 8; i < len(data); i += 8 {
		binary.LittleEndian.PutUint64(data[i:], rng.Uint64())
	}
}
