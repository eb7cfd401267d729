package config

import (
	"fmt"

	"github.com/blockyard-ai/blockyard/internal/kv"
)

// CacheLevel is a tier by the name that KVBM gives it. Zero is no level, so
// that what a closed channel yields empties nothing.
type CacheLevel uint8

const (
	// G1 is device memory.
	G1 CacheLevel = iota + 1
	// G2 is pinned host memory.
	G2
	// G3 is local disk.
	G3
	// G4 is anything off this node.
	G4
)

// String is "G1" to "G4".
func (l CacheLevel) String() string {
	if l < G1 || l > G4 {
		return fmt.Sprintf("cache level %d", uint8(l))
	}
	return fmt.Sprintf("G%d", uint8(l))
}

// ParseCacheLevel reads what String writes.
func ParseCacheLevel(s string) (CacheLevel, error) {
	for l := G1; l <= G4; l++ {
		if l.String() == s {
			return l, nil
		}
	}
	return 0, fmt.Errorf("cache level %q: want %s, %s, %s or %s", s, G1, G2, G3, G4)
}

// Tier is the tier that the level names.
func (l CacheLevel) Tier() (kv.Tier, error) {
	switch l {
	case G1:
		return kv.TierDevice, nil
	case G2:
		return kv.TierHost, nil
	case G3:
		return kv.TierDisk, nil
	case G4:
		return kv.TierExternal, nil
	}
	return 0, fmt.Errorf("cache level %d: want %d (%s) to %d (%s)", uint8(l), G1, G1, G4, G4)
}
