package diskio

import (
	"errors"
	"sync"
	"time"

	"github.com/blockyard-ai/blockyard/blockmgr/registry"
	"github.com/blockyard-ai/blockyard/blockmgr/storage"
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
	if m.slots.Disk == nil || m.Joining {
		return // no disk tier, or it is not complete
	}
	scheduled := s.QueuedForDisk || s.WriteDeferred && s.WantsDisk
	if scheduled || s.WriteAttempts >= writeAttempts || m.onDisk(s) {
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
