package blockmgr

import (
	"cmp"
	"fmt"
	"time"

	"go.uber.org/zap"

	"github.com/blockyard-ai/blockyard/blockmgr/registry"
	"github.com/blockyard-ai/blockyard/blockmgr/storage/extent"
	"github.com/blockyard-ai/blockyard/blockmgr/tenant"
	"github.com/blockyard-ai/blockyard/blockmgr/tier"
)

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
// later. settled is closed when every tenant and model is within its limits and each tier within its
// size, or when the manager closes. After an error nothing has changed.
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

// trimTenants evicts blocks of tenants that are over their limits, a few hundred under one lock. within
// says that none is any more.
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

// shareTenants makes room for pools that lacked it at a tenant's limit: blocks of the tenant's other pools go,
// the least recently used of all first, as long as they are older than those of the pool. done is false when a
// pool lacked room: the sharer then pauses, and makes room for all that lacks it meanwhile at once.
func (b *broker) shareTenants() (done bool) {
	done = true
	pools := b.pools()
	for _, p := range pools {
		for _, short := range p.takeShort() {
			done = false
			for b.tenants.At(short.Tenant).Over(short.Level, short.Bytes) && makeRoom(pools, p, &short) {
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
	some = p.slots.MakeRoom(short.Level, short.Tenant, short.Bytes, last)
	if some && short.Level == registry.Disk {
		p.mover.RequestFlush()
	}
	return some
}

const (
	// eraseBatch bounds the slots that the eraser overwrites before it syncs the disk.
	eraseBatch = 64
	// eraseRetry is the pause after a slot could not be overwritten.
	eraseRetry = time.Second
)

// expiry drops the blocks of a pool whose time to live is up.
type expiry struct {
	// timer fires at at, when the first block expires. It is nil without such a block.
	timer *time.Timer
	at    time.Time
}

// armExpiryLocked sets the timer to the time at which the next block expires.
func (p *Pool) armExpiryLocked() {
	wait, ok := p.slots.NextExpiry()
	if !ok || p.life.closing {
		return
	}
	at := time.Now().Add(wait)
	if p.expiry.timer != nil && !at.Before(p.expiry.at) {
		return
	}
	p.disarmExpiryLocked()
	p.expiry.at, p.expiry.timer = at, time.AfterFunc(wait, p.expire)
}

func (p *Pool) disarmExpiryLocked() {
	if p.expiry.timer != nil {
		p.expiry.timer.Stop()
		p.expiry.timer = nil
	}
}

// expire drops blocks whose time is up, and sets the timer anew. The timer calls it.
func (p *Pool) expire() {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.life.closing {
		return
	}
	p.disarmExpiryLocked()
	if disk := p.slots.Expire(); disk {
		p.mover.RequestFlush()
	}
	p.armExpiryLocked()
	p.releasedLocked()
}

// eraseQueuedLocked wakes the eraser for a slot. The slot is an operation of the pool until it is free.
func (p *Pool) eraseQueuedLocked() {
	p.pending.operations++
	select {
	case p.erase <- struct{}{}:
	default: // the eraser has a wake-up to handle
	}
}

// eraseLoop overwrites slots with zeros before they are used again, until the pool stops. What is left
// then the next agent overwrites.
func (p *Pool) eraseLoop() {
	retry := time.NewTimer(eraseRetry)
	defer retry.Stop()
	var again <-chan time.Time // nil is never ready
	for {
		select {
		case <-p.erase:
		case <-again:
		case <-p.life.stop:
			return
		}
		wasFailing := again != nil
		more, err := true, error(nil)
		for more && err == nil && !p.stopped() {
			more, err = p.eraseSome()
		}
		if again = nil; err != nil {
			retry.Reset(eraseRetry)
			again = retry.C
		}
		if err != nil && !wasFailing {
			p.log.Warn("slots cannot be overwritten and stay out of use for now", zap.Error(err))
		}
	}
}

// eraseSome overwrites some slots. more is false when there was none. The error is that of the first slot
// that could not be overwritten.
func (p *Pool) eraseSome() (more bool, err error) {
	p.mu.Lock()
	slots := p.slots.TakeErasing(eraseBatch)
	p.mu.Unlock()
	if len(slots) == 0 {
		return false, nil
	}
	errs := writeZeros(slots)
	p.mu.Lock()
	defer p.mu.Unlock()
	done, disk := 0, false
	for i, s := range slots {
		p.slots.EndErase(s, errs[i])
		if s.Extent.Disk != nil {
			disk = true
			p.broker.countZeros(s.Extent.Geometry().Stride())
		}
		if errs[i] == nil {
			done++
		} else if err == nil {
			err = fmt.Errorf("%s slot %d: %w", s.Extent.Path(), s.Slot, errs[i])
		}
	}
	if disk {
		p.mover.RequestFlush()
	}
	p.doneLocked(done)
	p.wakeGrowerLocked()
	return true, err
}

// countZeros counts a slot that was overwritten on disk in the write budget.
func (b *broker) countZeros(bytes uint64) {
	if b.budget != nil {
		b.budget.Wrote(bytes, time.Now())
	}
}

// writeZeros writes zeros over slots and returns the error of each. Zeros on disk are synced.
func writeZeros(slots []tier.Erasable) []error {
	errs := make([]error, len(slots))
	synced := map[*extent.Disk]error{}
	for i, s := range slots {
		if host := s.Extent.Host; host != nil {
			errs[i] = extent.Guard(func() { clear(host.Slot(s.Slot)) })
			continue
		}
		errs[i] = s.Extent.Disk.EraseSlot(s.Slot)
		synced[s.Extent.Disk] = nil
	}
	for disk := range synced {
		synced[disk] = disk.Sync()
	}
	for i, s := range slots {
		if s.Extent.Disk != nil && errs[i] == nil {
			errs[i] = synced[s.Extent.Disk]
		}
	}
	return errs
}

// overwriteLeaving writes zeros over the slots of a disk extent that must not leave bytes on the device.
// The memory of a host extent is the kernel's afterwards, which clears it.
func (b *broker) overwriteLeaving(gone *tier.Extent) error {
	if gone.Disk == nil || len(gone.Erase) == 0 {
		return nil
	}
	var first error
	for _, slot := range gone.Erase { // a bad slot does not save the others
		first = cmp.Or(first, gone.Disk.EraseSlot(slot))
		b.countZeros(gone.Geometry().Stride())
	}
	return cmp.Or(first, gone.Disk.Sync())
}
