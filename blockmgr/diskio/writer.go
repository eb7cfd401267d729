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
	// writeQueueMax bounds the blocks that wait for the disk. They cannot be evicted, so
	// that at most half of the host slots wait.
	writeQueueMax = 4096
	// writeAttempts is how often a block is tried to be written, each time to another
	// slot, before it stays in host memory only.
	writeAttempts = 3
)

// writes are the blocks on their way from host memory to disk.
type writes struct {
	// queue are the host slots that wait for the disk, each of them held.
	queue WriteQueue
	// deferred are host slots that found the queue full or the disk failing. They are
	// not held: what is evicted meanwhile is not offered again.
	deferred RefQueue
	// work wakes a writer.
	work *sync.Cond
	// limit has room for each block that may be written at a time. It needs no lock.
	limit chan struct{}
	// flushWanted has a writer write the disk tier's records. It counts as an operation.
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

// Offer queues a sealed host slot for the disk, unless its block is there already, or
// waits already, or the filter does not want it there. When the queue is full or the
// disk fails the block is offered again later.
func (m *Mover) Offer(ref registry.Ref, s *tier.Slot) {
	if m.slots.Disk == nil || m.Joining || s.Queued || s.Deferred && s.WantsDisk || s.WriteAttempts >= writeAttempts {
		return
	}
	if m.onDisk(s) {
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
	if m.Health.WritesOpen() {
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

func (m *Mover) enqueueWrite(ref registry.Ref, s *tier.Slot) {
	if m.writes.queue.Len() >= m.writeRoom() {
		m.Counters.WriteBehindDropped++
		m.deferWrite(ref, s)
		return
	}
	s.Queued = true
	m.slots.Hold(m.slots.Host, ref)
	m.writes.queue.Push(ref, s.Priority)
	m.pool.Begin()
	m.writes.work.Signal()
}

// deferWrite has a block offered again later. Its slot is not held meanwhile; if
// another block has the slot by then, that one is looked at instead.
func (m *Mover) deferWrite(ref registry.Ref, s *tier.Slot) {
	if !s.Deferred {
		s.Deferred = true
		m.writes.deferred.Push(ref)
		m.writes.work.Signal() // somebody must try the disk again
	}
}

// writeRoom is how many blocks may wait for the disk.
func (m *Mover) writeRoom() int { return min(max(m.slots.Host.Capacity/2, 1), writeQueueMax) }

// offerDeferred fills the queue with deferred blocks.
func (m *Mover) offerDeferred() {
	for m.writes.deferred.Len() > 0 && m.writes.queue.Len() < m.writeRoom() {
		ref := m.writes.deferred.Pop()
		s := m.slots.Host.Slot(ref)
		s.Deferred = false
		if s.WantsDisk && s.State == storage.StateSealed && !s.Queued && !m.slots.Host.Stale(s) && !m.onDisk(s) {
			m.enqueueWrite(ref, s)
		}
	}
}

// deferQueue releases the blocks that wait for a failing disk, so that they can be
// evicted.
func (m *Mover) deferQueue() {
	for m.writes.queue.Len() > 0 {
		ref := m.writes.queue.Pop()
		s := m.slots.Host.Slot(ref)
		s.Queued = false
		m.slots.Release(m.slots.Host, ref)
		m.deferWrite(ref, s)
		m.pool.Done(1)
	}
}

// RequestFlush has the records of the disk tier written in the background.
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

// WriteStalled reports that an operation of a writer has not ended in time. Its block
// stays held and readable; the blocks behind it are released. WriteStalled takes the
// pool's lock itself.
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
	host, disk registry.Ref
	bytes      []byte
	to         *extent.Disk
	err        error
}

// batch is what a writer writes at a time. taken is how many queued blocks it ends,
// those included that needed no write.
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
			// What cannot be written stays changed: the next batch or Close writes it.
			_ = m.flush()
			m.done(1)
		default:
			m.writeBatch(wanted)
		}
	}
}

// awaitWrites waits until there is something to write. wanted is how many blocks to
// write; flush says to write the records instead. ok is false when the writer must end.
//
// wanted is at most the number of blocks in the queue now. Blocks that are queued while
// the tier grows belong to the next batch: the tier has not grown for them, and they
// would evict others. When the last write failed one block is wanted: each block of a
// batch may evict another, which is lost for nothing when the write fails.
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
		case m.Health.UntilWrite() > 0:
			m.deferQueue()
			again := time.AfterFunc(m.Health.UntilWrite(), m.WakeWriter)
			m.writes.work.Wait()
			again.Stop()
		default:
			m.offerDeferred()
			if m.writes.queue.Len() == 0 || !m.Health.AllowWrite() {
				continue
			}
			if m.Health.WritesDoubtful() {
				return 1, false, true
			}
			return min(m.writes.queue.Len(), m.Batch), false, true
		}
	}
	return 0, false, false
}

