package schedule

import (
	"cmp"
	"slices"
)

// Range is the half-open range of block positions [First, End).
type Range struct{ First, End uint32 }

// SharedHits are the blocks of one prompt that a shared cache holds. It does
// not change; the zero value is none.
type SharedHits struct {
	// ranges are sorted, not empty and do not touch.
	ranges []Range
	// before[i] is the number of blocks in ranges[:i].
	before []int
	total  int
}

// FromRanges makes SharedHits of ranges in any order. Empty ranges are left out,
// those that overlap count once. ranges is not kept.
func FromRanges(ranges []Range) SharedHits {
	sorted := slices.DeleteFunc(slices.Clone(ranges), func(r Range) bool { return r.First >= r.End })
	slices.SortFunc(sorted, func(a, b Range) int { return cmp.Compare(a.First, b.First) })
	var h SharedHits
	for _, r := range sorted {
		if n := len(h.ranges); n > 0 && r.First <= h.ranges[n-1].End {
			h.ranges[n-1].End = max(h.ranges[n-1].End, r.End)
			continue
		}
		h.ranges = append(h.ranges, r)
	}
	for _, r := range h.ranges {
		h.before = append(h.before, h.total)
		h.total += int(r.End - r.First)
	}
	return h
}

// TotalHits is the number of blocks.
func (h *SharedHits) TotalHits() int { return h.total }

// Beyond is the number of blocks at position d and after it.
func (h *SharedHits) Beyond(d int) int {
	at, _ := slices.BinarySearchFunc(h.ranges, d, func(r Range, d int) int {
		if int(r.End) <= d {
			return -1
		}
		return 1
	})
	if at == len(h.ranges) {
		return 0
	}
	return h.total - h.before[at] - max(0, d-int(h.ranges[at].First))
}
