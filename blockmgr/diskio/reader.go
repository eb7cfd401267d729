package diskio

import (
	"errors"
	"fmt"
	"sync"
	"time"

	"go.uber.org/zap"

	"github.com/blockyard-ai/blockyard/blockmgr/registry"
	"github.com/blockyard-ai/blockyard/blockmgr/storage"
	"github.com/blockyard-ai/blockyard/blockmgr/storage/extent"
	"github.com/blockyard-ai/blockyard/blockmgr/tier"
	"github.com/blockyard-ai/blockyard/internal/kv"
)

// ErrCorrupt: stored bytes do not match their checksum or identity.
var ErrCorrupt = errors.New("stored block is corrupt")

// readAttempts is the number of times that a read from disk is tried.
const readAttempts = 2

// Flight is a read that fills a host slot from disk, or a check of a block in host memory. All
// lookups of the block share it. The pool's lock guards its fields.
type Flight struct {
	// DiskSlot is the disk slot that is read; NoRef for a check.
	DiskSlot registry.Ref
	// Done is closed after Finished is set.
	Done chan struct{}
	// Waiters counts the lookups that hold the host slot for the flight. MustRun: the read
	// runs even without waiters.
	Waiters uint32
	MustRun bool
	// Prefetch: Mover.Prefetching counts the flight.
	Prefetch bool
	// Finished: the flight has ended. OK: the block is in host memory and good.
	Finished, OK bool

	key kv.StoredKey
}

// reads are the reads from disk to host memory, and the checks of recovered host blocks.
type reads struct {
	// flights are the reads and checks, by host slot.
	flights map[registry.Ref]*Flight
	// queue are the reads that have not begun; work wakes a reader.
	queue RefQueue
	work  *sync.Cond
	// limit is a semaphore of Options.Transfers reads. It needs no lock.
	limit chan struct{}
	// busyTime is the time in which blocks were being read.
	busyTime BusyTime
	// abandoned counts the abandoned reads that have not returned, prefetching the flights with
	// Flight.Prefetch.
	abandoned, prefetching int
}

// Flight returns the read or the check of host slot ref; nil when there is none.
func (m *Mover) Flight(ref registry.Ref) *Flight { return m.reads.flights[ref] }

// Readable reports whether reads may be queued now.
func (m *Mover) Readable() bool {
	return m.reads.abandoned < m.Transfers && m.Health.All.Ready()
}

// Read queues the read of a block from disk into the host slot ref, which has no block. The caller
// holds the block's disk slot; the end of the flight releases it.
func (m *Mover) Read(key *kv.StoredKey, ref registry.Ref) *Flight {
	disk := m.slots.DiskSlot(key)
	r := m.slots.Disk.Record(disk)
	block := tier.BlockOf(&r)
	m.slots.Occupy(m.slots.Host, ref, &block, storage.StateStaging, 0, r)
	f := &Flight{key: r.Key, DiskSlot: disk, Done: make(chan struct{})}
	m.reads.flights[ref] = f
	m.reads.queue.Push(ref)
	m.pool.Begin()
	m.reads.work.Signal()
	return f
}

// Prefetch begins to read a block into host slot ref before a lookup asks for the block. A reader
// finishes this read even if nobody waits for the block.
func (m *Mover) Prefetch(key *kv.StoredKey, ref registry.Ref) {
	f := m.Read(key, ref)
	f.MustRun, f.Prefetch = true, true
	m.reads.prefetching++
}

// Prefetching returns the number of unfinished reads of Prefetch.
func (m *Mover) Prefetching() int { return m.reads.prefetching }

// endFlight ends the flight of host slot ref. ok says that the block is in host memory and good.
// The caller then closes f.Done.
func (m *Mover) endFlight(ref registry.Ref, f *Flight, ok bool) {
	delete(m.reads.flights, ref)
	f.Finished, f.OK = true, ok
	if f.Prefetch {
		m.reads.prefetching--
	}
}

// read is one block that a reader works on.
type read struct {
	flight *Flight
	// hostRef is the host slot. record is the disk slot's and has the checksum.
	hostRef registry.Ref
	record  storage.Record
	from    *extent.Disk
	to      *extent.Host
	began   time.Time
}

