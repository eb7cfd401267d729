package blockmgr

import (
	"slices"

	"github.com/blockyard-ai/blockyard/blockmgr/registry"
	"github.com/blockyard-ai/blockyard/blockmgr/tier"
)

const (
	// announceSlice is how many blocks are told to the sink under one lock, and
	// announceScan how many slots are looked at.
	announceSlice = 256
	announceScan  = 8192
)

// startAnnouncing has the sink told of the blocks that were found.
func (p *Pool) startAnnouncing() {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.slots.Unannounced() > 0 {
		p.announcing = true
		p.life.workers.Go(p.announce)
	}
}

// announce reports the blocks that were found when the pool opened, parents before
// children as far as those are there, a few at a time: nobody waits for the sink.
func (p *Pool) announce() {
	for _, lv := range []registry.Level{registry.Host, registry.Disk} {
		if !p.announceAll(lv, p.recoveredByPosition(lv)) {
			break
		}
	}
	p.announceLater()
	p.mu.Lock()
	defer p.mu.Unlock()
	p.announcing = false
	if p.quietLocked() {
		p.wakeQuietLocked()
	}
}

// announceAll reports those of some blocks of a tier that the sink does not know yet,
// and reports whether it came to the end before the pool stopped.
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

// announceLater reports the blocks that wait for others, which have been reported.
func (p *Pool) announceLater() {
	for !p.stopped() && p.announceSomeLater() {
	}
}

func (p *Pool) announceSomeLater() (more bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.slots.AnnounceLater(announceSlice)
}

// recoveredByPosition are the slots of a tier whose recovered blocks the sink does not
// know, in order of the blocks' positions, and some NoRef. It lets others have the pool
// now and then.
func (p *Pool) recoveredByPosition(lv registry.Level) []registry.Ref {
	var ends []int
	p.eachRecovered(lv, func(t *tier.Tier, ref registry.Ref) {
		n := t.Position(ref)
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
	p.eachRecovered(lv, func(t *tier.Tier, ref registry.Ref) {
		if n := t.Position(ref); n < len(ends) && at[n] < ends[n] {
			refs[at[n]] = ref
			at[n]++
		} else {
			refs = append(refs, ref) // of an extent that has joined meanwhile
		}
	})
	return refs
}

// eachRecovered calls do, under the pool's lock, for the slots of a tier whose
// recovered blocks the sink does not know.
func (p *Pool) eachRecovered(lv registry.Level, do func(*tier.Tier, registry.Ref)) {
	for number, more := 0, true; more; number++ {
		for from := 0; ; from += announceScan {
			var next bool
			if next, more = p.eachRecoveredIn(lv, number, from, do); !next {
				break
			}
		}
	}
}

// eachRecoveredIn is eachRecovered for announceScan slots of an extent. next reports
// whether the extent has more slots, more whether the tier may have more extents.
func (p *Pool) eachRecoveredIn(lv registry.Level, number, from int, do func(*tier.Tier, registry.Ref)) (next, more bool) {
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
