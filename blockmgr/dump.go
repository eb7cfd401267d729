package blockmgr

import "github.com/blockyard-ai/blockyard/blockmgr/registry"

// Dump lists every resident block, in no particular order. It is consistent
// with the events reported so far: a block is in a tier here exactly when its
// last event for that tier was a store.
func (p *Pool) Dump() []BlockInfo {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.closed {
		return nil
	}
	infos := make([]BlockInfo, 0, p.reg.Blocks())
	for _, e := range p.reg.All {
		var info BlockInfo
		if loc, b, ok := p.host.locate(e); ok {
			info.Tiers, info.Host, info.Block = info.Tiers.With(p.host.kind), loc, b
		}
		if loc, b, ok := p.disk.locate(e); ok {
			info.Tiers, info.Disk, info.Block = info.Tiers.With(p.disk.kind), loc, b
		}
		if info.Tiers != 0 {
			infos = append(infos, info)
		}
	}
	return infos
}

// locate finds the entry's resident copy in the tier.
func (t *tier) locate(e *registry.Entry) (Location, Block, bool) {
	if t == nil || e.Slots[t.level] == registry.NoRef || !t.slot(e.Slots[t.level]).resident() {
		return Location{}, Block{}, false
	}
	ref := e.Slots[t.level]
	part, i := t.at(ref)
	r := t.record(ref)
	return Location{Path: part.path(), Offset: part.geometry().Offset(i), Slot: t.name(ref)}, blockOf(&r), true
}
