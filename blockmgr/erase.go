package blockmgr

import (
	"cmp"
	"fmt"
	"time"

	"go.uber.org/zap"

	"github.com/blockyard-ai/blockyard/blockmgr/storage/extent"
	"github.com/blockyard-ai/blockyard/blockmgr/tier"
)

const (
	// eraseBatch bounds the slots that the eraser overwrites before it syncs the disk.
	eraseBatch = 64
	// eraseRetry is the pause after a slot could not be overwritten.
	eraseRetry = time.Second
)

// expiry drops the blocks of a pool whose time to live is up.
type expiry struct {
	// timer fires at at, when the first block expires. It is nil without such a block.
	timer *time.Timer
	at    time.Time
}

// armExpiryLocked sets the timer to the time at which the next block expires.
func (p *Pool) armExpiryLocked() {
	wait, ok := p.slots.NextExpiry()
	if !ok || p.life.closing {
		return
	}
	at := time.Now().Add(wait)
	if p.expiry.timer != nil && !at.Before(p.expiry.at) {
		return
	}
	p.disarmExpiryLocked()
	p.expiry.at, p.expiry.timer = at, time.AfterFunc(wait, p.expire)
}

func (p *Pool) disarmExpiryLocked() {
	if p.expiry.timer != nil {
		p.expiry.timer.Stop()
		p.expiry.timer = nil
	}
}

// expire drops blocks whose time is up, and sets the timer anew. The timer calls it.
func (p *Pool) expire() {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.life.closing {
		return
	}
	p.disarmExpiryLocked()
	if disk := p.slots.Expire(); disk {
		p.mover.RequestFlush()
	}
	p.armExpiryLocked()
	p.releasedLocked()
}

// eraseQueuedLocked wakes the eraser for a slot. The slot is an operation of the pool until it is free.
func (p *Pool) eraseQueuedLocked() {
	p.pending.operations++
	select {
	case p.erase <- struct{}{}:
	default: // the eraser has a wake-up to handle
	}
}

// eraseLoop overwrites slots with zeros before they are used again, until the pool stops. What is left
// then the next agent overwrites.
func (p *Pool) eraseLoop() {
	retry := time.NewTimer(eraseRetry)
	defer retry.Stop()
	var again <-chan time.Time // nil is never ready
	for {
		select {
		case <-p.erase:
		case <-again:
		case <-p.life.stop:
			return
		}
		wasFailing := again != nil
		more, err := true, error(nil)
		for more && err == nil && !p.stopped() {
			more, err = p.eraseSome()
		}
		if again = nil; err != nil {
			retry.Reset(eraseRetry)
			again = retry.C
		}
		if err != nil && !wasFailing {
			p.log.Warn("slots cannot be overwritten and stay out of use for now", zap.Error(err))
		}
	}
}

// eraseSome overwrites some slots. more is false when there was none. The error is that of the first slot
// that could not be overwritten.
func (p *Pool) eraseSome() (more bool, err error) {
	p.mu.Lock()
	slots := p.slots.TakeErasing(eraseBatch)
	p.mu.Unlock()
	if len(slots) == 0 {
		return false, nil
	}
	errs := writeZeros(slots)
	p.mu.Lock()
	defer p.mu.Unlock()
	done, disk := 0, false
	for i, s := range slots {
		p.slots.EndErase(s, errs[i])
		if s.Extent.Disk != nil {
			disk = true
			p.broker.countZeros(s.Extent.Geometry().Stride())
		}
		if errs[i] == nil {
			done++
		} else if err == nil {
			err = fmt.Errorf("%s slot %d: %w", s.Extent.Path(), s.Slot, errs[i])
		}
	}
	if disk {
		p.mover.RequestFlush()
	}
	p.doneLocked(done)
	p.wakeGrowerLocked()
	return true, err
}

// countZeros counts a slot that was overwritten on disk in the write budget.
func (b *broker) countZeros(bytes uint64) {
	if b.budget != nil {
		b.budget.Wrote(bytes, time.Now())
	}
}

// writeZeros writes zeros over slots and returns the error of each. Zeros on disk are synced.
func writeZeros(slots []tier.Erasable) []error {
	errs := make([]error, len(slots))
	synced := map[*extent.Disk]error{}
	for i, s := range slots {
		if host := s.Extent.Host; host != nil {
			errs[i] = extent.Guard(func() { clear(host.Slot(s.Slot)) })
			continue
		}
		errs[i] = s.Extent.Disk.EraseSlot(s.Slot)
		synced[s.Extent.Disk] = nil
	}
	for disk := range synced {
		synced[disk] = disk.Sync()
	}
	for i, s := range slots {
		if s.Extent.Disk != nil && errs[i] == nil {
			errs[i] = synced[s.Extent.Disk]
		}
	}
	return errs
}

// overwriteLeaving writes zeros over the slots of a disk extent that must not leave bytes on the device.
// The memory of a host extent is the kernel's afterwards, which clears it.
func (b *broker) overwriteLeaving(gone *tier.Extent) error {
	if gone.Disk == nil || len(gone.Erase) == 0 {
		return nil
	}
	var first error
	for _, slot := range gone.Erase { // a bad slot does not save the others
		first = cmp.Or(first, gone.Disk.EraseSlot(slot))
		b.countZeros(gone.Geometry().Stride())
	}
	return cmp.Or(first, gone.Disk.Sync())
}
