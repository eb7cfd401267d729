package blockmgr

import (
	"slices"

	"github.com/blockyard-ai/blockyard/blockmgr/registry"
	"github.com/blockyard-ai/blockyard/blockmgr/storage"
	"github.com/blockyard-ai/blockyard/internal/kv"
)

// recoverGroup is how many records are recovered at a time, so that the waits for
// the registry's memory overlap.
const recoverGroup = 64

// recoverLocked takes an extent of an earlier agent into use. Sealed blocks are
// registered and verified when they are first read. What an engine may still
// touch stays out of use: slots that a former session was granted, blocks that
// it had pinned. Everything else is free. The table in ARCHITECTURE.md, "Slot
// states and deaths", says which state becomes what.
func (p *Pool) recoverLocked(t *tier, found *part) {
	t.install(found)
	var records [recoverGroup]storage.Record
	var damaged [recoverGroup]bool
	for first := 0; first < len(found.slots); first += recoverGroup {
		group := found.slots[first:min(first+recoverGroup, len(found.slots))]
		for i := range group {
			var err error
			records[i], err = found.recs.Get(uint32(first + i))
			damaged[i] = err != nil
		}
		p.expectLocked(records[:len(group)])
		for i := range group {
			s, r := &group[i], &records[i]
			if !damaged[i] {
				s.generation = r.Generation
				s.tick = uint64(r.Recency) << recencyShift
				p.clock = max(p.clock, s.tick)
			} else {
				p.count.DamagedRecords++
			}
			t.counts[storage.StateFree]++ // until the next lines know better
			ref := registry.MakeRef(found.number, uint32(first+i))
			if t.level == registry.Host {
				p.recoverHostLocked(ref, s, r, damaged[i])
			} else {
				p.recoverDiskLocked(ref, s, r, damaged[i])
			}
		}
	}
	slices.Reverse(found.free) // the first slot is taken first
	t.freeFrom = min(t.freeFrom, int(found.number))
}

// expectLocked has the registry look at the places where the blocks of some
// records, and the blocks before them, will be found. What it finds is of no
// interest.
func (p *Pool) expectLocked(records []storage.Record) {
	var keys [2 * recoverGroup]kv.StoredKey
	var ids [2 * recoverGroup]registry.ID
	n := 0
	for i := range records {
		r := &records[i]
		if r.State != storage.StateSealed {
			continue
		}
		keys[n] = r.Key
		n++
		if r.Position > 0 && (i == 0 || records[i-1].Key.Block() != r.Parent) {
			keys[n] = r.Parent.InGroup(r.Key.Group())
			n++
		}
	}
	p.reg.FindAll(keys[:n], ids[:n])
}

// recoverDiskLocked: nobody but the earlier agent ever wrote to a disk slot.
func (p *Pool) recoverDiskLocked(ref registry.Ref, s *slot, r *storage.Record, damaged bool) {
	switch {
	case !damaged && r.State == storage.StateFree:
		p.disk.pushFree(ref)
	case damaged || r.State != storage.StateSealed || !p.recoverBlockLocked(p.disk, ref, s, r):
		p.resetLocked(p.disk, ref, s)
	}
}

// recoverHostLocked: engines may hold the slot, whatever became of the agent.
func (p *Pool) recoverHostLocked(ref registry.Ref, s *slot, r *storage.Record, damaged bool) {
	part, i := p.host.at(ref)
	word, err := part.host.Generation(i)
	if err != nil {
		p.memoryErrorLocked(part, err)
		damaged = true
	}
	pinners := p.pinnersLocked(ref)
	outOfUse := r.State == storage.StateGranted || r.State == storage.StateQuarantined
	if f := p.members.previous[SessionID(r.Session)]; !damaged && f != nil && outOfUse {
		// The record stays as it is: it says for whom, should this agent die too.
		s.session, s.holds = SessionID(r.Session), 1
		f.granted[ref] = struct{}{}
		p.host.setState(s, storage.StateQuarantined)
		return
	}
	if !damaged && p.recoverableLocked(r, word) && p.recoverBlockLocked(p.host, ref, s, r) {
		s.unverified = true
		p.unverified++
		p.holdFormersLocked(ref, s, pinners)
		return
	}
	whole := !damaged && r.State == storage.StateFree && word == r.Generation
	s.generation = max(s.generation, word)
	switch {
	case damaged && len(p.members.previous) > 0:
		// Torn by the death of the agent: any of them may have been granted it, or
		// have it pinned. All of them hold it, so that their marks are not needed.
		part.recs.SetPins(i, 0)
		p.host.setState(s, storage.StateQuarantined)
		s.holds = 1
		p.members.torn = append(p.members.torn, ref)
	case r.State == storage.StateQuarantined && !p.soundLocked(part, i):
		p.quarantineLocked(p.host, ref)
		p.holdFormersLocked(ref, s, pinners)
	case len(pinners) > 0:
		s.lost = true
		p.quarantineLocked(p.host, ref)
		p.holdFormersLocked(ref, s, pinners)
	case whole:
		p.host.pushFree(ref)
	default:
		p.resetLocked(p.host, ref, s)
	}
}

