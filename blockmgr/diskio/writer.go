package diskio

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
	// writeQueueMax bounds the blocks that wait for the disk; see also writeRoom. Waiting
	// blocks cannot be evicted.
	writeQueueMax = 4096
	// writeAttempts is the number of writes that are tried for a block, each to another slot,
	// before the block stays in host memory only.
	writeAttempts = 3
)

// writes are the blocks on their way from host memory to disk.
type writes struct {
	// queue are the host slots that wait for the disk, each of them held.
	queue WriteQueue
	// deferred are host slots that found the queue full or the disk failing. They are not
	// held: their blocks may be evicted.
	deferred RefQueue
	// work wakes a writer.
	work *sync.Cond
	// limit is a semaphore of Options.Transfers writes. It needs no lock.
	limit chan struct{}
	// flushWanted asks a writer to write the disk tier's records. It counts as an operation.
	flushWanted bool
	// flushing is held while records are written. It is taken before the pool's lock.
	flushing sync.Mutex
}

var (
	// errTable: the records of a batch could not be written.
	errTable = errors.New("slot table could not be written")
	// errBreakerOpen: the breaker for writes opened before the block's turn came.
	errBreakerOpen = errors.New("the breaker for writes is open")
)

// Offer queues a sealed host slot for the disk. It does nothing while there is no disk tier
// or the tier is not complete, for a block that is on disk, queued, deferred or has failed
// writeAttempts times, and for a block that the filter refuses. When the queue is full or a
// breaker stops writes, the block is deferred and offered again later.
func (m *Mover) Offer(ref registry.Ref, s *tier.Slot) {
	noTier := m.slots.Disk == nil || m.Joining
	scheduled := s.QueuedForDisk || s.WriteDeferred && s.WantsDisk
	if noTier || scheduled || s.WriteAttempts >= writeAttempts || m.onDisk(s) {
		return
	}
	if m.Filter != nil {
		e, i := m.slots.Host.At(ref)
		if !m.Filter.ShouldOffload(e.Records.Seq(i)) {
			m.Counters.WriteBehindFiltered++
			return
		}
	}
	s.WantsDisk = true
	if m.Health.WritesStopped() {
		m.Counters.WriteBehindDropped++
		m.deferWrite(ref, s)
		return
	}
	m.enqueueWrite(ref, s)
}

// OfferAll offers the blocks that were sealed while there was no disk tier.
func (m *Mover) OfferAll() {
	m.slots.Host.Each(func(ref registry.Ref, s *tier.Slot) {
		if s.State == storage.StateSealed && !s.Unverified {
			m.Offer(ref, s)
		}
	})
}

// onDisk reports whether the block of a host slot has a disk slot.
func (m *Mover) onDisk(s *tier.Slot) bool {
	return m.slots.Registry.At(s.Entry).Slots[registry.Disk] != registry.NoRef
}

// enqueueWrite queues the write of a host slot to disk. It holds the slot and begins an
// operation of the pool; the end of the write ends both. With a full queue it defers the write,
// which WriteBehindDropped counts, and does not hold the slot.
func (m *Mover) enqueueWrite(ref registry.Ref, s *tier.Slot) {
	if m.writes.queue.Len() >= m.writeRoom() {
		m.Counters.WriteBehindDropped++
		m.deferWrite(ref, s)
		return
	}
	s.QueuedForDisk = true
	m.slots.Hold(m.slots.Host, ref)
	m.writes.queue.Push(ref, s.Priority)
	m.pool.Begin()
	m.writes.work.Signal()
}

// deferWrite puts a slot on the list of deferred ones, whose blocks are offered to the disk again
// later. The slot is not held: offerDeferred offers the block that the slot has then.
func (m *Mover) deferWrite(ref registry.Ref, s *tier.Slot) {
	if !s.WriteDeferred {
		s.WriteDeferred = true
		m.writes.deferred.Push(ref)
		m.writes.work.Signal() // a writer must try the disk again
	}
}

// writeRoom returns how many blocks may wait for the disk: at most half of the host slots.
func (m *Mover) writeRoom() int { return min(max(m.slots.Host.Capacity/2, 1), writeQueueMax) }

// offerDeferred moves deferred blocks to the queue until it is full. It drops those from the list
// that are on disk by now, or that have left host memory.
func (m *Mover) offerDeferred() {
	for m.writes.deferred.Len() > 0 && m.writes.queue.Len() < m.writeRoom() {
		ref := m.writes.deferred.Pop()
		s := m.slots.Host.Slot(ref)
		s.WriteDeferred = false
		if s.WantsDisk && s.State == storage.StateSealed && !s.QueuedForDisk && !m.slots.Host.Stale(s) && !m.onDisk(s) {
			m.enqueueWrite(ref, s)
		}
	}
}

