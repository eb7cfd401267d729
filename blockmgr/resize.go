package blockmgr

import (
	"errors"
	"fmt"

	"go.uber.org/zap"

	"github.com/blockyard-ai/blockyard/blockmgr/policy"
	"github.com/blockyard-ai/blockyard/blockmgr/registry"
	"github.com/blockyard-ai/blockyard/blockmgr/tenant"
	"github.com/blockyard-ai/blockyard/blockmgr/tier"
	"github.com/blockyard-ai/blockyard/internal/bytesize"
	"github.com/blockyard-ai/blockyard/internal/kv"
)

// ErrSize: a tier cannot have the size. The text says why.
var ErrSize = errors.New("size is refused")

// TierSize is the size of a tier that all namespaces share, in bytes.
type TierSize struct {
	// Bytes is the size, Used the bytes of it that extents take. Used is more than Bytes while extents
	// beyond a new size have blocks in use.
	Bytes, Used uint64
}

// arenaSize is the part of an arena that a change of its size needs.
type arenaSize interface {
	Bytes() uint64
	Used() uint64
	Resize(bytes uint64)
	ExtentBytes() uint64
	DropUnclaimed() (within bool)
}

// sizedArena returns the arena of a tier with a size in bytes. ErrNoTier: the tier is off, has not
// been opened yet, or is bounded in blocks.
func (m *Manager) sizedArena(kind kv.Tier) (arenaSize, error) {
	disk := m.broker.disk.Load()
	switch {
	case kind == kv.TierHost && m.cfg.BypassesHost():
		return nil, fmt.Errorf("tier host is bypassed: %w", ErrNoTier)
	case kind == kv.TierHost && m.cfg.HostBlocks != 0, kind == kv.TierDisk && m.cfg.DiskBlocks != 0:
		return nil, fmt.Errorf("tier %s has a number of blocks for each namespace and no size in bytes: %w", tierName(kind), ErrNoTier)
	case kind == kv.TierHost && m.cfg.HostBytes != 0:
		return m.broker.host, nil
	case kind == kv.TierDisk && m.cfg.DiskBytes != 0 && disk != nil:
		return disk, nil
	case kind == kv.TierDisk && m.cfg.DiskBytes != 0:
		return nil, fmt.Errorf("tier disk: the disk has not answered yet: %w", ErrNoTier)
	}
	return nil, fmt.Errorf("tier %s is off: %w", tierName(kind), ErrNoTier)
}

func tierName(kind kv.Tier) string {
	if kind == kv.TierHost {
		return "host"
	}
	return "disk"
}

// Size returns the size of a tier. ErrNoTier: the tier has no size in bytes.
func (m *Manager) Size(kind kv.Tier) (TierSize, error) {
	a, err := m.sizedArena(kind)
	if err != nil {
		return TierSize{}, err
	}
	return TierSize{a.Bytes(), a.Used()}, nil
}

// CheckResize returns the error with which Resize would fail now, without the node's memory and disk
// space, which Manager does not know.
func (m *Manager) CheckResize(kind kv.Tier, bytes uint64) error {
	a, err := m.sizedArena(kind)
	if err != nil {
		return err
	}
	least := a.ExtentBytes() // a pool in use keeps its last extent
	for _, p := range m.Pools() {
		least = max(least, p.slotBytes)
	}
	if most := a.ExtentBytes() * MaxExtents; bytes < least || bytes > most {
		return fmt.Errorf("%s size %v: want %v (one extent) to %v (%d extents): %w",
			tierName(kind), bytesize.Size(bytes), bytesize.Size(least), bytesize.Size(most), MaxExtents, ErrSize)
	}
	return nil
}

