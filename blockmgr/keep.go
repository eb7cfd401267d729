package blockmgr

import (
	"fmt"
	"slices"
	"time"

	"github.com/blockyard-ai/blockyard/blockmgr/registry"
	"github.com/blockyard-ai/blockyard/blockmgr/tier"
	"github.com/blockyard-ai/blockyard/internal/kv"
	"github.com/blockyard-ai/blockyard/internal/kvgroup"
)

// MaxKeep is the longest time that Pool.Keep keeps a block.
const MaxKeep = 30 * 24 * time.Hour

// keeper ends the retention pins of a pool in time.
type keeper struct {
	// timer fires at timerAt, when the first pin may end. It is nil without a pin.
	timer   *time.Timer
	timerAt time.Time
}

// Keep protects blocks from eviction for ttl, in each tier that has them now. A second Keep
// extends the time, never shortens it. Keep returns how many of the blocks are resident and
// kept. At most half of a tier's slots are kept. A restart of the agent ends every Keep.
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
		found := false
		p.slots.EachCopy(&keys[i], func(t *tier.Tier, ref registry.Ref) {
			found = p.slots.Keep(t, ref, until) || found
		})
		if found {
			kept++
		}
	}
	if p.keeper.timer == nil || until.Before(p.keeper.timerAt) {
		p.armKeeperLocked(until)
	}
	return kept, nil
}

// Unkeep ends the time to keep of blocks, in each tier that has them. It returns how many of the
// blocks were kept.
func (p *Pool) Unkeep(keys []kv.StoredKey) (ended int, err error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.life.closing {
		return 0, p.closedLocked()
	}
	for i := range keys {
		if p.slots.Unkeep(&keys[i]) {
			ended++
		}
	}
	p.releasedLocked()
	return ended, nil
}

// Kept counts which of the blocks are resident in a tier, and which are kept. It changes nothing.
func (p *Pool) Kept(keys []kv.StoredKey) (resident, kept int, err error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.life.closing {
		return 0, 0, p.closedLocked()
	}
	for i := range keys {
		isResident, isKept := p.slots.KeptCopy(&keys[i])
		if isResident {
			resident++
		}
		if isKept {
			kept++
		}
	}
	return resident, kept, nil
}

// armKeeperLocked sets the timer to first, the end of the first retention pin.
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

// expireKept ends the retention pins that have expired and sets the timer to the next one. The
// timer calls it.
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

// Reads of Prefetch take at most one in prefetchShare host slots at a time.
const prefetchShare = 4

// Prefetch starts to read blocks into host memory. It takes the longest resident prefix of
// blocks and reads those that are on disk only. It returns how many reads it started. It does
// not wait, pins no slot and counts no hit. A later lookup joins the unfinished reads.
//
// Prefetches fill at most a quarter of the host slots at a time. Stats.PrefetchRefused counts
// the reads that were not started.
func (p *Pool) Prefetch(blocks []Block) (started int) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.life.closing || p.slots.Host == nil || p.slots.Disk == nil {
		return 0
	}
	p.tickLocked()
	here, coming := p.prefetchableLocked(blocks)
	for _, b := range coming {
		if p.slots.HostSlot(&b.Key) == registry.NoRef { // else the caller named the block twice
			if p.prefetchOneLocked(b) {
				started++
				continue
			}
			p.count.PrefetchRefused++
		}
		p.slots.Release(p.slots.Disk, p.slots.DiskSlot(&b.Key))
	}
	for _, ref := range here {
		p.slots.Release(p.slots.Host, ref)
	}
	p.count.Prefetched += uint64(started)
	p.wakeGrowerLocked()
	return started
}

// NotInHost returns those of the blocks that are not in host memory. It changes blocks.
func (p *Pool) NotInHost(blocks []Block) []Block {
	p.mu.Lock()
	defer p.mu.Unlock()
	return slices.DeleteFunc(blocks, func(b Block) bool {
		host := p.slots.HostSlot(&b.Key)
		return host != registry.NoRef && p.slots.Host.Slot(host).Resident()
	})
}

// Prefetching returns the number of reads that Prefetch has started and that have not ended.
func (p *Pool) Prefetching() int {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.mover.Prefetching()
}

