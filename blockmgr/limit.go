package blockmgr

import (
	"cmp"
	"errors"
	"fmt"
	"maps"
	"slices"
	"sync"

	"github.com/blockyard-ai/blockyard/blockmgr/registry"
	"github.com/blockyard-ai/blockyard/blockmgr/storage"
	"github.com/blockyard-ai/blockyard/blockmgr/tenant"
	"github.com/blockyard-ai/blockyard/blockmgr/tier"
	"github.com/blockyard-ai/blockyard/internal/bytesize"
	"github.com/blockyard-ai/blockyard/internal/kv"
)

// Limit bounds the bytes of a model or a tenant in the tiers of the node; 0 is no bound.
type Limit = tenant.Limit

// modelUse is what the pools of one model use in each tier.
type modelUse struct {
	bytes [registry.NumLevels]tier.Usage
	// pools counts the pools of the model. modelUses.mu guards it.
	pools int
}

// modelUses has the use of each model with a pool.
type modelUses struct {
	mu     sync.Mutex
	models map[string]*modelUse
}

// enter returns the use of a model for a new pool, until leave.
func (u *modelUses) enter(model string) *modelUse {
	u.mu.Lock()
	defer u.mu.Unlock()
	if u.models == nil {
		u.models = map[string]*modelUse{}
	}
	use := u.models[model]
	if use == nil {
		use = &modelUse{}
		u.models[model] = use
	}
	use.pools++
	return use
}

// leave ends enter.
func (u *modelUses) leave(model string) {
	u.mu.Lock()
	defer u.mu.Unlock()
	if use := u.models[model]; use != nil {
		if use.pools--; use.pools == 0 {
			delete(u.models, model)
		}
	}
}

// of returns the bytes that a model uses in a tier.
func (u *modelUses) of(model string, lv registry.Level) uint64 {
	u.mu.Lock()
	defer u.mu.Unlock()
	if use := u.models[model]; use != nil {
		return use.bytes[lv].Bytes()
	}
	return 0
}

// modelLimits returns the models with a bound in a tier.
func (b *broker) modelLimits(lv registry.Level) map[string]uint64 {
	bounded := map[string]uint64{}
	for model, l := range *b.limits.Load() {
		if bound := l.Of(kindOf(lv)); bound != 0 {
			bounded[model] = bound
		}
	}
	return bounded
}

func kindOf(lv registry.Level) kv.Tier {
	if lv == registry.Host {
		return kv.TierHost
	}
	return kv.TierDisk
}

// room returns the bytes of a tier that the pool may still take from nobody: unused ones, within the
// limit of its model.
func (p *Pool) room(lv registry.Level) uint64 {
	return min(p.broker.room(lv), p.limitRoom(lv))
}

// limitRoom returns the bytes of a tier that are left of the limit of the pool's model.
func (p *Pool) limitRoom(lv registry.Level) uint64 {
	bound := (*p.broker.limits.Load())[p.ns.Model].Of(kindOf(lv))
	if bound == 0 {
		return ^uint64(0)
	}
	return bound - min(p.use.bytes[lv].Bytes(), bound)
}

// withinLimit bounds the slots of a new extent of pool p by the limit of its model. When the limit is
// used up it takes room from unused pools of the model. ErrFull: none has room.
func (b *broker) withinLimit(p *Pool, lv registry.Level, least, maxSlots uint64) (most uint64, err error) {
	for {
		left := p.limitRoom(lv)
		if slots := left / p.slotBytes; slots >= max(least, 1) {
			if left == ^uint64(0) {
				return maxSlots, nil
			}
			if maxSlots == 0 || slots < maxSlots {
				maxSlots = slots
			}
			return maxSlots, nil
		}
		if !b.yieldUnused(p, lv) {
			return 0, fmt.Errorf("%s limit of model %q: %w: %v are left", tierName(kindOf(lv)), p.ns.Model, storage.ErrFull, bytesize.Size(left))
		}
	}
}

// yieldUnused makes an unused pool of p's model give an extent, and reports whether one did.
func (b *broker) yieldUnused(p *Pool, lv registry.Level) bool {
	for _, other := range poolsOf(b.pools(), p.ns.Model) {
		if other != p && !other.holding(lv).InUse && other.yield(lv) {
			return true
		}
	}
	return false
}

