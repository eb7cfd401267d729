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

// write is one block on its way from a host slot to a disk slot.
type write struct {
	hostRef, diskRef registry.Ref
	bytes            []byte
	to               *extent.Disk
	life             extent.Life
	// took is the time of the write of the bytes; 0 when it was not tried.
	took time.Duration
	err  error
}

// batch is the blocks that a writer writes together. taken counts the blocks that it took from
// the queue, with those that needed no write.
type batch struct {
	writes []write
	taken  int
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
		m.settle(b.writes)
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
	if m.Budget != nil && !m.Budget.Reserve(m.WriteBytes, time.Now()) {
		s.WantsDisk = false // a later use may offer the block again
		return write{}, false
	}
	block := tier.BlockOf(&r)
	to := registry.NoRef
	if m.slots.TenantRoomFor(disk, &block) {
		to = m.slots.AllocFor(disk, &block)
	}
	if to == registry.NoRef {
		if m.Budget != nil {
			m.Budget.Settle(m.WriteBytes, false, time.Now())
		}
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
	life := extent.Life{Key: r.Key, Generation: disk.Slot(to).Generation}
	return write{hostRef: ref, diskRef: to, bytes: from.Host.Slot(i), to: dest.Disk, life: life}, true
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
			watch, began := time.AfterFunc(m.Deadline, m.WriteStalled), time.Now()
			w.err = w.to.WriteSlot(w.diskRef.Slot(), w.bytes, w.life)
			w.took = time.Since(began)
			watch.Stop()
		})
	}
	wg.Wait()
}

// settle ends the reservations of a batch. A failed write counts as written, unless it was not tried.
func (m *Mover) settle(writes []write) {
	if m.Budget == nil {
		return
	}
	now := time.Now()
	for i := range writes {
		err := writes[i].err
		m.Budget.Settle(m.WriteBytes, !errors.Is(err, errBreakerOpen) && !errors.Is(err, errTable), now)
	}
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
		if w.took > 0 {
			m.Counters.WriteTime.Observe(w.took)
		}
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
	m.Counters.BytesWritten += m.WriteBytes
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
