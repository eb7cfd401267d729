package diskio

import (
	"errors"
	"time"

	"go.uber.org/zap"

	"github.com/blockyard-ai/blockyard/blockmgr/registry"
	"github.com/blockyard-ai/blockyard/blockmgr/storage"
	"github.com/blockyard-ai/blockyard/blockmgr/tier"
)

const (
	// About flushPages pages of records are copied and written at a time, and agedPages
	// pages in which only ages changed.
	flushPages = 64
	agedPages  = 1024
)

// LockRecords stops the writing of records to disk until UnlockRecords. The caller must not
// hold the pool's lock.
func (m *Mover) LockRecords() { m.writes.flushing.Lock() }

// TryLockRecords is LockRecords unless records are being written. It reports whether it locked.
func (m *Mover) TryLockRecords() bool { return m.writes.flushing.TryLock() }

// UnlockRecords ends LockRecords.
func (m *Mover) UnlockRecords() { m.writes.flushing.Unlock() }

// flushCursor is the progress of a flush.
type flushCursor struct {
	extent int
	page   uint32
}

// flush writes the changed pages of the disk tier's records, flushPages at a time. It takes the
// locks itself, one flush at a time: two could write an older page over a newer one. Pages that
// fail stay changed, and so do the other pages once a breaker is open.
func (m *Mover) flush() error {
	m.writes.flushing.Lock()
	defer m.writes.flushing.Unlock()
	var cursor flushCursor
	var pages []storage.Page
	var failed error
	for {
		if pages = m.takeDirty(&cursor, pages[:0]); len(pages) == 0 {
			return failed
		}
		watch := time.AfterFunc(m.Deadline, m.WriteStalled)
		err := storage.WritePages(pages)
		watch.Stop()
		if err == nil {
			if m.Budget != nil {
				m.Budget.Wrote(uint64(len(pages))*storage.PageSize, time.Now())
			}
			continue
		}
		m.redirty(pages, err)
		failed = errors.Join(failed, errTable, err)
		if m.Health.UntilWrite() > 0 {
			return failed
		}
	}
}

// takeDirty appends copies of up to about flushPages changed pages of the disk tier's records, and
// moves the cursor behind them. They count as unchanged then; see redirty.
func (m *Mover) takeDirty(c *flushCursor, pages []storage.Page) []storage.Page {
	m.mu.Lock()
	defer m.mu.Unlock()
	for ; c.extent < len(m.slots.Disk.Extents); c.extent, c.page = c.extent+1, 0 {
		e := m.slots.Disk.Extents[c.extent]
		if e == nil {
			continue
		}
		var more bool
		if pages, c.page, more = e.Records.TakeSomeDirty(pages, c.page, flushPages); more {
			return pages
		}
	}
	return pages
}

// redirty marks pages that could not be written as changed again, and counts and logs the error of
// the write.
func (m *Mover) redirty(pages []storage.Page, err error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.Counters.TableErrors++
	m.Health.WriteFailed(err)
	storage.Redirty(pages)
	m.Log.Warn("slot table of the disk tier", zap.Error(err))
}

// FlushAll writes the changed records of the disk tier when the pool closes. Then it writes the
// pages in which only the ages of blocks have changed, until the time until. Without these the next
// agent evicts in a less exact order. Without a disk tier it does nothing. FlushAll takes the locks
// itself.
func (m *Mover) FlushAll(until time.Time) error {
	if hasDisk := m.ageDiskCopies(); !hasDisk {
		return nil
	}
	if err := m.flush(); err != nil {
		return err
	}
	for m.agesChanged() {
		if err := m.flush(); err != nil {
			return err
		}
		if time.Now().After(until) {
			m.Log.Warn("the agent stops before the ages of all blocks are on disk: the next agent evicts by older ages")
			return nil
		}
	}
	return nil
}

// ageDiskCopies gives disk blocks the ages of their copies in host memory, which lookups touch
// alone. hasDisk is false without a disk tier.
func (m *Mover) ageDiskCopies() (hasDisk bool) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.slots.Disk == nil {
		return false
	}
	m.slots.Host.Each(func(_ registry.Ref, s *tier.Slot) {
		if s.Resident() {
			m.slots.AgeDiskCopy(s)
		}
	})
	return true
}

// agesChanged gives flush about agedPages pages in which only ages have changed, and reports whether
// there were any. flush leaves out such pages otherwise.
func (m *Mover) agesChanged() bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	for _, e := range m.slots.Disk.Extents {
		if e != nil && e.Records.DirtyAged(agedPages) > 0 {
			return true
		}
	}
	return false
}