// ModelLimits returns the models with a limit. The caller must not change the map.
func (m *Manager) ModelLimits() map[string]Limit { return *m.broker.limits.Load() }

// ModelUse returns the bytes of the extents of a model's pools in a tier.
func (m *Manager) ModelUse(model string, kind kv.Tier) uint64 {
	return m.broker.uses.of(model, levelOf(kind))
}

func levelOf(kind kv.Tier) registry.Level {
	if kind == kv.TierHost {
		return registry.Host
	}
	return registry.Disk
}

// SetModelLimits replaces the limits of models. A pool over the limit of its model gives whole extents
// back, the coldest first; Resize says which stay. settled is closed as that of Resize. After an error
// nothing has changed.
func (m *Manager) SetModelLimits(limits map[string]Limit) (settled <-chan struct{}, err error) {
	if err := tenant.CheckLimits(limits); err != nil {
		return nil, err
	}
	m.quotas.Lock()
	defer m.quotas.Unlock()
	return m.setModelLimits(limits), nil
}

// setModelLimits is SetModelLimits with limits that are valid. The caller holds m.quotas.
func (m *Manager) setModelLimits(limits map[string]Limit) (settled <-chan struct{}) {
	limits = maps.Collect(maps.All(limits)) // a copy that is not nil
	m.broker.limits.Store(&limits)
	m.broker.turns.Add(1) // pools that could not grow may try again
	return m.broker.trim()
}

// Tenant is what a tenant may have; see SetTenants.
type Tenant = tenant.Tenant

// OwnerOf returns the owner of the blocks of requests with a cache salt, for Root.Owner; 0 is none.
func (m *Manager) OwnerOf(salt string) uint64 { return m.broker.tenants.OwnerOf(salt) }

// Tenants returns the tenants of the node with what they use.
func (m *Manager) Tenants() []tenant.Status { return m.broker.tenants.Status() }

// TenantList returns the tenants of the last SetTenants. The caller must not change them.
func (m *Manager) TenantList() []Tenant { return m.broker.tenants.Tenants() }

// SetTenants replaces the tenants. Blocks of a tenant over its limit are evicted, the coldest first;
// those in use stay and count, kept ones included. A new time to live is that of blocks that are stored
// later. settled is closed as that of Resize. After an error nothing has changed.
func (m *Manager) SetTenants(tenants []Tenant) (settled <-chan struct{}, err error) {
	m.quotas.Lock()
	defer m.quotas.Unlock()
	return m.setTenants(tenants)
}

// CheckTenants returns the error with which SetTenants would refuse tenants now.
func (m *Manager) CheckTenants(tenants []Tenant) error { return m.broker.tenants.Check(tenants) }

// setTenants is SetTenants. The caller holds m.quotas.
func (m *Manager) setTenants(tenants []Tenant) (settled <-chan struct{}, err error) {
	if err := m.broker.tenants.Set(tenants); err != nil {
		return nil, err
	}
	return m.broker.trim(), nil
}

// These are the values of QuotaName.Of.
const (
	OfModel       = "model"
	OfTenant      = "tenant"
	OfTenantModel = "tenant_model"
)

// ErrNoTenant: the node has no such tenant.
var ErrNoTenant = errors.New("no such tenant here")

// QuotaBytes are a limit in a tier, 0 for none, and the bytes that are used.
type QuotaBytes struct {
	Limit uint64 `json:"limit_bytes"`
	Used  uint64 `json:"used_bytes"`
}

// QuotaName says whose a quota is: of the model or the tenant Name, or of the tenant Name in Model.
type QuotaName struct {
	Of    string `json:"of"`
	Name  string `json:"name"`
	Model string `json:"model,omitempty"`
}

// Quota is what a model or a tenant may have and has. A model uses whole extents, a tenant the slots of
// its blocks.
type Quota struct {
	QuotaName
	// Share is a model's part of a tier that several models want; see Manager.SetWeights.
	Share uint64     `json:"share,omitempty"`
	Host  QuotaBytes `json:"host"`
	Disk  QuotaBytes `json:"disk"`
	// TTL is the time in seconds that a tenant's blocks live, 0 for ever.
	TTL float64 `json:"ttl_seconds,omitempty"`
}

// bytes returns what the quota says of a tier.
func (q *Quota) bytes(kind kv.Tier) QuotaBytes {
	if kind == kv.TierHost {
		return q.Host
	}
	return q.Disk
}

