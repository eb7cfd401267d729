package blockmgr

import (
	"errors"
	"sync"
	"time"

	"go.uber.org/zap"

	"github.com/blockyard-ai/blockyard/blockmgr/registry"
	"github.com/blockyard-ai/blockyard/blockmgr/storage"
	"github.com/blockyard-ai/blockyard/blockmgr/storage/extent"
	"github.com/blockyard-ai/blockyard/blockmgr/tier"
)

const (
	// writeQueueMax bounds the blocks that wait for the disk; they cannot be
	// evicted, so at most half of the host slots wait.
	writeQueueMax = 4096
	// writeAttempts is how often a block is tried to be written, each time to
	// another place, before it stays in host memory only.
	writeAttempts = 3
)

// write is one block on its way from a host slot to a disk slot.
type write struct {
	host, disk registry.Ref
	buf        []byte
	file       *extent.Disk
	index      uint32
	err        error
}

// offerLocked queues a sealed host slot for the disk, unless its block is there
// already, or waits already, or the filter does not want it there. When the
// queue is full the block is offered again once there is room, or when a lookup
// finds it.
func (p *Pool) offerLocked(ref registry.Ref, s *tier.Slot) {
	if p.slots.Disk == nil || p.growth.diskJoining || s.Queued || s.Deferred && s.WantsDisk || s.WriteAttempts >= writeAttempts {
		return
	}
	if p.slots.Registry.At(s.Entry).Slots[registry.Disk] != registry.NoRef {
		return
	}
	if p.cfg.Filter != nil {
		part, i := p.slots.Host.At(ref)
		if !p.cfg.Filter.ShouldOffload(part.Records.Seq(i)) {
			p.count.WriteBehindFiltered++
			return
		}
	}
	s.WantsDisk = true
	if p.broker.writesOpen() {
		p.count.WriteBehindDropped++
		p.deferLocked(ref, s)
		return
	}
	p.enqueueWriteLocked(ref, s)
}

func (p *Pool) enqueueWriteLocked(ref registry.Ref, s *tier.Slot) {
	if p.writes.queue.Len() >= p.writeRoomLocked() {
		p.count.WriteBehindDropped++
		p.deferLocked(ref, s)
		return
	}
	s.Queued = true
	p.slots.Hold(p.slots.Host, ref)
	p.writes.queue.Push(ref, s.Priority)
	p.pending.operations++
	p.writes.work.Signal()
}

// missLocked has a block offered again later. Its slot is not held meanwhile; if
// another block has it by then, that one is looked at instead.
func (p *Pool) deferLocked(ref registry.Ref, s *tier.Slot) {
	if !s.Deferred {
		s.Deferred = true
		p.writes.deferred.Push(ref)
		p.writes.work.Signal() // somebody must try the disk again
	}
}

// writeRoomLocked is how many blocks may wait for the disk.
func (p *Pool) writeRoomLocked() int { return min(max(p.slots.Host.Capacity/2, 1), writeQueueMax) }

// offerMissedLocked fills the queue with blocks that found it full, or that
// could not be written.
func (p *Pool) offerDeferredLocked() {
	for p.writes.deferred.Len() > 0 && p.writes.queue.Len() < p.writeRoomLocked() {
		ref := p.writes.deferred.Pop()
		s := p.slots.Host.Slot(ref)
		s.Deferred = false
		if s.WantsDisk && s.State == storage.StateSealed && !s.Queued && !p.slots.Host.Stale(s) && p.slots.Registry.At(s.Entry).Slots[registry.Disk] == registry.NoRef {
			p.enqueueWriteLocked(ref, s)
		}
	}
}

// writeLoops is how many batches are on their way at once: while one waits for its
// records the other keeps the disk busy.
const writeLoops = 2

// writeLoop copies blocks to disk, batch by batch, until the pool stops.
func (p *Pool) writeLoop() {
	p.mu.Lock()
	defer p.mu.Unlock()
	for !p.stopped() {
		switch {
		case p.writes.flushWanted:
			// What cannot be written stays changed: the next batch or Close writes it.
			p.writes.flushWanted = false
			_ = p.flushDiskLocked()
			p.doneLocked(1)
		case p.writes.queue.Len() == 0 && p.writes.deferred.Len() == 0:
			p.writes.work.Wait()
		case p.broker.untilWrite() > 0:
			p.shelveLocked()
			again := time.AfterFunc(p.broker.untilWrite(), p.wakeWriter)
			p.writes.work.Wait()
			again.Stop()
		default:
			p.offerDeferredLocked()
			if p.writes.queue.Len() > 0 && p.broker.allowWrite() {
				p.writeBatchLocked()
			}
		}
	}
}

