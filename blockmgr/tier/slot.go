package tier

import (
	"github.com/blockyard-ai/blockyard/blockmgr/registry"
	"github.com/blockyard-ai/blockyard/blockmgr/storage"
	"github.com/blockyard-ai/blockyard/blockmgr/storage/extent"
	"github.com/blockyard-ai/blockyard/blockmgr/tenant"
	"github.com/blockyard-ai/blockyard/internal/kv"
)

// SessionID names an engine session. The agent chooses it; it is unique in an agent's life.
type SessionID uint64

// Block describes one block of a request: its identity, and the fields that its events and
// its slot record carry.
type Block struct {
	Key kv.StoredKey
	// Parent is the key of the block that this one stands on; see Ancestry. A block that stands
	// on none has the request's root key.
	Parent kv.BlockKey
	Local  kv.LocalHash
	Seq    kv.SequenceHash
	// ParentSeq is Seq of that block, and meaningless for a block that stands on none.
	ParentSeq kv.SequenceHash
	// Position is where the block ends: the number of chain blocks before the last one of its
	// tokens. Without KV groups, Position counts the blocks before this one.
	Position uint32
	// Seed is the kv.LocalSeed of the request; LoRA and salt determine it.
	Seed uint64
	// Owner names the tenant of the request; see tenant.Table.OwnerOf. 0 is none. In a Block made from a
	// record, Owner also says whether the block has a time to live.
	Owner uint64
}

// RecordOf returns the record of a new block for a slot that the block will occupy.
func (set *Set) RecordOf(b *Block) storage.Record {
	return storage.Record{
		Key: b.Key, Parent: b.Parent, Seed: b.Seed, Position: b.Position, Length: uint32(set.blockBytes),
		Local: b.Local, Seq: b.Seq, ParentSeq: b.ParentSeq, Owner: set.Tenants.RecordOwner(b.Owner),
	}
}

// BlockOf returns the block that a record describes.
func BlockOf(r *storage.Record) Block {
	return Block{
		Key: r.Key, Parent: r.Parent, Local: r.Local, Seq: r.Seq,
		ParentSeq: r.ParentSeq, Position: r.Position, Seed: r.Seed, Owner: r.Owner,
	}
}

// Name names one slot of a host extent at one generation.
type Name struct {
	Extent     uint32
	Index      uint32
	Generation uint64
}

// Slot is the state of a slot. The slot's record describes its block. Slot has no pointers:
// a pool may have millions, and the garbage collector skips them.
type Slot struct {
	Generation uint64
	// Tick is when the slot was last used, on the set's clock.
	Tick uint64
	// Session is the owner of a granted slot, or the session that may still write into a
	// quarantined one.
	Session SessionID
	// Entry is the registry's entry of the slot's block, None without a block.
	Entry registry.ID
	// Pins counts the sessions that pin the slot. Holds counts the pool's own uses:
	// sealing, the write-behind, reads, unanswered lookups, sessions of an earlier agent.
	Pins, Holds uint32
	// Priority is the block's; see policy.Evictor.
	Priority uint32
	State    storage.State
	// WriteAttempts counts failed writes of the block to disk.
	WriteAttempts uint8
	// QueuedForDisk: the block waits for the write-behind or is being written. WriteDeferred:
	// the slot is in the list of blocks to offer again. WantsDisk: the filter wants the block
	// on disk.
	QueuedForDisk, WriteDeferred, WantsDisk bool
	// FromDisk: the block was promoted, and no lookup has reported it since.
	FromDisk bool
	// Unverified: the block was recovered in host memory and not yet compared with its
	// checksum.
	Unverified bool
	// FreeOnRelease: the block was dropped while the slot was pinned or held. The slot becomes
	// free after the last pin and hold.
	FreeOnRelease bool

	// tenant is the tenant of the slot's block, or of the bytes that a block has left in the slot. timed:
	// that block has a time to live.
	tenant tenant.Index
	timed  bool
	// used is when the slot was last used; 0 before the agent began. Tick orders the slots of one pool, used
	// those of all pools.
	used tenant.Age
	// countedActive: Tier.activeSlots counts the slot.
	countedActive bool
	// inEvictionOrder: the slot is in Tier.evictionOrder.
	inEvictionOrder bool
	// entered: Tier.evictionOrder knows the block; see Set.enter.
	entered bool
	// kept: a retention pin holds the slot; see Set.Keep.
	kept bool
	// announced says whether the sink knows the block.
	announced announced
	// resetEpoch is the tier's when the block came in; see Tier.Stale.
	resetEpoch bool
}

// Resident reports whether the slot's block can be served.
func (s *Slot) Resident() bool {
	return s.State == storage.StateSealed || s.State == storage.StateFilled
}

// forgetTenant says that the slot has no bytes of a tenant.
func (s *Slot) forgetTenant() { s.tenant, s.timed = 0, false }

// InUse reports whether the slot is pinned or held.
func (s *Slot) InUse() bool { return s.Pins+s.Holds > 0 }

// Active reports whether the slot has a resident block and is pinned or held.
func (s *Slot) Active() bool { return s.countedActive }

// Extent is one extent of a tier. Exactly one of Host and Disk is set.
type Extent struct {
	// Number is the extent's number in a registry.Ref, ID the number for callers of the pool.
	Number, ID uint32
	Records    *storage.Section
	Host       *extent.Host
	Disk       *extent.Disk
	Slots      []Slot
	// Erase has the slots that must be overwritten before the extent's file is removed.
	Erase []uint32
	// free is a stack of the indices of the free slots.
	free []uint32
}

// Geometry returns the layout of the slots in the extent's file.
func (e *Extent) Geometry() extent.Geometry {
	if e.Host != nil {
		return e.Host.Geometry()
	}
	return e.Disk.Geometry()
}

// Path returns the path of the extent's file.
func (e *Extent) Path() string {
	if e.Host != nil {
		return e.Host.Path()
	}
	return e.Disk.Path()
}

// HostExtent returns a host extent in its arena's form.
func (e *Extent) HostExtent() storage.HostExtent {
	return storage.HostExtent{ID: e.ID, Extent: e.Host, Slots: e.Records}
}

// DiskExtent returns a disk extent in its arena's form.
func (e *Extent) DiskExtent() storage.DiskExtent {
	return storage.DiskExtent{ID: e.ID, Extent: e.Disk, Slots: e.Records}
}

// Empty reports whether all slots are free.
func (e *Extent) Empty() bool { return len(e.free) == len(e.Slots) }

// Idle reports whether every slot of the extent is free, sealed or quarantined, and neither
// pinned nor held. lastUse is the latest tick of its blocks. A quarantined slot that is not
// held has a bad medium and goes with its extent.
func (e *Extent) Idle() (lastUse uint64, ok bool) {
	for i := range e.Slots {
		s := &e.Slots[i]
		if s.InUse() {
			return 0, false
		}
		switch s.State {
		case storage.StateFree, storage.StateSealed, storage.StateQuarantined:
		default: // the slot is being filled, or its checksum is being computed
			return 0, false
		}
		if s.Entry != registry.None {
			lastUse = max(lastUse, s.Tick)
		}
	}
	return lastUse, true
}
