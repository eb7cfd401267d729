package tenant

import "github.com/blockyard-ai/blockyard/internal/kv"

// Limit bounds the bytes of a model or a tenant in the tiers of the node; 0 is no bound.
type Limit struct {
	HostBytes uint64 `json:"host_bytes"`
	DiskBytes uint64 `json:"disk_bytes"`
}

// Of returns the bound of a tier, 0 for none.
func (l Limit) Of(kind kv.Tier) uint64 {
	if kind == kv.TierHost {
		return l.HostBytes
	}
	return l.DiskBytes
}

// With returns l with another bound of a tier.
func (l Limit) With(kind kv.Tier, bytes uint64) Limit {
	if kind == kv.TierHost {
		l.HostBytes = bytes
	} else {
		l.DiskBytes = bytes
	}
	return l
}
