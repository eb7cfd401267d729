package blockmgr

import (
	"slices"

	"github.com/blockyard-ai/blockyard/blockmgr/diskio"
	"github.com/blockyard-ai/blockyard/blockmgr/registry"
	"github.com/blockyard-ai/blockyard/blockmgr/storage"
)

const (
	// announceSlice is how many blocks are told to the sink under one lock, and
	// announceScan how many slots are looked at.
	announceSlice = 256
	announceScan  = 8192
)

// untold says whether the sink knows the block of a slot.
type untold uint8

const (
	// known: the sink knows the block, or there is none.
	known untold = iota
	// untoldRecovered: the block was found when the pool opened and is announced in its
	// turn.
	untoldRecovered
	// untoldLater: the block was stored since then, and its parent is not announced yet.
	untoldLater
)

// announcement is what the sink has yet to be told about. The pool's mutex guards
// it.
type announcement struct {
	// blocks counts the slots whose blocks the sink does not know. running is true while
	// announce runs, for which Quiesce waits.
	blocks  int
	running bool
	// later are the slots of each tier with untoldLater, parents before children. A
	// slot is in it at most once.
	later [registry.NumLevels]diskio.RefQueue
}

// announce reports the blocks that were found when the pool opened, parents before
// children as far as those are there, a few at a time: nobody waits for the sink.
func (p *Pool) announce() {
	for _, lv := range []registry.Level{registry.Host, registry.Disk} {
		if !p.tell(lv, p.recoveredByPosition(lv)) {
			break
		}
	}
	p.tellLater()
	p.mu.Lock()
	defer p.mu.Unlock()
	p.announcing.running = false
	if p.quietLocked() {
		p.wakeQuietLocked()
	}
}

// tellLater reports the blocks that wait for others, which have been reported.
func (p *Pool) tellLater() {
	for !p.stopped() && p.tellSomeLater() {
	}
}

// tellSomeLater is tellLater for a few blocks. It reports whether there may be more.
func (p *Pool) tellSomeLater() (more bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, t := range p.tiers() {
		q := &p.announcing.later[t.level]
		for range min(q.Len(), announceSlice) {
			ref := q.Pop()
			s := t.slot(ref)
			s.inLater = false
			p.tellLocked(t, ref, s)
		}
		more = more || q.Len() > 0
	}
	return more
}

// tell reports those of some blocks of a tier that the sink does not know yet. It
// reports whether it came to the end before the pool stopped.
func (p *Pool) tell(lv registry.Level, refs []registry.Ref) bool {
	for slice := range slices.Chunk(refs, announceSlice) {
		if p.stopped() {
			return false
		}
		p.tellSlice(lv, slice)
	}
	return true
}

func (p *Pool) tellSlice(lv registry.Level, refs []registry.Ref) {
	p.mu.Lock()
	defer p.mu.Unlock()
	t := p.at(lv)
	for _, ref := range refs {
		if ref == registry.NoRef {
			continue // gone since it was counted
		}
		// Its extent may have gone too, and another may have its number.
		if part := t.parts[ref.Part()]; part != nil && ref.Slot() < uint32(len(part.slots)) {
			if s := t.slot(ref); s.untold == untoldRecovered {
				p.tellLocked(t, ref, s)
			}
		}
	}
}

// tellLocked tells the sink of the block in a slot, unless it knows.
func (p *Pool) tellLocked(t *tier, ref registry.Ref, s *slot) {
	if s.untold == known {
		return
	}
	s.untold = known
	p.announcing.blocks--
	r := t.record(ref)
	p.cfg.Sink.BlockStored(p.id, t.kind, blockOf(&r))
}

// tellCopyLocked tells the sink of the copy from which a block came into tier t.
func (p *Pool) tellCopyLocked(t *tier, s *slot) {
	for _, other := range p.tiers() {
		if ref := p.reg.At(s.entry).Slots[other.level]; other != t && ref != registry.NoRef {
			p.tellLocked(other, ref, other.slot(ref))
		}
	}
}

