package blockmgr

import (
	"errors"

	"github.com/blockyard-ai/blockyard/blockmgr/diskio"
	"github.com/blockyard-ai/blockyard/blockmgr/tier"
	"github.com/blockyard-ai/blockyard/internal/kv"
)

// SessionID names an engine session; it is the agent's, unique in its life.
type SessionID = tier.SessionID

// Block describes one block of a request: its identity, and what its events
// and its slot record say about it.
type Block = tier.Block

// Slot names one slot of a host extent at one generation.
type Slot = tier.Name

// EventSink receives the pools' own residency changes. A pool calls it at the
// registry's commit point, in order, with its lock held: it must not block and
// must not call the manager or a pool. A removal is reported before its slot can be
// granted again.
type EventSink = tier.Sink

// LookupResult is the answer to Pool.Lookup. Its slots are pinned.
type LookupResult struct {
	// Slots are the host slots of the first len(Slots) blocks asked for.
	Slots []Slot
	// Sources are the tiers that those blocks were found in: kv.TierHost, or
	// kv.TierDisk for a block that was promoted.
	Sources []kv.Tier
	// Coming is how many blocks after them are being promoted, or will be when the host
	// tier has grown.
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

// Errors that callers tell apart with errors.Is.
var (
	// ErrClosed: the manager is closed or closing.
	ErrClosed = errors.New("block manager is closed")
	// ErrRetired: the pool was closed by Retire; Manager.Pool opens another one.
	ErrRetired = errors.New("pool is closed")
	// ErrBadSlot: a slot that is not the caller's: wrong extent, index or
	// generation, or not granted or pinned to its session.
	ErrBadSlot = errors.New("slot is not held by this session")
	// ErrCorrupt: stored bytes do not match their checksum or identity.
	ErrCorrupt = diskio.ErrCorrupt
)
