package blockmgr

import (
	"os"

	"github.com/blockyard-ai/blockyard/blockmgr/diskio"
	"github.com/blockyard-ai/blockyard/blockmgr/registry"
	"github.com/blockyard-ai/blockyard/blockmgr/tier"
	"github.com/blockyard-ai/blockyard/internal/kv"
	"github.com/blockyard-ai/blockyard/internal/metric"
)

// ExtentInfo describes one extent: a file of slots owned by one namespace.
// Slot i lies at DataOffset + i·SlotBytes; a host extent starts with one u64
// generation word per slot, little-endian, padded to DataOffset.
type ExtentInfo struct {
	// ID is unique in its tier of the manager; Slot.Extent refers to host extents.
	ID uint32
	// Slots is the number of slots.
	Slots uint32
	// SlotBytes, DataOffset and FileBytes are in bytes, multiples of 4096.
	SlotBytes, DataOffset, FileBytes uint64
	// Path is the extent's file.
	Path string
	// File is open for reading and writing; nil for disk. The caller must not close it. The
	// pool closes it when the extent goes to another namespace, which may happen whenever no
	// slot of the extent is in use. A caller that needs the file later duplicates it at once,
	// through SyscallConn. os.ErrClosed says that the extent is gone.
	File *os.File
}

// Location names the file, the offset and the slot of one copy of a block.
type Location struct {
	// Path and Offset find the block's first byte.
	Path   string
	Offset int64
	// Slot names the slot. Only host slots travel to clients.
	Slot Slot
}

// BlockInfo is one resident block in a Dump.
type BlockInfo struct {
	Block Block
	// Tiers has the tiers that have the block. Host and Disk are set for those tiers.
	Tiers kv.TierMask
	Host  Location
	Disk  Location
}

// TierStats are the gauges of one tier of a pool.
type TierStats = tier.Stats

// Stats is a snapshot of one pool.
type Stats struct {
	Host tier.Stats `json:"host" metric:"-"`
	Disk tier.Stats `json:"disk" metric:"-"`
	// Sessions, Blocks (distinct and resident), Pins and the lengths of the queues are
	// gauges.
	Sessions int `json:"sessions"`
	Blocks   int `json:"blocks"`
	// PreviousSessions counts the sessions of an earlier agent whose processes may still use
	// slots of the pool.
	PreviousSessions int `json:"former_sessions"`
	Pins             int `json:"pins"`
	// PinnedSlots counts the pinned host slots, PinnedSlotsMost those of the session that
	// has pinned the most.
	PinnedSlots     int `json:"pinned_slots"`
	PinnedSlotsMost int `json:"pinned_slots_most"`
	// GrantsOverdue counts the granted slots of sessions that have committed and aborted
	// none for 5 s. GrantsLate counts the superseded slots: another session has stored the
	// block, or was granted another slot for it. Gauges.
	GrantsOverdue int `json:"grants_overdue"`
	GrantsLate    int `json:"grants_late"`
	SealQueue     int `json:"seal_queue"`
	WriteQueue    int `json:"write_queue"`
	PromoteQueue  int `json:"promote_queue"`
	// Unverified counts the recovered host blocks that were not yet compared with their
	// checksums. Lookups and the scrubber compare them. A gauge.
	Unverified int `json:"unverified"`
	// Unannounced counts the recovered blocks, and children of recovered blocks, that were
	// not yet reported to the sink. A gauge.
	Unannounced int `json:"unannounced"`
	// DiskOpen is true while a breaker of the disk is open. DiskReadOnly is true while only
	// the breaker for writes is open. DiskTrips counts how often a breaker has opened, for
	// all pools together.
	DiskOpen     bool   `json:"disk_breaker_open"`
	DiskReadOnly bool   `json:"disk_read_only"`
	DiskTrips    uint64 `json:"disk_trips"`
	// DiskJoining is true while the pool lacks extents of its disk tier because the disk has
	// not answered yet.
	DiskJoining bool `json:"disk_joining"`
	// ExtentsLeaving counts the dropped extents of all pools whose files could not be
	// removed yet. Their room is not free. A gauge.
	ExtentsLeaving int `json:"extents_leaving"`
	// ExtentsRemoved counts the extents of earlier agents, of all namespaces, that were
	// deleted: damaged, unfinished, made with other settings, or beyond a tier's size.
	ExtentsRemoved uint64 `json:"extents_removed"`
	// TrimsGivenUp counts the times that slots in use have kept a tier, a model or a tenant of the node
	// beyond its bound for about ten minutes.
	TrimsGivenUp uint64 `json:"trims_given_up"`
	Counters
}

// SlotCounters are the Counters of a pool's slots.
type SlotCounters = tier.Counters

// DiskCounters are the Counters of the traffic between host memory and disk.
type DiskCounters = diskio.Counters