// Quotas returns the models that have a limit, a share or an open pool, by name, and then the tenants.
func (m *Manager) Quotas() (all []Quota) {
	limits, weights := m.ModelLimits(), m.Weights()
	models := map[string]bool{}
	for name := range limits {
		models[name] = true
	}
	for name := range weights {
		models[name] = true
	}
	for _, p := range m.Pools() {
		models[p.ns.Model] = true
	}
	all = []Quota{}
	for _, name := range slices.Sorted(maps.Keys(models)) {
		of := func(kind kv.Tier) QuotaBytes { return QuotaBytes{limits[name].Of(kind), m.ModelUse(name, kind)} }
		all = append(all, Quota{QuotaName: QuotaName{Of: OfModel, Name: name}, Share: cmp.Or(weights[name], 1), Host: of(kv.TierHost), Disk: of(kv.TierDisk)})
	}
	for _, t := range m.Tenants() {
		add := func(of, model string, s *tenant.Share, ttl float64) {
			bytes := func(lv registry.Level) QuotaBytes { return QuotaBytes{s.Limit[lv], s.Used[lv]} }
			all = append(all, Quota{QuotaName: QuotaName{of, t.Name, model}, Host: bytes(registry.Host), Disk: bytes(registry.Disk), TTL: ttl})
		}
		add(OfTenant, "", &t.Share, t.TTL.Seconds())
		for i := range t.Models {
			add(OfTenantModel, t.Models[i].Model, &t.Models[i], 0)
		}
	}
	return all
}

// QuotaOf returns what a model or a tenant may have and has in a tier.
func (m *Manager) QuotaOf(name QuotaName, kind kv.Tier) QuotaBytes {
	for _, q := range m.Quotas() {
		if q.QuotaName == name {
			return q.bytes(kind)
		}
	}
	return QuotaBytes{}
}

// CheckQuota returns the limit of a model or a tenant in a tier with a size in bytes, and the error with
// which SetQuota would refuse another one.
func (m *Manager) CheckQuota(name QuotaName, kind kv.Tier, bytes uint64) (before uint64, err error) {
	a, err := m.sizedArena(kind)
	if err != nil {
		return 0, err
	}
	if _, _, err := m.withQuota(name, kind, bytes); err != nil {
		return 0, err
	}
	least, unit := a.ExtentBytes(), "one extent"
	if name.Of != OfModel {
		least, unit = storage.PageSize, "the smallest block"
	}
	if bytes != 0 && bytes < least {
		return 0, fmt.Errorf("%s limit %v: want 0 (none) or at least %v (%s): %w", tierName(kind), bytesize.Size(bytes), bytesize.Size(least), unit, ErrSize)
	}
	return m.QuotaOf(name, kind).Limit, nil
}

// withQuota returns the tenants, or the limits of models, with another limit in a tier. It changes nothing.
func (m *Manager) withQuota(name QuotaName, kind kv.Tier, bytes uint64) (tenants []Tenant, limits map[string]Limit, err error) {
	if name.Of == OfModel {
		limits = tenant.WithLimit(m.ModelLimits(), name.Name, kind, bytes)
		err = tenant.CheckLimits(limits)
	} else {
		var known bool
		if tenants, known = tenant.WithLimitOf(m.TenantList(), name.Name, name.Model, kind, bytes); !known {
			return nil, nil, fmt.Errorf("tenant %.80q is not in the limits file: %w", name.Name, ErrNoTenant)
		}
		err = m.CheckTenants(tenants)
	}
	if err != nil {
		return nil, nil, fmt.Errorf("%w: %w", err, ErrSize)
	}
	return tenants, limits, nil
}

// SetQuota changes one limit in a tier; 0 is no limit. settled is that of
// SetModelLimits and SetTenants.
func (m *Manager) SetQuota(name QuotaName, kind kv.Tier, bytes uint64) (settled <-chan struct{}, err error) {
	m.quotas.Lock()
	defer m.quotas.Unlock()
	if _, err := m.CheckQuota(name, kind, bytes); err != nil {
		return nil, err
	}
	tenants, limits, err := m.withQuota(name, kind, bytes)
	if err != nil {
		return nil, err
	}
	if name.Of == OfModel {
		return m.setModelLimits(limits), nil
	}
	return m.setTenants(tenants)
}
