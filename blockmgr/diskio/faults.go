package diskio

import (
	"time"

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
	// triedSlots bounds the slots that are suspect while the breaker for writes is open. Each
	// try goes to another slot, because all that failed may lie in one bad region. A
	// full tier evicts a block for each of them.
	triedSlots = 16
)

// faults are the disk slots of a pool that failed. They tell whether the slot or the
// whole disk is to blame. The number of disk slots bounds both maps.
type faults struct {
	// writes are the slots that could not be written, reads the blocks that could not be
	// read.
	writes map[registry.Ref]*writeFault
	reads  map[registry.Ref]*readFault
	// readsWorked counts the reads that went through.
	readsWorked uint64
	// lookAgain is when suspect slots are looked at again.
	lookAgain time.Time
}

type writeFault struct {
	// failed counts failed writes since the last one that went through.
	failed int
	// suspect: the slot is in quarantine, at least until the moment until, and then
	// until a write elsewhere goes through. It leaves earlier when the
	// breaker for writes closes, or when triedSlots are suspect while it is open.
	suspect bool
	until   time.Time
}

type readFault struct {
	// generation is that of the slot: another block has another one.
	generation uint64
	failed     int
	// since is faults.readsWorked at the first failure.
	since uint64
}

// forget drops what is known of the slots of an extent that goes.
func (f *faults) forget(extent uint32) {
	for ref := range f.writes {
		if ref.Extent() == extent {
			delete(f.writes, ref)
		}
	}
	for ref := range f.reads {
		if ref.Extent() == extent {
			delete(f.reads, ref)
		}
	}
}

// suspects is how many slots are suspect.
func (f *faults) suspects() (n int) {
	for _, w := range f.writes {
		if w.suspect {
			n++
		}
	}
	return n
}

// writeFailed quarantines the disk slot of a write that failed. The slot is suspect for
// suspectTime, so that the next write goes to another slot. When triedSlots slots are suspect
// while the breaker for writes is open, the disk is at fault and not its slots. Then all
// suspect slots become free, to be used after the others.
func (m *Mover) writeFailed(ref registry.Ref, err error) {
	m.Health.WriteFailed(err)
	m.slots.Drop(m.slots.Disk, ref, storage.StateQuarantined)
	f := m.faults.writes[ref]
	if f == nil {
		f = &writeFault{}
		m.faults.writes[ref] = f
	}
	f.failed++
	f.suspect, f.until = true, time.Now().Add(suspectTime)
	if m.Health.Writes.IsOpen() && m.faults.suspects() >= triedSlots {
		for other, f := range m.faults.writes {
			if f.suspect {
				m.slots.FreeLast(m.slots.Disk, other)
				delete(m.faults.writes, other)
			}
		}
	}
}

// writeWorked notes that a write to a disk slot went through, so that the disk works.
// Slots that have been suspect for long enough get another chance, and all of them do
// when the breaker for writes closes. Slots with badWrites failures stay in quarantine.
func (m *Mover) writeWorked(ref registry.Ref) {
	recovered := m.Health.Writes.IsOpen()
	m.Health.Wrote()
	delete(m.faults.writes, ref)
	now := time.Now()
	if !recovered && now.Before(m.faults.lookAgain) {
		return
	}
	m.faults.lookAgain = now.Add(suspectTime / 10)
	for other, f := range m.faults.writes {
		if !f.suspect || !recovered && now.Before(f.until) {
			continue
		}
		if f.failed >= badWrites {
			delete(m.faults.writes, other)
			continue
		}
		f.suspect = false
		m.slots.FreeLast(m.slots.Disk, other)
	}
}

// readWorked notes that a disk slot was read.
func (m *Mover) readWorked(ref registry.Ref) {
	m.faults.readsWorked++
	delete(m.faults.reads, ref)
	m.Health.All.Succeeded()
}

// readFailed counts a failed read of a block on disk. It reports whether the block must
// be given up: other blocks can be read and this one cannot.
func (m *Mover) readFailed(ref registry.Ref) (lost bool) {
	f, generation := m.faults.reads[ref], m.slots.Disk.Slot(ref).Generation
	if f == nil || f.generation != generation {
		f = &readFault{since: m.faults.readsWorked, generation: generation}
		m.faults.reads[ref] = f
	}
	f.failed++
	return f.failed >= badReads && m.faults.readsWorked > f.since
}

// ReadFailed reports whether the last read of the block in a disk slot failed.
func (m *Mover) ReadFailed(ref registry.Ref) bool {
	f := m.faults.reads[ref]
	return f != nil && f.generation == m.slots.Disk.Slot(ref).Generation
}

// loseDiskBlock forgets a disk block that could not be read back. Its slot stays out of
// use until a restart: the medium under it is suspect.
func (m *Mover) loseDiskBlock(ref registry.Ref) {
	delete(m.faults.reads, ref)
	m.slots.Drop(m.slots.Disk, ref, storage.StateQuarantined)
}
