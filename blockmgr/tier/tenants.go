package tier

import (
	"container/heap"
	"time"

	"github.com/blockyard-ai/blockyard/blockmgr/registry"
	"github.com/blockyard-ai/blockyard/blockmgr/storage"
	"github.com/blockyard-ai/blockyard/blockmgr/tenant"
)

// maxTenantEvictions bounds the blocks of a tenant that one new block of the tenant evicts.
const maxTenantEvictions = 64

// tenancy is what a set keeps for blocks that have a tenant.
type tenancy struct {
	// deadlines says when the block of an entry expires, after start. due has the same, the soonest first,
	// and what is no longer true.
	deadlines map[registry.ID]int64
	due       queue
	start     time.Time
	// erasing are slots without a block that must be overwritten before they are free. Each is
	// quarantined and held. onErase is called for each new one; nil while the set has no pool.
	erasing []slotName
	onErase func()
	// short maps a tenant at a limit to the bytes that this pool wants for the tenant's new blocks.
	// noteShort calls onShort, which is nil while the set has no pool.
	short   map[shortName]uint64
	onShort func()
	// leaving is true while TakeOut drops the blocks of an extent.
	leaving bool
}

// shortName names a limit of a tenant in a tier: that of the set's model, or of all models.
type shortName struct {
	tenant tenant.Index
	model  string
	level  registry.Level
}

// queued is an element of a queue.
type queued struct {
	at  uint64
	ref uint32
}

// queue orders what it has by at, ascending. It implements heap.Interface.
type queue []queued

func (q queue) Len() int           { return len(q) }
func (q queue) Less(i, j int) bool { return q[i].at < q[j].at }
func (q queue) Swap(i, j int)      { q[i], q[j] = q[j], q[i] }

// Push implements heap.Interface.
func (q *queue) Push(x any) { *q = append(*q, x.(queued)) }

// Pop implements heap.Interface.
func (q *queue) Pop() any {
	last := (*q)[len(*q)-1]
	*q = (*q)[:len(*q)-1]
	return last
}

// owned are the slots of one tenant in a tier: how many have a block, and which may be evicted, the least
// recently used first. coldest also has slots that were used since.
type owned struct {
	slots   int
	coldest queue
}

// OnErase sets what is called when Erasing has a slot that it did not have before.
func (set *Set) OnErase(do func()) { set.tenancy.onErase = do }

// OnShort sets what is called when TakeShort has something.
func (set *Set) OnShort(do func()) { set.tenancy.onShort = do }

// MarkOwner says whose bytes a recovered slot has, from its record. It reports whether the bytes must be
// erased: the tenant's blocks have a time to live, which ends with the agent.
func (set *Set) MarkOwner(s *Slot, r *storage.Record) (erase bool) {
	set.belongs(s, r.Owner)
	return set.erases(s)
}

// MarkSlot notes whose bytes a granted host slot without a block may have from now on. owner is the owner of
// a block, not 0. A slot that must be overwritten already keeps its tenant.
func (set *Set) MarkSlot(ref registry.Ref, owner uint64) {
	if s := set.Host.Slot(ref); !set.erases(s) {
		set.belongs(s, set.Tenants.RecordOwner(owner))
	}
}

// belongs notes the tenant of a slot's bytes, from the owner in their record.
func (set *Set) belongs(s *Slot, owner uint64) (account *tenant.Account) {
	s.tenant = set.Tenants.Index(owner)
	account = set.Tenants.At(s.tenant)
	s.timed = account.Timed(owner)
	return account
}

// enterTenant counts the block that has come into a slot as its tenant's.
func (set *Set) enterTenant(t *Tier, ref registry.Ref, s *Slot, owner uint64) {
	if owner == 0 {
		s.forgetTenant() // MarkSlot may have marked the slot for a block that was not registered
		return
	}
	account := set.belongs(s, owner)
	account.Take(set.model, t.Level, slotSize(t, ref))
	o := t.owned[s.tenant]
	if o == nil {
		o = &owned{}
		t.owned[s.tenant] = o
	}
	o.slots++
	if _, known := set.tenancy.deadlines[s.Entry]; s.timed && !known {
		set.setDeadline(s.Entry, int64(time.Since(set.tenancy.start)+account.TTL()))
	}
}

// leaveTenant ends enterTenant, before the block of the slot leaves the tier.
func (set *Set) leaveTenant(t *Tier, ref registry.Ref, s *Slot) {
	if s.Entry == registry.None {
		return
	}
	if s.tenant != 0 {
		set.Tenants.At(s.tenant).Give(set.model, t.Level, slotSize(t, ref))
	}
	if o := t.owned[s.tenant]; o != nil {
		if o.slots--; o.slots == 0 {
			delete(t.owned, s.tenant)
		}
	}
	if len(set.tenancy.deadlines) == 0 {
		return
	}
	// A copy without a tenant may be the last one of a block with a deadline: its salt was nobody's then.
	for lv, other := range set.Registry.At(s.Entry).Slots {
		if registry.Level(lv) != t.Level && other != registry.NoRef {
			return // another tier has the block
		}
	}
	delete(set.tenancy.deadlines, s.Entry)
}

