package blockmgr

import (
	"errors"
	"fmt"
	"time"

	"go.uber.org/zap"

	"github.com/blockyard-ai/blockyard/blockmgr/registry"
	"github.com/blockyard-ai/blockyard/blockmgr/storage"
	"github.com/blockyard-ai/blockyard/blockmgr/storage/extent"
	"github.com/blockyard-ai/blockyard/blockmgr/tier"
	"github.com/blockyard-ai/blockyard/internal/kv"
)

// readAttempts is how often a block is read from disk before it is given up.
const readAttempts = 2

// flight is the one read that fills a host slot from disk, or the one check of a
// block in host memory, whoever waits for it.
// Its fields are guarded by the pool's mutex; done is closed after finished is
// set.
type flight struct {
	key kv.StoredKey
	// disk is the disk slot that is read; NoRef for a check.
	disk registry.Ref
	done chan struct{}
	// waiters are the lookups that hold the host slot for it; wanted says that
	// somebody counts on it although nobody waits.
	waiters uint32
	wanted  bool
	// prefetch: counted in Pool.prefetching.
	prefetch bool
	finished bool
	ok       bool
}

// diskReadableLocked reports whether it makes sense to queue reads now.
func (p *Pool) diskReadableLocked() bool {
	return p.reads.stuck < p.cfg.Transfers && p.broker.breaker.Ready()
}

// startReadLocked fills the free host slot ref with a block whose disk slot is
// held; the flight releases it.
func (p *Pool) startReadLocked(key *kv.StoredKey, ref registry.Ref) *flight {
	disk := p.slots.DiskSlot(key)
	r := p.slots.Disk.Record(disk)
	block := tier.BlockOf(&r)
	p.slots.Occupy(p.slots.Host, ref, &block, storage.StateStaging, 0, r)
	f := &flight{key: r.Key, disk: disk, done: make(chan struct{})}
	p.reads.flights[ref] = f
	p.reads.queue.Push(ref)
	p.pending.operations++
	p.reads.work.Signal()
	return f
}

// startVerifyLocked queues the check of a recovered host block. The flight holds
// the slot.
func (p *Pool) startVerifyLocked(ref registry.Ref, s *tier.Slot) *flight {
	f := &flight{key: p.slots.Registry.At(s.Entry).Key, disk: registry.NoRef, done: make(chan struct{})}
	p.reads.flights[ref] = f
	s.Holds++
	p.slots.Settle(p.slots.Host, ref, s)
	p.seals.queue.Push(ref)
	p.pending.operations++
	p.seals.work.Signal()
	return f
}

// endFlightLocked says that a flight has ended; the caller closes done.
func (p *Pool) endFlightLocked(ref registry.Ref, f *flight, ok bool) {
	delete(p.reads.flights, ref)
	f.finished, f.ok = true, ok
	if f.prefetch {
		p.reads.prefetching--
	}
}

// verifyOneLocked ends the check of a recovered host block; it lets go of the
// mutex for the check.
func (p *Pool) verifyOneLocked(ref registry.Ref, f *flight) {
	err := p.checkHostLocked(ref)
	s := p.slots.Host.Slot(ref)
	there := s.State == storage.StateSealed // it may have been dropped meanwhile
	p.endFlightLocked(ref, f, there && err == nil)
	s.Holds--
	if !f.ok {
		s.Holds -= f.waiters
	}
	if there && err != nil {
		p.loseHostBlockLocked(ref, s, err)
	} else {
		p.slots.LetGo(p.slots.Host, ref, s)
	}
	close(f.done)
	p.doneLocked(1)
}

// checkHostLocked compares a sealed host block, which is held, with its checksum;
// it lets go of the mutex for that. A recovered block that is good is verified.
func (p *Pool) checkHostLocked(ref registry.Ref) error {
	r := p.slots.Host.Record(ref)
	part, i := p.slots.Host.At(ref)
	host := part.Host
	p.mu.Unlock()
	_, err := p.check(host, i, &r, r.Key)
	p.mu.Lock()
	if s := p.slots.Host.Slot(ref); err == nil && s.Unverified && s.State == storage.StateSealed {
		s.Unverified = false
		p.slots.Unverified--
		p.count.Verified++
		p.offerLocked(ref, s)
	}
	return err
}

