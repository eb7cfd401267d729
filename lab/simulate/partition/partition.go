package partition

import (
	"github.com/blockyard-ai/blockyard/internal/kv"
	"github.com/blockyard-ai/blockyard/internal/kvevent"
)

// Partition divides blocks among routers. Make one with New. It remembers every block that it has seen, because an event names a
// parent and not the first blocks. It is for one goroutine.
type Partition struct {
	routers, first int
	seen           map[kv.SequenceHash]seenBlock
}

// New returns a Partition for routers that each keep the sequences whose first blocks, at most that many, have their hash.
func New(routers, first int) *Partition {
	return &Partition{routers: routers, first: first, seen: make(map[kv.SequenceHash]seenBlock)}
}

// seenBlock is the number of blocks before a block, and a hash of the sequence's first blocks, at most
// Partition.first of them, up to the block.
type seenBlock struct {
	depth int
	key   uint64
}

// after returns the block with a local hash after b, in a sequence.
func (p *Partition) after(b seenBlock, local kv.LocalHash) seenBlock {
	b.depth++
	if b.depth < p.first {
		b.key = uint64(kv.Chain(kv.SequenceHash(b.key), local))
	}
	return b
}

// router returns the router that keeps b, and -1 when every router keeps b, which has too few blocks before it.
func (p *Partition) router(b seenBlock) int {
	if b.depth < p.first-1 {
		return -1
	}
	return int(b.key % uint64(p.routers))
}

// Ask returns the number of the router for a prompt: any for a short one.
func (p *Partition) Ask(prompt []kv.LocalHash) int {
	b := seenBlock{depth: -1}
	for _, local := range prompt[:min(p.first, len(prompt))] {
		b = p.after(b, local)
	}
	return max(p.router(b), 0)
}

// Split calls apply for each router with its part of event e, if there is any. The part is valid during the call.
func (p *Partition) Split(e *kvevent.RouterEvent, apply func(router int, e *kvevent.RouterEvent)) {
	parts := make([]kvevent.RouterEvent, p.routers)
	flush := func(r int) {
		if parts[r].NumBlocks() > 0 {
			apply(r, &parts[r])
		}
		parts[r] = kvevent.RouterEvent{Owner: e.Owner, Tier: e.Tier, ID: e.ID, Kind: e.Kind}
	}
	for r := range parts {
		flush(r)
	}
	each := func(b seenBlock, do func(part *kvevent.RouterEvent)) {
		for r := range parts {
			if to := p.router(b); to < 0 || to == r {
				do(&parts[r])
			}
		}
	}
	for _, h := range e.Removed {
		each(p.seen[h], func(part *kvevent.RouterEvent) { part.Removed = append(part.Removed, h) })
	}
	b, parent, hasParent := seenBlock{depth: -1}, e.Parent, e.HasParent
	if hasParent {
		b = p.seen[parent]
	}
	for _, block := range e.Blocks {
		b = p.after(b, block.Local)
		p.seen[block.Hash] = b
		each(b, func(part *kvevent.RouterEvent) {
			if len(part.Blocks) == 0 {
				part.Parent, part.HasParent = parent, hasParent
			}
			part.Blocks = append(part.Blocks, block)
		})
		parent, hasParent = block.Hash, true
	}
	for r := range parts {
		flush(r)
	}
}
