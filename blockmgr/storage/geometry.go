package storage

import (
	"fmt"
)

const (
	// PageSize is the unit of slots, of disk I/O and of the slot table: what
	// O_DIRECT can address on every device.
	PageSize = 4096
	// MaxExtentBytes bounds one extent file, so that a client maps the pool in
	// pieces and no single mapping must be huge.
	MaxExtentBytes = 1 << 30
)

// Geometry is how slots lie in an extent file.
type Geometry struct {
	Slots uint32
	// SlotBytes is the distance between two slots, a multiple of PageSize so that
	// a slot can be read and written with O_DIRECT. DataOffset is where slot 0
	// lies: past the generation words in a host extent, 0 in a disk extent.
	SlotBytes  uint64
	DataOffset uint64
	// FileUnit is what the file's size is a multiple of; zero means 1. See
	// FSInfo.Unit.
	FileUnit uint64
}

// HostGeometry fits as many slots of slotBytes as it can into an extent of
// limit bytes, generation words included, whose file is a multiple of unit; it
// fails when not even one fits.
func HostGeometry(limit, slotBytes, unit uint64) (Geometry, error) {
	limit -= limit % unit
	// One word per slot first, then give back what the rounding costs.
	slots := limit / (slotBytes + 8)
	for slots > 0 && roundUp(8*slots, PageSize)+slots*slotBytes > limit {
		slots--
	}
	if slots == 0 {
		return Geometry{}, fmt.Errorf("host extent of %d bytes: one slot of %d bytes needs %d", limit, slotBytes, PageSize+slotBytes)
	}
	return Geometry{Slots: uint32(slots), SlotBytes: slotBytes, DataOffset: roundUp(8*slots, PageSize), FileUnit: unit}, nil
}

// HostBytesFor is the size of a host extent of the given number of slots.
func HostBytesFor(slots, slotBytes uint64) uint64 {
	return roundUp(8*slots, PageSize) + slots*slotBytes
}

// DiskGeometry is HostGeometry for disk extents, which have no words.
func DiskGeometry(limit, slotBytes uint64) (Geometry, error) {
	slots := limit / slotBytes
	if slots == 0 {
		return Geometry{}, fmt.Errorf("disk extent of %d bytes: one slot needs %d", limit, slotBytes)
	}
	return Geometry{Slots: uint32(slots), SlotBytes: slotBytes}, nil
}

// FileBytes is the size of the extent's file, what rounding to FileUnit adds
// behind the last slot included.
func (g Geometry) FileBytes() uint64 {
	return roundUp(g.DataOffset+uint64(g.Slots)*g.SlotBytes, max(g.FileUnit, 1))
}

// Offset is where slot i lies in the file.
func (g Geometry) Offset(i uint32) int64 { return int64(g.DataOffset + uint64(i)*g.SlotBytes) }

// roundUp is the smallest multiple of unit (a power of two) that is at least n.
func roundUp(n, unit uint64) uint64 { return (n + unit - 1) &^ (unit - 1) }