// RunReader reads blocks until Stop is closed. Queued reads then stay unread: their lookups
// have ended. A read that exceeds the deadline is abandoned, and RunReader waits for it.
// RunReader takes the pool's lock itself.
func (m *Mover) RunReader() {
	for {
		r, ok := m.takeRead()
		if !ok {
			return
		}
		timer := time.AfterFunc(m.Deadline, func() { m.abandonRead(r) })
		sum, retries, err := m.readBlock(r)
		timer.Stop()
		m.finishRead(r, sum, retries, err)
	}
}

// takeRead waits for a block to read. It cancels queued reads without waiters, and all of them
// while the breaker is open. ok is false when the reader must end.
func (m *Mover) takeRead() (r *read, ok bool) {
	m.mu.Lock()
	defer m.mu.Unlock()
	for {
		for m.reads.queue.Len() == 0 && !m.stopped() {
			m.reads.work.Wait()
		}
		if m.stopped() {
			return nil, false
		}
		ref := m.reads.queue.Pop()
		f := m.reads.flights[ref]
		unwanted := f.Waiters == 0 && !f.MustRun
		if unwanted || !m.Health.All.Allow() {
			m.cancelRead(ref, f)
			continue
		}
		from, _ := m.slots.Disk.At(f.DiskSlot)
		to, _ := m.slots.Host.At(ref)
		began := time.Now()
		m.reads.busyTime.Begin(began)
		return &read{flight: f, hostRef: ref, record: m.slots.Disk.Record(f.DiskSlot), from: from.Disk, to: to.Host, began: began}, true
	}
}

// cancelRead ends a read that has not begun: the block is a miss for the lookups that wait. Its
// host slot becomes free, and the block stays on disk.
func (m *Mover) cancelRead(ref registry.Ref, f *Flight) {
	m.Counters.ReadsCancelled++
	m.endFlight(ref, f, false)
	m.slots.Host.Slot(ref).Holds -= f.Waiters
	m.slots.Drop(m.slots.Host, ref, storage.StateFree)
	m.slots.Release(m.slots.Disk, f.DiskSlot)
	close(f.Done)
	m.pool.Done(1)
}

// readBlock fills the host slot from the disk slot and verifies the block. sum is the content sum
// of the bytes, retries the number of second tries. It tries readAttempts times, because an error
// on the way from the device may be transient; an error of host memory is not. It needs no lock.
func (m *Mover) readBlock(r *read) (sum uint64, retries int, err error) {
	for ; ; retries++ {
		to := r.to.Slot(r.hostRef.Slot())
		m.reads.limit <- struct{}{}
		fetched, failed := r.from.Fetch(r.flight.DiskSlot.Slot(), to)
		<-m.reads.limit
		if err = failed; err == nil { // the disk does not wait for the decryption
			err = corruptIfForged(fetched.Open(to, lifeOf(&r.record)))
		}
		if err == nil {
			sum, err = m.compare(r.to, r.hostRef.Slot(), &r.record, r.flight.key)
		}
		if err == nil || errors.Is(err, extent.ErrMemory) || retries+1 == readAttempts {
			return sum, retries, err
		}
	}
}

// lifeOf returns the life of a slot that a disk slot's record describes.
func lifeOf(r *storage.Record) extent.Life {
	return extent.Life{Key: r.Key, Generation: r.Generation}
}

// corruptIfForged adds ErrCorrupt to the error of a slot whose bytes are not those that were sealed.
func corruptIfForged(err error) error {
	if errors.Is(err, extent.ErrForged) {
		return fmt.Errorf("%w: %w", ErrCorrupt, err)
	}
	return err
}

// compare compares the bytes of slot i of a host extent with the checksum in record r, and returns
// their content sum. want is the key that r must have. ErrCorrupt: record or bytes are wrong;
// extent.ErrMemory: the bytes cannot be read. compare needs no lock.
func (m *Mover) compare(host *extent.Host, i uint32, r *storage.Record, want kv.StoredKey) (uint64, error) {
	if r.Key != want || uint64(r.Length) != m.BlockBytes {
		return 0, fmt.Errorf("record of %s, want %s: %w", r.Key, want, ErrCorrupt)
	}
	sum, err := host.ContentSum(i, want, m.BlockBytes)
	if err != nil {
		return 0, err
	}
	if got := storage.Bind(sum, want, r.Generation); got != r.Checksum {
		return 0, fmt.Errorf("block %s: checksum %016x, stored %016x: %w", want, got, r.Checksum, ErrCorrupt)
	}
	return sum, nil
}