// loseHostBlockLocked forgets a host block whose bytes are wrong.
func (p *Pool) loseHostBlockLocked(ref registry.Ref, s *tier.Slot, err error) {
	p.count.CorruptHost++
	p.log.Warn("block in host memory is lost", zap.Stringer("key", p.slots.Registry.At(s.Entry).Key), zap.Error(err))
	p.slots.DropDamaged(ref, err)
}

// readLoops is how many loops read blocks, of which Config.Transfers are in the
// disk at a time: the others check what they have read, and the disk does not wait
// for them.
func (c *Config) readLoops() int { return c.Transfers + c.Transfers/2 }

// readLoop reads blocks until the pool stops. What is queued then stays unread;
// nobody waits for it any more.
func (p *Pool) readLoop() {
	p.mu.Lock()
	defer p.mu.Unlock()
	for {
		for p.reads.queue.Len() == 0 && !p.stopped() {
			p.reads.work.Wait()
		}
		if p.stopped() {
			return
		}
		p.readOneLocked(p.reads.queue.Pop())
	}
}

// readOneLocked reads one block; it lets go of the mutex for the read. A read
// that takes longer than the deadline is given up meanwhile (abandonRead).
func (p *Pool) readOneLocked(ref registry.Ref) {
	f := p.reads.flights[ref]
	defer p.doneLocked(1)
	if f.waiters == 0 && !f.wanted || !p.broker.breaker.Allow() {
		p.count.ReadsCancelled++
		p.cancelReadLocked(ref, f)
		return
	}
	r := p.slots.Disk.Record(f.disk)
	from, i := p.slots.Disk.At(f.disk)
	to, j := p.slots.Host.At(ref)
	disk, host := from.Disk, to.Host
	p.reads.time.Begin(time.Now())
	p.mu.Unlock()

	timer := time.AfterFunc(p.cfg.IODeadline, func() { p.abandonRead(ref, f) })
	sum, retries, err := p.read(disk, i, host, j, &r, f.key)
	timer.Stop()

	p.mu.Lock()
	p.count.ReadRetries += uint64(retries)
	if f.finished { // abandoned
		p.returnedLocked(ref, f, err)
		return
	}
	p.reads.time.End(time.Now())
	p.endFlightLocked(ref, f, err == nil)
	p.slots.Release(p.slots.Disk, f.disk)
	if err == nil {
		p.readWorkedLocked(f.disk)
		p.count.Promotions++
		p.count.BytesRead += p.slotBytes
		p.promotedLocked(ref, r, sum)
	} else {
		p.readFailedLocked(ref, f, err)
	}
	close(f.done)
}

// read fills host slot j from disk slot i and verifies it, in a few attempts:
// what the device or the way to it spoiled once may come whole the next time.
func (p *Pool) read(disk *extent.Disk, i uint32, host *extent.Host, j uint32, r *storage.Record, want kv.StoredKey) (sum uint64, retries int, err error) {
	for ; ; retries++ {
		p.reads.limit <- struct{}{}
		err = disk.ReadSlot(i, host.Slot(j))
		<-p.reads.limit
		if err == nil {
			sum, err = p.check(host, j, r, want)
		}
		if err == nil || errors.Is(err, extent.ErrMemory) || retries+1 == readAttempts {
			return sum, retries, err
		}
	}
}

// check compares a host slot's bytes with the record that vouches for them, and
// returns their content sum.
func (p *Pool) check(host *extent.Host, i uint32, r *storage.Record, want kv.StoredKey) (uint64, error) {
	if r.Key != want || uint64(r.Length) != p.blockBytes {
		return 0, fmt.Errorf("record of %s, want %s: %w", r.Key, want, ErrCorrupt)
	}
	sum, err := host.ContentSum(i, want, p.blockBytes)
	if err != nil {
		return 0, err
	}
	if got := storage.Bind(sum, want, r.Generation); got != r.Checksum {
		return 0, fmt.Errorf("block %s: checksum %016x, stored %016x: %w", want, got, r.Checksum, ErrCorrupt)
	}
	return sum, nil
}

