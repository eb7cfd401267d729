package blockmgr

import (
	"fmt"
	"time"

	"github.com/blockyard-ai/blockyard/blockmgr/registry"
	"github.com/blockyard-ai/blockyard/internal/kv"
)

// MaxKeep is the longest time that Pool.Keep keeps a block.
const MaxKeep = 30 * 24 * time.Hour

// keeper ends the retention pins of a pool in time.
type keeper struct {
	// timer goes off at timerAt, when the first pin may end. It is nil when there is
	// no pin.
	timer   *time.Timer
	timerAt time.Time
}

// Keep keeps blocks from being evicted for ttl, from each tier that a block is in
// now. Keeping a block again makes its time the longer of the two. Keep returns how
// many of the blocks are resident and kept. At most half of a tier's slots are kept. A
// restart of the agent ends it.
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
		id := p.slots.Find(&keys[i])
		if id == registry.None {
			continue
		}
		found := false
		for _, t := range p.slots.Tiers() {
			if ref := p.slots.Registry.At(id).Slots[t.Level]; ref != registry.NoRef {
				found = p.slots.Keep(t, ref, until) || found
			}
		}
		if found {
			kept++
		}
	}
	if p.keeper.timer == nil || until.Before(p.keeper.timerAt) {
		p.armKeeperLocked(until)
	}
	return kept, nil
}

// armKeeperLocked sets the timer to the moment at which the first retention pin ends.
func (p *Pool) armKeeperLocked(first time.Time) {
	p.disarmKeeperLocked()
	p.keeper.timerAt = first
	p.keeper.timer = time.AfterFunc(time.Until(first), p.expireKept)
}

func (p *Pool) disarmKeeperLocked() {
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
	p.disarmKeeperLocked()
	if next := p.slots.ExpireKept(time.Now()); !next.IsZero() {
		p.armKeeperLocked(next)
	}
	p.releasedLocked()
}
