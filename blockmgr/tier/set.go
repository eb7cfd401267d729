package tier

import (
	"errors"
	"time"

	"go.uber.org/zap"

	"github.com/blockyard-ai/blockyard/blockmgr/registry"
	"github.com/blockyard-ai/blockyard/blockmgr/storage"
	"github.com/blockyard-ai/blockyard/blockmgr/storage/extent"
	"github.com/blockyard-ai/blockyard/internal/kv"
)

const (
	// blockTicks is how many ticks of the clock a block takes that comes into host
	// memory. A call takes one.
	blockTicks = 16
	// recencyShift makes a record's recency coarse: it changes with every 1024th tick,
	// which is every 64th block that is stored, and its 32 bits last for 270 billion
	// blocks.
	recencyShift = 10
)

// Sink receives the residency changes of a pool. It is called at the registry's
// commit point, in order, with the pool's lock held: it must not block and must not
// call the manager or a pool. A removal is reported before its slot can be granted
// again.
type Sink interface {
	BlockStored(ns kv.NamespaceID, t kv.Tier, b Block)
	BlockRemoved(ns kv.NamespaceID, t kv.Tier, b Block)
}

// Set is the slots of one pool in all of its tiers, and the registry of their
// blocks. NewSet makes one. It has no lock: the pool's guards it.
type Set struct {
	Registry *registry.Registry
	// Host is nil when the manager is off, Disk when there is no disk tier. A tier
	// without extents is one that found no room.
	Host, Disk *Tier
	// Unverified counts the slots with Slot.Unverified.
	Unverified int
	// Sink gets every change of residency; nil: nobody needs them.
	Sink Sink
	// Counters are the set's own.
	Counters Counters

	ns         kv.NamespaceID
	blockBytes uint64
	log        *zap.Logger
	// clock counts calls and, blockTicks each, blocks that came into host memory. arrived
	// are the blocks that it has yet to count.
	clock, arrived uint64
	announcing     announcement
	kept           keeper
	// resetting: blocks of an older epoch may be left; see Stale.
	resetting bool
}

// Counters are what only grows in a Set.
type Counters struct {
	HostEvictions uint64 `json:"host_evictions"`
	DiskEvictions uint64 `json:"disk_evictions"`
	// MemoryErrors counts faults on mapped host memory. Each costs a host slot and never
	// a disk slot.
	MemoryErrors uint64 `json:"memory_errors"`
	// Recovered and RecoveredHost count the blocks that were found on disk and in host
	// memory when the pool was opened. DamagedRecords counts slots of either tier whose
	// records could not be read, so that nothing is known of them.
	Recovered      uint64 `json:"recovered"`
	RecoveredHost  uint64 `json:"recovered_host"`
	DamagedRecords uint64 `json:"damaged_records"`
	// The next four count blocks that were found and could not be taken over. Their
	// checksum was not computed yet, their slot was just being freed, they were of
	// another namespace or size, or they were there already.
	RecoveryUnsealed uint64 `json:"recovery_unsealed"`
	RecoveryFreed    uint64 `json:"recovery_freed"`
	RecoveryForeign  uint64 `json:"recovery_foreign"`
	RecoveryTwice    uint64 `json:"recovery_twice"`
	// KeepRefused counts blocks that were not kept because half of a tier was.
	KeepRefused uint64 `json:"keep_refused"`
	// BlocksReset counts copies of blocks that left a tier by a reset.
	BlocksReset uint64 `json:"blocks_reset"`
}

// NewSet makes a set without tiers for blocks of blockBytes. sink may be nil.
func NewSet(ns kv.NamespaceID, blockBytes uint64, sink Sink, log *zap.Logger) *Set {
	return &Set{
		Registry: registry.New(), ns: ns, blockBytes: blockBytes, Sink: sink, log: log,
		kept: keeper{until: map[keptSlot]time.Time{}},
	}
}

// Tiers are the tiers that there are, host first.
func (set *Set) Tiers() []*Tier {
	switch {
	case set.Host == nil:
		return nil
	case set.Disk == nil:
		return []*Tier{set.Host}
	}
	return []*Tier{set.Host, set.Disk}
}

// Tier is the tier of a level, nil when there is none.
func (set *Set) Tier(lv registry.Level) *Tier {
	if lv == registry.Host {
		return set.Host
	}
	return set.Disk
}

// Tick begins an operation: the clock goes on by one tick, and by blockTicks for each
// block that came into host memory since.
func (set *Set) Tick() {
	set.clock += 1 + blockTicks*set.arrived
	set.arrived = 0
}

