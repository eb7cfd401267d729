package blockmgr

import (
	"cmp"
	"fmt"
	"slices"
	"sync"

	"go.uber.org/zap"

	"github.com/blockyard-ai/blockyard/blockmgr/storage"
	"github.com/blockyard-ai/blockyard/internal/kv"
)

// newPool opens a pool and starts its goroutines.
func (m *Manager) newPool(ns kv.Namespace) (*Pool, error) {
	p := &Pool{
		cfg: &m.cfg, ns: ns, id: ns.ID(),
		blockBytes: ns.BlockBytes(), slotBytes: storage.SlotBytes(ns.BlockBytes()),
		hostArena: m.host, diskArena: m.disk,
		stop: make(chan struct{}), growWake: make(chan struct{}, 1),
		reg: newRegistry(), sessions: map[SessionID]*session{}, flights: map[uint32]*flight{},
		watchers: map[chan ExtentInfo]struct{}{}, watchCap: 1,
	}
	p.log = m.cfg.Log.With(zap.Stringer("namespace", p.id))
	p.sealWork, p.writeWork, p.promoteWork = sync.NewCond(&p.mu), sync.NewCond(&p.mu), sync.NewCond(&p.mu)
	if !p.Enabled() {
		return p, nil
	}
	if limit := uint64(MaxExtentBytes - storage.PageSize); p.slotBytes > limit {
		return nil, fmt.Errorf("block of %d bytes: want at most %d", p.blockBytes, limit)
	}
	if err := p.openHost(); err != nil {
		return nil, err
	}
	if m.disk != nil {
		if err := p.openDisk(); err != nil {
			first := p.host.parts[0]
			m.host.Drop(storage.HostPart{ID: first.id, Extent: first.host, Slots: first.recs})
			return nil, err
		}
	}
	p.start()
	return p, nil
}

// openHost makes the first host extent.
func (p *Pool) openHost() error {
	ns, err := p.hostArena.Namespace(p.id, p.slotBytes)
	if err != nil {
		return err
	}
	p.host = newTier(hostLevel, kv.TierHost, ns)
	slots := uint64(1)
	if p.cfg.HostBytes == 0 {
		// A staging extent: it never grows, so it is made big enough at once.
		p.host.full = true
		slots = min(stagingSlots, (MaxExtentBytes-storage.PageSize)/p.slotBytes)
	} else {
		p.watchCap = int(p.cfg.HostBytes/p.cfg.ExtentBytes) + 1
	}
	made, err := p.hostArena.Grow(ns, p.slotBytes, slots)
	if err != nil {
		return err
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	p.addHostLocked(made)
	return nil
}

// openDisk takes the namespace's extents of an earlier agent into use, or makes
// the first one.
func (p *Pool) openDisk() error {
	ns, err := p.diskArena.Namespace(p.id, p.slotBytes)
	if err != nil {
		return err
	}
	p.disk = newTier(diskLevel, kv.TierDisk, ns)
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, found := range p.diskArena.Claim(ns) {
		p.disk.add(part{id: found.ID, recs: found.Slots, disk: found.Extent})
	}
	if len(p.disk.parts) > 0 {
		p.recoverLocked()
		return nil
	}
	made, err := p.diskArena.Grow(ns, p.slotBytes)
	if err != nil {
		return err
	}
	p.disk.add(part{id: made.ID, recs: made.Slots, disk: made.Extent})
	return nil
}

// recoverLocked registers the sealed blocks of a disk tier that an earlier
// agent filled, parents first, and frees every other slot. Their bytes are
// verified when they are read.
func (p *Pool) recoverLocked() {
	t := p.disk
	type found struct {
		ref uint32
		r   storage.Record
	}
	var sealed []found
	t.free = t.free[:0]
	for ref := range uint32(len(t.slots)) {
		part, i := t.at(ref)
		r, err := part.recs.Get(i)
		if err == nil && r.State == storage.StateSealed && r.Namespace == t.ns && uint64(r.Length) == p.blockBytes {
			sealed = append(sealed, found{ref, r})
			p.clock = max(p.clock, uint64(r.Recency)<<recencyShift)
			continue
		}
		p.resetLocked(t, ref)
	}
	slices.SortFunc(sealed, func(a, b found) int {
		return cmp.Or(cmp.Compare(a.r.Position, b.r.Position), cmp.Compare(a.ref, b.ref))
	})
	for i := range sealed {
		f := &sealed[i]
		if id := p.reg.find(f.r.Key); id != none && p.reg.at(id).slots[diskLevel] != none {
			p.resetLocked(t, f.ref)
			continue
		}
		block := blockOf(&f.r)
		p.occupyLocked(t, f.ref, &block, storage.StateSealed, 0, f.r)
		t.slots[f.ref].tick = uint64(f.r.Recency) << recencyShift
		p.settleLocked(t, f.ref)
		p.storedLocked(t, &f.r)
		p.count.Recovered++
	}
}

// resetLocked frees a slot that was in no good state when it was found.
func (p *Pool) resetLocked(t *tier, ref uint32) {
	t.slots[ref].generation++
	t.put(ref, storage.Record{})
	t.free = append(t.free, ref)
}

func (p *Pool) start() {
	p.workers.Go(p.growLoop)
	p.workers.Go(p.sealLoop)
	if p.disk == nil {
		return
	}
	p.workers.Go(p.writeLoop)
	for range promoteWorkers {
		p.workers.Go(p.promoteLoop)
	}
}

// stopped reports whether the workers must end.
func (p *Pool) stopped() bool {
	select {
	case <-p.stop:
		return true
	default:
		return false
	}
}

// beginClose refuses callers from now on. The workers go on.
func (p *Pool) beginClose() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.closing = true
	for ch := range p.watchers {
		p.unwatchLocked(ch)
	}
}

// finishClose ends the workers, after the operation that each is in, and gives
// the pool's extents up to be closed.
func (p *Pool) finishClose() (host []storage.HostPart, disk []storage.DiskPart, err error) {
	p.mu.Lock()
	close(p.stop)
	p.sealWork.Broadcast()
	p.writeWork.Broadcast()
	p.promoteWork.Broadcast()
	p.mu.Unlock()
	p.workers.Wait()

	p.mu.Lock()
	defer p.mu.Unlock()
	if p.disk != nil {
		err = p.flushDiskLocked()
		for _, part := range p.disk.parts {
			disk = append(disk, storage.DiskPart{ID: part.id, Extent: part.disk, Slots: part.recs})
		}
	}
	if p.host != nil {
		for _, part := range p.host.parts {
			host = append(host, storage.HostPart{ID: part.id, Extent: part.host, Slots: part.recs})
		}
	}
	p.closed = true
	for _, ch := range p.quiet {
		close(ch)
	}
	p.quiet = nil
	return host, disk, err
}
