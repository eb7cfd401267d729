package schedule

import (
	"fmt"
	"math"

	"github.com/blockyard-ai/blockyard/internal/kv"
	"github.com/blockyard-ai/blockyard/router/index"
)

// Config weighs what is cached against what is loaded. Zero is a meaningful
// weight in every field, so start from DefaultConfig.
type Config struct {
	// OverlapCredit multiplies the credit for device blocks, 0..maxWeight; 1 is
	// the default. Above 1, a cached prefix also makes up for decode load.
	OverlapCredit float64
	// CreditDecay fades the device credit of workers that have more prefill
	// pending than the least loaded one, 0..maxWeight; 0, the default, does not.
	CreditDecay float64
	// PrefillLoadScale weighs blocks to compute against blocks that decode,
	// 0..maxWeight; 1 is the default.
	PrefillLoadScale float64
	// ActiveRequestWeight is what one running request costs besides its blocks,
	// in blocks, 0..maxWeight; 0 is the default.
	ActiveRequestWeight float64
	// HostWeight and DiskWeight are what a block in host memory, and one on disk
	// or farther away, is worth next to one on the device, 0..1; 0.75 and 0.25
	// are the defaults. A tier of weight 0 is not looked at.
	HostWeight, DiskWeight float64
}

// maxWeight keeps every cost finite.
const maxWeight = 1e6

// DefaultConfig are the weights that the router starts with.
func DefaultConfig() Config {
	return Config{OverlapCredit: 1, PrefillLoadScale: 1, HostWeight: 0.75, DiskWeight: 0.25}
}

// Validate reports the first weight that is out of range.
func (c *Config) Validate() error {
	for _, f := range []struct {
		name   string
		v, max float64
	}{
		{"overlap score credit", c.OverlapCredit, maxWeight},
		{"overlap score credit decay", c.CreditDecay, maxWeight},
		{"prefill load scale", c.PrefillLoadScale, maxWeight},
		{"active request weight", c.ActiveRequestWeight, maxWeight},
		{"host cache hit weight", c.HostWeight, 1},
		{"disk cache hit weight", c.DiskWeight, 1},
	} {
		if err := checkRange(f.name, f.v, f.max); err != nil {
			return err
		}
	}
	return nil
}

func checkRange(name string, v, limit float64) error {
	// A NaN is in no range.
	if !(v >= 0 && v <= limit) {
		return fmt.Errorf("%s: %v is not in 0..%v", name, v, limit)
	}
	return nil
}

// below is the weighted number of hits below the device.
func (c *Config) below(h index.Hits) float64 {
	return c.HostWeight*float64(h[kv.TierHost]) +
		c.DiskWeight*(float64(h[kv.TierDisk])+float64(h[kv.TierExternal]))
}

// Effective is the overlap of a prompt with a worker's cache in blocks: device
// blocks whole, lower tiers by their weight.
func (c *Config) Effective(h index.Hits) float64 {
	return float64(h[kv.TierDevice]) + c.below(h)
}

// CachedTokens is an effective overlap in tokens.
func CachedTokens(effective float64, blockSize int) int {
	return int(max(0, math.Round(effective*float64(blockSize))))
}
