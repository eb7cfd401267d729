package diskio

import (
	"sync"
	"time"

	"go.uber.org/zap"

	"github.com/blockyard-ai/blockyard/blockmgr/registry"
	"github.com/blockyard-ai/blockyard/blockmgr/storage"
	"github.com/blockyard-ai/blockyard/blockmgr/storage/extent"
	"github.com/blockyard-ai/blockyard/blockmgr/tier"
)

// seals are the host slots that wait for a sealer to compute or compare their checksums.
type seals struct {
	queue RefQueue
	// work wakes a sealer.
	work *sync.Cond
}

// Seal queues a filled host slot for its checksum. The caller has held the slot for it.
func (m *Mover) Seal(ref registry.Ref) {
	m.seals.queue.Push(ref)
	m.pool.Begin()
	m.seals.work.Signal()
}

// Verify queues the check of a recovered host block against its checksum: the bytes may have
// changed while no agent ran. The flight holds the slot until the check has ended.
func (m *Mover) Verify(ref registry.Ref, s *tier.Slot) *Flight {
	f := &Flight{key: m.slots.Registry.At(s.Entry).Key, DiskSlot: registry.NoRef, Done: make(chan struct{})}
	m.reads.flights[ref] = f
	m.slots.Hold(m.slots.Host, ref)
	m.Seal(ref)
	return f
}

// sum is one host slot whose checksum a sealer or the scrubber computes. The slot is
// held.
type sum struct {
	hostRef registry.Ref
	record  storage.Record
	host    *extent.Host
	// flight is the check of a recovered block; nil for a block that is to be sealed.
	flight *Flight
	// began is when a sealer took the slot; zero for the scrubber.
	began time.Time
}

// sumOf returns what a goroutine needs to compute the checksum of a held host slot without the
// lock.
func (m *Mover) sumOf(ref registry.Ref) *sum {
	e, _ := m.slots.Host.At(ref)
	return &sum{hostRef: ref, record: m.slots.Host.Record(ref), host: e.Host}
}

// RunSealer computes the checksums of committed blocks and compares those of recovered blocks,
// until Stop is closed. The next agent drops a block that is not sealed by then. RunSealer takes
// the pool's lock itself.
func (m *Mover) RunSealer() {
	for {
		s, ok := m.takeSeal()
		switch {
		case !ok:
			return
		case s.flight != nil:
			_, err := m.compare(s.host, s.hostRef.Slot(), &s.record, s.record.Key)
			m.finishVerify(s, err)
		default:
			content, err := s.host.ContentSum(s.hostRef.Slot(), s.record.Key, m.BlockBytes)
			m.finishSeal(s, content, err)
		}
	}
}

// takeSeal waits for a queued slot and takes it, for a first checksum or for a check. ok is false
// when the sealer must end.
func (m *Mover) takeSeal() (s *sum, ok bool) {
	m.mu.Lock()
	defer m.mu.Unlock()
	for m.seals.queue.Len() == 0 && !m.stopped() {
		m.seals.work.Wait()
	}
	if m.stopped() {
		return nil, false
	}
	s = m.sumOf(m.seals.queue.Pop())
	s.flight, s.began = m.reads.flights[s.hostRef], time.Now()
	return s, true
}

// finishSeal seals a filled slot and offers its block to the disk. content is the sum of the
// block's bytes; err says that its memory is damaged, and then the block is dropped. The slot is
// still filled, at the same generation: it was held, and eviction, resets and damage drop only
// sealed blocks.
func (m *Mover) finishSeal(s *sum, content uint64, err error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	defer m.pool.Done(1)
	t := m.slots.Host
	slot := t.Slot(s.hostRef)
	slot.Holds--
	m.Counters.SealTime.Observe(time.Since(s.began))
	if err != nil {
		e, _ := t.At(s.hostRef)
		m.slots.MemoryError(e, err)
		m.slots.Drop(t, s.hostRef, storage.StateQuarantined)
		return
	}
	s.record.Checksum = storage.Bind(content, s.record.Key, slot.Generation)
	m.slots.Seal(t, s.hostRef, s.record)
	m.Offer(s.hostRef, slot)
	m.slots.UpdateEvictable(t, s.hostRef, slot)
}

// finishVerify ends the check of a recovered host block and drops a block with wrong bytes. err is
// compare's. Lookups that wait for the check go on.
func (m *Mover) finishVerify(s *sum, err error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.compared(s.hostRef, err)
	slot, f := m.slots.Host.Slot(s.hostRef), s.flight
	there := slot.State == storage.StateSealed // the scrubber may have dropped the block
	m.endFlight(s.hostRef, f, there && err == nil)
	slot.Holds--
	if !f.OK { // lookups do not release the slot of a failed flight
		slot.Holds -= f.Waiters
	}
	if there && err != nil {
		m.loseHostBlock(s.hostRef, err)
	} else {
		m.slots.AfterRelease(m.slots.Host, s.hostRef, slot)
	}
	close(f.Done)
	m.pool.Done(1)
}

// compared records that a host block was compared with its checksum; err is compare's. A good
// recovered block becomes verified, and is offered to the disk.
func (m *Mover) compared(ref registry.Ref, err error) {
	s := m.slots.Host.Slot(ref)
	if err != nil || !s.Unverified || s.State != storage.StateSealed {
		return
	}
	s.Unverified = false
	m.slots.Unverified--
	m.Counters.Verified++
	m.Offer(ref, s)
}

// loseHostBlock drops a host block with wrong bytes.
func (m *Mover) loseHostBlock(ref registry.Ref, err error) {
	m.Counters.CorruptHost++
	key := m.slots.Registry.At(m.slots.Host.Slot(ref).Entry).Key
	m.Log.Warn("block in host memory is lost", zap.Stringer("key", key), zap.Error(err))
	m.slots.DropDamaged(ref, err)
}
