package blockmgr

import (
	"errors"
	"fmt"

	"github.com/blockyard-ai/blockyard/blockmgr/registry"
	"github.com/blockyard-ai/blockyard/blockmgr/tier"
	"github.com/blockyard-ai/blockyard/internal/kv"
)

var (
	// ErrActive: blocks of the tier are in use; the text says how many.
	ErrActive = errors.New("blocks are in use")
	// ErrNoTier: the manager does not keep blocks in the tier.
	ErrNoTier = errors.New("no such tier here")
)

// TierStatus counts the slots of a tier. Quarantined slots are in none of the three.
type TierStatus struct {
	// Active slots hold a block that is pinned, kept, held for a session of an
	// earlier agent, or being sealed, copied or read; or they are granted.
	Active int
	// Inactive slots hold a block that is not in use.
	Inactive int
	// Empty slots are free.
	Empty int
}

// ResetResult has each hash of ResetBlocks once, in the order given.
type ResetResult struct {
	// Reset are the hashes whose blocks have left the tier.
	Reset []kv.SequenceHash
	// NotFound are the hashes without a block in the tier.
	NotFound []kv.SequenceHash
	// NotReset are the hashes with a block in use. Their blocks stay.
	NotReset []kv.SequenceHash
}

// Status counts the slots of a tier. Reset is refused while any is active. ErrNoTier: the
// pool does not have the tier.
func (p *Pool) Status(kind kv.Tier) (TierStatus, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	t, err := p.resettableLocked(kind)
	if err != nil {
		return TierStatus{}, err
	}
	return statusOf(t), nil
}

func statusOf(t *tier.Tier) TierStatus {
	st := t.Stats()
	return TierStatus{Active: t.InUse(), Inactive: st.Inactive, Empty: st.Free}
}

// Reset removes every block from a tier. ErrActive: a slot of the tier is in use, and no block
// was removed. A block that is being sealed or written is in use: call Quiesce first. Reset
// waits for the scrubber and for another reset. It reports removals to the sink, children before
// parents unless blocks are stored during the reset.
//
// Reset takes about a microsecond a block, and releases the lock every few hundred blocks.
// Lookups find no block that was stored before Reset began. Blocks that are stored during the
// reset stay. ErrClosed: the pool closes, and some blocks are left.
//
// The records on disk are written in the background; Quiesce waits for them. A crash before
// that may bring some of the blocks back, with the right bytes.
func (p *Pool) Reset(kind kv.Tier) error {
	return p.reset(func() ([]*tier.Tier, error) {
		t, err := p.resettableLocked(kind)
		return []*tier.Tier{t}, err
	})
}

// ResetAll removes every block from all tiers of the pool, as Reset does. ErrActive: a slot of one of
// them is in use, and no block was removed.
func (p *Pool) ResetAll() error {
	return p.reset(func() ([]*tier.Tier, error) {
		if p.life.closing {
			return nil, p.closedLocked()
		}
		return p.slots.Tiers(), nil
	})
}

// resettableLocked returns a tier of the pool, or an error if the pool is closed or lacks the
// tier.
func (p *Pool) resettableLocked(kind kv.Tier) (*tier.Tier, error) {
	if p.life.closing {
		return nil, p.closedLocked()
	}
	for _, t := range p.slots.Tiers() {
		if t.Kind == kind {
			return t, nil
		}
	}
	return nil, fmt.Errorf("tier %s of pool %s: %w", kind, p.id, ErrNoTier)
}

