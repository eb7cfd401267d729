package blockmgr

import "github.com/blockyard-ai/blockyard/blockmgr/registry"

// prefetchShare is the part of the host slots, one in so many, that reads begun
// by Prefetch may take at a time.
const prefetchShare = 4

// Prefetch begins to bring into host memory what the longest prefix of blocks
// that is resident in any tier has on disk only, and returns how many reads it
// started. It waits for nothing and pins nothing: a lookup later finds the blocks
// there, joins the reads that are still under way, or finds them evicted again.
// It is no hit. At most a quarter of the host slots are being filled by
// prefetches at a time; Stats.PrefetchRefused counts what was not started.
func (p *Pool) Prefetch(blocks []Block) (started int) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.life.closing || p.slots.Host == nil || p.slots.Disk == nil {
		return 0
	}
	p.tickLocked()
	here, coming := p.prefetchableLocked(blocks)
	for _, b := range coming {
		if p.slots.HostSlot(&b.Key) == registry.NoRef { // else it was given twice
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

// prefetchOneLocked starts to read a block whose disk slot is held, and reports
// whether it could. After one that could not the others cannot either.
func (p *Pool) prefetchOneLocked(b *Block) bool {
	if p.mover.Prefetching() >= max(p.slots.Host.Capacity/prefetchShare, 1) {
		return false
	}
	ref := p.allocLocked(p.slots.Host)
	if ref == registry.NoRef {
		return false
	}
	p.mover.Prefetch(&b.Key, ref)
	return true
}

// prefetchableLocked walks the longest resident prefix and holds it: the host
// slots of what is in host memory, so that no read takes their place, and the
// disk slots of what is on disk only.
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
			if f == nil && !s.Resident() {
				break
			}
			if f != nil {
				f.Wanted = true
			}
			p.slots.Touch(p.slots.Host, host, s)
			p.slots.Hold(p.slots.Host, host)
			here = append(here, host)
			continue
		}
		if disk == registry.NoRef || !p.slots.Disk.Slot(disk).Resident() || !p.mover.Readable() {
			break
		}
		p.slots.Touch(p.slots.Disk, disk, p.slots.Disk.Slot(disk))
		p.slots.Hold(p.slots.Disk, disk)
		coming = append(coming, &blocks[i])
	}
	return here, coming
}