// Grant gives a granted slot without a block to a session.
func (set *Set) Grant(ref registry.Ref, s SessionID, r storage.Record) {
	sl := set.Host.Slot(ref)
	sl.Session, sl.Tick = s, set.clock
	set.Host.SetState(sl, storage.StateGranted)
	set.Host.PutRecord(ref, r)
}

// Fill makes the block of a granted slot visible. The caller holds the slot until its
// checksum is computed.
func (set *Set) Fill(ref registry.Ref, r *storage.Record) {
	s := set.Host.Slot(ref)
	s.Session, s.Tick = 0, set.clock
	s.Holds++
	set.Host.SetState(s, storage.StateFilled)
	set.Host.PutRecord(ref, *r)
	set.Settle(set.Host, ref, s)
	set.stored(set.Host, ref, r)
}

// Seal vouches for the bytes of a slot whose block is resident already: r has their
// checksum.
func (set *Set) Seal(t *Tier, ref registry.Ref, r storage.Record) {
	t.SetState(t.Slot(ref), storage.StateSealed)
	t.PutRecord(ref, r)
}

// Store makes the block of a slot resident and sealed: its bytes were copied from
// another tier. r has their checksum.
func (set *Set) Store(t *Tier, ref registry.Ref, r storage.Record) {
	set.Seal(t, ref, r)
	set.stored(t, ref, &r)
	set.Settle(t, ref, t.Slot(ref))
}

// Settle brings the active count and the eviction order of tier t up to date after a
// change of the slot's state, pins, holds or block.
func (set *Set) Settle(t *Tier, ref registry.Ref, s *Slot) {
	leaf := s.Entry != registry.None && set.Registry.At(s.Entry).Kids[t.Level] == 0
	t.settle(ref, s, leaf)
}

// settleEntry settles the slot that an entry has in tier t, if any.
func (set *Set) settleEntry(t *Tier, id registry.ID) {
	if id == registry.None {
		return
	}
	if ref := set.Registry.At(id).Slots[t.Level]; ref != registry.NoRef {
		set.Settle(t, ref, t.Slot(ref))
	}
}

// Hold keeps a slot from being evicted until Release.
func (set *Set) Hold(t *Tier, ref registry.Ref) {
	s := t.Slot(ref)
	s.Holds++
	t.settle(ref, s, false) // whether it is a leaf counts once nobody holds it
}

// Release ends one Hold.
func (set *Set) Release(t *Tier, ref registry.Ref) {
	s := t.Slot(ref)
	s.Holds--
	set.LetGo(t, ref, s)
}

// LetGo settles a slot that lost a pin or a hold. It frees the slot when that was the
// last one and the block is gone already.
func (set *Set) LetGo(t *Tier, ref registry.Ref, s *Slot) {
	if s.Lost && !s.InUse() {
		set.Free(t, ref)
		return
	}
	set.Settle(t, ref, s)
}

// Touch makes a slot the most recently used one of its tier.
func (set *Set) Touch(t *Tier, ref registry.Ref, s *Slot) {
	if s.Tick != set.clock {
		set.age(t, ref, s, set.clock)
	}
}

// Prefer is Touch for a block that was offered again, and raises its priority.
func (set *Set) Prefer(t *Tier, ref registry.Ref, priority uint32) {
	s := t.Slot(ref)
	set.Touch(t, ref, s)
	if priority > s.Priority {
		s.Priority = priority
		t.PutRecord(ref, t.Record(ref))
		set.Settle(t, ref, s)
	}
}

// age changes when a slot was last used. The record keeps a coarse copy, so that the
// order outlives the agent.
func (set *Set) age(t *Tier, ref registry.Ref, s *Slot, tick uint64) {
	if s.Tick>>recencyShift != tick>>recencyShift {
		e, i := t.At(ref)
		e.Records.SetRecency(i, uint32(tick>>recencyShift))
	}
	s.Tick = tick
	if s.ordered {
		t.order.Place(ref, s.Priority, tick)
	}
}

// AgeDiskCopy makes the disk copy of a host block as recently used as the host block.
func (set *Set) AgeDiskCopy(host *Slot) {
	ref := set.Registry.At(host.Entry).Slots[registry.Disk]
	if ref == registry.NoRef {
		return
	}
	if s := set.Disk.Slot(ref); host.Tick > s.Tick {
		set.age(set.Disk, ref, s, host.Tick)
	}
}