// Resize changes the size of a tier while its pools are in use, until the manager closes. A larger tier
// gets extents as pools ask for them. A smaller one gives whole extents back: first those of an earlier
// agent that no pool has claimed, then those of unused pools, then those of the pools most over their
// share, the coldest first. Their blocks are evicted. An extent with a slot in use stays until the slot
// is no longer used, and a pool in use keeps its last extent.
//
// settled is closed when the tier is within its size, when slots in use have kept it beyond for about ten
// minutes, or when the manager closes. After these minutes another try begins with the next operation,
// retention pin or session that ends. ErrNoTier, ErrSize: nothing has changed; see CheckResize.
func (m *Manager) Resize(kind kv.Tier, bytes uint64) (settled <-chan struct{}, err error) {
	if err := m.CheckResize(kind, bytes); err != nil {
		return nil, err
	}
	a, err := m.sizedArena(kind)
	if err != nil {
		return nil, err
	}
	m.cfg.Log.Info("tier is resized", zap.String("tier", tierName(kind)), zap.Uint64("bytes_before", a.Bytes()), zap.Uint64("bytes", bytes))
	a.Resize(bytes)
	for _, p := range m.Pools() {
		p.resized()
		m.expectBlocks(p.slotBytes)
	}
	m.broker.turns.Add(1) // pools that could not grow may try again
	return m.broker.trim(), nil
}

// expectBlocks tells a filter that counts blocks how many blocks of that size the tiers can hold; see
// Config.Filter.
func (m *Manager) expectBlocks(slotBytes uint64) {
	f, ok := m.cfg.Filter.(interface{ Expect(blocks uint64) })
	if !ok {
		return
	}
	sized := m.cfg // with the sizes of the last Resize
	for _, kind := range []kv.Tier{kv.TierHost, kv.TierDisk} {
		if s, err := m.Size(kind); err == nil && kind == kv.TierHost {
			sized.HostBytes = s.Bytes
		} else if err == nil {
			sized.DiskBytes = s.Bytes
		}
	}
	f.Expect(sized.blocksOf(slotBytes))
}

// resized adapts the pool to the new size of a tier: the bound of its host extents, and its tries to grow.
func (p *Pool) resized() {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.slots.Host == nil || p.cfg.BypassesHost() {
		return
	}
	arena := p.broker.host
	most := p.cfg.maxHostExtents(arena.Bytes(), p.slotBytes, arena.ExtentBytes(), p.growth.host.leastSlots)
	// As after a restart, extents of other sizes do not count against the bound.
	p.growth.maxHostExtents = min(most+p.slots.Host.Live, registry.MaxExtents)
	p.growth.host.failed, p.growth.disk.failed = false, false
	for _, t := range p.slots.Tiers() {
		t.SetTurnover(p.sizeLocked(t))
	}
	p.wakeGrowerLocked()
}

// trim begins to bring tiers within their sizes and limits. The channel is closed when they are; see settle.Loop.
func (b *broker) trim() (settled <-chan struct{}) { return b.trimmer.Begin() }

// trimIfLimited is trim, if a model or a tenant has a limit: what an earlier agent left in a tier may be
// beyond it, and so may the extents that two pools of a model have made at once.
func (b *broker) trimIfLimited() {
	if len(*b.limits.Load()) > 0 || len(b.tenants.Tenants()) > 0 {
		b.trim()
	}
}

// warnBeyond logs that the trimmer has given up.
func (b *broker) warnBeyond() {
	b.log.Warn("a tier is larger than its size, or a model or tenant is over its limit: slots in use keep it there. " +
		"Blockyard tries again when one is released.")
}

// trimTo gives back what can be given back now. within says that nothing is beyond its bound.
func (b *broker) trimTo() (within bool) {
	within = true
	pools := b.pools()
	for _, p := range pools {
		within = p.trimTenants() && within
	}
	for lv := range registry.Level(registry.NumLevels) {
		arena := b.arena(lv)
		if arena == nil {
			continue
		}
		if !arena.DropUnclaimed() {
			within = b.trimPools(pools, lv, arena.Bytes(), arena.Used) && within
		}
		for model, limit := range b.modelLimits(lv) {
			own := poolsOf(pools, model)
			within = b.trimPools(own, lv, limit, func() uint64 { return b.uses.of(model, lv) }) && within
		}
	}
	return within
}

