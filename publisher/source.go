package publisher

import (
	"github.com/blockyard-ai/blockyard/internal/kv"
	"github.com/blockyard-ai/blockyard/internal/kvevent"
)

// Status is a source at one moment; see consolidator.StreamStatus, to which it
// converts.
type Status struct {
	// LastEventID is the id of the last event made; 0 before the first.
	LastEventID uint64
	// Digest is the sum of kv.Digest over all resident (block, tier) pairs, and
	// Blocks the number of these pairs.
	Digest uint64
	Blocks uint64
	Health kvevent.Health
}

// Source is what a feed speaks for. Its methods are called without the feed's
// lock; Status and Snapshot hand pending events to Publish before they return.
type Source interface {
	Owner() kv.Owner
	Status() Status
	// Snapshot returns everything the owner holds as stored events, parents before
	// children, with the id of the last event in it and the digest.
	Snapshot() (events []kvevent.RouterEvent, last, digest uint64)
}

// Meta is what announcements say besides the status; see kvevent.Announcement.
type Meta struct {
	Pool      uint64
	Namespace kv.NamespaceID
	Model     string
	BlockSize uint32
	Card      kvevent.ModelCard
}