// leaveTenants counts the slots of a tier as nobody's. The pool has ended.
func (set *Set) leaveTenants(t *Tier) {
	t.Each(func(ref registry.Ref, s *Slot) {
		if s.tenant != 0 && s.Entry != registry.None {
			set.Tenants.At(s.tenant).Give(set.model, t.Level, slotSize(t, ref))
		}
	})
}

func slotSize(t *Tier, ref registry.Ref) uint64 {
	e, _ := t.At(ref)
	return e.Geometry().SlotBytes
}

// placeOwned makes a slot with a tenant's block known to the tenant's own order.
func (t *Tier) placeOwned(ref registry.Ref, s *Slot) {
	if o := t.owned[s.tenant]; o != nil {
		if len(o.coldest) > 2*o.slots+64 {
			o.coldest = o.compact(t, s.tenant)
		}
		heap.Push(&o.coldest, queued{s.Tick, uint32(ref)})
	}
}

// compact returns the elements of coldest that are true, each once.
func (o *owned) compact(t *Tier, i tenant.Index) (left queue) {
	kept := make(map[uint32]bool, o.slots)
	for _, q := range o.coldest {
		if t.isColdest(q, i) && !kept[q.ref] {
			kept[q.ref] = true
			left = append(left, q)
		}
	}
	heap.Init(&left)
	return left
}

// isColdest reports whether an element of a tenant's order is true.
func (t *Tier) isColdest(q queued, i tenant.Index) bool {
	ref := registry.Ref(q.ref)
	if !t.Has(ref) {
		return false
	}
	s := t.Slot(ref)
	return s.tenant == i && s.inEvictionOrder && s.Tick == q.at
}

// coldestOf returns the tenant's block to evict first; ok is false without one.
func (t *Tier) coldestOf(i tenant.Index) (ref registry.Ref, ok bool) {
	o := t.owned[i]
	for o != nil && len(o.coldest) > 0 {
		q := o.coldest[0]
		if t.isColdest(q, i) {
			return registry.Ref(q.ref), true
		}
		heap.Pop(&o.coldest)
	}
	return registry.NoRef, false
}

// coldestOf is Tier.coldestOf after the tenant's disk blocks have the ages of host copies that were used later.
func (set *Set) coldestOf(t *Tier, i tenant.Index) (ref registry.Ref, ok bool) {
	return set.afterReprieves(t, func() (registry.Ref, bool) { return t.coldestOf(i) })
}

// scopes returns the names of the two limits of a tenant in this pool. A block that the first one lacks room for
// needs no room of the second.
func (set *Set) scopes() [2]string { return [...]string{set.model, tenant.AllModels} }

// overLimit reports whether another block of a tenant would be beyond one of its limits.
func (set *Set) overLimit(t *Tier, i tenant.Index) bool {
	account := set.Tenants.At(i)
	return account.Over(tenant.AllModels, t.Level, set.slotBytes) || account.Over(set.model, t.Level, set.slotBytes)
}

// TenantRoom reports whether a block of a tenant may come into a tier, and evicts the tenant's coldest
// blocks for it if the tenant would be over a limit. Blocks in use, kept ones included, stay and count.
// Colder blocks of other pools go later: TakeShort says so.
func (set *Set) TenantRoom(t *Tier, owner uint64) bool {
	if owner == 0 {
		return true
	}
	i := set.Tenants.Index(owner)
	for _, model := range set.scopes() {
		if !set.Tenants.At(i).Over(model, t.Level, set.slotBytes) {
			continue
		}
		within := set.evictOwned(t, i, model, set.slotBytes, maxTenantEvictions, anyAge)
		set.noteShort(t, i, model)
		if !within {
			set.Counters.TenantRefused++
			return false
		}
	}
	return true
}

// noteShort notes that a tenant at a limit needed room in a tier, if blocks of other pools can make it.
func (set *Set) noteShort(t *Tier, i tenant.Index, model string) {
	own, account, y := set.ownBytes(t, i), set.Tenants.At(i), &set.tenancy
	if account.Used(model, t.Level) <= own || y.onShort == nil {
		return
	}
	if _, ok := t.coldestOf(i); !ok && own+set.slotBytes > account.Limit(model, t.Level) {
		return // a block fits beside none of the pool's own, which are in use
	}
	if y.short == nil {
		y.short = map[shortName]uint64{}
	}
	y.short[shortName{i, model, t.Level}] += set.slotBytes
	y.onShort()
}

// ownBytes returns the bytes of the slots that a tenant's blocks take in a tier of this pool.
func (set *Set) ownBytes(t *Tier, i tenant.Index) uint64 {
	if o := t.owned[i]; o != nil {
		return uint64(o.slots) * set.slotBytes
	}
	return 0
}

