package extent

// PageSize is the unit of slots and of disk I/O. O_DIRECT can address it on every
// device.
const PageSize = 4096

// Geometry is the layout of the slots in an extent file.
type Geometry struct {
	Slots uint32
	// SlotBytes is the size of a slot, a multiple of PageSize.
	SlotBytes uint64
	// DataOffset is the offset of slot 0: behind the generation words in a host extent, 0 in
	// a disk extent.
	DataOffset uint64
	// SealBytes is the room behind each slot for what a Cipher adds; 0 without one.
	SealBytes uint64
	// FileUnit divides the size of the file; zero means 1. See FSInfo.Unit.
	FileUnit uint64
}

// HostGeometry returns the geometry of a host extent. unit divides the file's size.
func HostGeometry(slots uint32, slotBytes, unit uint64) Geometry {
	return Geometry{Slots: slots, SlotBytes: slotBytes, DataOffset: wordBytes(uint64(slots)), FileUnit: unit}
}

// HostSlots returns how many slots of slotBytes fit, with their generation words, into
// a file of at most limit bytes. It may be zero.
func HostSlots(limit, slotBytes uint64) uint64 {
	// Assumes no rounding of the words first, then subtracts the slots that rounding costs.
	slots := limit / (slotBytes + generationBytes)
	for slots > 0 && wordBytes(slots)+slots*slotBytes > limit {
		slots--
	}
	return slots
}

// DiskGeometry returns the geometry of a disk extent, which has no generation words.
func DiskGeometry(slots uint32, slotBytes uint64) Geometry {
	return Geometry{Slots: slots, SlotBytes: slotBytes}
}

// generationBytes is the size of a generation word.
const generationBytes = 8

// wordBytes returns the bytes of the generation words of a number of slots.
func wordBytes(slots uint64) uint64 { return RoundUp(generationBytes*slots, PageSize) }

// FileBytes returns the size of the extent's file, rounded up to FileUnit.
func (g Geometry) FileBytes() uint64 {
	return RoundUp(g.DataOffset+uint64(g.Slots)*g.Stride(), max(g.FileUnit, 1))
}

// Offset returns the offset of slot i in the file.
func (g Geometry) Offset(i uint32) int64 { return int64(g.DataOffset + uint64(i)*g.Stride()) }

// Stride returns the distance between two slots: the bytes that a write of one slot writes.
func (g Geometry) Stride() uint64 { return g.SlotBytes + g.SealBytes }

// RoundUp returns the smallest multiple of unit, a power of two, that is at least n.
func RoundUp(n, unit uint64) uint64 { return (n + unit - 1) &^ (unit - 1) }
