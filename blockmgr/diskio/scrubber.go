package diskio

import (
	"errors"
	"time"

	"go.uber.org/zap"

	"github.com/blockyard-ai/blockyard/blockmgr/registry"
	"github.com/blockyard-ai/blockyard/blockmgr/storage"
	"github.com/blockyard-ai/blockyard/blockmgr/storage/extent"
)

const (
	// ScrubIdle is the pause of the scrubber after a round without a check.
	ScrubIdle = 5 * time.Second
	// scrubScan bounds the slots that the scrubber looks at while it holds the lock.
	scrubScan = 8192
)

// scrub is the state of the scrubber.
type scrub struct {
	// checking is closed when the current check ends; nil without a check.
	checking chan struct{}
	// paused counts the calls of PauseScrub. No check begins unless it is 0.
	paused int
}

// RunScrubber compares the pool's blocks with their checksums, slot by slot and round after
// round, host first, until Stop is closed. It finds flipped bits before a lookup does, and
// verifies recovered blocks. The pools that share a Health scrub no more than
// ScrubBytesPerSecond together. RunScrubber takes the pool's lock itself.
func (m *Mover) RunScrubber() {
	buf, free, err := extent.NewBuffer(m.SlotBytes)
	if err != nil {
		m.Log.Warn("scrubber does not start", zap.Error(err))
		return
	}
	defer free()
	// perBlock is the time that one block may take at the scrub rate.
	perBlock := time.Duration(float64(m.BlockBytes) / float64(m.ScrubBytesPerSecond) * float64(time.Second))
	pause := time.NewTimer(ScrubIdle)
	defer pause.Stop()
	for {
		checked := false
		for _, lv := range []registry.Level{registry.Host, registry.Disk} {
			for ref, ok := m.nextSealed(lv, 0); ok; ref, ok = m.nextSealed(lv, ref+1) {
				if !m.ScrubSlot(lv, ref, buf) {
					continue
				}
				checked = true
				if !m.Rest(pause, m.Health.Scrub.Take(perBlock)) {
					return
				}
			}
		}
		if !checked && !m.Rest(pause, ScrubIdle) {
			return
		}
	}
}

// Rest waits for d on the caller's timer. It returns false when Stop is closed. It needs no
// lock.
func (m *Mover) Rest(timer *time.Timer, d time.Duration) bool {
	timer.Reset(d)
	select {
	case <-timer.C:
		return true
	case <-m.Stop:
		return false
	}
}

// nextSealed returns the first sealed slot of a tier at or after from. After scrubScan slots it
// returns the slot that it has reached, sealed or not, to release the lock; ScrubSlot skips that
// slot. ok is false behind the last slot.
func (m *Mover) nextSealed(lv registry.Level, from registry.Ref) (ref registry.Ref, ok bool) {
	m.mu.Lock()
	defer m.mu.Unlock()
	t := m.slots.Tier(lv)
	if t == nil {
		return registry.NoRef, false
	}
	scanned := uint32(0)
	slot := from.Slot()
	for n := int(from.Extent()); n < len(t.Extents); n, slot = n+1, 0 {
		e := t.Extents[n]
		if e == nil || e.Empty() {
			continue
		}
		for ; slot < uint32(len(e.Slots)); slot++ {
			if e.Slots[slot].State == storage.StateSealed || scanned == scrubScan {
				return registry.MakeRef(e.Number, slot), true
			}
			scanned++
		}
	}
	return registry.NoRef, false
}

// ScrubSlot compares the bytes of one slot with the checksum in its record, and drops a block that
// differs. checked is false for a slot that it skips: one without a sealed block, or one that
// something holds. buf has room for a slot, page-aligned. ScrubSlot takes the pool's lock itself.
func (m *Mover) ScrubSlot(lv registry.Level, ref registry.Ref, buf []byte) (checked bool) {
	if lv == registry.Host {
		s, ok := m.takeHostCheck(ref)
		if !ok {
			return false
		}
		_, err := m.compare(s.host, ref.Slot(), &s.record, s.record.Key)
		m.finishHostCheck(s, err)
		return true
	}
	c, ok := m.takeDiskCheck(ref)
	if !ok {
		return false
	}
	// A disk that hangs opens the breaker while the read is still waiting.
	watch := time.AfterFunc(m.Deadline, m.Health.All.Stalled)
	err := c.from.ReadSlot(ref.Slot(), buf, lifeOf(&c.record))
	bad := errors.Is(err, extent.ErrForged)
	if bad {
		err = nil // the disk works
	} else if err == nil {
		content := extent.ContentSum(c.record.Key, buf[:m.BlockBytes])
		bad = storage.Bind(content, c.record.Key, c.record.Generation) != c.record.Checksum
	}
	watch.Stop()
	m.finishDiskCheck(c, bad, err)
	return true
}