// recoverableLocked reports whether a host record vouches for the bytes in its
// slot, and counts a block that is lost because it does not. The generation word is
// written before the record when a slot is freed: a word that is ahead says that
// the block is gone.
func (p *Pool) recoverableLocked(r *storage.Record, word uint64) bool {
	switch {
	case r.State == storage.StateFilled:
		p.count.RecoveryUnsealed++
	case r.State == storage.StateSealed && word != r.Generation:
		p.count.RecoveryFreed++
	}
	return r.State == storage.StateSealed && word == r.Generation
}

// soundLocked reads a whole slot that was taken out of use for no session's sake:
// most likely its memory was damaged.
func (p *Pool) soundLocked(part *part, i uint32) bool {
	if _, err := part.host.ContentSum(i, kv.StoredKey{}, p.slotBytes); err != nil {
		p.memoryErrorLocked(part, err)
		return false
	}
	return true
}

// pinnersLocked are the former sessions that had the slot pinned; what others
// left in the pin word is taken out.
func (p *Pool) pinnersLocked(ref registry.Ref) (pinners []*previousSession) {
	part, i := p.host.at(ref)
	word := part.recs.Pins(i)
	if word == 0 {
		return nil
	}
	var known uint64
	for _, f := range p.members.previous {
		if word&f.bit != 0 {
			pinners = append(pinners, f)
			known |= f.bit
		}
	}
	if known != word {
		part.recs.SetPins(i, known)
	}
	return pinners
}

// holdFormersLocked keeps a slot for the former sessions that had it pinned.
func (p *Pool) holdFormersLocked(ref registry.Ref, s *slot, pinners []*previousSession) {
	for _, f := range pinners {
		f.pinned[ref] = struct{}{}
		s.holds++
	}
}

// recoverBlockLocked registers a sealed block. It refuses records that cannot be
// of this pool and all but the first of equal ones, and counts them.
func (p *Pool) recoverBlockLocked(t *tier, ref registry.Ref, s *slot, r *storage.Record) bool {
	if r.Namespace != t.ns || uint64(r.Length) != p.blockBytes {
		p.count.RecoveryForeign++
		return false
	}
	id, ok := p.reg.TryOccupy(r.Key, r.Position > 0, r.Parent.InGroup(r.Key.Group()), t.level, ref)
	if !ok {
		p.count.RecoveryTwice++
		return false
	}
	s.entry, s.priority, s.era = id, r.Priority, t.era
	p.recoveredLocked(s)
	t.setState(s, storage.StateSealed)
	if t.level == registry.Host {
		p.count.RecoveredHost++
	} else {
		p.count.Recovered++
	}
	return true
}

// resetLocked frees a slot that was in no good state when it was found.
func (p *Pool) resetLocked(t *tier, ref registry.Ref, s *slot) {
	s.generation++
	s.session = 0
	part, i := t.at(ref)
	if part.host != nil {
		if err := part.host.SetGeneration(i, s.generation); err != nil {
			p.memoryErrorLocked(part, err)
			p.quarantineLocked(t, ref)
			return
		}
	}
	t.put(ref, storage.Record{})
	t.pushFree(ref)
}

// settleRecovered puts what was found into the eviction order, once it is known
// which blocks have children.
func (p *Pool) settleRecovered() {
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, t := range p.tiers() {
		p.levelLocked(t)
		t.each(func(ref registry.Ref, s *slot) {
			if s.state == storage.StateSealed {
				p.settleLocked(t, ref, s)
			}
		})
	}
}

// byPosition are the resident slots of a tier in order of their blocks' position
// in their sequences.
func (p *Pool) byPosition(t *tier) []registry.Ref {
	var starts []int
	t.each(func(ref registry.Ref, s *slot) {
		if s.resident() {
			n := t.sortedPosition(ref)
			for len(starts) <= n+1 {
				starts = append(starts, 0)
			}
			starts[n+1]++
		}
	})
	for i := 1; i < len(starts); i++ {
		starts[i] += starts[i-1]
	}
	if len(starts) == 0 {
		return nil
	}
	refs := make([]registry.Ref, starts[len(starts)-1])
	t.each(func(ref registry.Ref, s *slot) {
		if s.resident() {
			n := t.sortedPosition(ref)
			refs[starts[n]] = ref
			starts[n]++
		}
	})
	return refs
}
