package blockmgr

import (
	"errors"
	"fmt"

	"go.uber.org/zap"

	"github.com/blockyard-ai/blockyard/blockmgr/storage"
	"github.com/blockyard-ai/blockyard/internal/kv"
)

// promoteWorkers is how many blocks of a pool are read at once: enough to keep
// an NVMe device busy with blocks of a megabyte.
const promoteWorkers = 4

// flight is the one read that fills a host slot from disk, whoever waits for
// it. finished and ok are guarded by the pool's mutex; done is closed after.
type flight struct {
	key      kv.StoredKey
	disk     uint32
	done     chan struct{}
	finished bool
	ok       bool
}

// startFlightLocked fills the free host slot ref with block b, whose disk slot
// is held; the flight releases it. The host slot is held for the caller.
func (p *Pool) startFlightLocked(b *Block, ref uint32) *flight {
	disk := p.reg.at(p.reg.find(b.Key)).slots[diskLevel]
	r := p.disk.record(disk)
	block := blockOf(&r)
	p.occupyLocked(p.host, ref, &block, storage.StateStaging, 0, r)
	p.host.slots[ref].holds++
	f := &flight{key: b.Key, disk: disk, done: make(chan struct{})}
	p.flights[ref] = f
	p.promoting.push(ref)
	p.busy++
	p.promoteWork.Signal()
	return f
}

// promoteLoop reads blocks until the pool stops. What is queued then stays
// unread; nobody waits for it any more.
func (p *Pool) promoteLoop() {
	p.mu.Lock()
	defer p.mu.Unlock()
	for {
		for p.promoting.len() == 0 && !p.stopped() {
			p.promoteWork.Wait()
		}
		if p.stopped() {
			return
		}
		p.promoteOneLocked(p.promoting.pop())
	}
}

// promoteOneLocked reads one block; it lets go of the mutex for the read.
func (p *Pool) promoteOneLocked(ref uint32) {
	f := p.flights[ref]
	r := p.disk.record(f.disk)
	from, i := p.disk.at(f.disk)
	to, j := p.host.at(ref)
	disk, host := from.disk, to.host
	p.mu.Unlock()

	err := disk.ReadSlot(i, host.Slot(j))
	var sum uint64
	if err == nil {
		sum, err = p.verify(host, j, &r, f.key)
	}

	p.mu.Lock()
	delete(p.flights, ref)
	f.finished, f.ok = true, err == nil
	p.disk.slots[f.disk].holds--
	if err == nil {
		p.count.Promotions++
		p.count.BytesRead += p.slotBytes
		p.promotedLocked(ref, r, sum)
		p.settleLocked(p.disk, f.disk)
	} else {
		p.promotionFailedLocked(ref, f, err)
	}
	close(f.done)
	p.doneLocked(1)
}

// verify checks that what was read is the block that was wanted, and returns
// its content sum.
func (p *Pool) verify(host *storage.HostExtent, i uint32, r *storage.Record, want kv.StoredKey) (uint64, error) {
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

func (p *Pool) promotedLocked(ref uint32, r storage.Record, sum uint64) {
	sl := &p.host.slots[ref]
	sl.fromDisk = true
	p.host.setState(ref, storage.StateSealed)
	r.Checksum = storage.Bind(sum, r.Key, sl.generation)
	p.host.put(ref, r)
	p.storedLocked(p.host, &r)
	p.settleLocked(p.host, ref)
}

// promotionFailedLocked ends a read that gave no block. When the host memory is
// to blame, the host slot goes out of use and the block stays on disk.
// Otherwise the block is forgotten, and its disk slot stays out of use until a
// restart: the medium under it is suspect.
func (p *Pool) promotionFailedLocked(ref uint32, f *flight, err error) {
	// The waiters' holds are void: they see that the flight failed.
	p.host.slots[ref].holds = 0
	if errors.Is(err, storage.ErrMemory) {
		part, _ := p.host.at(ref)
		p.memoryErrorLocked(part, err)
		p.dropLocked(p.host, ref, storage.StateQuarantined)
		p.settleLocked(p.disk, f.disk)
		return
	}
	if errors.Is(err, ErrCorrupt) {
		p.count.CorruptReads++
	} else {
		p.count.ReadErrors++
	}
	p.log.Warn("block on disk is lost", zap.Stringer("key", f.key), zap.Error(err))
	p.dropLocked(p.host, ref, storage.StateFree)
	p.dropLocked(p.disk, f.disk, storage.StateQuarantined)
}
