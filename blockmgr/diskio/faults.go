package diskio

import (
	"time"

	"github.com/blockyard-ai/blockyard/blockmgr/registry"
	"github.com/blockyard-ai/blockyard/blockmgr/storage"
)

const (
	// badWrites is the number of failed writes after which a disk slot stays in quarantine.
	// A failure counts when a write to another slot succeeds after it. After each failure
	// the slot is out of use for suspectTime, because transient errors come in bursts.
	badWrites   = 2
	suspectTime = 30 * time.Second
	// badReads is the number of failed reads after which a block is dropped, if another
	// block was read since the first of them.
	badReads = 3
	// triedSlots bounds the suspect slots while the breaker for writes is open. Each try goes
	// to another slot, because the failed ones may all lie in one bad region. A full tier
	// evicts a block for each try.
	triedSlots = 16
)

// faults records the disk slots of a pool that failed, to tell a bad slot from a bad disk. The
// number of disk slots bounds both maps.
type faults struct {
	// writes has the slots with failed writes, reads the slots with failed reads.
	writes map[registry.Ref]*writeFault
	reads  map[registry.Ref]*readFault
	// readsWorked counts the successful reads.
	readsWorked uint64
	// lookAgain is the time of the next check of suspect slots.
	lookAgain time.Time
}

type writeFault struct {
	// failed counts failed writes since the last successful one.
	failed int
	// suspect: the slot is in quarantine until a write to another slot succeeds after the
	// time until. It leaves earlier when the breaker for writes closes, or when triedSlots
	// slots are suspect while the breaker is open.
	suspect bool
	until   time.Time
}

type readFault struct {
	// generation is the slot's: it changes with the block.
	generation uint64
	failed     int
	// since is faults.readsWorked at the first failure.
	since uint64
}

// forget drops the faults of an extent that leaves the tier.
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

// suspects counts the suspect disk slots: those out of use for a time because a write to them failed.
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

// writeWorked records a successful write to a disk slot. It frees the slots that have been
// suspect for suspectTime, or all suspect slots when the breaker for writes closes. Slots with
// badWrites failures are never freed.
func (m *Mover) writeWorked(ref registry.Ref) {
	recovered := m.Health.Writes.IsOpen() // this write closes the breaker
	m.Health.Wrote()
	delete(m.faults.writes, ref)
	now := time.Now()
	if !recovered && now.Before(m.faults.lookAgain) {
		return
	}
	// Each successful write would look at all suspect slots. Ten looks in suspectTime are enough.
	m.faults.lookAgain = now.Add(suspectTime / 10)
	for other, f := range m.faults.writes {
		if !f.suspect || !recovered && now.Before(f.until) {
			continue
		}
		if f.failed >= badWrites {
			// Without FreeLast the slot stays in quarantine. No write fails there again, so
			// its record is of no more use.
			delete(m.faults.writes, other)
			continue
		}
		f.suspect = false // f stays: it counts the failures
		m.slots.FreeLast(m.slots.Disk, other)
	}
}

// readWorked records a successful read of a disk slot.
func (m *Mover) readWorked(ref registry.Ref) {
	m.faults.readsWorked++
	delete(m.faults.reads, ref)
	m.Health.All.Succeeded()
}

// readFailed counts a failed read of a block on disk. lost says that the block must be dropped:
// other blocks can be read and this one cannot.
func (m *Mover) readFailed(ref registry.Ref) (lost bool) {
	f, generation := m.faults.reads[ref], m.slots.Disk.Slot(ref).Generation
	if f == nil || f.generation != generation { // the first failure of this block
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

// loseDiskBlock drops a disk block that cannot be read or has wrong bytes. Its slot stays out of use until a
// restart, because its medium is suspect.
func (m *Mover) loseDiskBlock(ref registry.Ref) {
	delete(m.faults.reads, ref)
	m.slots.Drop(m.slots.Disk, ref, storage.StateQuarantined)
}
