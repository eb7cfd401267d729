package blockmgr

import (
	"go.uber.org/zap"

	"github.com/blockyard-ai/blockyard/blockmgr/registry"
	"github.com/blockyard-ai/blockyard/blockmgr/storage"
)

// blockTicks is how many moments of the pool's clock a block takes that comes into host
// memory; a call takes one.
const blockTicks = 16

// tickLocked begins an operation: the next moment of the pool's clock. A level of
// priority is worth the moments in which as many blocks come in as the tier may have
// slots: one turnover.
func (p *Pool) tickLocked() {
	p.clock += 1 + blockTicks*p.arrived
	p.arrived = 0
	p.levelLocked(p.host)
	p.levelLocked(p.disk)
}

// levelLocked says in a tier's eviction order what a level of priority is worth.
func (p *Pool) levelLocked(t *tier) {
	if t != nil {
		t.order.SetLevel(blockTicks * uint64(p.sizeLocked(t)))
	}
}

// settleLocked is tier.settle with the children that the registry counts.
func (p *Pool) settleLocked(t *tier, ref registry.Ref, s *slot) {
	leaf := s.entry != registry.None && p.reg.At(s.entry).Kids[t.level] == 0
	t.settle(ref, s, leaf)
}

// settleEntryLocked settles the slot that an entry has in tier t, if any.
func (p *Pool) settleEntryLocked(t *tier, id registry.ID) {
	if id == registry.None {
		return
	}
	if ref := p.reg.At(id).Slots[t.level]; ref != registry.NoRef {
		p.settleLocked(t, ref, t.slot(ref))
	}
}

func (p *Pool) holdLocked(t *tier, ref registry.Ref) {
	s := t.slot(ref)
	s.holds++
	p.settleLocked(t, ref, s)
}

func (p *Pool) releaseLocked(t *tier, ref registry.Ref) {
	s := t.slot(ref)
	s.holds--
	p.letGoLocked(t, ref, s)
}

// letGoLocked settles a slot that lost a pin or a hold, and frees it when that
// was the last one and its block is gone already.
func (p *Pool) letGoLocked(t *tier, ref registry.Ref, s *slot) {
	if s.lost && s.pins+s.holds == 0 {
		p.freeLocked(t, ref)
		return
	}
	p.settleLocked(t, ref, s)
}

// touchLocked makes the slot the most recently used one. A part of the moment is
// kept beside the record, so that the order outlives the agent.
func (p *Pool) touchLocked(t *tier, ref registry.Ref, s *slot) {
	if s.tick != p.clock {
		p.ageLocked(t, ref, s, p.clock)
	}
}

// occupyLocked gives block b the free slot ref in tier t, in the given state,
// with record r.
func (p *Pool) occupyLocked(t *tier, ref registry.Ref, b *Block, state storage.State, s SessionID, r storage.Record) {
	id, parent := p.reg.Occupy(b.Key, b.Position > 0, b.parentKey(), t.level, ref)
	sl := t.slot(ref)
	sl.entry, sl.session, sl.tick, sl.priority, sl.era = id, s, p.clock, r.Priority, t.era
	if t.level == registry.Host {
		p.arrived++
	}
	t.setState(sl, state)
	t.put(ref, r)
	p.settleEntryLocked(t, parent)
}

// allocLocked takes a free slot. When there is none, a host tier that grows refuses
// (NoRef), and any other tier evicts a block. NoRef also when everything is in use.
func (p *Pool) allocLocked(t *tier) registry.Ref {
	if t.level == registry.Host {
		p.growth.asked++
	}
	if ref := t.popFree(); ref != registry.NoRef {
		return ref
	}
	if p.refusesLocked(t) {
		return registry.NoRef
	}
	// A victim whose generation word cannot be written is quarantined instead of
	// freed; then the next one has to go.
	for {
		victim, ok := p.victimLocked(t)
		if !ok {
			return registry.NoRef
		}
		p.countEvictionLocked(t)
		p.dropLocked(t, victim, storage.StateFree)
		if ref := t.popFree(); ref != registry.NoRef {
			return ref
		}
	}
}

// refusesLocked reports whether a tier without a free slot refuses a block, because
// the tier grows, and counts the demand.
func (p *Pool) refusesLocked(t *tier) bool {
	if t.level != registry.Host || !p.hostGrowsLocked() {
		return false
	}
	p.growth.refused++
	return true
}

// ageDiskLocked has the disk copy of a host block take over the block's age.
func (p *Pool) ageDiskLocked(host *slot) {
	ref := p.reg.At(host.entry).Slots[registry.Disk]
	if ref == registry.NoRef {
		return
	}
	s := p.disk.slot(ref)
	if host.tick <= s.tick {
		return
	}
	p.ageLocked(p.disk, ref, s, host.tick)
}

