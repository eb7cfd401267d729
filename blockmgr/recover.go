package blockmgr

import (
	"github.com/blockyard-ai/blockyard/blockmgr/registry"
	"github.com/blockyard-ai/blockyard/blockmgr/storage"
	"github.com/blockyard-ai/blockyard/blockmgr/tier"
)

// recoverHostLocked takes a host extent of an earlier agent into use. Sealed blocks
// are registered, and verified when they are first read. What an engine may still touch
// stays out of use: slots that a previous session was granted, blocks that it had
// pinned. Everything else is free. The table in ARCHITECTURE.md, "Slot states and
// deaths", says which state becomes what.
func (p *Pool) recoverHostLocked(e *tier.Extent) {
	p.slots.Recover(p.slots.Host, e, p.recoverHostSlotLocked)
}

// recoverDiskLocked takes a disk extent of an earlier agent into use. Nobody but that
// agent ever wrote to a disk slot.
func (p *Pool) recoverDiskLocked(e *tier.Extent) {
	t := p.slots.Disk
	p.slots.Recover(t, e, func(ref registry.Ref, s *tier.Slot, r *storage.Record, damaged bool) {
		switch {
		case !damaged && r.State == storage.StateFree:
			p.slots.ReturnFree(t, ref)
		case damaged || r.State != storage.StateSealed || !p.slots.Adopt(t, ref, s, r):
			p.slots.Reclaim(t, ref, s)
		}
	})
}

// recoverHostSlotLocked recovers one host slot, which an engine may still use.
func (p *Pool) recoverHostSlotLocked(ref registry.Ref, s *tier.Slot, r *storage.Record, damaged bool) {
	t := p.slots.Host
	e, i := t.At(ref)
	word, err := e.Host.Generation(i)
	if err != nil {
		p.slots.MemoryError(e, err)
		damaged = true
	}
	pinners := p.pinnersLocked(ref)
	outOfUse := r.State == storage.StateGranted || r.State == storage.StateQuarantined
	if prev := p.members.previous[SessionID(r.Session)]; !damaged && prev != nil && outOfUse {
		// The record stays as it is: it says for whom, should this agent die too.
		s.Session, s.Holds = SessionID(r.Session), 1
		prev.granted[ref] = struct{}{}
		t.SetState(s, storage.StateQuarantined)
		return
	}
	if !damaged && p.slots.Recoverable(r, word) && p.slots.Adopt(t, ref, s, r) {
		holdForLocked(pinners, ref, s)
		return
	}
	free := !damaged && r.State == storage.StateFree && word == r.Generation
	s.Generation = max(s.Generation, word)
	switch {
	case damaged && len(p.members.previous) > 0:
		// Torn by the death of the agent: any of them may have been granted it, or
		// have it pinned. All of them hold it, so that their marks are not needed.
		e.Records.SetPins(i, 0)
		t.SetState(s, storage.StateQuarantined)
		s.Holds = 1
		p.members.torn = append(p.members.torn, ref)
	case r.State == storage.StateQuarantined && !p.slots.Readable(e, i):
		p.slots.Quarantine(t, ref)
		holdForLocked(pinners, ref, s)
	case len(pinners) > 0:
		s.Lost = true
		p.slots.Quarantine(t, ref)
		holdForLocked(pinners, ref, s)
	case free:
		p.slots.ReturnFree(t, ref)
	default:
		p.slots.Reclaim(t, ref, s)
	}
}

// pinnersLocked are the previous sessions that had the slot pinned. The marks of other
// sessions are taken out of the pin word.
func (p *Pool) pinnersLocked(ref registry.Ref) (pinners []*previousSession) {
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

// holdForLocked holds a slot for the previous sessions that had it pinned.
func holdForLocked(pinners []*previousSession, ref registry.Ref, s *tier.Slot) {
	for _, prev := range pinners {
		prev.pinned[ref] = struct{}{}
		s.Holds++
	}
}
