package tenant

import (
	"errors"
	"fmt"
	"maps"
	"slices"

	"github.com/blockyard-ai/blockyard/internal/kv"
)

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

// WithLimit returns a copy of the limits of models with another bound of a tier for one of them; 0 is no bound.
func WithLimit(limits map[string]Limit, model string, kind kv.Tier, bytes uint64) map[string]Limit {
	changed := maps.Collect(maps.All(limits))
	if changed[model] = changed[model].With(kind, bytes); changed[model] == (Limit{}) {
		delete(changed, model)
	}
	return changed
}

// WithLimitOf returns a copy of tenants with another bound of a tier for a tenant in one model, or in AllModels. known
// is false when none of them has the name.
func WithLimitOf(tenants []Tenant, name, model string, kind kv.Tier, bytes uint64) (changed []Tenant, known bool) {
	changed = slices.Clone(tenants)
	at := slices.IndexFunc(changed, func(t Tenant) bool { return t.Name == name })
	if at < 0 {
		return nil, false
	}
	changed[at].SetLimit(model, kind, bytes)
	return changed, true
}

// CheckLimits returns an error for limits of models that are too many, or of a model without a name.
func CheckLimits(limits map[string]Limit) error {
	if n := len(limits); n > MaxModels {
		return fmt.Errorf("limits of %d models: want at most %d", n, MaxModels)
	}
	if _, ok := limits[AllModels]; ok {
		return errors.New("a limit without a model")
	}
	return nil
}
