package blockmgr

import (
	"github.com/blockyard-ai/blockyard/blockmgr/registry"
	"github.com/blockyard-ai/blockyard/blockmgr/tier"
)

// dumpChunk is how many entries of the registry DumpChunks looks at while it holds
// the pool's mutex.
const dumpChunk = 4096

// Dump lists every resident block, in no particular order. It is consistent
// with the events reported so far: a block is in a tier here exactly when its
// last event for that tier was a store. The pool waits for it; for large pools
// there is DumpChunks.
func (p *Pool) Dump() []BlockInfo {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.life.closed {
		return nil
	}
	infos := make([]BlockInfo, 0, p.slots.Registry.Blocks())
	for _, e := range p.slots.Registry.All {
		if info, ok := p.describeLocked(e); ok {
			infos = append(infos, info)
		}
	}
	return infos
}

// DumpChunks yields what Dump lists in chunks, between which the pool goes on.
// Each block is as it was at one moment, but not all at the same: a block that
// comes or goes meanwhile may be left out. A chunk is the pool's: it is good until
// the next one.
func (p *Pool) DumpChunks(yield func([]BlockInfo) bool) {
	var chunk []BlockInfo
	for next := registry.ID(0); ; {
		var more bool
		if chunk, next, more = p.dumpChunk(chunk[:0], next, dumpChunk); len(chunk) > 0 && !yield(chunk) || !more {
			return
		}
	}
}

// dumpChunk appends the blocks of limit entries, from one on.
func (p *Pool) dumpChunk(chunk []BlockInfo, from registry.ID, limit int) (_ []BlockInfo, next registry.ID, more bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.life.closed {
		return chunk, from, false
	}
	seen := 0
	for id, e := range p.slots.Registry.From(from) {
		if seen == limit {
			return chunk, id, true
		}
		seen++
		if info, ok := p.describeLocked(e); ok {
			chunk = append(chunk, info)
		}
	}
	return chunk, from, false
}

// describeLocked says where an entry's block is; ok is false when it is nowhere.
func (p *Pool) describeLocked(e *registry.Entry) (info BlockInfo, ok bool) {
	if loc, b, ok := locate(p.slots.Host, e); ok {
		info.Tiers, info.Host, info.Block = info.Tiers.With(p.slots.Host.Kind), loc, b
	}
	if loc, b, ok := locate(p.slots.Disk, e); ok {
		info.Tiers, info.Disk, info.Block = info.Tiers.With(p.slots.Disk.Kind), loc, b
	}
	return info, info.Tiers != 0
}

// locate finds the entry's resident copy in the tier.
func locate(t *tier.Tier, e *registry.Entry) (Location, Block, bool) {
	if t == nil || e.Slots[t.Level] == registry.NoRef {
		return Location{}, Block{}, false
	}
	ref := e.Slots[t.Level]
	if s := t.Slot(ref); !s.Resident() || t.Stale(s) {
		return Location{}, Block{}, false
	}
	ext, i := t.At(ref)
	r := t.Record(ref)
	return Location{Path: ext.Path(), Offset: ext.Geometry().Offset(i), Slot: t.Name(ref)}, tier.BlockOf(&r), true
}