// wakeWriter wakes the write-behind. It takes the mutex, so that it does not come
// between the decision to wait and the wait.
func (p *Pool) wakeWriter() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.writes.work.Broadcast()
}

// shelveLocked lets go of the blocks that wait for a disk that fails, so that
// they can be evicted.
func (p *Pool) shelveLocked() {
	for p.writes.queue.Len() > 0 {
		ref := p.writes.queue.Pop()
		s := p.slots.Host.Slot(ref)
		s.Queued = false
		p.slots.Release(p.slots.Host, ref)
		p.deferLocked(ref, s)
		p.doneLocked(1)
	}
}

// writeBatchLocked takes up to Config.TransferBatch blocks through their three steps:
// records that say granted, bytes, records that say sealed. Each step is
// written before the next begins. There is no sync: after a power loss any of
// it may be missing, which the checksum shows when the block is read.
func (p *Pool) writeBatchLocked() {
	// No more than there is room for now: what is queued while the tier grows
	// belongs to the next batch, or it would evict where the tier could grow. One
	// block shows whether a disk works that failed last: each block of a batch may
	// evict another, which is lost for nothing when the write fails.
	wanted := min(p.writes.queue.Len(), p.cfg.TransferBatch)
	if p.broker.writesDoubtful() {
		wanted = min(wanted, 1)
	}
	p.mu.Unlock()
	p.growDisk(wanted)
	p.mu.Lock()
	taken := min(p.writes.queue.Len(), wanted) // the other loop may have been here
	batch := make([]write, 0, taken)
	for range taken {
		if w, ok := p.takeWriteLocked(p.writes.queue.Pop()); ok {
			batch = append(batch, w)
		}
	}
	defer p.doneLocked(taken)
	if len(batch) == 0 {
		return
	}
	if err := p.flushDiskLocked(); err != nil {
		for i := range batch {
			batch[i].err = err
		}
	} else {
		p.mu.Unlock()
		p.writeBytes(batch)
		p.mu.Lock()
	}
	for i := range batch {
		p.wroteLocked(&batch[i])
	}
	// A sealed record that is not written costs the block at the next restart;
	// the flush has counted it.
	_ = p.flushDiskLocked()
}

// writeBytes writes a batch's bytes, as many blocks at once as Config.Transfers
// says for all loops together. The errors are in the batch: one bad block does
// not stop the others. A disk that is found to fail meanwhile does.
func (p *Pool) writeBytes(batch []write) {
	var wg sync.WaitGroup
	for i := range batch {
		p.writes.limit <- struct{}{}
		if i > 0 && p.broker.writes.IsOpen() {
			batch[i].err = errLeftAlone
			<-p.writes.limit
			continue
		}
		wg.Go(func() {
			defer func() { <-p.writes.limit }()
			w := &batch[i]
			watch := time.AfterFunc(p.cfg.IODeadline, p.writeStalled)
			w.err = w.file.WriteSlot(w.index, w.buf)
			watch.Stop()
		})
	}
	wg.Wait()
}

// writeStalled says that a write has not ended in time. Its block stays held and
// readable; what waits behind it is let go.
func (p *Pool) writeStalled() {
	p.broker.breaker.Stalled()
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.life.closed {
		return
	}
	p.count.WritesStalled++
	p.shelveLocked()
}

// takeWriteLocked finds a disk slot for a queued host slot. It lets go of the
// host slot when there is nothing to write.
func (p *Pool) takeWriteLocked(ref registry.Ref) (write, bool) {
	r := p.slots.Host.Record(ref)
	s := p.slots.Host.Slot(ref)
	letGo := func() (write, bool) {
		s.Queued = false
		p.slots.Release(p.slots.Host, ref)
		return write{}, false
	}
	if s.State != storage.StateSealed || p.slots.Registry.At(s.Entry).Slots[registry.Disk] != registry.NoRef {
		return letGo()
	}
	block := tier.BlockOf(&r)
	to := p.allocForLocked(p.slots.Disk, &block)
	if to == registry.NoRef {
		p.count.WriteBehindRefused++
		return letGo()
	}
	// The sum moves to the disk slot's generation; the bytes are not read again.
	sum := storage.Bind(r.Checksum, r.Key, s.Generation)
	r.Checksum = storage.Bind(sum, r.Key, p.slots.Disk.Slot(to).Generation)
	r.Priority = s.Priority
	p.slots.Occupy(p.slots.Disk, to, &block, storage.StateGranted, 0, r)
	from, i := p.slots.Host.At(ref)
	dest, j := p.slots.Disk.At(to)
	return write{host: ref, disk: to, buf: from.Host.Slot(i), file: dest.Disk, index: j}, true
}

