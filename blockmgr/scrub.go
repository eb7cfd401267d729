package blockmgr

import (
	"time"

	"go.uber.org/zap"

	"github.com/blockyard-ai/blockyard/blockmgr/registry"
	"github.com/blockyard-ai/blockyard/blockmgr/storage"
	"github.com/blockyard-ai/blockyard/blockmgr/storage/extent"
	"github.com/blockyard-ai/blockyard/blockmgr/tier"
)

// scrubIdle is how long the scrubber rests when it found nothing to do.
const scrubIdle = 5 * time.Second

// scrubScan is how many slots are looked at under one lock.
const scrubScan = 8192

// scrubLoop compares what the pool stores with its checksums, slot by slot and
// round after round, host first, until the pool stops. All pools together are no
// faster than Config.ScrubBytesPerSecond. So a bit that flips is found before somebody asks for the block,
// and blocks found after a restart are good when the first lookup comes.
func (p *Pool) scrubLoop() {
	buf, free, err := extent.NewBuffer(p.slotBytes)
	if err != nil {
		p.log.Warn("no scrubber", zap.Error(err))
		return
	}
	defer free()
	perBlock := time.Duration(float64(p.blockBytes) / float64(p.cfg.ScrubBytesPerSecond) * float64(time.Second))
	pause := time.NewTimer(scrubIdle)
	defer pause.Stop()
	for {
		checked := false
		for _, lv := range []registry.Level{registry.Host, registry.Disk} {
			for part := 0; ; part++ {
				n, ok := p.scrubSlots(lv, part)
				if !ok {
					break
				}
				for i := p.nextSealed(lv, part, 0); i < n; i = p.nextSealed(lv, part, i+1) {
					if !p.scrubOne(registry.MakeRef(uint32(part), i), lv, buf) {
						continue
					}
					checked = true
					if !p.rest(pause, p.broker.scrub.Take(perBlock)) {
						return
					}
				}
			}
		}
		if !checked && !p.rest(pause, scrubIdle) {
			return
		}
	}
}

// rest waits; false means that the pool stops.
func (p *Pool) rest(timer *time.Timer, d time.Duration) bool {
	timer.Reset(d)
	select {
	case <-timer.C:
		return true
	case <-p.life.stop:
		return false
	}
}

// scrubSlots is the number of slots of a part; ok is false behind the last one.
func (p *Pool) scrubSlots(lv registry.Level, part int) (n uint32, ok bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	t := p.slots.Tier(lv)
	if t == nil || part >= len(t.Extents) {
		return 0, false
	}
	if t.Extents[part] == nil {
		return 0, true
	}
	return uint32(len(t.Extents[part].Slots)), true
}

// nextSealed is the first slot of a part from the given one on that holds a block,
// or one further on that the search got to; it is beyond the last slot when there
// is none.
func (p *Pool) nextSealed(lv registry.Level, part int, from uint32) uint32 {
	p.mu.Lock()
	defer p.mu.Unlock()
	t := p.slots.Tier(lv)
	if t == nil || part >= len(t.Extents) || t.Extents[part] == nil {
		return registry.MaxPartSlots
	}
	slots := t.Extents[part].Slots
	if t.Extents[part].Empty() {
		return registry.MaxPartSlots
	}
	for i := from; i < uint32(len(slots)); i++ {
		if slots[i].State == storage.StateSealed || i-from == scrubScan {
			return i
		}
	}
	return registry.MaxPartSlots
}

// scrubOne checks one slot and reports whether there was something to check. A
// slot that is being read, written or filled is left for the next round.
func (p *Pool) scrubOne(ref registry.Ref, lv registry.Level, buf []byte) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	t := p.slots.Tier(lv)
	if int(ref.Part()) >= len(t.Extents) || t.Extents[ref.Part()] == nil || ref.Slot() >= uint32(len(t.Extents[ref.Part()].Slots)) {
		return false // its extent has gone
	}
	s := t.Slot(ref)
	if p.scrub.paused > 0 || s.State != storage.StateSealed || s.Holds > 0 || lv == registry.Disk && !p.broker.breaker.Allow() {
		return false
	}
	check := make(chan struct{})
	p.scrub.check = check
	defer func() {
		p.scrub.check = nil
		close(check)
	}()
	if lv == registry.Host {
		p.scrubHostLocked(ref, s)
	} else {
		p.scrubDiskLocked(ref, s, buf)
	}
	p.count.Scrubbed++
	return true
}

// scrubHostLocked compares one host block. A lookup that finds a recovered block
// meanwhile checks it for itself, and may have dropped it already.
func (p *Pool) scrubHostLocked(ref registry.Ref, s *tier.Slot) {
	p.slots.Hold(p.slots.Host, ref)
	err := p.checkHostLocked(ref)
	s.Holds--
	if err != nil && p.reads.flights[ref] == nil && s.State == storage.StateSealed {
		p.loseHostBlockLocked(ref, s, err)
		return
	}
	p.slots.LetGo(p.slots.Host, ref, s)
}

// scrubDiskLocked reads one disk slot and compares it; it lets go of the mutex
// for that.
func (p *Pool) scrubDiskLocked(ref registry.Ref, s *tier.Slot, buf []byte) {
	r := p.slots.Disk.Record(ref)
	part, i := p.slots.Disk.At(ref)
	disk := part.Disk
	p.slots.Hold(p.slots.Disk, ref)
	watch := time.AfterFunc(p.cfg.IODeadline, p.broker.breaker.Stalled)
	p.mu.Unlock()

	err := disk.ReadSlot(i, buf)

	var bad bool
	if err == nil {
		sum := extent.ContentSum(r.Key, buf[:p.blockBytes])
		bad = storage.Bind(sum, r.Key, r.Generation) != r.Checksum
	}
	p.mu.Lock()
	watch.Stop()
	p.slots.Release(p.slots.Disk, ref)
	switch {
	case err != nil:
		// The block may still be good: a lookup that wants it tries again.
		p.count.ReadErrors++
		p.broker.breaker.Failed(err)
	case !bad:
		p.readWorkedLocked(ref)
	case s.Holds == 0 && s.State == storage.StateSealed && s.Generation == r.Generation:
		p.count.CorruptReads++
		p.log.Warn("block on disk is lost", zap.Stringer("key", r.Key), zap.String("cause", "its bytes do not match their checksum"))
		p.loseDiskBlockLocked(ref)
	}
}

// pauseScrub keeps the scrubber from holding slots until resumeScrub. It waits for the
// check that is under way, which may take as long as any other operation.
func (p *Pool) pauseScrub() {
	p.mu.Lock()
	p.scrub.paused++
	check := p.scrub.check
	p.mu.Unlock()
	if check == nil {
		return
	}
	select {
	case <-check:
	case <-time.After(p.cfg.IODeadline):
	case <-p.life.stop:
	}
}

func (p *Pool) resumeScrub() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.scrub.paused--
}
