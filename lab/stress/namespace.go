package stress

import (
	"encoding/binary"
	"fmt"
	"math/rand/v2"

	"github.com/blockyard-ai/blockyard/blockmgr"
	"github.com/blockyard-ai/blockyard/blockmgr/tier"
	"github.com/blockyard-ai/blockyard/internal/kv"
)

// namespace is a namespace with the blocks that its clients use.
type namespace struct {
	desc kv.Namespace
	id   kv.NamespaceID
	// groups has for each KV group the blocks of each sequence. A namespace without groups has
	// one.
	groups [][chains][]blockmgr.Block
}

// makeNamespaces returns n namespaces, no two of which have a block's key in common. Their blocks
// are shorter than their slots, so that padding is tested. The slots of every second namespace
// are two pages long. With groups, the namespaces have KV groups of three kinds.
func makeNamespaces(n int, groups bool) []*namespace {
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
		if groups {
			bytes := ns.desc.BlockBytes()
			ns.desc.Groups = []kv.Group{
				{Kind: "sliding", Window: 32, BlockSize: 16, BlockBytes: bytes - 512, Layers: 1},
				{Kind: "full", BlockSize: 16, BlockBytes: bytes, Layers: 1},
				{Kind: "state", BlockSize: 16, BlockBytes: 1024, Layers: 1},
			}
		}
		ns.id = ns.desc.ID()
		ns.makeBlocks()
		made[i] = ns
	}
	return made
}

// makeBlocks makes the blocks of each group.
func (ns *namespace) makeBlocks() {
	gs := ns.desc.KVGroups()
	ns.groups = make([][chains][]blockmgr.Block, max(1, len(gs)))
	for c := range chains {
		chain := makeChain(ns.id, c)
		for g := range ns.groups {
			for i := range chain {
				ns.groups[g][c] = append(ns.groups[g][c], tier.GroupBlock(gs, ns.desc.BlockSize, chain, uint32(g), uint32(i)))
			}
		}
	}
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
	return ns.sequence(o)[o.first:o.end]
}

// sequence returns the blocks of the operation's sequence in its group.
func (ns *namespace) sequence(o *operation) []blockmgr.Block {
	return ns.groups[o.randomBits%uint64(len(ns.groups))][o.chain]
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