// Occupy gives block b the free slot ref of tier t, in the given state, with record r.
func (set *Set) Occupy(t *Tier, ref registry.Ref, b *Block, state storage.State, s SessionID, r storage.Record) {
	id, parent := set.Registry.Occupy(b.Key, b.Position > 0, b.ParentKey(), t.Level, ref)
	sl := t.Slot(ref)
	sl.Entry, sl.Session, sl.Tick, sl.Priority, sl.epoch = id, s, set.clock, r.Priority, t.epoch
	if t.Level == registry.Host {
		set.arrived++
	}
	t.SetState(sl, state)
	t.PutRecord(ref, r)
	set.settleEntry(t, parent)
}

// Vacate takes its block away from a granted host slot. The slot stays granted.
func (set *Set) Vacate(s *Slot) {
	parent := set.Registry.Vacate(s.Entry, registry.Host)
	s.Entry = registry.None
	set.settleEntry(set.Host, parent)
}

// Alloc takes a free slot. Without one it evicts a block. NoRef means that every slot
// is in use.
func (set *Set) Alloc(t *Tier) registry.Ref {
	if ref := t.popFree(); ref != registry.NoRef {
		return ref
	}
	// A victim whose generation word cannot be written is quarantined instead of
	// freed, and the next one is evicted.
	for {
		victim, ok := set.victim(t)
		if !ok {
			return registry.NoRef
		}
		set.countEviction(t)
		set.Drop(t, victim, storage.StateFree)
		if ref := t.popFree(); ref != registry.NoRef {
			return ref
		}
	}
}

// AllocFor is Alloc for block b. It evicts no ancestor of b, because a lookup finds b
// only behind its ancestors. For a block whose ancestors are not in the pool nothing is
// evicted.
func (set *Set) AllocFor(t *Tier, b *Block) registry.Ref {
	if b.Position == 0 || t.Free() > 0 {
		return set.Alloc(t)
	}
	parent := b.ParentKey()
	for id := set.Registry.Find(&parent); ; {
		if id == registry.None || !set.Registry.At(id).Occupied() {
			return registry.NoRef
		}
		e := set.Registry.At(id)
		if ref := e.Slots[t.Level]; ref != registry.NoRef {
			// This keeps the ancestors before it too: children are evicted first.
			set.Hold(t, ref)
			defer set.Release(t, ref)
			return set.Alloc(t)
		}
		if e.Parent == registry.None {
			return set.Alloc(t)
		}
		id = e.Parent
	}
}

// Obtainable is how many slots Alloc could return one after the other. It is exact
// where it is less than want. It may look at every slot of the tier.
func (set *Set) Obtainable(t *Tier, want int) int {
	if n := t.Free() + t.order.Len(); n >= want {
		return n
	}
	// A block can go once its children in the tier have gone: all but those in use
	// and what comes before them.
	blocks, stays := 0, map[registry.ID]struct{}{}
	t.Each(func(_ registry.Ref, s *Slot) {
		if s.Entry == registry.None {
			return
		}
		blocks++
		if s.State == storage.StateSealed && !s.InUse() {
			return
		}
		for id := s.Entry; id != registry.None; id = set.Registry.At(id).Parent {
			if _, known := stays[id]; known || set.Registry.At(id).Slots[t.Level] == registry.NoRef {
				return
			}
			stays[id] = struct{}{}
		}
	})
	return t.Free() + blocks - len(stays)
}

// maxReprieves bounds how many blocks one eviction puts back.
const maxReprieves = 64

// victim is the slot to evict first. A disk block whose copy in host memory was used
// later takes over the age of that copy and goes back into the order.
func (set *Set) victim(t *Tier) (registry.Ref, bool) {
	for range maxReprieves {
		victim, ok := t.order.Victim()
		if !ok || t.Level == registry.Host {
			return victim, ok
		}
		s := t.Slot(victim)
		host := set.Registry.At(s.Entry).Slots[registry.Host]
		if host == registry.NoRef {
			return victim, true
		}
		tick := set.Host.Slot(host).Tick
		if tick <= s.Tick {
			return victim, true
		}
		set.age(t, victim, s, tick)
	}
	return t.order.Victim()
}

func (set *Set) countEviction(t *Tier) {
	if t.Level == registry.Host {
		set.Counters.HostEvictions++
	} else {
		set.Counters.DiskEvictions++
	}
}

