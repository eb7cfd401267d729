package tier

import (
	"time"

	"go.uber.org/zap"

	"github.com/blockyard-ai/blockyard/blockmgr/registry"
	"github.com/blockyard-ai/blockyard/blockmgr/storage"
	"github.com/blockyard-ai/blockyard/blockmgr/storage/extent"
	"github.com/blockyard-ai/blockyard/blockmgr/tenant"
	"github.com/blockyard-ai/blockyard/internal/kv"
)

// Sink receives the residency changes of a pool. It is called at the registry's
// commit point, in order, with the pool's lock held: it must not block and must not
// call the manager or a pool. A removal is reported before its slot can be granted
// again.
type Sink interface {
	BlockStored(ns kv.NamespaceID, t kv.Tier, b Block)
	BlockRemoved(ns kv.NamespaceID, t kv.Tier, b Block)
}

// Set holds the slots of one pool in all of its tiers, and the registry of their blocks.
// NewSet makes one. The pool's lock guards it.
type Set struct {
	Registry *registry.Registry
	// Host is nil when the manager is off, Disk when there is no disk tier. A tier that
	// found no room has no extents.
	Host, Disk *Tier
	// Unverified counts the slots with Slot.Unverified.
	Unverified int
	// Sink gets every change of residency; may be nil.
	Sink Sink
	// Tenants are those of the node; NewSet makes a table without any.
	Tenants  *tenant.Table
	Counters Counters

	ns       kv.NamespaceID
	model    string
	ancestry Ancestry
	// blockBytes is the size of a block, slotBytes of its slot.
	blockBytes, slotBytes uint64
	tenancy               tenancy
	log                   *zap.Logger
	// clock advances by one for each call, and by blockTicks for each block that came into
	// host memory. arrived counts the blocks that clock does not include yet.
	clock, arrived uint64
	// now is the time of the last Tick, on the clock of all pools.
	now        tenant.Age
	announcing announcement
	kept       keeper
	// doubtful has the recovered blocks that may have closed a circle of parents.
	doubtful []registry.ID
	// resetting is true while stale blocks may be left; see Tier.Stale.
	resetting bool
}

// Counters count the events of a Set since its pool opened.
type Counters struct {
	HostEvictions uint64 `json:"host_evictions"`
	DiskEvictions uint64 `json:"disk_evictions"`
	// MemoryErrors counts faults on mapped host memory. Each costs a host slot and never
	// a disk slot.
	MemoryErrors uint64 `json:"memory_errors"`
	// Recovered and RecoveredHost count the blocks that the pool found on disk and in host
	// memory when it opened. DamagedRecords counts slots of both tiers with unreadable
	// records.
	Recovered      uint64 `json:"recovered"`
	RecoveredHost  uint64 `json:"recovered_host"`
	DamagedRecords uint64 `json:"damaged_records"`
	// The next five count blocks that recovery found and dropped: their checksum was not
	// computed, their slot was being freed, they have another namespace or size, their
	// key was recovered already, or they are their own ancestors.
	RecoveryUnsealed uint64 `json:"recovery_unsealed"`
	RecoveryFreed    uint64 `json:"recovery_freed"`
	RecoveryForeign  uint64 `json:"recovery_foreign"`
	RecoveryTwice    uint64 `json:"recovery_twice"`
	RecoveryCircular uint64 `json:"recovery_circular"`
	// KeepRefused counts blocks that were not kept because half of a tier was.
	KeepRefused uint64 `json:"keep_refused"`
	// BlocksReset counts copies of blocks that left a tier by a reset.
	BlocksReset uint64 `json:"blocks_reset"`
	// TenantRefused counts blocks without a slot because their tenant is at its limit and its blocks are in
	// use. BlocksExpired counts the blocks whose time to live was up. SlotsErased counts the slots that
	// were overwritten with zeros, EraseErrors the tries that failed.
	TenantRefused uint64 `json:"tenant_refused"`
	BlocksExpired uint64 `json:"blocks_expired"`
	SlotsErased   uint64 `json:"slots_erased"`
	EraseErrors   uint64 `json:"erase_errors"`
}

// NewSet makes a set without tiers for the blocks of a namespace. sink may be nil.
func NewSet(ns *kv.Namespace, sink Sink, log *zap.Logger) *Set {
	return &Set{
		Registry: registry.New(), ns: ns.ID(), model: ns.Model, ancestry: AncestryOf(ns), blockBytes: ns.BlockBytes(), Sink: sink, log: log,
		kept: keeper{until: map[slotName]time.Time{}}, Tenants: tenant.NewTable(), tenancy: tenancy{start: time.Now()},
		slotBytes: extent.RoundUp(ns.BlockBytes(), storage.PageSize),
	}
}

// Tiers returns the tiers of the set, host first.
func (set *Set) Tiers() []*Tier {
	switch {
	case set.Host == nil:
		return nil
	case set.Disk == nil:
		return []*Tier{set.Host}
	}
	return []*Tier{set.Host, set.Disk}
}