// arena returns the arena of a tier, nil when there is none.
func (b *broker) arena(lv registry.Level) arenaSize {
	disk := b.disk.Load()
	switch {
	case lv == registry.Host && b.host != nil:
		return b.host
	case lv == registry.Disk && disk != nil:
		return disk
	}
	return nil
}

// trimPools makes pools give extents of a tier until used returns at most bound. within says that it does.
func (b *broker) trimPools(pools []*Pool, lv registry.Level, bound uint64, used func() uint64) (within bool) {
	for used() > bound {
		if !b.giveOne(pools, lv, bound) {
			return false
		}
	}
	return true
}

// giveOne makes one of the pools give an extent: an unused pool, or the one most over its share of bound
// bytes. It returns false when none can.
func (b *broker) giveOne(pools []*Pool, lv registry.Level, bound uint64) bool {
	holders := make([]policy.Holder, len(pools)+1)
	for i, p := range pools {
		holders[i] = p.holding(lv)
	}
	taker := len(pools)
	holders[taker] = policy.Holder{Extent: 1, InUse: true} // takes for nobody: it has no share
	for {
		i, ok := policy.Giver(holders, taker, bound, true)
		if !ok {
			return false
		}
		if pools[i].yield(lv) {
			return true
		}
		holders[i].Bytes = 0 // no extent of it is idle
	}
}

// poolsOf returns the pools of a model, or all for tenant.AllModels.
func poolsOf(pools []*Pool, model string) (own []*Pool) {
	for _, p := range pools {
		if p.ns.Model == model || model == tenant.AllModels {
			own = append(own, p)
		}
	}
	return own
}

// trimTenants evicts blocks of tenants over their limits, a few hundred under one lock. within: none is any more.
func (p *Pool) trimTenants() (within bool) {
	for {
		var more bool
		if within, more = p.trimSomeTenants(); !more {
			return within
		}
	}
}

func (p *Pool) trimSomeTenants() (within, more bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.life.closing {
		return true, false
	}
	if within, more = p.slots.TrimTenants(); more && p.slots.Disk != nil {
		p.mover.RequestFlush()
	}
	return within, more
}

// shareTenants evicts a tenant's coldest blocks in other pools for a pool that needs room at the tenant's limit.
// It evicts only blocks older than the pool's own. done is false when a pool needed room; the loop then looks
// again after a pause.
func (b *broker) shareTenants() (done bool) {
	done = true
	pools := b.pools()
	for _, p := range pools {
		for _, short := range p.takeShort() {
			done = false
			for b.tenants.At(short.Tenant).Over(short.Model, short.Level, short.Bytes) && makeRoom(poolsOf(pools, short.Model), p, &short) {
			}
		}
	}
	return done
}

func (p *Pool) takeShort() []tier.Short {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.slots.TakeShort()
}

// makeRoom makes the pool with the coldest block of a tenant evict, but not pool p, which lacks room. It returns
// false when no pool has an older block than p.
func makeRoom(pools []*Pool, p *Pool, short *tier.Short) bool {
	var from *Pool
	oldest, next := short.Coldest, short.Coldest // next is the age up to which from has the oldest blocks
	for _, other := range pools {
		if other == p {
			continue
		}
		switch age, ok := other.coldestOf(short); {
		case !ok || age >= next:
		case age < oldest:
			from, oldest, next = other, age, oldest
		default:
			next = age
		}
	}
	return from != nil && from.giveRoom(short, next)
}

// coldestOf returns when the pool's coldest block of a tenant was used; ok is false without one to evict.
func (p *Pool) coldestOf(short *tier.Short) (age tenant.Age, ok bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.life.closing {
		return 0, false
	}
	return p.slots.Coldest(short.Level, short.Tenant)
}

// giveRoom evicts blocks of a tenant that were used until last, and reports whether there were any.
func (p *Pool) giveRoom(short *tier.Short, last tenant.Age) (some bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.life.closing {
		return false
	}
	some = p.slots.MakeRoom(short, last)
	if some && short.Level == registry.Disk {
		p.mover.RequestFlush()
	}
	return some
}
