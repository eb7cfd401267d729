package blockmgr

import (
	"errors"
	"time"

	"golang.org/x/sys/unix"

	"github.com/blockyard-ai/blockyard/blockmgr/registry"
	"github.com/blockyard-ai/blockyard/blockmgr/storage"
)

const (
	// badWrites is how many writes to a disk slot must fail, with a write elsewhere
	// succeeding after each, before the slot stays in quarantine. Between two of them
	// the slot is out of use for suspectTime, because errors that pass come in bursts.
	badWrites   = 2
	suspectTime = 30 * time.Second
	// badReads is how many lookups must fail to read a block, with another block read
	// since the first of them, before the block is dropped.
	badReads = 3
	// triedSlots bounds the slots that are suspect while the disk is left alone. Each
	// try goes to another slot, because all that failed may lie in one bad region. A
	// full tier evicts a block for each of them.
	triedSlots = 16
)

// diskFaults says which disk slots of a pool failed, and whether the slot or the
// whole disk is to blame. The pool's mutex guards it. The number of disk slots
// bounds both maps.
type diskFaults struct {
	// writes are the slots that could not be written. reads are the blocks that could
	// not be read.
	writes map[registry.Ref]*writeFault
	reads  map[registry.Ref]*readFault
	// worked counts the reads that went through.
	worked uint64
	// look is when suspect slots are looked at again.
	look time.Time
}

type writeFault struct {
	// failed counts failed writes since the last one that went through.
	failed int
	// suspect: the slot is in quarantine, at least until the moment until, and then
	// until a write elsewhere goes through. It leaves earlier when a disk that was left
	// alone works again, or when triedSlots are suspect meanwhile.
	suspect bool
	until   time.Time
}

type readFault struct {
	// generation is that of the slot: another block has another one.
	generation uint64
	failed     int
	// since is diskFaults.worked at the first failure.
	since uint64
}

func newDiskFaults() diskFaults {
	return diskFaults{writes: map[registry.Ref]*writeFault{}, reads: map[registry.Ref]*readFault{}}
}

// forget drops what is known of the slots of a part that goes.
func (f *diskFaults) forget(part uint32) {
	for ref := range f.writes {
		if ref.Part() == part {
			delete(f.writes, ref)
		}
	}
	for ref := range f.reads {
		if ref.Part() == part {
			delete(f.reads, ref)
		}
	}
}

// isFull reports whether an error says that the file system, or a quota in it, has
// no room left. Neither the disk nor the slot is at fault.
func isFull(err error) bool { return errors.Is(err, unix.ENOSPC) || errors.Is(err, unix.EDQUOT) }

// writeFaultLocked takes back the disk slot of a write that failed. The slot is
// suspect, so that the next write goes elsewhere. When triedSlots of them have failed
// while the disk is left alone, their failures say nothing about single slots.
func (p *Pool) writeFaultLocked(ref registry.Ref, err error) {
	p.broker.writeFailed(err)
	p.slots.Drop(p.slots.Disk, ref, storage.StateQuarantined)
	f := p.writes.faults.writes[ref]
	if f == nil {
		f = &writeFault{}
		p.writes.faults.writes[ref] = f
	}
	f.failed++
	f.suspect, f.until = true, time.Now().Add(suspectTime)
	if p.broker.writes.IsOpen() && p.writes.faults.suspects() >= triedSlots {
		for other, f := range p.writes.faults.writes {
			if f.suspect {
				p.slots.FreeLast(p.slots.Disk, other)
				delete(p.writes.faults.writes, other)
			}
		}
	}
}

// suspects is how many slots are suspect.
func (f *diskFaults) suspects() (n int) {
	for _, w := range f.writes {
		if w.suspect {
			n++
		}
	}
	return n
}

// wroteSlotLocked says that a write to ref went through, so that the disk works.
// Slots that have been suspect for long enough get another chance, and all of them do
// after the disk was left alone; those that had badWrites of them stay in quarantine.
func (p *Pool) wroteSlotLocked(ref registry.Ref) {
	recovered := p.broker.writes.IsOpen()
	p.broker.wrote()
	delete(p.writes.faults.writes, ref)
	now := time.Now()
	if !recovered && now.Before(p.writes.faults.look) {
		return
	}
	p.writes.faults.look = now.Add(suspectTime / 10)
	for other, f := range p.writes.faults.writes {
		if !f.suspect || !recovered && now.Before(f.until) {
			continue
		}
		if f.failed >= badWrites {
			delete(p.writes.faults.writes, other)
			continue
		}
		f.suspect = false
		p.slots.FreeLast(p.slots.Disk, other)
	}
}

// readWorkedLocked says that disk slot ref was read.
func (p *Pool) readWorkedLocked(ref registry.Ref) {
	p.writes.faults.worked++
	delete(p.writes.faults.reads, ref)
	p.broker.breaker.Succeeded()
}

// readFaultLocked counts a failed read of a block on disk. It reports whether the
// block must be given up: other blocks can be read and this one cannot.
func (p *Pool) readFaultLocked(ref registry.Ref) (lost bool) {
	f, generation := p.writes.faults.reads[ref], p.slots.Disk.Slot(ref).Generation
	if f == nil || f.generation != generation {
		f = &readFault{since: p.writes.faults.worked, generation: generation}
		p.writes.faults.reads[ref] = f
	}
	f.failed++
	return f.failed >= badReads && p.writes.faults.worked > f.since
}

// readFailedBeforeLocked reports whether the block in a disk slot could not be read the
// last time.
func (p *Pool) readFailedBeforeLocked(ref registry.Ref) bool {
	f := p.writes.faults.reads[ref]
	return f != nil && f.generation == p.slots.Disk.Slot(ref).Generation
}

// writeFailed tells the breakers of a failed write. Reads go on while they work.
func (b *broker) writeFailed(err error) {
	b.writes.Failed(err)
	if b.breaker.IsOpen() { // the write was its try
		b.breaker.Failed(err)
	}
}

// wrote says that a write went through: the disk works.
func (b *broker) wrote() {
	b.breaker.Succeeded()
	b.writes.Succeeded()
}

// untilWrite is how long it takes until allowWrite says yes.
func (b *broker) untilWrite() time.Duration { return max(b.breaker.UntilTry(), b.writes.UntilTry()) }

// allowWrite is breaker.allow for writes.
func (b *broker) allowWrite() bool {
	return b.untilWrite() == 0 && b.breaker.Allow() && b.writes.Allow()
}

// writesOpen reports whether nothing is written to the disk now.
func (b *broker) writesOpen() bool { return b.breaker.IsOpen() || b.writes.IsOpen() }

// writesDoubtful reports whether the last write failed, or nothing is written: then
// one block at a time shows whether the disk works.
func (b *broker) writesDoubtful() bool { return b.breaker.IsOpen() || b.writes.Doubtful() }