// writeBatch takes up to wanted blocks through three steps: records that say granted,
// bytes, records that say sealed. Each step is written before the next begins. There is
// no sync: after a power loss any of it may be missing, which the checksum shows when
// the block is read.
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
	m.done(b.taken)
}

// done ends operations for callers without the pool's lock.
func (m *Mover) done(n int) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.pool.Done(n)
}

// takeWrites finds disk slots for up to wanted queued blocks. Another writer may have
// taken some of them. takeWrites takes the pool's lock itself.
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

// takeWrite finds a disk slot for a queued host slot. It releases the host slot when there
// is nothing to write.
func (m *Mover) takeWrite(ref registry.Ref) (w write, ok bool) {
	host, disk := m.slots.Host, m.slots.Disk
	r, s := host.Record(ref), host.Slot(ref)
	defer func() {
		if !ok {
			s.Queued = false
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
	return write{host: ref, disk: to, bytes: from.Host.Slot(i), to: dest.Disk}, true
}

// writeBytes writes a batch's bytes. All writers together write Transfers blocks at once.
// A block's error is in the batch and does not stop the other blocks; an open breaker
// does. writeBytes needs no lock.
func (m *Mover) writeBytes(writes []write) {
	var wg sync.WaitGroup
	for i := range writes {
		m.writes.limit <- struct{}{}
		if i > 0 && m.Health.Writes.IsOpen() {
			writes[i].err = errBreakerOpen
			<-m.writes.limit
			continue
		}
		wg.Go(func() {
			defer func() { <-m.writes.limit }()
			w := &writes[i]
			watch := time.AfterFunc(m.Deadline, m.WriteStalled)
			w.err = w.to.WriteSlot(w.disk.Slot(), w.bytes)
			watch.Stop()
		})
	}
	wg.Wait()
}

// finishWrites makes the written blocks of a batch visible on disk. A batch that ends
// after Close leaves them as the next agent finds them: granted, which means free.
func (m *Mover) finishWrites(b batch) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.closed {
		return
	}
	for i := range b.writes {
		w := &b.writes[i]
		m.slots.Host.Slot(w.host).Queued = false
		if w.err == nil {
			m.finishWrite(w)
		} else {
			m.finishFailedWrite(w)
		}
		m.slots.Release(m.slots.Host, w.host)
	}
}

func (m *Mover) finishWrite(w *write) {
	m.writeWorked(w.disk)
	m.Counters.WriteBehind++
	m.Counters.BytesWritten += m.SlotBytes
	m.slots.Store(m.slots.Disk, w.disk, m.slots.Disk.Record(w.disk))
}

// finishFailedWrite forgets a write that failed. The block is offered again, a few
// times. A block whose memory could not be read is dropped.
func (m *Mover) finishFailedWrite(w *write) {
	s := m.slots.Host.Slot(w.host)
	sealed := func() bool { return s.State == storage.StateSealed }
	switch {
	case errors.Is(w.err, extent.ErrMemory):
		m.slots.Drop(m.slots.Disk, w.disk, storage.StateFree)
		if sealed() {
			m.slots.DropDamaged(w.host, w.err)
		}
		return
	case errors.Is(w.err, errBreakerOpen):
		m.slots.Drop(m.slots.Disk, w.disk, storage.StateFree)
		m.Counters.WriteBehindDropped++
		if sealed() {
			m.deferWrite(w.host, s)
		}
		return
	}
	m.Counters.WriteErrors++
	m.Log.Warn("block is not written to disk", zap.Error(w.err))
	if IsFull(w.err) || errors.Is(w.err, errTable) {
		// Nothing is wrong with the slot itself.
		m.slots.Drop(m.slots.Disk, w.disk, storage.StateFree)
	} else {
		m.writeFailed(w.disk, w.err)
	}
	if s.WriteAttempts++; s.WriteAttempts < writeAttempts && sealed() {
		m.Counters.WriteRetries++
		m.deferWrite(w.host, s)
	}
}
