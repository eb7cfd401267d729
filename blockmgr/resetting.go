package blockmgr

import (
	"fmt"

	"github.com/blockyard-ai/blockyard/blockmgr/registry"
	"github.com/blockyard-ai/blockyard/blockmgr/storage"
	"github.com/blockyard-ai/blockyard/internal/kv"
)

const (
	// resetScan is how many slots one slice of a reset looks at, resetDrops how many
	// blocks it drops at most: well under a millisecond's work.
	resetScan  = 16384
	resetDrops = 512
)

// resetting is a reset under way. It goes through the slots of its tiers slice by
// slice, and others have the pool's mutex in between. What was stored before it began
// is stale: whoever comes across such a block drops it first (currentLocked), so that
// nobody finds it and nobody can hold it. What is stored meanwhile stays.
//
// As long as the block to evict first is stale it is the next one, so that children go
// before their parents. Blocks stored meanwhile may come before stale ones in that
// order, or after them in their sequence: the rest goes in the order of the slots.
type resetting struct {
	tiers []*tier
	// tier, part and slot are where the next slice begins.
	tier, part, slot int
}

// stale reports whether the slot's block was stored before the reset that is under
// way. Between resets no block is stale.
func (t *tier) stale(s *slot) bool { return s.entry != registry.None && s.era != t.era }

// beginResetLocked makes every block of the tiers stale. None of their slots is in use.
func (p *Pool) beginResetLocked(tiers []*tier) *resetting {
	for _, t := range tiers {
		t.era = !t.era
	}
	p.staleBlocks = true
	return &resetting{tiers: tiers}
}

// resetSliceLocked drops some of the stale blocks and reports whether there may be
// more.
func (p *Pool) resetSliceLocked(r *resetting) (more bool) {
	drops := 0
	for scanned := 0; scanned < resetScan && drops < resetDrops; scanned++ {
		if r.tier == len(r.tiers) {
			return false
		}
		t := r.tiers[r.tier]
		leaf, ok := t.order.Victim()
		switch {
		case ok && t.stale(t.slot(leaf)):
			p.resetBlockLocked(t, leaf)
			drops++
		case r.part >= len(t.parts):
			r.tier, r.part, r.slot = r.tier+1, 0, 0
		case t.parts[r.part] == nil || r.slot >= len(t.parts[r.part].slots):
			r.part, r.slot = r.part+1, 0
		default:
			ref := registry.MakeRef(uint32(r.part), uint32(r.slot))
			if t.stale(t.slot(ref)) {
				p.resetBlockLocked(t, ref)
				drops++
			}
			r.slot++
		}
	}
	return true
}

// reset empties the tiers that which chooses, if none of their slots is in use. It
// lets go of the mutex between slices. A pool that closes meanwhile keeps the rest.
func (p *Pool) reset(which func() ([]*tier, error)) error {
	p.resets.Lock()
	defer p.resets.Unlock()
	p.mu.Lock()
	defer p.mu.Unlock()
	p.pauseScrubLocked()
	defer p.resumeScrubLocked()
	tiers, err := which()
	if err != nil {
		return fmt.Errorf("reset: %w", err)
	}
	if err := p.idleTiersLocked(tiers); err != nil {
		return err
	}
	p.pending.operations++ // nobody retires the pool meanwhile
	defer p.doneLocked(1)
	for r := p.beginResetLocked(tiers); p.resetSliceLocked(r); {
		p.mu.Unlock()
		p.mu.Lock()
		if p.life.closing {
			return fmt.Errorf("reset: %w", p.closedLocked())
		}
	}
	p.staleBlocks = false
	for _, t := range tiers {
		p.flushResetLocked(t)
	}
	return nil
}

// idleTiersLocked refuses tiers of which a slot is in use.
func (p *Pool) idleTiersLocked(tiers []*tier) error {
	for _, t := range tiers {
		if t.level == registry.Disk && p.growth.diskJoining {
			return fmt.Errorf("reset tier %s of pool %s: the disk has not answered, not all of its %w", t.kind, p.id, ErrActive)
		}
		if active := t.status().Active; active > 0 {
			return fmt.Errorf("reset tier %s of pool %s: %d %w", t.kind, p.id, active, ErrActive)
		}
	}
	return nil
}

func (p *Pool) resetBlockLocked(t *tier, ref registry.Ref) {
	p.count.BlocksReset++
	p.dropLocked(t, ref, storage.StateFree)
}

// currentLocked drops the stale copies of an entry's block and returns the entry, None
// when that was all of it.
func (p *Pool) currentLocked(id registry.ID) registry.ID {
	if id == registry.None || !p.staleBlocks {
		return id
	}
	var stale []*tier
	left := 0
	for _, t := range p.tiers() {
		ref := p.reg.At(id).Slots[t.level]
		switch {
		case ref == registry.NoRef:
		case t.stale(t.slot(ref)):
			stale = append(stale, t)
		default:
			left++
		}
	}
	for _, t := range stale {
		p.resetBlockLocked(t, p.reg.At(id).Slots[t.level])
	}
	if len(stale) > 0 && left == 0 {
		return registry.None // the entry may be gone
	}
	return id
}

// entryLocked is the entry of a key without stale copies, None when there is none.
func (p *Pool) entryLocked(key *kv.StoredKey) registry.ID {
	return p.currentLocked(p.reg.Find(key))
}
