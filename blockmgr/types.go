package blockmgr

import (
	"errors"

	"github.com/blockyard-ai/blockyard/blockmgr/tier"
	"github.com/blockyard-ai/blockyard/internal/kv"
)

// SessionID names an engine session. The agent chooses it; it is unique in an agent's life.
type SessionID = tier.SessionID

// Block describes one block of a request: its identity, and the fields that its events and its
// slot record carry.
type Block = tier.Block

// Slot names one slot of a host extent at one generation.
type Slot = tier.Name

// EventSink receives the residency changes of the pools, in order; see tier.Sink. A pool
// calls it with its lock held: it must not block, and must not call the manager or a
// pool.
type EventSink = tier.Sink

// LookupResult is the answer to Pool.Lookup. Its slots are pinned.
type LookupResult struct {
	// Slots are the host slots of the first len(Slots) blocks asked for.
	Slots []Slot
	// Sources are the tiers that those blocks were found in: kv.TierHost, or
	// kv.TierDisk for a block that was promoted.
	Sources []kv.Tier
	// Coming counts the next blocks that are being promoted, or will be when the host tier
	// has grown.
	Coming int
}

// Grant is a slot granted for the block with index Index of the call.
type Grant struct {
	Index int
	Slot  Slot
}

// GrantResult is the answer to Pool.Grant: len(Grants)+Present+Refused is
// the number of blocks offered.
type GrantResult struct {
	Grants  []Grant
	Present int
	Refused int
}

// Errors for errors.Is.
var (
	// ErrClosed: the manager is closed or closing.
	ErrClosed = errors.New("block manager is closed")
	// ErrRetired: the pool was closed by Retire; Manager.Pool opens another one.
	ErrRetired = errors.New("pool is closed")
	// ErrBadSlot: the slot is not the caller's. Extent, index or generation are wrong, or
	// the session has neither a grant nor a pin of the slot.
	ErrBadSlot = errors.New("slot is not held by this session")
)

// Root is the start of a sequence of blocks. The first block has it instead of a parent.
type Root struct {
	// Key is the key of the root; see kv.BlockKey.
	Key kv.BlockKey
	// Seed is the seed of the local hashes, see kv.LocalSeed.
	Seed uint64
	// Owner is the owner of the blocks; see Manager.OwnerOf.
	Owner uint64
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

// Root returns the root of the sequences of namespace ns with a LoRA and a cache salt,
// each empty when absent. The LoRA's fingerprint goes into keys, its name into the hashes
// of events.
func (id *Identifier) Root(ns kv.NamespaceID, loraFingerprint, loraName, salt string) Root {
	return Root{Key: id.keyer.Root(ns, loraFingerprint, salt), Seed: kv.LocalSeed(loraName, salt)}
}

// First returns the first block of a sequence. The number of tokens must be the
// namespace's block size.
func (id *Identifier) First(root Root, tokens []uint32) Block {
	return id.complete(firstBlock(root), tokens)
}

// Next returns the block that follows parent. The number of tokens must be the
// namespace's block size.
func (id *Identifier) Next(parent *Block, tokens []uint32) Block {
	return id.complete(nextBlock(parent), tokens)
}

// Prompt returns the full blocks of a prompt under root. blockSize is the namespace's.
func (id *Identifier) Prompt(root Root, tokens []uint32, blockSize int) []Block {
	chain := make([]Block, 0, len(tokens)/blockSize)
	for ; len(tokens) >= blockSize; tokens = tokens[blockSize:] {
		if len(chain) == 0 {
			chain = append(chain, id.First(root, tokens[:blockSize]))
		} else {
			chain = append(chain, id.Next(&chain[len(chain)-1], tokens[:blockSize]))
		}
	}
	return chain
}

// firstBlock and nextBlock return a block without key and hashes; see complete.
func firstBlock(root Root) Block { return Block{Parent: root.Key, Seed: root.Seed, Owner: root.Owner} }

func nextBlock(parent *Block) Block {
	return Block{
		Parent: parent.Key.Block(), ParentSeq: parent.Seq, Position: parent.Position + 1, Seed: parent.Seed, Owner: parent.Owner,
	}
}

// complete returns b, which has its parent, with the key in KV cache group 0 and the hashes.
func (id *Identifier) complete(b Block, tokens []uint32) Block {
	b.Key = id.keyer.Next(b.Parent, tokens, nil).InGroup(0)
	b.Local = id.hasher.Local(tokens, b.Seed, nil)
	b.Seq = kv.SequenceHash(b.Local) // of a first block
	if b.Position > 0 {
		b.Seq = kv.Chain(b.ParentSeq, b.Local)
	}
	return b
}