// deferQueue defers all queued blocks, because the disk fails. It releases their slots, so that the
// blocks can be evicted.
func (m *Mover) deferQueue() {
	for m.writes.queue.Len() > 0 {
		ref := m.writes.queue.Pop()
		s := m.slots.Host.Slot(ref)
		s.QueuedForDisk = false
		m.slots.Release(m.slots.Host, ref)
		m.deferWrite(ref, s)
		m.pool.Done(1)
	}
}

// RequestFlush asks a writer to write the records of the disk tier in the background.
func (m *Mover) RequestFlush() {
	if !m.writes.flushWanted {
		m.writes.flushWanted = true
		m.pool.Begin()
		m.writes.work.Signal()
	}
}

// WakeWriter wakes the writers. It takes the pool's lock itself, so that it does not
// come between a writer's decision to wait and the wait.
func (m *Mover) WakeWriter() {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.writes.work.Broadcast()
}

// WriteStalled reports that a write has exceeded the deadline. Its block stays held and
// readable. The queued blocks are deferred. WriteStalled takes the pool's lock itself.
func (m *Mover) WriteStalled() {
	m.Health.All.Stalled()
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.closed {
		return
	}
	m.Counters.WritesStalled++
	m.deferQueue()
}

// write is one block on its way from a host slot to a disk slot.
type write struct {
	hostRef, diskRef registry.Ref
	bytes            []byte
	to               *extent.Disk
	err              error
}

// batch is the blocks that a writer writes together. taken counts the blocks that it took from
// the queue, with those that needed no write.
type batch struct {
	writes []write
	taken  int
}

// RunWriter copies blocks to disk, batch by batch, until Stop is closed. It takes the
// pool's lock itself.
func (m *Mover) RunWriter() {
	for {
		wanted, flush, ok := m.awaitWrites()
		switch {
		case !ok:
			return
		case flush:
			// Pages that cannot be written stay changed: the next batch or Close writes them.
			_ = m.flush()
			m.done(1)
		default:
			m.writeBatch(wanted)
		}
	}
}

// awaitWrites waits for work. wanted is the number of blocks to write; flush says to write the
// records instead. ok is false when the writer must end.
//
// wanted is at most the length of the queue. Blocks that are queued while the tier grows belong
// to the next batch: the tier has not grown for them, and they would evict other blocks. After
// a failed write wanted is 1: each block of a batch may evict another block, in vain when the
// write fails.
func (m *Mover) awaitWrites() (wanted int, flush, ok bool) {
	m.mu.Lock()
	defer m.mu.Unlock()
	for !m.stopped() {
		switch {
		case m.writes.flushWanted:
			m.writes.flushWanted = false
			return 0, true, true
		case m.writes.queue.Len() == 0 && m.writes.deferred.Len() == 0:
			m.writes.work.Wait()
		case m.Health.UntilWrite() > 0: // a breaker is open: wait for its next try
			m.deferQueue()
			again := time.AfterFunc(m.Health.UntilWrite(), m.WakeWriter)
			m.writes.work.Wait()
			again.Stop()
		default:
			m.offerDeferred()
			if m.writes.queue.Len() == 0 || !m.Health.AllowWrite() {
				continue // the deferred blocks are gone, or another writer makes the try
			}
			if m.Health.WritesDoubtful() {
				return 1, false, true
			}
			return min(m.writes.queue.Len(), m.Batch), false, true
		}
	}
	return 0, false, false
}

// writeBatch writes up to wanted blocks in three steps: records that say granted, bytes, records
// that say sealed. A step begins after the write of the previous one. So an agent that dies between
// two steps leaves slots that say granted, which the next agent frees. writeBatch does not sync.
// After a power loss any part may be missing; the checksum shows it when the block is read.
func (m *Mover) writeBatch(wanted int) {
	m.pool.GrowDisk(wanted)
	b := m.takeWrites(wanted)
	if len(b.writes) > 0 {
		if err := m.flush(); err != nil {
			for i := range b.writes {
				b.writes[i].err = err
			}
		} else {
			m.writeBytes(b.writes)
		}
		m.finishWrites(b)
		// A sealed record that is not written costs the block at the next restart; flush
		// has counted it.
		_ = m.flush()
	}
	m.endBatch(b.taken)
}

// endBatch ends the operations of n blocks, one operation of enqueueWrite each. It first queues
// deferred blocks, under the same lock. So Quiesce does not return between two batches while
// blocks wait for a disk that works.
func (m *Mover) endBatch(n int) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if !m.stopped() && m.Health.UntilWrite() <= 0 {
		m.offerDeferred()
	}
	m.pool.Done(n)
}

// done ends n operations. The caller does not hold the pool's lock.
func (m *Mover) done(n int) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.pool.Done(n)
}

// takeWrites finds disk slots for up to wanted queued blocks. There may be fewer, because
// another writer has taken some. takeWrites takes the pool's lock itself.
func (m *Mover) takeWrites(wanted int) batch {
	m.mu.Lock()
	defer m.mu.Unlock()
	b := batch{taken: min(m.writes.queue.Len(), wanted)}
	for range b.taken {
		if w, ok := m.takeWrite(m.writes.queue.Pop()); ok {
			b.writes = append(b.writes, w)
		}
	}
	return b
}

