package config

import "github.com/blockyard-ai/blockyard/internal/kv"

// Storage is memory or a file that holds the blocks of a tier.
type Storage interface {
	// Tier is where the bytes lie.
	Tier() kv.Tier
	// Bytes is how many there are.
	Bytes() uint64
}

// Located is a Storage whose bytes are files in a directory, which may have to be
// made.
type Located interface {
	Storage
	// Dir is the directory; it must not be empty.
	Dir() string
}

// Allocator makes Storage.
type Allocator interface {
	// Tier is where what it makes lies.
	Tier() kv.Tier
	// Allocate makes a storage of at least size bytes, which the caller then owns:
	// one that is an io.Closer is closed when nobody uses it any more.
	Allocate(size uint64) (Storage, error)
}

// OffloadFilter chooses the blocks that are worth a place in the next lower
// tier. It is called before a block is copied, from several goroutines at once,
// and must not wait for anything.
type OffloadFilter interface {
	ShouldOffload(hash kv.SequenceHash) bool
}

// EventManager is told where blocks are. The calls for one block come in the
// order in which things happened, those for different blocks perhaps from
// several goroutines at once. They must not block or call back.
type EventManager interface {
	// BlockStored says that the block is now in tier t. Parent is the block before
	// it in its sequence; hasParent is false for the first one.
	BlockStored(t kv.Tier, hash, parent kv.SequenceHash, hasParent bool)
	// BlockRemoved says that the block is no longer in tier t.
	BlockRemoved(t kv.Tier, hash kv.SequenceHash)
}
