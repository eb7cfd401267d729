package blockmgr

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"go.uber.org/zap"

	"github.com/blockyard-ai/blockyard/blockmgr/registry"
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
		reg: registry.New(), sessions: map[SessionID]*session{}, formers: m.formersOf(ns.ID()), flights: map[registry.Ref]*flight{},
		kept: map[keptSlot]time.Time{}, quiet: map[chan struct{}]struct{}{}, watchers: map[chan ExtentInfo]struct{}{}, watchCap: 1, hostSlots: 1,
	}
	p.log = m.cfg.Log.With(zap.Stringer("namespace", p.id))
	p.sealWork, p.writeWork, p.readWork = sync.NewCond(&p.mu), sync.NewCond(&p.mu), sync.NewCond(&p.mu)
	if !m.cfg.enabled() {
		return p, nil
	}
	index, err := m.broker.host.Namespace(p.id, p.slotBytes)
	if err != nil {
		return nil, err
	}
	p.host = newTier(registry.Host, kv.TierHost, index, m.cfg.HostBlocks)
	if m.cfg.bypassesHost() {
		// A staging extent: there is only one, so it is made big enough at once.
		p.hostSlots = min(stagingSlots, (MaxExtentBytes-storage.PageSize)/p.slotBytes)
	} else {
		p.watchCap = m.cfg.hostExtents(p.slotBytes)
	}
	if m.broker.disk != nil {
		p.openDisk()
	}
	p.mu.Lock()
	for _, found := range m.broker.host.Claim(index) {
		p.recoverLocked(p.host, &part{id: found.ID, recs: found.Slots, host: found.Extent})
	}
	p.mu.Unlock()
	p.settleRecovered()
	p.announceRecovered()
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
	p.disk = newTier(registry.Disk, kv.TierDisk, index, p.cfg.DiskBlocks)
	p.reg.Expect(p.broker.disk.Unclaimed(index) + p.broker.host.Unclaimed(p.host.ns))
	// While one extent's records are looked through, the next one's are read.
	parts := make(chan storage.DiskPart)
	go func() { // ends with the last extent, for which the loop below waits
		defer close(parts)
		for found := range p.broker.disk.Claim(index) {
			parts <- found
		}
	}()
	for found := range parts {
		p.recoverLocked(p.disk, &part{id: found.ID, recs: found.Slots, disk: found.Extent})
	}
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
	for _, t := range p.tiers() {
		for t.live == 0 && !p.closing {
			if t.level == registry.Host {
				p.growHostLocked()
			} else {
				p.growDiskLocked(1)
			}
			if t.live > 0 {
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

func (p *Pool) start() {
	if p.host == nil {
		return
	}
	p.workers.Go(p.growLoop)
	p.workers.Go(p.sealLoop)
	if p.cfg.ScrubBytesPerSecond > 0 {
		p.transfers.Go(p.scrubLoop)
	}
	if p.disk == nil {
		return
	}
	p.transfers.Go(p.writeLoop)
	for range p.cfg.Transfers {
		p.transfers.Go(p.readLoop)
	}
}

// tiers are the tiers that the pool has.
func (p *Pool) tiers() []*tier {
	switch {
	case p.host == nil:
		return nil
	case p.disk == nil:
		return []*tier{p.host}
	}
	return []*tier{p.host, p.disk}
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
	p.armKeepLocked()
	for ch := range p.watchers {
		p.unwatchLocked(ch)
	}
}

// errStuck: operations on the disk do not return.
var errStuck = errors.New("the disk does not answer")

// finishClose ends the workers, after the operation that each is in, and gives
// the pool's extents up to be closed. With flush it writes the records that
// changed first. When operations do not return (errStuck) the kernel may still
// write into the extents, which then stay as they are until the process ends.
func (p *Pool) finishClose(flush bool) (host []storage.HostPart, disk []storage.DiskPart, err error) {
	p.mu.Lock()
	close(p.stop)
	p.sealWork.Broadcast()
	p.writeWork.Broadcast()
	p.readWork.Broadcast()
	p.mu.Unlock()
	p.workers.Wait()
	returned := p.transfersEnd()

	p.mu.Lock()
	defer p.mu.Unlock()
	if p.disk != nil && flush && returned {
		p.host.each(func(_ registry.Ref, s *slot) {
			if s.resident() {
				p.ageDiskLocked(s)
			}
		})
		err = p.flushDiskLocked()
	}
	p.closed = true
	p.wakeQuietLocked()
	if !returned {
		return nil, nil, fmt.Errorf("pool %s: %w: %d reads and perhaps a write are under way", p.id, errStuck, p.stuckReads)
	}
	for _, t := range p.tiers() {
		for _, part := range t.parts {
			switch {
			case part == nil:
			case part.host != nil:
				host = append(host, storage.HostPart{ID: part.id, Extent: part.host, Slots: part.recs})
			default:
				disk = append(disk, storage.DiskPart{ID: part.id, Extent: part.disk, Slots: part.recs})
			}
		}
	}
	return host, disk, err
}

// transfersEnd waits for the reads and writes that are under way, for as long as
// the disk may take.
func (p *Pool) transfersEnd() bool {
	ended := make(chan struct{})
	go func() { // ends with the last operation
		p.transfers.Wait()
		close(ended)
	}()
	select {
	case <-ended:
		return true
	case <-time.After(p.cfg.IODeadline):
		return false
	}
}