func (p *Pool) promotedLocked(ref registry.Ref, r storage.Record, sum uint64) {
	sl := p.slots.Host.Slot(ref)
	sl.FromDisk = true
	r.Checksum = storage.Bind(sum, r.Key, sl.Generation)
	p.slots.Store(p.slots.Host, ref, r)
}

// readFailedLocked ends a read that gave no block. When the host memory is to
// blame, the host slot goes out of use and the block stays on disk. It also stays
// when the device gave an error, until it has given enough of them. Otherwise the
// block is forgotten, and its disk slot stays out of use until a restart: the medium
// under it is suspect.
func (p *Pool) readFailedLocked(ref registry.Ref, f *flight, err error) {
	s := p.slots.Host.Slot(ref)
	s.Holds -= f.waiters
	if errors.Is(err, extent.ErrMemory) {
		p.slots.DropDamaged(ref, err)
		return
	}
	p.slots.Drop(p.slots.Host, ref, storage.StateFree)
	if errors.Is(err, ErrCorrupt) {
		p.count.CorruptReads++
	} else {
		p.count.ReadErrors++
		p.broker.breaker.Failed(err)
		if !p.readFaultLocked(f.disk) {
			p.log.Warn("block on disk cannot be read for now", zap.Stringer("key", f.key), zap.Error(err))
			return
		}
	}
	p.log.Warn("block on disk is lost", zap.Stringer("key", f.key), zap.Error(err))
	p.loseDiskBlockLocked(f.disk)
}

// loseDiskBlockLocked forgets a disk block that could not be read back.
func (p *Pool) loseDiskBlockLocked(ref registry.Ref) {
	delete(p.writes.faults.reads, ref)
	p.slots.Drop(p.slots.Disk, ref, storage.StateQuarantined)
}

// cancelReadLocked ends a read that has not begun: nobody wants it, or the disk
// fails.
func (p *Pool) cancelReadLocked(ref registry.Ref, f *flight) {
	p.endFlightLocked(ref, f, false)
	s := p.slots.Host.Slot(ref)
	s.Holds -= f.waiters
	p.slots.Drop(p.slots.Host, ref, storage.StateFree)
	p.slots.Release(p.slots.Disk, f.disk)
	close(f.done)
}

// abandonRead gives up a read that does not end: those who wait for it have a
// miss. The kernel may still write into the host slot, which is out of use until
// the read returns. Reads that have not begun are given up with it.
func (p *Pool) abandonRead(ref registry.Ref, f *flight) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if f.finished || p.life.closed {
		return
	}
	p.broker.breaker.Stalled()
	p.count.ReadsAbandoned++
	p.log.Warn("a read from disk does not end; its block is a miss", zap.Stringer("key", f.key), zap.Duration("deadline", p.cfg.IODeadline))
	p.reads.time.End(time.Now())
	p.endFlightLocked(ref, f, false)
	s := p.slots.Host.Slot(ref)
	s.Holds -= f.waiters
	p.slots.Drop(p.slots.Host, ref, storage.StateQuarantined)
	s.Holds++ // the read's; it also keeps the extent
	p.reads.stuck++
	close(f.done)
	for p.reads.queue.Len() > 0 {
		queued := p.reads.queue.Pop()
		p.count.ReadsCancelled++
		p.cancelReadLocked(queued, p.reads.flights[queued])
		p.doneLocked(1)
	}
}

// returnedLocked ends an abandoned read. Nobody writes into the host slot now.
func (p *Pool) returnedLocked(ref registry.Ref, f *flight, err error) {
	p.reads.stuck--
	p.slots.Free(p.slots.Host, ref)
	p.slots.Release(p.slots.Disk, f.disk)
	if err == nil {
		p.broker.breaker.Succeeded()
	}
}