// storedLocked reports a block that became resident. One whose parent waits to be
// announced waits behind it.
func (p *Pool) storedLocked(t *tier, ref registry.Ref, r *storage.Record) {
	if p.cfg.Sink == nil {
		return
	}
	s := t.slot(ref)
	if p.announcing.blocks == 0 || !p.waitsLocked(p.reg.At(s.entry).Parent) {
		p.tellCopyLocked(t, s)
		p.cfg.Sink.BlockStored(p.id, t.kind, blockOf(r))
		return
	}
	s.untold = untoldLater
	p.announcing.blocks++
	if !s.inLater {
		s.inLater = true
		p.announcing.later[t.level].Push(ref)
	}
}

// waitsLocked reports whether a block is resident and the sink knows of none of its
// copies.
func (p *Pool) waitsLocked(id registry.ID) bool {
	if id == registry.None {
		return false
	}
	waits := false
	for _, t := range p.tiers() {
		ref := p.reg.At(id).Slots[t.level]
		if ref == registry.NoRef || !t.slot(ref).resident() {
			continue
		}
		if t.slot(ref).untold == known {
			return false
		}
		waits = true
	}
	return waits
}

// recoveredLocked marks the block of a slot as one that is to be announced.
func (p *Pool) recoveredLocked(s *slot) {
	if p.cfg.Sink != nil {
		s.untold = untoldRecovered
		p.announcing.blocks++
	}
}

// maxSortedPosition is the last position that byPosition tells apart: sequences
// are shorter.
const maxSortedPosition = 1 << 22

// sortedPosition is the position of a slot's block in its sequence, for sorting by
// counting: there may be millions of blocks, and most positions occur often.
func (t *tier) sortedPosition(ref registry.Ref) int {
	part, i := t.at(ref)
	return int(min(part.recs.Position(i), maxSortedPosition))
}

// recoveredByPosition are the slots of a tier with untoldRecovered, in order of
// their blocks' positions, some of them NoRef. It looks at a part of the tier at a
// time.
func (p *Pool) recoveredByPosition(lv registry.Level) []registry.Ref {
	var ends []int
	p.eachRecovered(lv, func(t *tier, ref registry.Ref) {
		n := t.sortedPosition(ref)
		for len(ends) <= n {
			ends = append(ends, 0)
		}
		ends[n]++
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
	p.eachRecovered(lv, func(t *tier, ref registry.Ref) {
		if n := t.sortedPosition(ref); n < len(ends) && at[n] < ends[n] {
			refs[at[n]] = ref
			at[n]++
		} else {
			refs = append(refs, ref) // of an extent that has joined meanwhile
		}
	})
	return refs
}

// eachRecovered calls do for the slots of a tier with untoldRecovered, with the
// mutex held, which it lets go of now and then.
func (p *Pool) eachRecovered(lv registry.Level, do func(*tier, registry.Ref)) {
	for number, more := 0, true; more; number++ {
		for from := 0; ; from += announceScan {
			var next bool
			if next, more = p.eachRecoveredIn(lv, number, from, do); !next {
				break
			}
		}
	}
}

// eachRecoveredIn is eachRecovered for announceScan slots of a part. next reports
// whether the part has more slots, and more whether the tier may have more parts.
func (p *Pool) eachRecoveredIn(lv registry.Level, number, from int, do func(*tier, registry.Ref)) (next, more bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	t := p.at(lv)
	if t == nil || number >= len(t.parts) || p.stopped() {
		return false, false
	}
	part := t.parts[number]
	if part == nil || from >= len(part.slots) {
		return false, true
	}
	for i := from; i < min(from+announceScan, len(part.slots)); i++ {
		if part.slots[i].untold == untoldRecovered {
			do(t, registry.MakeRef(part.number, uint32(i)))
		}
	}
	return true, true
}