// finishRead makes a block that was read visible in host memory, or ends a failed or abandoned
// read. sum is the checksum of its bytes, retries the number of second tries. The lookups that
// wait for the flight go on when f.Done closes.
func (m *Mover) finishRead(r *read, sum uint64, retries int, err error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	defer m.pool.Done(1)
	m.Counters.ReadRetries += uint64(retries)
	f := r.flight
	if f.Finished { // abandoned
		m.finishAbandoned(r, err)
		return
	}
	m.readEnded(r)
	m.endFlight(r.hostRef, f, err == nil && !m.closed)
	if m.closed { // the slots may be unmapped
		close(f.Done)
		return
	}
	m.slots.Release(m.slots.Disk, f.DiskSlot)
	if err == nil {
		m.readWorked(f.DiskSlot)
		m.Counters.Promotions++
		m.Counters.BytesRead += m.SlotBytes
		s := m.slots.Host.Slot(r.hostRef)
		s.FromDisk = true
		record := r.record
		record.Checksum = storage.Bind(sum, record.Key, s.Generation)
		m.slots.Store(m.slots.Host, r.hostRef, record)
	} else {
		m.finishFailed(r, err)
	}
	close(f.Done)
}

// readEnded adds the time of a read that has ended or is abandoned.
func (m *Mover) readEnded(r *read) {
	now := time.Now()
	m.reads.busyTime.End(now)
	m.Counters.ReadTime.Observe(now.Sub(r.began))
}

// finishFailed ends a failed read. After an error of host memory the host slot goes out of use
// and the block stays on disk. After a device error the block stays on disk too, until
// readFailed says that it is lost. Wrong bytes lose the block.
func (m *Mover) finishFailed(r *read, err error) {
	f := r.flight
	m.slots.Host.Slot(r.hostRef).Holds -= f.Waiters // the waiting lookups leave a failed slot to us
	if errors.Is(err, extent.ErrMemory) {
		m.slots.DropDamaged(r.hostRef, err)
		return
	}
	m.slots.Drop(m.slots.Host, r.hostRef, storage.StateFree)
	if errors.Is(err, ErrCorrupt) {
		m.Counters.CorruptReads++
	} else {
		m.Counters.ReadErrors++
		m.Health.All.Failed(err)
		if !m.readFailed(f.DiskSlot) {
			m.Log.Warn("block on disk cannot be read for now", zap.Stringer("key", f.key), zap.Error(err))
			return
		}
	}
	m.Log.Warn("block on disk is lost", zap.Stringer("key", f.key), zap.Error(err))
	m.loseDiskBlock(f.DiskSlot)
}

// abandonRead abandons a read that exceeds the deadline: the block is a miss for its lookups.
// The kernel may still write into the host slot, which stays out of use until the read returns.
// abandonRead also cancels all queued reads: the disk hangs, and their lookups must not wait
// for it too.
func (m *Mover) abandonRead(r *read) {
	m.mu.Lock()
	defer m.mu.Unlock()
	f := r.flight
	if f.Finished || m.closed {
		return
	}
	m.Health.All.Stalled()
	m.Counters.ReadsAbandoned++
	m.Log.Warn("a read from disk exceeds the deadline: its block is a miss", zap.Stringer("key", f.key), zap.Duration("deadline", m.Deadline))
	m.readEnded(r)
	m.endFlight(r.hostRef, f, false)
	s := m.slots.Host.Slot(r.hostRef)
	s.Holds -= f.Waiters
	m.slots.Drop(m.slots.Host, r.hostRef, storage.StateQuarantined)
	// This hold keeps the slot's extent, into which the kernel may write, until finishAbandoned.
	s.Holds++
	m.reads.abandoned++
	close(f.Done)
	for m.reads.queue.Len() > 0 {
		queued := m.reads.queue.Pop()
		m.cancelRead(queued, m.reads.flights[queued])
	}
}

// finishAbandoned ends an abandoned read that has returned at last: nobody writes into its host
// slot any more, which becomes free. err is the read's.
func (m *Mover) finishAbandoned(r *read, err error) {
	m.reads.abandoned--
	if m.closed {
		return
	}
	m.slots.Free(m.slots.Host, r.hostRef)
	m.slots.Release(m.slots.Disk, r.flight.DiskSlot)
	if err == nil {
		m.Health.All.Succeeded()
	}
}
