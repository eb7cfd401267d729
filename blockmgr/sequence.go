package blockmgr

import "github.com/blockyard-ai/blockyard/internal/kv"

// Root is where a sequence of blocks starts: what its first block has in the
// place of a parent.
type Root struct {
	// Key is the key of the root; see kv.BlockKey.
	Key kv.BlockKey
	// Seed is the seed of the local hashes, see kv.LocalSeed.
	Seed uint64
}

// Identifier computes the identity of blocks from their tokens, in KV cache
// group 0. It is not safe for concurrent use; make one per goroutine with
// NewIdentifier.
type Identifier struct {
	keyer  *kv.Keyer
	hasher kv.Hasher
}

// NewIdentifier returns a ready Identifier.
func NewIdentifier() *Identifier { return &Identifier{keyer: kv.NewKeyer()} }

// Root is the root of the sequences of namespace ns with a LoRA and a cache
// salt, each empty when absent. The LoRA's fingerprint goes into keys, its name
// into the hashes of events.
func (id *Identifier) Root(ns kv.NamespaceID, loraFingerprint, loraName, salt string) Root {
	return Root{Key: id.keyer.Root(ns, loraFingerprint, salt), Seed: kv.LocalSeed(loraName, salt)}
}

// First is the first block of a sequence. The number of tokens must be the
// namespace's block size.
func (id *Identifier) First(root Root, tokens []uint32) Block {
	return id.complete(firstBlock(root), tokens)
}

// Next is the block that follows parent. The number of tokens must be the
// namespace's block size.
func (id *Identifier) Next(parent *Block, tokens []uint32) Block {
	return id.complete(nextBlock(parent), tokens)
}

// firstBlock and nextBlock are what is known of a block before its tokens.
func firstBlock(root Root) Block { return Block{Parent: root.Key, Seed: root.Seed} }

func nextBlock(parent *Block) Block {
	return Block{
		Parent: parent.Key.Block(), ParentSeq: parent.Seq, Position: parent.Position + 1, Seed: parent.Seed,
	}
}

// complete fills in what depends on the tokens.
func (id *Identifier) complete(b Block, tokens []uint32) Block {
	b.Key = id.keyer.Next(b.Parent, tokens, nil).InGroup(0)
	b.Local = id.hasher.Local(tokens, b.Seed, nil)
	b.Seq = kv.SequenceHash(b.Local)
	if b.Position > 0 {
		b.Seq = kv.Chain(b.ParentSeq, b.Local)
	}
	return b
}
