package blockmgr

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"

	"go.uber.org/zap"

	"github.com/blockyard-ai/blockyard/blockmgr/storage"
	"github.com/blockyard-ai/blockyard/internal/kv"
	"github.com/blockyard-ai/blockyard/layout"
)

// ErrNamespace: the namespace cannot be served; the text says which field is
// wrong.
var ErrNamespace = errors.New("namespace is not served")

// blockLayout is how the namespace's blocks lie in slots: the stride of blocks
// that are aligned to pages is the size of a slot.
func blockLayout(ns *kv.Namespace) (layout.FullyContiguous, error) {
	if err := ns.Validate(); err != nil {
		return layout.FullyContiguous{}, fmt.Errorf("%w: %w", ErrNamespace, err)
	}
	if ns.Layout != layout.FullyContiguousName {
		return layout.FullyContiguous{}, fmt.Errorf("%w: layout %q: want %q", ErrNamespace, ns.Layout, layout.FullyContiguousName)
	}
	l, err := layout.NewFullyContiguous(layout.Config{
		NumBlocks: 1, NumLayers: uint64(ns.Layers), OuterDim: uint64(ns.OuterDim), PageSize: uint64(ns.BlockSize),
		InnerDim: uint64(ns.InnerDim), DTypeBytes: uint64(ns.DTypeBytes), Alignment: storage.PageSize,
	})
	if err != nil {
		return layout.FullyContiguous{}, fmt.Errorf("%w: %w", ErrNamespace, err)
	}
	return l, nil
}

// newPool opens a pool and starts its goroutines. A tier that has no room does
// not keep it from opening.
func (m *Manager) newPool(ns kv.Namespace, l layout.FullyContiguous) (*Pool, error) {
	p := &Pool{
		cfg: &m.cfg, ns: ns, id: ns.ID(), broker: m.broker,
		blockBytes: l.BlockBytes(), slotBytes: l.BlockStride(),
		stop: make(chan struct{}), growWake: make(chan struct{}, 1),
		reg: newRegistry(), sessions: map[SessionID]*session{}, flights: map[uint32]*flight{},
		quiet: map[chan struct{}]struct{}{}, watchers: map[chan ExtentInfo]struct{}{}, watchCap: 1, hostSlots: 1,
	}
	p.log = m.cfg.Log.With(zap.Stringer("namespace", p.id))
	p.sealWork, p.writeWork, p.promoteWork = sync.NewCond(&p.mu), sync.NewCond(&p.mu), sync.NewCond(&p.mu)
	if !m.cfg.enabled() {
		return p, nil
	}
	index, err := m.broker.host.Namespace(p.id, p.slotBytes)
	if err != nil {
		return nil, err
	}
	p.host = newTier(hostLevel, kv.TierHost, index)
	if m.cfg.HostBytes == 0 {
		// A staging extent: there is only one, so it is made big enough at once.
		p.hostSlots = min(stagingSlots, (MaxExtentBytes-storage.PageSize)/p.slotBytes)
	} else {
		p.watchCap = int(m.cfg.HostBytes/m.cfg.ExtentBytes) + 1
	}
	if m.broker.disk != nil {
		p.openDisk()
	}
	p.findRoom()
	p.start()
	return p, nil
}

// openDisk takes the namespace's extents of an earlier agent into use. Without
// a place in the disk's directory the pool goes on without a disk.
func (p *Pool) openDisk() {
	index, err := p.broker.disk.Namespace(p.id, p.slotBytes)
	p.mu.Lock()
	defer p.mu.Unlock()
	if err != nil {
		p.count.GrowErrors++
		p.log.Warn("pool opens without a disk tier", zap.Error(err))
		return
	}
	p.disk = newTier(diskLevel, kv.TierDisk, index)
	for _, found := range p.broker.disk.Claim(index) {
		p.disk.add(part{id: found.ID, recs: found.Slots, disk: found.Extent})
	}
	p.recoverLocked()
}

// findRoom sees to it that each tier has an extent, and counts and logs where
// there is no room for one. It waits a little for pools that are about to be
// unused.
func (p *Pool) findRoom() {
	ctx, cancel := context.WithTimeout(context.Background(), drainTime)
	defer cancel()
	go func() { // ends with ctx
		select {
		case <-p.broker.closing:
			cancel()
		case <-ctx.Done():
		}
	}()
	p.mu.Lock()
	defer p.mu.Unlock()
	p.unusedSince = p.broker.turns.Add(1)
	for _, t := range []*tier{p.host, p.disk} {
		for t != nil && len(t.parts) == 0 && !p.closing {
			if t.level == hostLevel {
				p.growHostLocked()
			} else {
				p.growDiskLocked(1)
			}
			if len(t.parts) > 0 {
				break
			}
			p.mu.Unlock()
			again := p.broker.drain(ctx, p)
			p.mu.Lock()
			if !again {
				p.log.Warn("no room for the namespace; its blocks are not kept in this tier for now", zap.Stringer("tier", t.kind))
				break
			}
		}
	}
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
	p.wakeQuietLocked()
	return host, disk, err
}
