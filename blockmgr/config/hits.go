package config

// Hits counts the blocks that were asked for, and those that host and disk had.
type Hits struct{ Blocks, Host, Disk uint64 }

// HitRates are the shares of host and disk in the blocks that the last samples asked for.
// HitRates is not safe for concurrent use.
type HitRates struct {
	last   []Hits // a ring of at most its capacity
	oldest int
	sum    Hits
}

// NewHitRates returns hit rates that span up to that many samples, at least 1.
func NewHitRates(samples int) HitRates { return HitRates{last: make([]Hits, 0, samples)} }

// Add adds a sample, unless it asked for nothing, and reports whether it did. The sample
// replaces the oldest one.
func (r *HitRates) Add(h Hits) bool {
	if h.Blocks == 0 {
		return false
	}
	if len(r.last) < cap(r.last) {
		r.last = append(r.last, h)
	} else {
		old := &r.last[r.oldest]
		r.sum.Blocks -= old.Blocks
		r.sum.Host -= old.Host
		r.sum.Disk -= old.Disk
		*old = h
		r.oldest = (r.oldest + 1) % len(r.last)
	}
	r.sum.Blocks += h.Blocks
	r.sum.Host += h.Host
	r.sum.Disk += h.Disk
	return true
}

// Samples returns the number of samples that the rates span now.
func (r *HitRates) Samples() int { return len(r.last) }

// Rates returns the shares, 0 to 1. They are 0 before the first sample.
func (r *HitRates) Rates() (host, disk float64) {
	if r.sum.Blocks == 0 {
		return 0, 0
	}
	return float64(r.sum.Host) / float64(r.sum.Blocks), float64(r.sum.Disk) / float64(r.sum.Blocks)
}
