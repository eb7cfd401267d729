package blockmgr

import (
	"fmt"
	"time"

	"github.com/blockyard-ai/blockyard/blockmgr/registry"
	"github.com/blockyard-ai/blockyard/internal/kv"
)

// MaxKeep is the longest time that Pool.Keep keeps a block.
const MaxKeep = 30 * 24 * time.Hour

// keeper is the retention pins of a pool.
type keeper struct {
	// until is when the pin of a slot ends, count how many each tier has.
	until map[keptSlot]time.Time
	count [registry.NumLevels]int
	// timer goes off at timerAt, when the first pin may end. It is nil when there is
	// no pin.
	timer   *time.Timer
	timerAt time.Time
}

// keptSlot names a slot that is held for a retention pin.
type keptSlot struct {
	level registry.Level
	ref   registry.Ref
}

// Keep holds on to blocks for ttl: none of them is evicted before, from any tier
// that it is in now. Keeping a block again makes its time the longer of the two.
// It returns how many of the blocks are resident and kept; at most half of a
// tier's slots are. A restart of the agent ends it.
func (p *Pool) Keep(keys []kv.StoredKey, ttl time.Duration) (kept int, err error) {
	if ttl <= 0 || ttl > MaxKeep {
		return 0, fmt.Errorf("time to keep %v: want more than 0, at most %v", ttl, MaxKeep)
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.life.closing {
		return 0, p.closedLocked()
	}
	p.tickLocked()
	until := time.Now().Add(ttl)
	for i := range keys {
		id := p.entryLocked(&keys[i])
		if id == registry.None {
			continue
		}
		found := false
		for _, t := range p.tiers() {
			if ref := p.reg.At(id).Slots[t.level]; ref != registry.NoRef {
				found = p.keepLocked(t, ref, until) || found
			}
		}
		if found {
			kept++
		}
	}
	if p.keeper.timer == nil || until.Before(p.keeper.timerAt) {
		p.armKeepLocked(until)
	}
	return kept, nil
}

func (p *Pool) keepLocked(t *tier, ref registry.Ref, until time.Time) bool {
	s, name := t.slot(ref), keptSlot{t.level, ref}
	if !s.resident() {
		return false
	}
	p.touchLocked(t, ref, s)
	if s.kept {
		if until.After(p.keeper.until[name]) {
			p.keeper.until[name] = until
		}
		return true
	}
	if p.keeper.count[t.level] >= t.capacity/2 {
		p.count.KeepRefused++
		return false
	}
	s.kept = true
	p.keeper.until[name] = until
	p.keeper.count[t.level]++
	p.holdLocked(t, ref)
	return true
}

// unkeepLocked ends a retention pin, if the slot has one. The caller settles the
// slot.
func (p *Pool) unkeepLocked(t *tier, ref registry.Ref, s *slot) {
	if !s.kept {
		return
	}
	s.kept = false
	s.holds--
	delete(p.keeper.until, keptSlot{t.level, ref})
	p.keeper.count[t.level]--
}

// armKeepLocked sets the timer to the moment at which the first retention pin
// ends.
func (p *Pool) armKeepLocked(first time.Time) {
	p.disarmKeepLocked()
	p.keeper.timerAt = first
	p.keeper.timer = time.AfterFunc(time.Until(first), p.expireKept)
}

func (p *Pool) disarmKeepLocked() {
	if p.keeper.timer != nil {
		p.keeper.timer.Stop()
		p.keeper.timer = nil
	}
}

// expireKept ends the retention pins whose time has come.
func (p *Pool) expireKept() {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.life.closing {
		return
	}
	p.disarmKeepLocked()
	now := time.Now()
	var first time.Time
	for name, until := range p.keeper.until {
		if until.After(now) {
			if first.IsZero() || until.Before(first) {
				first = until
			}
			continue
		}
		t := p.host
		if name.level == registry.Disk {
			t = p.disk
		}
		s := t.slot(name.ref)
		p.unkeepLocked(t, name.ref, s)
		p.settleLocked(t, name.ref, s)
	}
	if !first.IsZero() {
		p.armKeepLocked(first)
	}
	p.releasedLocked()
}
