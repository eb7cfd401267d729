package blockmgr

import (
	"errors"

	"go.uber.org/zap"
	"golang.org/x/sync/errgroup"
	"golang.org/x/sys/unix"

	"github.com/blockyard-ai/blockyard/blockmgr/storage"
)

const (
	// writeQueueMax bounds the blocks that wait for the disk; they cannot be
	// evicted, so at most half of the host slots wait.
	writeQueueMax = 4096
	// writeBatch is how many blocks share the two writes of their table pages.
	writeBatch = 64
	// writeWorkers is how many blocks of a batch are written at once.
	writeWorkers = 4
)

// write is one block on its way from a host slot to a disk slot.
type write struct {
	host, disk uint32
	buf        []byte
	file       *storage.DiskExtent
	index      uint32
	err        error
}

// offerLocked queues a sealed host slot for the disk, unless its block is there
// already, or waits already. When the queue is full the block is offered again
// once there is room, or when a lookup finds it.
func (p *Pool) offerLocked(ref uint32) {
	sl := &p.host.slots[ref]
	if p.disk == nil || sl.queued || p.reg.at(sl.entry).slots[diskLevel] != none {
		return
	}
	if p.writing.len() >= p.writeRoomLocked() {
		p.count.WriteBehindDropped++
		if !sl.missed {
			sl.missed = true
			p.missed.push(ref)
		}
		return
	}
	sl.queued = true
	p.holdLocked(p.host, ref)
	p.writing.push(ref)
	p.busy++
	p.writeWork.Signal()
}

// writeRoomLocked is how many blocks may wait for the disk.
func (p *Pool) writeRoomLocked() int { return min(max(len(p.host.slots)/2, 1), writeQueueMax) }

// offerMissedLocked fills the queue with blocks that found it full.
func (p *Pool) offerMissedLocked() {
	for p.missed.len() > 0 && p.writing.len() < p.writeRoomLocked() {
		ref := p.missed.pop()
		sl := &p.host.slots[ref]
		sl.missed = false
		if sl.state == storage.StateSealed {
			p.offerLocked(ref)
		}
	}
}

// writeLoop copies blocks to disk, batch by batch, until the pool stops.
func (p *Pool) writeLoop() {
	p.mu.Lock()
	defer p.mu.Unlock()
	for {
		for p.writing.len() == 0 && !p.stopped() {
			p.writeWork.Wait()
		}
		if p.stopped() {
			return
		}
		p.writeBatchLocked()
	}
}

// writeBatchLocked takes up to writeBatch blocks through their three steps:
// records that say granted, bytes, records that say sealed. Each step is
// written before the next begins. There is no sync: after a power loss any of
// it may be missing, which the checksum shows when the block is read.
func (p *Pool) writeBatchLocked() {
	// No more than there is room for now: what is queued while the tier grows
	// belongs to the next batch, or it would evict where the tier could grow.
	taken := min(p.writing.len(), writeBatch)
	p.growDiskLocked(taken)
	var batch []write
	for range taken {
		if w, ok := p.takeWriteLocked(p.writing.pop()); ok {
			batch = append(batch, w)
		}
	}
	defer p.doneLocked(taken)
	defer p.offerMissedLocked()
	if len(batch) == 0 {
		return
	}
	if err := p.flushDiskLocked(); err != nil {
		for i := range batch {
			batch[i].err = err
		}
	} else {
		p.mu.Unlock()
		var g errgroup.Group
		g.SetLimit(writeWorkers)
		for i := range batch {
			g.Go(func() error {
				w := &batch[i]
				w.err = w.file.WriteSlot(w.index, w.buf)
				return nil
			})
		}
		// The errors are in the batch: one bad block does not stop the others.
		_ = g.Wait()
		p.mu.Lock()
	}
	for i := range batch {
		p.wroteLocked(&batch[i])
	}
	// A sealed record that is not written costs the block at the next restart;
	// the flush has counted it.
	_ = p.flushDiskLocked()
}

// takeWriteLocked finds a disk slot for a queued host slot. It lets go of the
// host slot when there is nothing to write.
func (p *Pool) takeWriteLocked(ref uint32) (write, bool) {
	r := p.host.record(ref)
	letGo := func() (write, bool) {
		p.host.slots[ref].queued = false
		p.releaseLocked(p.host, ref)
		return write{}, false
	}
	if p.reg.at(p.host.slots[ref].entry).slots[diskLevel] != none {
		return letGo()
	}
	block := blockOf(&r)
	to := p.allocForLocked(p.disk, &block)
	if to == none {
		p.count.WriteBehindRefused++
		return letGo()
	}
	// The sum moves to the disk slot's generation; the bytes are not read again.
	sum := storage.Bind(r.Checksum, r.Key, p.host.slots[ref].generation)
	r.Checksum = storage.Bind(sum, r.Key, p.disk.slots[to].generation)
	p.occupyLocked(p.disk, to, &block, storage.StateGranted, 0, r)
	from, i := p.host.at(ref)
	dest, j := p.disk.at(to)
	return write{host: ref, disk: to, buf: from.host.Slot(i), file: dest.disk, index: j}, true
}

// wroteLocked makes a written block visible on disk, or forgets the attempt. A
// block whose memory could not be read is forgotten altogether.
func (p *Pool) wroteLocked(w *write) {
	p.host.slots[w.host].queued = false
	p.releaseLocked(p.host, w.host)
	if w.err == nil {
		p.count.WriteBehind++
		p.count.BytesWritten += p.slotBytes
		r := p.disk.record(w.disk)
		p.disk.setState(w.disk, storage.StateSealed)
		p.disk.put(w.disk, r)
		p.storedLocked(p.disk, &r)
		p.settleLocked(p.disk, w.disk)
		return
	}
	if errors.Is(w.err, storage.ErrMemory) {
		p.dropLocked(p.disk, w.disk, storage.StateFree)
		part, _ := p.host.at(w.host)
		p.memoryErrorLocked(part, w.err)
		p.dropLocked(p.host, w.host, storage.StateQuarantined)
		return
	}
	p.count.WriteErrors++
	p.log.Warn("block is not written to disk", zap.Error(w.err))
	to := storage.StateQuarantined
	if errors.Is(w.err, unix.ENOSPC) || errors.Is(w.err, errTable) {
		// Nothing is wrong with the place itself.
		to = storage.StateFree
	}
	p.dropLocked(p.disk, w.disk, to)
}

// errTable: the records of a batch could not be written.
var errTable = errors.New("slot table could not be written")

// flushDiskLocked writes the changed pages of the disk tier's records; it lets
// go of the mutex for that. Pages that fail stay changed.
func (p *Pool) flushDiskLocked() error {
	var pages []storage.Page
	for i := range p.disk.parts {
		pages = p.disk.parts[i].recs.TakeDirty(pages)
	}
	p.mu.Unlock()
	err := storage.WritePages(pages)
	p.mu.Lock()
	if err == nil {
		return nil
	}
	p.count.TableErrors++
	storage.Redirty(pages)
	p.log.Warn("slot table of the disk tier", zap.Error(err))
	return errors.Join(errTable, err)
}