// Counters count the events of a pool since it opened.
type Counters struct {
	SlotCounters
	DiskCounters
	HostHits uint64 `json:"host_hits"`
	DiskHits uint64 `json:"disk_hits"`
	Misses   uint64 `json:"misses"`
	// LookupTime is the time of a Lookup, with the reads that it waits for.
	LookupTime metric.Durations `json:"-" metric:"lookup"`
	Granted    uint64           `json:"granted"`
	Present    uint64           `json:"present"`
	Refused    uint64           `json:"refused"`
	Committed  uint64           `json:"committed"`
	Aborted    uint64           `json:"aborted"`
	// PinsRefused counts lookups that ended at a bound of the session's pins.
	PinsRefused uint64 `json:"pins_refused"`
	// GrantsSuperseded counts granted slots that were not filled for 5 s, and whose block
	// another slot was granted for.
	GrantsSuperseded uint64 `json:"grants_superseded"`
	// Deduplicated counts committed and registered blocks that host memory had already.
	Deduplicated uint64 `json:"deduplicated"`
	// Prefetched counts the reads that Prefetch started. PrefetchRefused counts the reads
	// that it did not start: too many were running, or no host slot was available.
	Prefetched      uint64 `json:"prefetched"`
	PrefetchRefused uint64 `json:"prefetch_refused"`
	// GrowErrors counts extents that could not be made. GrowRefused counts extents for
	// which there was no room, in the tier or from another pool. ExtentsYielded counts
	// extents that this pool gave to other pools.
	GrowErrors     uint64 `json:"grow_errors"`
	GrowRefused    uint64 `json:"grow_refused"`
	ExtentsYielded uint64 `json:"extents_yielded"`
	// WatchDropped counts extents that a slow watcher did not get.
	WatchDropped uint64 `json:"watch_dropped"`
	// Resumed counts slots that sessions took over with Resume. ResumeRefused counts slots
	// that they named and did not get.
	Resumed       uint64 `json:"resumed"`
	ResumeRefused uint64 `json:"resume_refused"`
}

// Add adds the counters of o.
func (c *Counters) Add(o *Counters) { metric.Add(c, o) }

// dumpChunk bounds the registry entries that DumpChunks looks at while it holds the lock.
const dumpChunk = 4096

// Dump lists every resident block, in no particular order. It agrees with the events
// reported so far: a block is in a tier exactly when its last event for that tier was a
// store. Dump holds the pool's lock; DumpChunks is for large pools.
func (p *Pool) Dump() []BlockInfo {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.life.closed {
		return nil
	}
	infos := make([]BlockInfo, 0, p.slots.Registry.Blocks())
	for _, e := range p.slots.Registry.All {
		if info, ok := p.describeLocked(e); ok {
			infos = append(infos, info)
		}
	}
	return infos
}

// DumpChunks yields every resident block, in chunks. The lock is free between chunks. Each chunk is
// of one moment. A block that comes or goes during the dump may be left out. A chunk is valid
// until the next one.
func (p *Pool) DumpChunks(yield func([]BlockInfo) bool) {
	var chunk []BlockInfo
	for next := registry.ID(0); ; {
		var more bool
		if chunk, next, more = p.dumpChunk(chunk[:0], next, dumpChunk); len(chunk) > 0 && !yield(chunk) || !more {
			return
		}
	}
}

// dumpChunk appends the blocks of limit entries of the registry, from entry from on. next is the
// entry after them; more is false behind the last entry.
func (p *Pool) dumpChunk(chunk []BlockInfo, from registry.ID, limit int) (_ []BlockInfo, next registry.ID, more bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.life.closed {
		return chunk, from, false
	}
	seen := 0
	for id, e := range p.slots.Registry.From(from) {
		if seen == limit {
			return chunk, id, true
		}
		seen++
		if info, ok := p.describeLocked(e); ok {
			chunk = append(chunk, info)
		}
	}
	return chunk, from, false
}

// describeLocked returns the tiers and locations of an entry's block. ok is false when the block
// is in no tier.
func (p *Pool) describeLocked(e *registry.Entry) (info BlockInfo, ok bool) {
	if loc, b, ok := locate(p.slots.Host, e); ok {
		info.Tiers, info.Host, info.Block = info.Tiers.With(p.slots.Host.Kind), loc, b
	}
	if loc, b, ok := locate(p.slots.Disk, e); ok {
		info.Tiers, info.Disk, info.Block = info.Tiers.With(p.slots.Disk.Kind), loc, b
	}
	return info, info.Tiers != 0
}

// locate returns where tier t has the entry's block. ok is false when the tier has no resident
// copy, or the copy is about to be removed by a reset.
func locate(t *tier.Tier, e *registry.Entry) (loc Location, b Block, ok bool) {
	if t == nil || e.Slots[t.Level] == registry.NoRef {
		return Location{}, Block{}, false
	}
	ref := e.Slots[t.Level]
	if s := t.Slot(ref); !s.Resident() || t.Stale(s) {
		return Location{}, Block{}, false
	}
	ext, i := t.At(ref)
	r := t.Record(ref)
	return Location{Path: ext.Path(), Offset: ext.Geometry().Offset(i), Slot: t.Name(ref)}, tier.BlockOf(&r), true
}
