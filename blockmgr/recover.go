package blockmgr

import (
	"slices"

	"github.com/blockyard-ai/blockyard/blockmgr/registry"
	"github.com/blockyard-ai/blockyard/blockmgr/storage"
	"github.com/blockyard-ai/blockyard/blockmgr/tier"
)

// recoverDiskLocked recovers a disk extent of an earlier agent. Engines never write to disk
// slots, so that none stays out of use.
func (p *Pool) recoverDiskLocked(e *tier.Extent) {
	t := p.slots.Disk
	p.slots.Recover(t, e, func(ref registry.Ref, s *tier.Slot, r *storage.Record, damaged bool) {
		erase := !damaged && p.slots.MarkOwner(s, r)
		switch {
		case !damaged && r.State == storage.StateFree:
			p.slots.ReturnFree(t, ref)
		case damaged || erase || r.State != storage.StateSealed || !p.slots.Adopt(t, ref, s, r):
			p.slots.Reclaim(t, ref, s)
		}
	})
}

// recoverHostSlotLocked decides what becomes of one host slot of an earlier agent, from its record
// r, which is not valid if damaged. The pool takes over the block, or the slot becomes free, or it
// stays out of use because the engine of a previous session may still copy.
func (p *Pool) recoverHostSlotLocked(ref registry.Ref, s *tier.Slot, r *storage.Record, damaged bool) {
	t := p.slots.Host
	e, i := t.At(ref)
	// word is the generation word, which is written before the record when a slot is freed.
	word, err := e.Host.Generation(i)
	if err != nil {
		p.slots.MemoryError(e, err)
		damaged = true
	}
	erase := !damaged && p.slots.MarkOwner(s, r)
	pinners := p.pinnersLocked(ref)
	mayBeFilled := r.State == storage.StateGranted || r.State == storage.StateQuarantined
	if prev := p.members.previous[SessionID(r.Session)]; !damaged && prev != nil && mayBeFilled {
		// The record stays as it is: it names the session to the next agent too.
		s.Session, s.Holds = SessionID(r.Session), 1
		prev.granted[ref] = struct{}{}
		t.SetState(s, storage.StateQuarantined)
		return
	}
	if !damaged && !erase && p.slots.Recoverable(r, word) && p.slots.Adopt(t, ref, s, r) {
		holdForLocked(pinners, ref, s)
		return
	}
	free := !damaged && r.State == storage.StateFree && word == r.Generation
	s.Generation = max(s.Generation, word)
	switch {
	case damaged && len(p.members.previous) > 0:
		// Torn by the death of the agent: any previous session may have been granted the
		// slot or have it pinned. All of them hold it; the pin word is not needed.
		e.Records.SetPins(i, 0)
		t.SetState(s, storage.StateQuarantined)
		s.Holds = 1
		p.members.tornSlots = append(p.members.tornSlots, ref)
	case r.State == storage.StateQuarantined && !p.slots.Readable(e, i):
		p.slots.Quarantine(t, ref)
		holdForLocked(pinners, ref, s)
	case len(pinners) > 0: // the block is gone, but engines may still copy from the slot
		s.FreeOnRelease = true
		p.slots.Quarantine(t, ref)
		holdForLocked(pinners, ref, s)
	case free:
		p.slots.ReturnFree(t, ref)
	default:
		p.slots.Reclaim(t, ref, s)
	}
}

// pinnersLocked returns the previous sessions that had the host slot pinned. The slot's pin word
// in the slot table has a bit for each. pinnersLocked clears the bits of all other sessions.
func (p *Pool) pinnersLocked(ref registry.Ref) (pinners []*previousHolds) {
	e, i := p.slots.Host.At(ref)
	word := e.Records.Pins(i)
	if word == 0 {
		return nil
	}
	var known uint64
	for _, prev := range p.members.previous {
		if word&prev.bit != 0 {
			pinners = append(pinners, prev)
			known |= prev.bit
		}
	}
	if known != word {
		e.Records.SetPins(i, known)
	}
	return pinners
}

// holdForLocked holds a slot once for each previous session that had the slot pinned, until the
// session is forgotten or resumed.
func holdForLocked(pinners []*previousHolds, ref registry.Ref, s *tier.Slot) {
	for _, prev := range pinners {
		prev.pinned[ref] = struct{}{}
		s.Holds++
	}
}