// beginCheck begins the check of a slot and holds the slot. It returns false, and changes nothing,
// when the slot has no sealed block or is held, the scrubber is paused or the disk's breaker is
// open.
func (m *Mover) beginCheck(lv registry.Level, ref registry.Ref) bool {
	t := m.slots.Tier(lv)
	if t == nil || !t.Has(ref) { // its extent has left the tier
		return false
	}
	s := t.Slot(ref)
	if m.scrub.paused > 0 || s.State != storage.StateSealed || s.Holds > 0 {
		return false
	}
	if lv == registry.Disk && !m.Health.All.Allow() {
		return false
	}
	m.scrub.checking = make(chan struct{})
	m.slots.Hold(t, ref)
	return true
}

// endCheck ends what beginCheck began. The slot is still held.
func (m *Mover) endCheck() {
	close(m.scrub.checking)
	m.scrub.checking = nil
	m.Counters.Scrubbed++
}

// takeHostCheck begins the check of a host slot and holds the slot. ok is false when the scrubber
// must skip the slot now.
func (m *Mover) takeHostCheck(ref registry.Ref) (s *sum, ok bool) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if !m.beginCheck(registry.Host, ref) {
		return nil, false
	}
	return m.sumOf(ref), true
}

// finishHostCheck ends the check of a host block and drops a block with wrong bytes; err is
// compare's. A lookup may have had a recovered block checked in the same time. Then that flight
// drops the block, or has dropped it.
func (m *Mover) finishHostCheck(s *sum, err error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	defer m.endCheck()
	m.compared(s.hostRef, err)
	slot := m.slots.Host.Slot(s.hostRef)
	slot.Holds--
	if err != nil && m.reads.flights[s.hostRef] == nil && slot.State == storage.StateSealed {
		m.loseHostBlock(s.hostRef, err)
		return
	}
	m.slots.AfterRelease(m.slots.Host, s.hostRef, slot)
}

// diskCheck is the check of one disk slot.
type diskCheck struct {
	ref    registry.Ref
	record storage.Record
	from   *extent.Disk
}

// takeDiskCheck begins the check of a disk slot and holds the slot. ok is false when the scrubber
// must skip the slot now.
func (m *Mover) takeDiskCheck(ref registry.Ref) (c *diskCheck, ok bool) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if !m.beginCheck(registry.Disk, ref) {
		return nil, false
	}
	e, _ := m.slots.Disk.At(ref)
	return &diskCheck{ref: ref, record: m.slots.Disk.Record(ref), from: e.Disk}, true
}

// finishDiskCheck ends the check of a disk slot. err says that the slot could not be read. bad says
// that its bytes do not match their checksum; then the block is dropped.
func (m *Mover) finishDiskCheck(c *diskCheck, bad bool, err error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	defer m.endCheck()
	if m.closed {
		return
	}
	m.slots.Release(m.slots.Disk, c.ref)
	s := m.slots.Disk.Slot(c.ref)
	switch {
	case err != nil:
		// The block may still be good: a lookup that wants it tries again.
		m.Counters.ReadErrors++
		m.Health.All.Failed(err)
	case !bad:
		m.readWorked(c.ref)
	// A read that holds the slot finds the wrong bytes itself.
	case s.Holds == 0 && s.State == storage.StateSealed && s.Generation == c.record.Generation:
		m.Counters.CorruptReads++
		m.Log.Warn("block on disk is lost", zap.Stringer("key", c.record.Key), zap.String("cause", "its bytes do not match their checksum"))
		m.loseDiskBlock(c.ref)
	}
}

// PauseScrub keeps the scrubber from holding slots until ResumeScrub. It waits for the current
// check, at most for the deadline. It takes the pool's lock itself.
func (m *Mover) PauseScrub() {
	m.mu.Lock()
	m.scrub.paused++
	checking := m.scrub.checking
	m.mu.Unlock()
	if checking == nil {
		return
	}
	select {
	case <-checking:
	case <-time.After(m.Deadline):
	case <-m.Stop:
	}
}

// ResumeScrub ends PauseScrub. It takes the pool's lock itself.
func (m *Mover) ResumeScrub() {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.scrub.paused--
}
