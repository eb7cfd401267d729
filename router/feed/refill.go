package feed

import (
	"time"

	"github.com/blockyard-ai/blockyard/internal/backoff"
)

// Bounds of the time between two tries to get back what the index did not keep of an
// owner. What contradicts other owners' blocks is lost again each time.
const (
	firstRefill = 10 * time.Second
	lastRefill  = time.Hour
)

// refillLocked asks a publisher for everything when the index has lost some of it and
// has room for that now. One feed at a time: the room of several would be the same.
func (s *Set) refillLocked(f *feed, now time.Time) {
	switch {
	case f.lost == 0:
		f.refills = 0
		return
	case f.recovering, now.Before(f.refillAt),
		s.refilling != nil && s.refilling.recovering && now.Before(s.refilling.refillAt),
		!f.blocks.HasRoom(f.lost):
		return
	}
	s.refilling = f
	f.refills++
	f.refillAt = now.Add(backoff.Nth(backoff.Doubling(firstRefill, lastRefill), f.refills))
	f.recover(causeLost, now)
}