// takeWrite takes a disk slot for the block of a queued host slot, which stays held for the write.
// ok is false when the block needs no write or gets no disk slot; then the host slot is released.
func (m *Mover) takeWrite(ref registry.Ref) (w write, ok bool) {
	host, disk := m.slots.Host, m.slots.Disk
	r, s := host.Record(ref), host.Slot(ref)
	defer func() {
		if !ok {
			s.QueuedForDisk = false
			m.slots.Release(host, ref)
		}
	}()
	if s.State != storage.StateSealed || m.onDisk(s) {
		return write{}, false
	}
	block := tier.BlockOf(&r)
	to := m.slots.AllocFor(disk, &block)
	if to == registry.NoRef {
		m.Counters.WriteBehindRefused++
		return write{}, false
	}
	// The sum moves to the disk slot's generation; the bytes are not read again.
	content := storage.Bind(r.Checksum, r.Key, s.Generation)
	r.Checksum = storage.Bind(content, r.Key, disk.Slot(to).Generation)
	r.Priority = s.Priority
	m.slots.Occupy(disk, to, &block, storage.StateGranted, 0, r)
	from, i := host.At(ref)
	dest, _ := disk.At(to)
	return write{hostRef: ref, diskRef: to, bytes: from.Host.Slot(i), to: dest.Disk}, true
}

// writeBytes writes a batch's bytes. All writers together write Transfers blocks at once.
// A block's error is in the batch and does not stop the other blocks; an open breaker
// does. writeBytes needs no lock.
func (m *Mover) writeBytes(writes []write) {
	var wg sync.WaitGroup
	for i := range writes {
		m.writes.limit <- struct{}{}
		// The first write may be the try that closes an open breaker.
		if i > 0 && m.Health.Writes.IsOpen() {
			writes[i].err = errBreakerOpen
			<-m.writes.limit
			continue
		}
		wg.Go(func() {
			defer func() { <-m.writes.limit }()
			w := &writes[i]
			watch := time.AfterFunc(m.Deadline, m.WriteStalled)
			w.err = w.to.WriteSlot(w.diskRef.Slot(), w.bytes)
			watch.Stop()
		})
	}
	wg.Wait()
}

// finishWrites makes the written blocks of a batch visible on disk. After Close it does nothing:
// the next agent finds the slots granted and frees them.
func (m *Mover) finishWrites(b batch) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.closed {
		return
	}
	for i := range b.writes {
		w := &b.writes[i]
		m.slots.Host.Slot(w.hostRef).QueuedForDisk = false
		if w.err == nil {
			m.finishWrite(w)
		} else {
			m.finishFailedWrite(w)
		}
		m.slots.Release(m.slots.Host, w.hostRef)
	}
}

// finishWrite makes a written block resident on disk. The disk slot is still granted, at the
// same generation: takeWrite occupied it, and only finishWrites changes a granted disk slot.
func (m *Mover) finishWrite(w *write) {
	m.writeWorked(w.diskRef)
	m.Counters.WriteBehind++
	m.Counters.BytesWritten += m.SlotBytes
	m.slots.Store(m.slots.Disk, w.diskRef, m.slots.Disk.Record(w.diskRef))
}

// finishFailedWrite ends a failed write. It defers the block for another try, up to
// writeAttempts. It drops a block whose memory could not be read.
func (m *Mover) finishFailedWrite(w *write) {
	s := m.slots.Host.Slot(w.hostRef)
	// A block without a sealed slot was dropped during the write, because its memory is damaged.
	sealed := func() bool { return s.State == storage.StateSealed }
	switch {
	case errors.Is(w.err, extent.ErrMemory):
		m.slots.Drop(m.slots.Disk, w.diskRef, storage.StateFree)
		if sealed() {
			m.slots.DropDamaged(w.hostRef, w.err)
		}
		return
	case errors.Is(w.err, errBreakerOpen): // the write was not tried
		m.slots.Drop(m.slots.Disk, w.diskRef, storage.StateFree)
		m.Counters.WriteBehindDropped++
		if sealed() {
			m.deferWrite(w.hostRef, s)
		}
		return
	}
	m.Counters.WriteErrors++
	m.Log.Warn("block is not written to disk", zap.Error(w.err))
	if IsFull(w.err) || errors.Is(w.err, errTable) {
		// Nothing is wrong with the slot itself.
		m.slots.Drop(m.slots.Disk, w.diskRef, storage.StateFree)
	} else {
		m.writeFailed(w.diskRef, w.err)
	}
	if s.WriteAttempts++; s.WriteAttempts < writeAttempts && sealed() {
		m.Counters.WriteRetries++
		m.deferWrite(w.hostRef, s)
	}
}