// Tier returns the tier of a level, nil when there is none.
func (set *Set) Tier(lv registry.Level) *Tier {
	if lv == registry.Host {
		return set.Host
	}
	return set.Disk
}

// ParentKey returns the stored key of the block that b stands on. ok is false for a block that stands
// on none.
func (set *Set) ParentKey(b *Block) (parent kv.StoredKey, ok bool) {
	return set.ancestry.Parent(b.Key, b.Parent, b.Position)
}

// Grant grants session s a host slot that has no block. r becomes the slot's record.
func (set *Set) Grant(ref registry.Ref, s SessionID, r storage.Record) {
	sl := set.Host.Slot(ref)
	sl.Session, sl.Tick, sl.used = s, set.clock, set.now
	set.Host.SetState(sl, storage.StateGranted)
	set.Host.PutRecord(ref, r)
}

// Fill makes the block of a granted slot visible and reports it to the Sink. r is the slot's
// record. Fill holds the slot until its checksum is computed; the caller ends that hold.
func (set *Set) Fill(ref registry.Ref, r *storage.Record) {
	s := set.Host.Slot(ref)
	s.Session, s.Tick, s.used = 0, set.clock, set.now
	s.Holds++
	set.Host.SetState(s, storage.StateFilled)
	set.Host.PutRecord(ref, *r)
	set.UpdateEvictable(set.Host, ref, s)
	set.stored(set.Host, ref, r)
}

// Seal makes the resident block of a slot sealed. r has the checksum of its bytes.
func (set *Set) Seal(t *Tier, ref registry.Ref, r storage.Record) {
	t.SetState(t.Slot(ref), storage.StateSealed)
	t.PutRecord(ref, r)
}

// Store makes a block that was copied from another tier resident and sealed. r has the
// checksum of its bytes.
func (set *Set) Store(t *Tier, ref registry.Ref, r storage.Record) {
	set.Seal(t, ref, r)
	set.stored(t, ref, &r)
	set.UpdateEvictable(t, ref, t.Slot(ref))
}

// UpdateEvictable updates the active count and the eviction order of tier t after a change of the
// slot's state, pins, holds or block.
func (set *Set) UpdateEvictable(t *Tier, ref registry.Ref, s *Slot) {
	leaf := s.Entry != registry.None && set.Registry.At(s.Entry).Children[t.Level] == 0 // no children in the tier
	t.updateEvictable(ref, s, leaf)
}

// updateEvictableEntry does the same for the slot that a registry entry has in tier t, if any. It is
// called when the entry's block gets or loses a child there.
func (set *Set) updateEvictableEntry(t *Tier, id registry.ID) {
	if id == registry.None {
		return
	}
	if ref := set.Registry.At(id).Slots[t.Level]; ref != registry.NoRef {
		set.UpdateEvictable(t, ref, t.Slot(ref))
	}
}

// Hold keeps a slot from being evicted until Release.
func (set *Set) Hold(t *Tier, ref registry.Ref) {
	s := t.Slot(ref)
	s.Holds++
	t.updateEvictable(ref, s, false) // a held slot is not in the eviction order, leaf or not
}

// Release ends one Hold.
func (set *Set) Release(t *Tier, ref registry.Ref) {
	s := t.Slot(ref)
	s.Holds--
	set.AfterRelease(t, ref, s)
}

// AfterRelease updates a slot that lost a pin or a hold: the slot may be evicted again, or
// becomes free, if its block was dropped meanwhile.
func (set *Set) AfterRelease(t *Tier, ref registry.Ref, s *Slot) {
	if s.FreeOnRelease && !s.InUse() {
		set.Free(t, ref)
		return
	}
	set.UpdateEvictable(t, ref, s)
}

// Occupy gives block b the slot ref of tier t, which has no block, in the given state and with
// record r. s is the session that fills the slot, 0 when the pool does.
func (set *Set) Occupy(t *Tier, ref registry.Ref, b *Block, state storage.State, s SessionID, r storage.Record) {
	parentKey, hasParent := set.ParentKey(b)
	id, parent := set.Registry.Occupy(b.Key, hasParent, parentKey, t.Level, ref)
	sl := t.Slot(ref)
	sl.Entry, sl.Session, sl.Tick, sl.Priority, sl.resetEpoch = id, s, set.clock, r.Priority, t.resetEpoch
	sl.used = set.now
	if t.Level == registry.Host {
		set.arrived++
	}
	set.enter(t, ref, sl)
	set.enterTenant(t, ref, sl, r.Owner)
	t.SetState(sl, state)
	t.PutRecord(ref, r)
	set.updateEvictableEntry(t, parent) // the parent has a child now and may not be evicted
}

// Vacate takes the block away from a granted host slot, so that another slot can have the block.
// The slot stays granted.
func (set *Set) Vacate(s *Slot) {
	set.leaveTenant(set.Host, set.Registry.At(s.Entry).Slots[registry.Host], s)
	set.Host.leave(set.Registry.At(s.Entry).Slots[registry.Host], s)
	parent := set.Registry.Vacate(s.Entry, registry.Host)
	s.Entry = registry.None
	set.updateEvictableEntry(set.Host, parent)
}