// Drop takes the slot's block out of the tier and reports its removal. The slot
// becomes free or quarantined.
func (set *Set) Drop(t *Tier, ref registry.Ref, to storage.State) {
	s := t.Slot(ref)
	wasResident := s.Resident()
	if t.Level == registry.Host && wasResident {
		set.AgeDiskCopy(s)
	}
	parent := set.Registry.Vacate(s.Entry, t.Level)
	if wasResident && set.Sink != nil {
		set.announce(t, ref, s)
		r := t.Record(ref)
		set.Sink.BlockRemoved(set.ns, t.Kind, BlockOf(&r))
	}
	set.unkeep(t, ref, s)
	if s.Unverified {
		set.Unverified--
	}
	s.Entry, s.FromDisk, s.Unverified, s.WantsDisk, s.WriteAttempts = registry.None, false, false, false, 0
	if to == storage.StateFree {
		set.Free(t, ref)
	} else {
		set.Quarantine(t, ref)
	}
	set.settleEntry(t, parent)
}

// DropDamaged drops a host block that err says is bad. Damaged memory
// (extent.ErrMemory) stays out of use. A slot that somebody uses is out of use until
// nobody does.
func (set *Set) DropDamaged(ref registry.Ref, err error) {
	s := set.Host.Slot(ref)
	set.unkeep(set.Host, ref, s)
	switch {
	case errors.Is(err, extent.ErrMemory):
		e, _ := set.Host.At(ref)
		set.MemoryError(e, err)
		set.Drop(set.Host, ref, storage.StateQuarantined)
	case s.InUse():
		s.Lost = true
		set.Drop(set.Host, ref, storage.StateQuarantined)
	default:
		set.Drop(set.Host, ref, storage.StateFree)
	}
}

// DropGrant takes a granted host slot back, which may have no block.
func (set *Set) DropGrant(ref registry.Ref, to storage.State) {
	switch {
	case set.Host.Slot(ref).Entry != registry.None:
		set.Drop(set.Host, ref, to)
	case to == storage.StateFree:
		set.Free(set.Host, ref)
	default:
		set.Quarantine(set.Host, ref)
	}
}

// Free makes a slot without a block grantable again, at its next generation.
func (set *Set) Free(t *Tier, ref registry.Ref) {
	s := t.Slot(ref)
	s.Generation++
	s.Session, s.Holds, s.Priority, s.Lost = 0, 0, 0, false
	if !set.writeGeneration(t, ref, s) {
		return
	}
	t.SetState(s, storage.StateFree)
	t.PutRecord(ref, storage.Record{})
	t.settle(ref, s, false)
	t.pushFree(ref)
}

// FreeLast is Free for a slot that is to be used after the other free slots of its
// extent.
func (set *Set) FreeLast(t *Tier, ref registry.Ref) {
	set.Free(t, ref)
	t.useLast(ref)
}

// writeGeneration writes the generation word of a host slot. A slot whose word cannot
// be written is quarantined.
func (set *Set) writeGeneration(t *Tier, ref registry.Ref, s *Slot) bool {
	e, i := t.At(ref)
	if e.Host == nil {
		return true
	}
	if err := e.Host.SetGeneration(i, s.Generation); err != nil {
		set.MemoryError(e, err)
		set.Quarantine(t, ref)
		return false
	}
	return true
}

// Quarantine takes a slot without a block out of use. Its record still says what it
// held, and for whom. A damaged record, which the death of an earlier agent can leave,
// stays as it is.
func (set *Set) Quarantine(t *Tier, ref registry.Ref) {
	s := t.Slot(ref)
	t.SetState(s, storage.StateQuarantined)
	e, i := t.At(ref)
	if r, err := e.Records.Get(i); err == nil {
		t.PutRecord(ref, r)
	}
	t.settle(ref, s, false)
}

// MemoryError counts and logs a fault on the mapped memory of a host extent.
func (set *Set) MemoryError(e *Extent, err error) {
	set.Counters.MemoryErrors++
	set.log.Error("host memory is damaged; its slot is taken out of use", zap.String("extent", e.Path()), zap.Error(err))
}

// TakeOut evicts the blocks of an extent that nobody uses and takes the extent out of
// its tier.
func (set *Set) TakeOut(t *Tier, gone *Extent) {
	for i := range gone.Slots {
		if gone.Slots[i].Entry != registry.None {
			set.countEviction(t)
			set.Drop(t, registry.MakeRef(gone.Number, uint32(i)), storage.StateFree)
		}
	}
	set.announcing.forget(t.Level, gone.Number)
	t.remove(gone)
}