// Short is a tenant that needed room in a pool while it was at a limit.
type Short struct {
	Level  registry.Level
	Tenant tenant.Index
	// Model is that of the limit, which is the pool's model or tenant.AllModels.
	Model string
	// Bytes is the room, and some for the blocks that come next; at most what the pool's own blocks leave of
	// the tenant's limits.
	Bytes uint64
	// Coldest is when the tenant's coldest block of the pool was used. Blocks of other pools that were used
	// before that should make the room.
	Coldest tenant.Age
}

// shortShare is the part of a limit that Short.Bytes has for the blocks that come next.
const shortShare = 16

// TakeShort returns the tenants that needed room since the last call.
func (set *Set) TakeShort() (all []Short) {
	for name, bytes := range set.tenancy.short {
		account := set.Tenants.At(name.tenant)
		s := Short{Level: name.level, Tenant: name.tenant, Model: name.model, Coldest: anyAge}
		s.Bytes = bytes + max(account.Limit(name.model, name.level)/shortShare, set.slotBytes)
		own := set.ownBytes(set.Tier(name.level), name.tenant)
		for _, model := range set.scopes() {
			if limit := account.Limit(model, name.level); limit != 0 {
				s.Bytes = min(s.Bytes, limit-min(own, limit))
			}
		}
		if age, ok := set.Coldest(name.level, name.tenant); ok {
			s.Coldest = age
		}
		all = append(all, s)
	}
	clear(set.tenancy.short)
	return all
}

// Coldest returns when the coldest block of a tenant that may be evicted from a tier was used; ok is false
// without one.
func (set *Set) Coldest(lv registry.Level, i tenant.Index) (age tenant.Age, ok bool) {
	t := set.Tier(lv)
	if t == nil {
		return 0, false
	}
	ref, ok := set.coldestOf(t, i)
	if !ok {
		return 0, false
	}
	return t.Slot(ref).used, true
}

// MakeRoom evicts blocks of a tenant, the coldest first and a few hundred at most, until the room that another
// pool is short of is within the limit. It evicts none that was used after last, and reports whether it evicted one.
func (set *Set) MakeRoom(short *Short, last tenant.Age) (some bool) {
	t := set.Tier(short.Level)
	if t == nil {
		return false
	}
	evictions := set.evictions()
	set.evictOwned(t, short.Tenant, short.Model, short.Bytes, resetDrops, last)
	return set.evictions() > evictions
}

func (set *Set) evictions() uint64 { return set.Counters.HostEvictions + set.Counters.DiskEvictions }

// TenantRoomFor is TenantRoom for a new block, whose nearest ancestor in the tier is not evicted.
func (set *Set) TenantRoomFor(t *Tier, b *Block) bool {
	if b.Owner == 0 || !set.overLimit(t, set.Tenants.Index(b.Owner)) {
		return true
	}
	if ref, ok := set.nearestAncestor(t, b); ok {
		set.Hold(t, ref)
		defer set.Release(t, ref)
	}
	return set.TenantRoom(t, b.Owner)
}

// nearestAncestor returns the slot of the nearest ancestor of b that the tier has.
func (set *Set) nearestAncestor(t *Tier, b *Block) (ref registry.Ref, ok bool) {
	parent, ok := set.ParentKey(b)
	if !ok {
		return registry.NoRef, false
	}
	for id := set.Registry.Find(&parent); id != registry.None; id = set.Registry.At(id).Parent {
		if ref := set.Registry.At(id).Slots[t.Level]; ref != registry.NoRef {
			return ref, true
		}
	}
	return registry.NoRef, false
}

// anyAge is later than every age.
const anyAge = ^tenant.Age(0)

// evictOwned evicts blocks of a tenant, at most so many and none that was used after last, until more bytes
// are within the tenant's limit of a model or of all models. It reports whether they are.
func (set *Set) evictOwned(t *Tier, i tenant.Index, model string, more uint64, most int, last tenant.Age) (within bool) {
	account := set.Tenants.At(i)
	for ; account.Over(model, t.Level, more); most-- {
		ref, ok := set.coldestOf(t, i)
		if !ok || most == 0 || t.Slot(ref).used > last {
			return false
		}
		set.countEviction(t)
		set.Drop(t, ref, storage.StateFree)
	}
	return true
}

// TrimTenants evicts blocks of tenants over their limits, at most a few hundred for each limit in each tier.
// within says that no tenant is over a limit; more, that it has evicted and may go on.
func (set *Set) TrimTenants() (within, more bool) {
	within = true
	evictions := set.evictions()
	for _, t := range set.Tiers() {
		for i := range t.owned {
			for _, model := range set.scopes() {
				within = set.evictOwned(t, i, model, 0, resetDrops, anyAge) && within
			}
		}
	}
	return within, set.evictions() > evictions
}
