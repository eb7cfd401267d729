package blockmgr

import (
	"os"

	"github.com/blockyard-ai/blockyard/internal/kv"
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
	// File is open for reading and writing and borrowed: it stays valid while the
	// caller has a session in the pool or watches its extents, until the manager
	// closes, and the caller must not close it. Nil for disk.
	File *os.File
}

// Location is where one copy of a block lies.
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
	// Tiers is where the block is; Host and Disk are meaningful for its members.
	Tiers kv.TierMask
	Host  Location
	Disk  Location
}

// TierStats are the gauges of one tier of a pool, in slots unless named
// otherwise. Free + Granted + Staging + Receiving + Quarantined + Active +
// Inactive = Capacity, always.
type TierStats struct {
	Capacity    int `json:"capacity"`
	Free        int `json:"free"`
	Granted     int `json:"granted"`
	Staging     int `json:"staging"`
	Receiving   int `json:"receiving"`
	Quarantined int `json:"quarantined"`
	// Active slots hold a block that is pinned, being sealed or being copied.
	Active int `json:"active"`
	// Inactive slots hold a block that nobody uses now.
	Inactive int `json:"inactive"`
	Extents  int `json:"extents"`
	// Bytes is the size of the extents' files.
	Bytes uint64 `json:"bytes"`
}

// Stats is a snapshot of one pool. Everything but the gauges only grows.
type Stats struct {
	Host TierStats `json:"host"`
	Disk TierStats `json:"disk"`
	// Sessions, Blocks (distinct resident), Pins, and the lengths of the queues
	// are gauges.
	Sessions      int    `json:"sessions"`
	Blocks        int    `json:"blocks"`
	Pins          int    `json:"pins"`
	SealQueue     int    `json:"seal_queue"`
	WriteQueue    int    `json:"write_queue"`
	PromoteQueue  int    `json:"promote_queue"`
	HostHits      uint64 `json:"host_hits"`
	DiskHits      uint64 `json:"disk_hits"`
	Misses        uint64 `json:"misses"`
	Granted       uint64 `json:"granted"`
	Present       uint64 `json:"present"`
	Refused       uint64 `json:"refused"`
	Committed     uint64 `json:"committed"`
	Aborted       uint64 `json:"aborted"`
	PinsRefused   uint64 `json:"pins_refused"`
	HostEvictions uint64 `json:"host_evictions"`
	DiskEvictions uint64 `json:"disk_evictions"`
	// Promotions are blocks read from disk into the host tier; a lookup that
	// joins a read under way adds to PromotionsShared instead.
	Promotions       uint64 `json:"promotions"`
	PromotionsShared uint64 `json:"promotions_shared"`
	// WriteBehind counts blocks written to disk; WriteBehindDropped offers that
	// found the queue full (they may be made again), WriteBehindRefused blocks
	// that found no disk slot.
	WriteBehind        uint64 `json:"write_behind"`
	WriteBehindDropped uint64 `json:"write_behind_dropped"`
	WriteBehindRefused uint64 `json:"write_behind_refused"`
	BytesRead          uint64 `json:"bytes_read"`
	BytesWritten       uint64 `json:"bytes_written"`
	// CorruptReads counts blocks whose bytes or record did not match when read
	// back; they were dropped, not served.
	CorruptReads uint64 `json:"corrupt_reads"`
	// ReadErrors, WriteErrors and TableErrors count failed disk operations,
	// MemoryErrors faults on mapped host memory, each of which costs a host slot
	// and never a disk slot.
	ReadErrors   uint64 `json:"read_errors"`
	WriteErrors  uint64 `json:"write_errors"`
	TableErrors  uint64 `json:"table_errors"`
	MemoryErrors uint64 `json:"memory_errors"`
	// GrowErrors counts extents that could not be made, GrowRefused those for
	// which there was no room and nobody gave any, ExtentsYielded those that this
	// pool gave to others while nobody used it.
	GrowErrors     uint64 `json:"grow_errors"`
	GrowRefused    uint64 `json:"grow_refused"`
	ExtentsYielded uint64 `json:"extents_yielded"`
	// Recovered is the number of blocks found on disk when the pool was opened.
	Recovered uint64 `json:"recovered"`
}
