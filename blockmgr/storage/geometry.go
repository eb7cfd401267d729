package storage

import (
	"github.com/blockyard-ai/blockyard/blockmgr/storage/extent"
)

const (
	// PageSize is the unit of the slot table too.
	PageSize = extent.PageSize
	// MaxExtentBytes bounds one extent file, so that a client maps the pool in
	// pieces and no single mapping must be huge.
	MaxExtentBytes = 1 << 30
	// DefaultExtentBytes is the least that ExtentBytesFor chooses.
	DefaultExtentBytes = 64 << 20

	// fewExtents is how many extents a tier has at most, while they can be made
	// larger instead: each is an open file.
	fewExtents = 4096
	// unboundedBytes is the budget of an arena without one.
	unboundedBytes = 1 << 60
)

// ExtentBytesFor is the default size of the extents of a tier of that many bytes,
// 0 for one without a size: DefaultExtentBytes, doubled until there are few
// extents, or each has MaxExtentBytes.
func ExtentBytesFor(tierBytes uint64) uint64 {
	size := uint64(DefaultExtentBytes)
	for size < MaxExtentBytes && tierBytes/size > fewExtents {
		size *= 2
	}
	return size
}

// strideOf is how many records an extent of that size has room for in the table:
// as many as it has pages.
func strideOf(extentBytes uint64) uint32 {
	return uint32(extent.RoundUp(max(extentBytes/PageSize, 64), PageSize/RecordSize))
}
