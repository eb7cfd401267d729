package shape

import (
	"math"

	"github.com/blockyard-ai/blockyard/internal/kv"
	"github.com/blockyard-ai/blockyard/router/index"
)

// DefaultGroup is the routing group of requests that name none.
const DefaultGroup = "default"

// ModelOf returns the router's name of a model in a routing group. An empty group is the
// default one.
func ModelOf(model, group string) string {
	if group == "" || group == DefaultGroup {
		return model
	}
	return model + ":" + group
}

// Summary is what one worker holds of a prompt, in tokens. CPU and Disk count the tiers before
// them too.
type Summary struct {
	LongestMatched uint32 `json:"longest_matched"`
	GPU            uint32 `json:"gpu"`
	// DP has the device's tokens by rank.
	DP   map[string]uint32 `json:"dp"`
	CPU  uint32            `json:"cpu"`
	Disk uint32            `json:"disk"`
}

// Add adds what a rank of the worker holds of a prompt: h has its blocks by tier, of blockSize
// tokens each. GPU, CPU and Disk are those of the best rank. Add returns the tokens on the rank's
// device.
func (s *Summary) Add(rank string, h index.Hits, blockSize uint32) (gpu uint32) {
	tokens := func(tiers ...kv.Tier) uint32 {
		blocks := uint64(0)
		for _, t := range tiers {
			blocks += uint64(h[t])
		}
		return uint32(min(blocks*uint64(blockSize), math.MaxUint32))
	}
	if s.DP == nil {
		s.DP = make(map[string]uint32)
	}
	gpu = tokens(kv.TierDevice)
	s.DP[rank] = gpu
	s.GPU = max(s.GPU, gpu)
	s.CPU = max(s.CPU, tokens(kv.TierDevice, kv.TierHost))
	s.Disk = max(s.Disk, tokens(kv.TierDevice, kv.TierHost, kv.TierDisk, kv.TierExternal))
	s.LongestMatched = max(s.GPU, s.CPU, s.Disk)
	return gpu
}