// reset empties the tiers that which chooses, if none of their slots is in use. which is called
// with the lock held. reset removes the blocks in slices of a few hundred, and releases the lock
// between them. A pool that closes during the reset keeps the other blocks.
func (p *Pool) reset(which func() ([]*tier.Tier, error)) error {
	p.resets.Lock()
	defer p.resets.Unlock()
	p.mover.PauseScrub()
	defer p.mover.ResumeScrub()
	r, tiers, err := p.beginReset(which)
	if err != nil {
		return err
	}
	defer p.done(1) // beginReset has counted the operation
	for more := true; more; {
		if more, err = p.resetSlice(r); err != nil {
			return err
		}
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, t := range tiers {
		p.flushResetLocked(t)
	}
	return nil
}

// beginReset makes the blocks of the tiers that which chooses stale: lookups find them no more,
// and resetSlice removes them. The reset is an operation of the pool until done, so that the pool
// is not retired during it. ErrActive: a slot is in use, and nothing has changed.
func (p *Pool) beginReset(which func() ([]*tier.Tier, error)) (*tier.Reset, []*tier.Tier, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	tiers, err := which()
	if err != nil {
		return nil, nil, fmt.Errorf("reset: %w", err)
	}
	if err := p.idleTiersLocked(tiers); err != nil {
		return nil, nil, err
	}
	p.pending.operations++
	return p.slots.BeginReset(tiers), tiers, nil
}

// resetSlice drops a few hundred of the blocks that the reset removes, and reports whether there may
// be more. An error says that the pool closes.
func (p *Pool) resetSlice(r *tier.Reset) (more bool, err error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.life.closing {
		return false, fmt.Errorf("reset: %w", p.closedLocked())
	}
	return p.slots.ResetSlice(r), nil
}

// idleTiersLocked returns ErrActive if a slot of the tiers is in use, or if extents of the disk
// tier are still to come from an earlier agent.
func (p *Pool) idleTiersLocked(tiers []*tier.Tier) error {
	for _, t := range tiers {
		if t.Level == registry.Disk && p.mover.Joining {
			return fmt.Errorf("reset tier %s of pool %s: the disk has not answered yet: %w", t.Kind, p.id, ErrActive)
		}
		if active := t.InUse(); active > 0 {
			return fmt.Errorf("reset tier %s of pool %s: %d %w", t.Kind, p.id, active, ErrActive)
		}
	}
	return nil
}

// flushResetLocked requests a flush of a disk tier's records. Host records are mapped memory.
func (p *Pool) flushResetLocked(t *tier.Tier) {
	if t.Level == registry.Disk {
		p.mover.RequestFlush()
	}
}

// ResetBlocks removes blocks that are not in use from a tier. A hash may have several blocks, of
// different KV cache groups or adapters: all of them are removed, or none. The descendants of a block stay;
// lookups find them again when the block is stored again. Each call looks at every slot of the
// tier.
func (p *Pool) ResetBlocks(kind kv.Tier, hashes []kv.SequenceHash) (ResetResult, error) {
	return p.resetBlocks(kind, hashes, nil, true)
}

// TryResetBlocks returns what ResetBlocks would return now, and removes nothing.
func (p *Pool) TryResetBlocks(kind kv.Tier, hashes []kv.SequenceHash) (ResetResult, error) {
	return p.resetBlocks(kind, hashes, nil, false)
}

// ResetSelected is ResetBlocks for these blocks alone: others with their hashes stay. A dry run removes nothing.
func (p *Pool) ResetSelected(kind kv.Tier, selected []BlockInfo, dryRun bool) (ResetResult, error) {
	hashes, keys := make([]kv.SequenceHash, len(selected)), make(map[kv.StoredKey]bool, len(selected))
	for i := range selected {
		hashes[i], keys[selected[i].Block.Key] = selected[i].Block.Seq, true
	}
	return p.resetBlocks(kind, hashes, keys, !dryRun)
}

// resetBlocks is ResetBlocks, and with keys ResetSelected. Without remove it removes nothing.
func (p *Pool) resetBlocks(kind kv.Tier, hashes []kv.SequenceHash, keys map[kv.StoredKey]bool, remove bool) (ResetResult, error) {
	p.mover.PauseScrub()
	defer p.mover.ResumeScrub()
	p.mu.Lock()
	defer p.mu.Unlock()
	t, err := p.resettableLocked(kind)
	if err != nil {
		return ResetResult{}, fmt.Errorf("reset blocks: %w", err)
	}
	type found struct { // the blocks of one hash
		refs  []registry.Ref
		inUse bool
	}
	blocks := make(map[kv.SequenceHash]*found, len(hashes))
	for _, h := range hashes {
		blocks[h] = &found{}
	}
	t.Each(func(ref registry.Ref, s *tier.Slot) {
		if !s.Resident() || keys != nil && (s.Entry == registry.None || !keys[p.slots.Registry.At(s.Entry).Key]) {
			return
		}
		e, i := t.At(ref)
		if b := blocks[e.Records.Seq(i)]; b != nil {
			b.refs, b.inUse = append(b.refs, ref), b.inUse || s.Active()
		}
	})
	var res ResetResult
	for _, h := range hashes {
		b := blocks[h]
		switch {
		case b == nil: // given twice
			continue
		case len(b.refs) == 0:
			res.NotFound = append(res.NotFound, h)
		case b.inUse:
			res.NotReset = append(res.NotReset, h)
		default:
			res.Reset = append(res.Reset, h)
			for _, ref := range b.refs {
				if remove {
					p.slots.Discard(t, ref)
				}
			}
		}
		blocks[h] = nil
	}
	if remove && len(res.Reset) > 0 {
		p.flushResetLocked(t)
	}
	return res, nil
}
