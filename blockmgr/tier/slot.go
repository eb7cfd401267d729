package tier

import (
	"github.com/blockyard-ai/blockyard/blockmgr/registry"
	"github.com/blockyard-ai/blockyard/blockmgr/storage"
	"github.com/blockyard-ai/blockyard/blockmgr/storage/extent"
	"github.com/blockyard-ai/blockyard/internal/kv"
)

// SessionID names an engine session; it is the agent's, unique in its life.
type SessionID uint64

// Block describes one block of a request: its identity, and what its events
// and its slot record say about it.
type Block struct {
	Key kv.StoredKey
	// Parent is the key of the block before it; the request's root key for the
	// first block.
	Parent kv.BlockKey
	Local  kv.LocalHash
	Seq    kv.SequenceHash
	// ParentSeq is meaningless at position 0.
	ParentSeq kv.SequenceHash
	// Position counts blocks from the start of the sequence.
	Position uint32
	// Seed is the kv.LocalSeed of the request: which LoRA and salt.
	Seed uint64
}

// ParentKey is the stored key of the block before b in the same group.
func (b *Block) ParentKey() kv.StoredKey { return b.Parent.InGroup(b.Key.Group()) }

// RecordOf is the record of a block of length bytes that is about to occupy a slot.
func RecordOf(b *Block, length uint64) storage.Record {
	return storage.Record{
		Key: b.Key, Parent: b.Parent, Seed: b.Seed, Position: b.Position, Length: uint32(length),
		Local: b.Local, Seq: b.Seq, ParentSeq: b.ParentSeq,
	}
}

// BlockOf is the block that a record describes.
func BlockOf(r *storage.Record) Block {
	return Block{
		Key: r.Key, Parent: r.Parent, Local: r.Local, Seq: r.Seq,
		ParentSeq: r.ParentSeq, Position: r.Position, Seed: r.Seed,
	}
}

// Name names one slot of a host extent at one generation.
type Name struct {
	Extent     uint32
	Index      uint32
	Generation uint64
}

// Slot is what changes often about a slot. The slot's record describes its block.
// A slot holds no pointers, because there may be millions.
type Slot struct {
	Generation uint64
	// Tick is when the slot was last used, on the set's clock.
	Tick uint64
	// Session is whom a granted slot belongs to, or who may still write into a
	// quarantined one.
	Session SessionID
	// Entry is the registry's entry of the slot's block, None without a block.
	Entry registry.ID
	// Pins are held by sessions, Holds by the manager's own work: sealing, the
	// write-behind, reads, lookups that have not answered yet, sessions of an
	// earlier agent.
	Pins, Holds uint32
	// Priority is the block's; see policy.Evictor.
	Priority uint32
	State    storage.State
	// WriteAttempts counts failed writes of the block to disk.
	WriteAttempts uint8
	// Queued: the slot waits for the write-behind or is in it. Deferred: the slot is in
	// the list of slots that are offered again. WantsDisk: the filter wants the block on
	// disk.
	Queued, Deferred, WantsDisk bool
	// FromDisk: the block was promoted, and no lookup has reported it since.
	FromDisk bool
	// Unverified: the block was found in host memory after a restart, and was not
	// compared with its checksum since.
	Unverified bool
	// Lost: the block was dropped while somebody used the slot. The slot is free when
	// nobody uses it any more.
	Lost bool

	// active: counted in Tier.active.
	active bool
	// ordered: known to the eviction order.
	ordered bool
	// kept: held for a retention pin; see Set.Keep.
	kept bool
	// announced says whether the sink knows the block. inLater: the slot is in
	// announcement.later.
	announced announced
	inLater   bool
	// epoch is that of the tier when the block came in; see Stale.
	epoch bool
}

// Resident reports whether the slot's block can be served.
func (s *Slot) Resident() bool {
	return s.State == storage.StateSealed || s.State == storage.StateFilled
}

// InUse reports whether somebody pins or holds the slot.
func (s *Slot) InUse() bool { return s.Pins+s.Holds > 0 }

// Active reports whether the slot has a resident block that somebody uses.
func (s *Slot) Active() bool { return s.active }

// Extent is one extent of a tier. Exactly one of Host and Disk is set.
type Extent struct {
	// Number is the extent's number in a registry.Ref, ID the one that callers know.
	Number, ID uint32
	Records    *storage.Section
	Host       *extent.Host
	Disk       *extent.Disk
	Slots      []Slot
	// free are the indices of the free slots, a stack.
	free []uint32
}

// Geometry says how the slots lie in the extent's file.
func (e *Extent) Geometry() extent.Geometry {
	if e.Host != nil {
		return e.Host.Geometry()
	}
	return e.Disk.Geometry()
}

// Path is the extent's file.
func (e *Extent) Path() string {
	if e.Host != nil {
		return e.Host.Path()
	}
	return e.Disk.Path()
}

// HostExtent is a host extent as its arena knows it.
func (e *Extent) HostExtent() storage.HostExtent {
	return storage.HostExtent{ID: e.ID, Extent: e.Host, Slots: e.Records}
}

// DiskExtent is a disk extent as its arena knows it.
func (e *Extent) DiskExtent() storage.DiskExtent {
	return storage.DiskExtent{ID: e.ID, Extent: e.Disk, Slots: e.Records}
}

// Empty reports whether all slots are free.
func (e *Extent) Empty() bool { return len(e.free) == len(e.Slots) }

// Idle reports whether nobody uses or waits for any slot of the extent, and if so the
// latest moment at which one of its blocks was used. A slot in quarantine that
// nobody holds has a bad medium; it goes with its extent.
func (e *Extent) Idle() (lastUse uint64, ok bool) {
	for i := range e.Slots {
		s := &e.Slots[i]
		if s.InUse() {
			return 0, false
		}
		switch s.State {
		case storage.StateFree, storage.StateSealed, storage.StateQuarantined:
		default:
			return 0, false
		}
		if s.Entry != registry.None {
			lastUse = max(lastUse, s.Tick)
		}
	}
	return lastUse, true
}