const (
	// announceSlice bounds the blocks that are announced, announceScan the slots that are
	// looked at, while the lock is held.
	announceSlice = 256
	announceScan  = 8192
)

// startAnnouncing begins to announce the recovered blocks to the sink.
func (p *Pool) startAnnouncing() {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.slots.Unannounced() > 0 {
		p.announcing = true
		p.life.workers.Go(p.announce)
	}
}

// announce reports the recovered blocks to the sink: those of the host tier, then those that are on
// disk alone, each in order of their positions, so that within a tier parents come before their
// children. Blocks that were stored meanwhile and whose parents the sink did not know come last.
// announce takes the lock for a few blocks at a time, so that a caller of the pool waits for one
// slice at most. At its end it wakes the callers of Quiesce.
func (p *Pool) announce() {
	for _, lv := range []registry.Level{registry.Host, registry.Disk} {
		if !p.announceAll(lv, p.recoveredByPosition(lv)) { // the pool stops
			break
		}
	}
	p.announceWaiting()
	p.mu.Lock()
	defer p.mu.Unlock()
	p.announcing = false
	if p.quietLocked() {
		p.wakeQuietLocked()
	}
}

// announceAll reports those of the blocks in refs that the sink does not know yet, in that order.
// It returns false when the pool stops first.
func (p *Pool) announceAll(lv registry.Level, refs []registry.Ref) bool {
	for slice := range slices.Chunk(refs, announceSlice) {
		if p.stopped() {
			return false
		}
		p.announceSlice(lv, slice)
	}
	return true
}

func (p *Pool) announceSlice(lv registry.Level, refs []registry.Ref) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.slots.Announce(lv, refs)
}

// announceWaiting reports the blocks that wait for their parents, which have all been reported.
func (p *Pool) announceWaiting() {
	for !p.stopped() && p.announceSomeWaiting() {
	}
}

func (p *Pool) announceSomeWaiting() (more bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.slots.AnnounceWaiting(announceSlice)
}

// recoveredByPosition returns the slots of a tier whose recovered blocks the sink does not know,
// in order of the blocks' positions in their sequences: parents come before children. It is a
// counting sort in two passes, which release the lock now and then. A slot that was announced
// between the passes leaves a NoRef in the result.
func (p *Pool) recoveredByPosition(lv registry.Level) []registry.Ref {
	var ends []int // by position: first the number of blocks, then where they end in the result
	p.eachRecovered(lv, func(t *tier.Tier, ref registry.Ref) {
		position := t.Position(ref)
		for len(ends) <= position {
			ends = append(ends, 0)
		}
		ends[position]++
	})
	sum := 0
	at := make([]int, len(ends)) // where the next block of a position goes
	for i := range ends {
		at[i] = sum
		sum += ends[i]
		ends[i] = sum
	}
	refs := make([]registry.Ref, sum)
	for i := range refs {
		refs[i] = registry.NoRef
	}
	p.eachRecovered(lv, func(t *tier.Tier, ref registry.Ref) {
		if position := t.Position(ref); position < len(ends) && at[position] < ends[position] {
			refs[at[position]] = ref
			at[position]++
		} else {
			refs = append(refs, ref) // its extent has joined since the first pass
		}
	})
	return refs
}

// eachRecovered calls do, under the pool's lock, for the slots of a tier whose recovered blocks
// the sink does not know. It releases the lock after every announceScan slots.
func (p *Pool) eachRecovered(lv registry.Level, do func(*tier.Tier, registry.Ref)) {
	for number, moreExtents := 0, true; moreExtents; number++ {
		for from, moreSlots := 0, true; moreSlots; from += announceScan {
			moreSlots, moreExtents = p.eachRecoveredIn(lv, number, from, do)
		}
	}
}

// eachRecoveredIn calls do for slots of one extent whose recovered blocks the sink does not know. It
// looks at announceScan slots from slot from on. moreSlots is true while the extent may have more
// slots, moreExtents while the tier may have an extent after this one.
func (p *Pool) eachRecoveredIn(lv registry.Level, number, from int, do func(*tier.Tier, registry.Ref)) (moreSlots, moreExtents bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	t := p.slots.Tier(lv)
	if t == nil || number >= len(t.Extents) || p.stopped() {
		return false, false
	}
	e := t.Extents[number]
	if e == nil || from >= len(e.Slots) {
		return false, true
	}
	t.EachUnannounced(e, from, announceScan, func(ref registry.Ref) { do(t, ref) })
	return true, true
}
