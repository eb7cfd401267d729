package blockmgr

import (
	"cmp"
	"context"
	"errors"
	"slices"
	"sync/atomic"

	"go.uber.org/zap"

	"github.com/blockyard-ai/blockyard/blockmgr/storage"
)

// broker makes the extents that pools ask for. When a tier's size is used up,
// pools that nobody uses give theirs, whole and coldest pool first, so that a
// model that is gone does not keep the node from the one that is there. The last
// extent of a tier goes only to a pool that has none: an engine that is merely
// restarting finds something of its own. Pools call it without their mutex.
type broker struct {
	host  *storage.HostArena
	disk  *storage.DiskArena
	pools func() []*Pool
	// closing is closed when the manager closes: nobody waits for room any more.
	closing chan struct{}
	// turns counts the moments at which somebody may have become able to give: it
	// orders pools by their last use and ends a full tier's wait.
	turns atomic.Uint64
}

func (b *broker) growHost(p *Pool, first bool) (storage.HostPart, error) {
	for {
		made, err := b.host.Grow(p.host.ns, p.slotBytes, p.hostSlots)
		if !errors.Is(err, storage.ErrFull) || !b.reclaim(p, hostLevel, first) {
			return made, err
		}
	}
}

func (b *broker) growDisk(p *Pool, first bool) (storage.DiskPart, error) {
	for {
		made, err := b.disk.Grow(p.disk.ns, p.slotBytes)
		if !errors.Is(err, storage.ErrFull) || !b.reclaim(p, diskLevel, first) {
			return made, err
		}
	}
}

// reclaim makes the coldest unused pool give one extent up and reports whether
// there was one; first says that it will be p's first in the tier.
func (b *broker) reclaim(p *Pool, lv level, first bool) bool {
	type giver struct {
		pool  *Pool
		since uint64
	}
	var givers []giver
	for _, other := range b.pools() {
		if since, ok := other.unused(); ok && other != p {
			givers = append(givers, giver{other, since})
		}
	}
	slices.SortFunc(givers, func(x, y giver) int { return cmp.Compare(x.since, y.since) })
	return slices.ContainsFunc(givers, func(g giver) bool { return g.pool.yield(lv, first) })
}

// drain waits for a pool without sessions that is still busy with its last
// blocks, and reports whether one has finished: it may give something now.
func (b *broker) drain(ctx context.Context, p *Pool) bool {
	for _, other := range b.pools() {
		if other != p && other.draining() && other.Quiesce(ctx) == nil {
			return true
		}
	}
	return false
}

// unusedLocked reports whether nobody uses the pool and nothing is under way
// in it, so that its extents may go.
func (p *Pool) unusedLocked() bool {
	return len(p.sessions) == 0 && len(p.watchers) == 0 && p.busy == 0 && !p.closing
}

// unused is the turn at which the pool was used last; ok is false while it is
// in use.
func (p *Pool) unused() (since uint64, ok bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.unusedSince, p.unusedLocked()
}

func (p *Pool) draining() bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	return len(p.sessions) == 0 && p.busy > 0 && !p.closing
}

// releasedLocked takes note of it when the pool has become unused.
func (p *Pool) releasedLocked() {
	if p.unusedLocked() {
		p.unusedSince = p.broker.turns.Add(1)
	}
}

// yield gives one extent of one tier back to the budget, if nobody uses the
// pool; the only one just if all says so. The extent's blocks are evicted; the
// pool goes on with what is left.
func (p *Pool) yield(lv level, all bool) bool {
	p.mu.Lock()
	t := p.host
	if lv == diskLevel {
		t = p.disk
	}
	if !p.unusedLocked() || t == nil || !t.lastIsFree() || len(t.parts) == 1 && !all {
		p.mu.Unlock()
		return false
	}
	gone := p.emptyLastLocked(t)
	p.mu.Unlock()
	p.log.Info("extent goes to another namespace", zap.Stringer("tier", t.kind), zap.String("path", gone.path()))
	if gone.host != nil {
		p.broker.host.Drop(storage.HostPart{ID: gone.id, Extent: gone.host, Slots: gone.recs})
	} else {
		p.broker.disk.Drop(storage.DiskPart{ID: gone.id, Extent: gone.disk, Slots: gone.recs})
	}
	return true
}

// lastIsFree reports whether there is a last extent and nobody holds a slot of
// it: no lookup that ends late, no dying writer.
func (t *tier) lastIsFree() bool {
	if len(t.parts) == 0 {
		return false
	}
	last := t.slots[t.parts[len(t.parts)-1].base:]
	return !slices.ContainsFunc(last, func(s slot) bool { return s.holds+s.pins > 0 })
}

// emptyLastLocked evicts the blocks of a tier's last extent and takes it out.
// Only the last one can go without renumbering the slots of the others.
func (p *Pool) emptyLastLocked(t *tier) part {
	base := t.parts[len(t.parts)-1].base
	for ref := base; ref < uint32(len(t.slots)); ref++ {
		if t.slots[ref].entry != none {
			p.countEvictionLocked(t)
			p.dropLocked(t, ref, storage.StateFree)
		}
	}
	if t.level == hostLevel {
		p.missed.forget(base)
	}
	p.count.ExtentsYielded++
	return t.removeLast()
}