// ageLocked gives a slot another age.
func (p *Pool) ageLocked(t *tier, ref registry.Ref, s *slot, tick uint64) {
	if s.tick>>recencyShift != tick>>recencyShift {
		part, i := t.at(ref)
		part.recs.SetRecency(i, uint32(tick>>recencyShift))
	}
	s.tick = tick
	if s.ordered {
		t.order.Place(ref, s.priority, tick)
	}
}

// maxReprieves bounds how many blocks one eviction puts back.
const maxReprieves = 64

// victimLocked is the slot to evict first. A disk block whose copy in host memory
// was used later is as young as that: it takes over its age and goes back.
func (p *Pool) victimLocked(t *tier) (registry.Ref, bool) {
	for range maxReprieves {
		victim, ok := t.order.Victim()
		if !ok || t.level == registry.Host {
			return victim, ok
		}
		s := t.slot(victim)
		host := p.reg.At(s.entry).Slots[registry.Host]
		if host == registry.NoRef {
			return victim, true
		}
		tick := p.host.slot(host).tick
		if tick <= s.tick {
			return victim, true
		}
		p.ageLocked(t, victim, s, tick)
	}
	return t.order.Victim()
}

// allocForLocked is allocLocked for block b, which must not push its own prefix
// out: without that nobody could find it. The nearest ancestor in the tier is
// held meanwhile, which holds the ones before it by the leaf-first order. For a
// block whose prefix is not in the pool nothing is evicted.
func (p *Pool) allocForLocked(t *tier, b *Block) registry.Ref {
	if b.Position == 0 || t.free() > 0 {
		return p.allocLocked(t)
	}
	if p.refusesLocked(t) {
		return registry.NoRef
	}
	parent := b.parentKey()
	for id := p.reg.Find(&parent); ; {
		if id == registry.None || !p.reg.At(id).Occupied() {
			return registry.NoRef
		}
		e := p.reg.At(id)
		if ref := e.Slots[t.level]; ref != registry.NoRef {
			p.holdLocked(t, ref)
			defer p.releaseLocked(t, ref)
			return p.allocLocked(t)
		}
		if e.Parent == registry.None {
			return p.allocLocked(t)
		}
		id = e.Parent
	}
}

func (p *Pool) countEvictionLocked(t *tier) {
	if t.level == registry.Host {
		p.count.HostEvictions++
	} else {
		p.count.DiskEvictions++
	}
}

// dropLocked takes the slot's block out of the tier: it is forgotten, its
// removal is reported, and the slot becomes free or quarantined.
func (p *Pool) dropLocked(t *tier, ref registry.Ref, to storage.State) {
	s := t.slot(ref)
	wasResident := s.resident()
	if t.level == registry.Host && wasResident {
		p.ageDiskLocked(s)
	}
	if t.level == registry.Disk {
		delete(p.writes.faults.reads, ref)
	}
	parent := p.reg.Vacate(s.entry, t.level)
	if wasResident && p.cfg.Sink != nil {
		p.tellLocked(t, ref, s)
		r := t.record(ref)
		p.cfg.Sink.BlockRemoved(p.id, t.kind, blockOf(&r))
	}
	p.unkeepLocked(t, ref, s)
	if s.unverified {
		p.unverified--
	}
	s.entry, s.fromDisk, s.unverified, s.wanted, s.attempts = registry.None, false, false, false, 0
	if to == storage.StateFree {
		p.freeLocked(t, ref)
	} else {
		p.quarantineLocked(t, ref)
	}
	p.settleEntryLocked(t, parent)
}

// freeLocked makes a slot without a block grantable again, as its next
// generation.
func (p *Pool) freeLocked(t *tier, ref registry.Ref) {
	s := t.slot(ref)
	s.generation++
	s.session, s.holds, s.priority, s.lost = 0, 0, 0, false
	part, i := t.at(ref)
	if part.host != nil {
		if err := part.host.SetGeneration(i, s.generation); err != nil {
			p.memoryErrorLocked(part, err)
			p.quarantineLocked(t, ref)
			return
		}
	}
	t.setState(s, storage.StateFree)
	t.put(ref, storage.Record{})
	t.settle(ref, s, false)
	t.pushFree(ref)
}

// quarantineLocked takes a slot without a block out of use. Its record keeps
// saying what it held, and for whom; a damaged one, which an earlier agent's death
// can leave, stays as it is.
func (p *Pool) quarantineLocked(t *tier, ref registry.Ref) {
	s := t.slot(ref)
	t.setState(s, storage.StateQuarantined)
	part, i := t.at(ref)
	if r, err := part.recs.Get(i); err == nil {
		t.put(ref, r)
	}
	t.settle(ref, s, false)
}

func (p *Pool) memoryErrorLocked(part *part, err error) {
	p.count.MemoryErrors++
	p.log.Error("host memory is damaged; its slot is taken out of use", zap.String("extent", part.path()), zap.Error(err))
}