// wroteLocked makes a written block visible on disk, or forgets the attempt. A
// block whose memory could not be read is forgotten altogether.
func (p *Pool) wroteLocked(w *write) {
	s := p.slots.Host.Slot(w.host)
	s.Queued = false
	defer p.slots.Release(p.slots.Host, w.host)
	if w.err == nil {
		p.wroteSlotLocked(w.disk)
		p.count.WriteBehind++
		p.count.BytesWritten += p.slotBytes
		r := p.slots.Disk.Record(w.disk)
		p.slots.Store(p.slots.Disk, w.disk, r)
		return
	}
	if errors.Is(w.err, extent.ErrMemory) {
		p.slots.Drop(p.slots.Disk, w.disk, storage.StateFree)
		if s.State == storage.StateSealed {
			p.slots.DropDamaged(w.host, w.err)
		}
		return
	}
	if errors.Is(w.err, errLeftAlone) {
		p.slots.Drop(p.slots.Disk, w.disk, storage.StateFree)
		p.count.WriteBehindDropped++
		if s.State == storage.StateSealed {
			p.deferLocked(w.host, s)
		}
		return
	}
	p.count.WriteErrors++
	p.log.Warn("block is not written to disk", zap.Error(w.err))
	if isFull(w.err) || errors.Is(w.err, errTable) {
		// Nothing is wrong with the place itself.
		p.slots.Drop(p.slots.Disk, w.disk, storage.StateFree)
	} else {
		p.writeFaultLocked(w.disk, w.err)
	}
	if s.WriteAttempts++; s.WriteAttempts < writeAttempts && s.State == storage.StateSealed {
		p.count.WriteRetries++
		p.deferLocked(w.host, s)
	}
}

var (
	// errTable: the records of a batch could not be written.
	errTable = errors.New("slot table could not be written")
	// errLeftAlone: the disk was found to fail before the block's turn came.
	errLeftAlone = errors.New("the disk is left alone")
)

// flushPages is about how many pages of records are copied and written at a time.
const flushPages = 64

// flushDiskLocked writes the changed pages of the disk tier's records, flushPages at a
// time; it lets go of the mutex for that. When it returns, everything is written that had
// changed when it was called, by whomever: two flushes at a time could write an
// older page over a newer one. Pages that fail stay changed, and so does the rest once
// the disk is left alone.
func (p *Pool) flushDiskLocked() error {
	p.mu.Unlock()
	p.writes.flushing.Lock()
	defer p.writes.flushing.Unlock()
	p.mu.Lock()
	var pages []storage.Page
	var failed error
	for n := 0; n < len(p.slots.Disk.Extents); n++ {
		part, from := p.slots.Disk.Extents[n], uint32(0) // which stays: whoever takes it out holds flushing
		for more := part != nil; more; {
			pages, from, more = part.Records.TakeSomeDirty(pages, from, flushPages)
			if len(pages) < flushPages {
				continue
			}
			failed = errors.Join(failed, p.writePagesLocked(pages))
			if failed != nil && p.broker.untilWrite() > 0 {
				return failed
			}
			pages = pages[:0]
		}
	}
	return errors.Join(failed, p.writePagesLocked(pages))
}

// writePagesLocked writes copies of pages; it lets go of the mutex for that. Pages that
// fail stay changed.
func (p *Pool) writePagesLocked(pages []storage.Page) error {
	if len(pages) == 0 {
		return nil
	}
	p.mu.Unlock()
	watch := time.AfterFunc(p.cfg.IODeadline, p.writeStalled)
	err := storage.WritePages(pages)
	watch.Stop()
	p.mu.Lock()
	if err == nil {
		return nil
	}
	p.count.TableErrors++
	p.broker.writeFailed(err)
	storage.Redirty(pages)
	p.log.Warn("slot table of the disk tier", zap.Error(err))
	return errors.Join(errTable, err)
}

// agedPages is about how many pages are written at a time for their ages alone.
const agedPages = 1024

// flushAgesLocked writes the pages in which nothing but the ages of blocks changed,
// until the given moment: an age that is not written costs order in the next
// agent's eviction and nothing else. It lets go of the mutex for that.
func (p *Pool) flushAgesLocked(until time.Time) error {
	for n := 0; n < len(p.slots.Disk.Extents); n++ {
		for part := p.slots.Disk.Extents[n]; part != nil && part.Records.DirtyAged(agedPages) > 0; part = p.slots.Disk.Extents[n] {
			if err := p.flushDiskLocked(); err != nil {
				return err
			}
			if time.Now().After(until) {
				p.log.Warn("closing before the ages of all blocks are on disk: the next agent evicts by older ones")
				return nil
			}
		}
	}
	return nil
}