// MostBlocks returns how many blocks the pool can have in a tier: those of its slots, and those that fit
// into room that no pool uses. Without the tier it is 0.
func (p *Pool) MostBlocks(kind kv.Tier) int {
	p.mu.Lock()
	defer p.mu.Unlock()
	t := p.slots.Tier(levelOf(kind))
	if t == nil {
		return 0
	}
	return p.sizeLocked(t)
}

// prefetchOneLocked starts to read a block whose disk slot is held, and reports whether it
// did.
func (p *Pool) prefetchOneLocked(b *Block) bool {
	if p.mover.Prefetching() >= max(p.slots.Host.Capacity/prefetchShare, 1) {
		return false
	}
	ref := p.allocPromotedLocked(&b.Key)
	if ref == registry.NoRef {
		return false
	}
	p.mover.Prefetch(&b.Key, ref)
	return true
}

// prefetchableLocked walks the longest resident prefix and holds it: the host slots of
// the blocks in host memory, so that no read evicts one of them, and the disk slots of
// the blocks that are on disk only.
func (p *Pool) prefetchableLocked(blocks []Block) (here []registry.Ref, coming []*Block) {
	for i := range blocks {
		id := p.slots.Find(&blocks[i].Key)
		if id == registry.None {
			break
		}
		e := p.slots.Registry.At(id)
		host, disk := e.Slots[registry.Host], e.Slots[registry.Disk]
		if host != registry.NoRef {
			s, f := p.slots.Host.Slot(host), p.mover.Flight(host)
			if f == nil && !s.Resident() { // an engine fills the slot
				break
			}
			if f != nil {
				f.MustRun = true // a queued read runs even if its lookups end
			}
			p.slots.Touch(id)
			p.slots.Hold(p.slots.Host, host)
			here = append(here, host)
			continue
		}
		if disk == registry.NoRef || !p.slots.Disk.Slot(disk).Resident() || !p.mover.Readable() {
			break
		}
		p.slots.Touch(id)
		p.slots.Hold(p.slots.Disk, disk)
		coming = append(coming, &blocks[i])
	}
	return here, coming
}

// Touch makes blocks the most recently used ones of their tiers. It stops at the first block
// that is in no tier, and returns the number of blocks before that block.
func (p *Pool) Touch(keys []kv.StoredKey) int {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.life.closing {
		return 0
	}
	p.tickLocked()
	for i := range keys {
		id := p.slots.Find(&keys[i])
		if id == registry.None || !p.slots.Touch(id) {
			return i
		}
	}
	return len(keys)
}

// fitSlice is how many blocks Fit looks up before it lets other callers of the pool go on.
const fitSlice = 1024

// Fit returns the length in tokens of the longest prefix of a sequence that every KV group can
// serve from host memory or from a disk that can be read: at most limit, and a multiple of align, or
// of the groups' own multiple if align is 0. chain has the sequence's chain blocks. A pool without
// groups counts as one with a single group of full attention.
//
// Fit changes nothing: no block is pinned, read or made more recent. The answer may be out of date
// when Fit returns. A pool that is closing fits nothing.
func (p *Pool) Fit(chain []Block, limit, align uint32) (tokens uint32) {
	gs, page := p.ns.KVGroups(), p.ns.BlockSize
	if gs == nil {
		gs = kvgroup.Groups{{Kind: kvgroup.Full, BlockSize: page}}
	}
	limit = min(limit, uint32(len(chain))*page)
	p.mu.Lock()
	defer p.mu.Unlock()
	asked := 0
	return gs.Fit(limit, align, page, func(group int, chainBlock uint32) bool {
		if asked++; asked%fitSlice == 0 {
			p.mu.Unlock()
			p.mu.Lock()
		}
		if p.life.closing || uint64(chainBlock) >= uint64(len(chain)) {
			return false
		}
		key := chain[chainBlock].Key.Block().InGroup(uint32(group))
		return p.servableLocked(&key)
	})
}

// servableLocked reports whether a lookup would find a block: a host slot has its bytes or reads
// them, or the disk has them and can be read.
func (p *Pool) servableLocked(key *kv.StoredKey) bool {
	id := p.slots.Find(key)
	if id == registry.None {
		return false
	}
	e := p.slots.Registry.At(id)
	if host := e.Slots[registry.Host]; host != registry.NoRef {
		return p.slots.Host.Slot(host).Resident() || p.mover.Flight(host) != nil
	}
	disk := e.Slots[registry.Disk]
	return disk != registry.NoRef && p.slots.Disk.Slot(disk).Resident() && p.mover.Readable()
}
