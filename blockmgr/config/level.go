package config

import (
	"context"
	"fmt"

	"github.com/blockyard-ai/blockyard/internal/kv"
)

// CacheLevel is KVBM's name of a tier. Zero is no level: a receive from a closed channel
// empties nothing.
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

// String returns "G1" to "G4".
func (l CacheLevel) String() string {
	if l < G1 || l > G4 {
		return fmt.Sprintf("cache level %d", uint8(l))
	}
	return fmt.Sprintf("G%d", uint8(l))
}

// Tier returns the tier that the level names.
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

// ServeResets empties the levels that arrive on Reset, one at a time and in order. It
// returns when ctx ends or Reset is closed, and at once without Reset. An error of empty
// goes to refused, and the next request is served.
func (c *Config) ServeResets(ctx context.Context, empty func(context.Context, CacheLevel) error, refused func(CacheLevel, error)) {
	for c.Reset != nil {
		select {
		case <-ctx.Done():
			return
		case level, open := <-c.Reset:
			if !open {
				return
			}
			if err := empty(ctx, level); err != nil {
				refused(level, err)
			}
		}
	}
}
