package blockmgr

import (
	"context"
	"fmt"
	"time"

	"github.com/blockyard-ai/blockyard/blockmgr/diskio"
	"github.com/blockyard-ai/blockyard/blockmgr/registry"
	"github.com/blockyard-ai/blockyard/blockmgr/storage"
	"github.com/blockyard-ai/blockyard/blockmgr/tier"
	"github.com/blockyard-ai/blockyard/internal/kv"
)

// candidate is one block of a running lookup. Its host slot is held.
type candidate struct {
	// ref is the host slot. Until promoteLocked it is NoRef for a block that is on disk only,
	// whose disk slot is held.
	ref registry.Ref
	// flight is the read or the check of the slot. It is nil when the block is in host memory
	// and good.
	flight *diskio.Flight
	// reserved: session.reserved counts the candidate.
	reserved bool
}

// Lookup finds the longest prefix of blocks that is resident in any tier, and pins it in
// host memory. Blocks that are on disk only are read into host memory first. Lookup waits
// for the reads, and for a host tier that grows for them, until ctx is done.
//
// The result has the ready blocks before the first block that is not ready. Each is pinned once
// for the session until Unpin or EndSession. The pins are on record before Lookup returns. A
// block that cannot be read, or whose bytes do not match their checksum, is a miss. A miss is no
// error, nor is the end of ctx.
func (p *Pool) Lookup(ctx context.Context, s SessionID, blocks []Block) (LookupResult, error) {
	l := lookup{session: s, blocks: blocks, began: time.Now()}
	if err := p.beginLookup(&l); err != nil {
		return LookupResult{}, err
	}
	waited := l.grown != nil
	for l.grown != nil && p.awaitGrowth(ctx, l.grown) {
		p.extendLookup(&l)
	}
	if len(l.found) == 0 {
		if waited { // beginLookup has not recorded the time
			p.mu.Lock()
			p.count.LookupTime.Observe(time.Since(l.began))
			p.mu.Unlock()
		}
		return LookupResult{Coming: l.awaitingGrowth}, nil
	}
	for _, c := range l.found {
		if c.flight != nil && !p.awaitFlight(ctx, c.flight) {
			break
		}
	}
	return p.finishLookup(&l)
}

// awaitFlight waits for the end of a read or a check. It returns false when ctx ends or the pool
// stops first.
func (p *Pool) awaitFlight(ctx context.Context, f *diskio.Flight) bool {
	select {
	case <-f.Done:
		return true
	case <-ctx.Done():
	case <-p.life.stop:
	}
	return false
}

// lookup is one running Lookup.
type lookup struct {
	began   time.Time
	session SessionID
	sess    *session
	blocks  []Block
	// found are the blocks before the first that is not resident or has no host slot.
	found []candidate
	// awaitingGrowth counts the blocks after found that are on disk and have no host slot because
	// the host tier grows. grown is closed when the try to make an extent ends; it is nil
	// when awaitingGrowth is 0.
	awaitingGrowth int
	grown          <-chan struct{}
}

// beginLookup holds the host slots of the prefix and starts the reads that it needs.
func (p *Pool) beginLookup(l *lookup) (err error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if l.sess, err = p.checkLocked(l.session); err != nil {
		return err
	}
	p.tickLocked()
	p.matchMoreLocked(l)
	p.count.Misses += uint64(len(l.blocks) - len(l.found))
	if len(l.found) == 0 && l.grown == nil { // the lookup ends here
		p.count.LookupTime.Observe(time.Since(l.began))
	}
	return nil
}

// extendLookup continues a lookup after the host tier has grown, or could not. beginLookup has
// counted the blocks that were not found as misses: those found now are none.
func (p *Pool) extendLookup(l *lookup) {
	p.mu.Lock()
	defer p.mu.Unlock()
	l.awaitingGrowth, l.grown = 0, nil
	if p.life.closing || p.members.sessions[l.session] != l.sess {
		return
	}
	before := len(l.found)
	p.matchMoreLocked(l)
	p.count.Misses -= uint64(len(l.found) - before)
}

// matchMoreLocked extends l.found by the blocks that are resident and that the session may pin,
// and starts the reads of those on disk. If host slots are lacking because the host tier grows,
// it sets l.awaitingGrowth and l.grown.
func (p *Pool) matchMoreLocked(l *lookup) {
	if p.slots.Host == nil {
		return
	}
	rest := l.blocks[len(l.found):]
	pinRoom := max(p.cfg.MaxPinsPerSession-l.sess.pinned, 0)
	more := p.matchLocked(rest[:min(len(rest), pinRoom)])
	matched := len(more)
	more = p.reserveLocked(l.sess, rest, more)
	wanted := len(more)
	more = p.promoteLocked(l.sess, rest, more)
	if len(more) < wanted && p.hostGrowsLocked() {
		l.awaitingGrowth, l.grown = wanted-len(more), p.growth.wait()
	}
	if matched == pinRoom && matched < len(rest) { // the bound ended the prefix, not a miss
		p.count.PinsRefused++
	}
	l.found = append(l.found, more...)
	l.sess.pinned += len(more) // finishLookup takes back those that it does not pin
}

// awaitGrowth waits for the end of a try to grow. It reports whether the try ended
// before ctx.
func (p *Pool) awaitGrowth(ctx context.Context, grown <-chan struct{}) bool {
	select {
	case <-grown:
		return ctx.Err() == nil
	case <-ctx.Done():
	case <-p.life.stop:
	}
	return false
}

// matchGroup is the number of keys that are looked up together, so that their cache misses
// overlap.
const matchGroup = 64

// matchLocked finds the longest prefix over both tiers and holds it: the host slot of a block that
// has one, otherwise the disk slot (a candidate without ref). All slots are held before anything is
// promoted, because promotion evicts. Keys are looked up in groups for speed.
func (p *Pool) matchLocked(blocks []Block) []candidate {
	var keys [matchGroup]kv.StoredKey
	var ids [matchGroup]registry.ID
	var found []candidate
	for len(blocks) > 0 {
		group := blocks[:min(len(blocks), matchGroup)]
		for i := range group {
			keys[i] = group[i].Key
		}
		p.slots.Registry.FindAll(keys[:len(group)], ids[:len(group)])
		if found == nil && ids[0] != registry.None {
			found = make([]candidate, 0, len(blocks))
		}
		for i := range group {
			c, ok := p.matchOneLocked(p.slots.Current(ids[i]))
			if !ok {
				return found
			}
			found = append(found, c)
		}
		blocks = blocks[len(group):]
	}
	return found
}

// matchOneLocked holds the slot of one block of a prefix and makes the block the most recently
// used one. ok is false when the block is a miss: no tier has it, or none can serve it now.
//
// It does not touch the disk copy of a block in host memory, which saves a memory access: before
// its eviction the disk copy takes over the age of the host copy.
func (p *Pool) matchOneLocked(id registry.ID) (c candidate, ok bool) {
	if id == registry.None {
		return candidate{}, false
	}
	e := p.slots.Registry.At(id)
	host, disk := e.Slots[registry.Host], e.Slots[registry.Disk]
	if host == registry.NoRef {
		return p.matchDiskLocked(disk)
	}
	s := p.slots.Host.Slot(host)
	f := p.mover.Flight(host)
	switch {
	case f != nil:
		p.mover.Counters.PromotionsShared++ // a read, or a check after a restart
	case !s.Resident():
		return candidate{}, false // an engine fills the slot
	case s.Unverified:
		f = p.mover.Verify(host, s)
	}
	if f != nil {
		f.Waiters++
	}
	s.Holds++
	if s.Resident() {
		p.slots.Touch(id)
		p.slots.UpdateEvictable(p.slots.Host, host, s)
		if s.State == storage.StateSealed && disk == registry.NoRef && !s.Unverified {
			s.WriteAttempts = 0 // a block in demand may be written again
			p.mover.Offer(host, s)
		}
	}
	return candidate{ref: host, flight: f}, true
}

// matchDiskLocked holds the slot of a block that is on disk only; promoteLocked then reads the
// block. ok is false when the disk cannot serve the block now.
func (p *Pool) matchDiskLocked(disk registry.Ref) (c candidate, ok bool) {
	if disk == registry.NoRef {
		return candidate{}, false
	}
	s := p.slots.Disk.Slot(disk)
	if !s.Resident() || !p.mover.Readable() {
		return candidate{}, false
	}
	p.slots.Touch(s.Entry)
	p.slots.Hold(p.slots.Disk, disk)
	return candidate{ref: registry.NoRef}, true
}

// allocPromotedLocked takes a host slot for a block that is on disk, or returns NoRef.
func (p *Pool) allocPromotedLocked(key *kv.StoredKey) registry.Ref {
	if r := p.slots.Disk.Record(p.slots.DiskSlot(key)); !p.slots.TenantRoom(p.slots.Host, r.Owner) {
		return registry.NoRef
	}
	return p.allocLocked(p.slots.Host)
}

// promoteLocked allocates a host slot for every candidate without one and starts to read its
// block from disk. blocks are those of found. It cuts found before the first candidate that gets
// no slot.
func (p *Pool) promoteLocked(sess *session, blocks []Block, found []candidate) []candidate {
	promoted, wanted := false, len(found)
	for i := range found {
		if found[i].ref != registry.NoRef {
			continue
		}
		if ref := p.slots.HostSlot(&blocks[i].Key); ref != registry.NoRef {
			// The caller named the block twice: both candidates wait for the same read.
			p.slots.Release(p.slots.Disk, p.slots.Registry.At(p.slots.Host.Slot(ref).Entry).Slots[registry.Disk])
			found[i].ref, found[i].flight = ref, p.mover.Flight(ref)
			found[i].flight.Waiters++
			p.slots.Host.Slot(ref).Holds++ // not Hold: a slot that is being filled is not evictable
			continue
		}
		ref := p.allocPromotedLocked(&blocks[i].Key)
		if ref == registry.NoRef {
			sess.unreserve(found[i:])
			p.abandonLocked(blocks, found, i)
			found = found[:i]
			break
		}
		promoted = true
		found[i].ref, found[i].flight = ref, p.mover.Read(&blocks[i].Key, ref)
		found[i].flight.Waiters++
		p.slots.Host.Slot(ref).Holds++
	}
	if promoted || len(found) < wanted {
		p.wakeGrowerLocked()
	}
	return found
}

// abandonLocked releases the slots that candidate i and those after it hold, because the lookup's
// prefix ends there. blocks are those of found.
func (p *Pool) abandonLocked(blocks []Block, found []candidate, i int) {
	for ; i < len(found); i++ {
		if ref := found[i].ref; ref != registry.NoRef {
			if f := found[i].flight; f != nil {
				f.Waiters--
			}
			p.slots.Release(p.slots.Host, ref)
			continue
		}
		id := p.slots.Registry.Find(&blocks[i].Key)
		p.slots.Release(p.slots.Disk, p.slots.Registry.At(id).Slots[registry.Disk])
	}
}

// candidateState says whether the block of a candidate is ready.
type candidateState uint8

const (
	// candidateReady: the block can be served.
	candidateReady candidateState = iota
	// candidateComing: the read or the check has not ended.
	candidateComing
	// candidateMissed: the block was dropped during the lookup, because its memory is
	// damaged.
	candidateMissed
	// candidateFailed: the read or the check failed, and has released the slot.
	candidateFailed
)

// stateLocked says whether the block of a candidate is ready to be pinned. It also returns the
// candidate's host slot, nil for candidateFailed.
func (p *Pool) stateLocked(c *candidate) (candidateState, *tier.Slot) {
	f := c.flight
	if f != nil && f.Finished && !f.OK {
		return candidateFailed, nil
	}
	sl := p.slots.Host.Slot(c.ref)
	if f != nil && !f.Finished {
		return candidateComing, sl
	}
	if !sl.Resident() {
		return candidateMissed, sl
	}
	return candidateReady, sl
}

// finishLookup turns the holds of the ready prefix into pins of the session and drops the other
// holds, or all of them when the session has ended. A failed flight has dropped its holds already.
func (p *Pool) finishLookup(l *lookup) (LookupResult, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.life.closed {
		return LookupResult{}, p.closedLocked()
	}
	sess, found := l.sess, l.found
	sess.unreserve(found)
	alive := p.members.sessions[l.session] == sess
	res := LookupResult{Slots: make([]Slot, 0, len(found)), Sources: make([]kv.Tier, 0, len(found))}
	// ready: every candidate so far is ready. missed: one of them is a miss.
	ready, missed := alive, false
	for i := range found {
		c := &found[i]
		state, sl := p.stateLocked(c)
		ready = ready && state == candidateReady
		switch state {
		case candidateFailed:
			p.count.Misses++
			missed = true
			continue
		case candidateMissed:
			p.count.Misses++
			missed = true
		case candidateComing:
			if !missed {
				res.Coming++
				// The read goes on without the lookup: the engine asks again.
				c.flight.MustRun = c.flight.MustRun || alive
			}
		}
		sl.Holds--
		if c.flight != nil {
			c.flight.Waiters--
		}
		if !ready {
			p.slots.AfterRelease(p.slots.Host, c.ref, sl)
			continue
		}
		// The pin replaces the hold: the slot is in use before and after.
		p.pinLocked(sess, c.ref, sl)
		res.Slots = append(res.Slots, p.slots.Host.Name(c.ref))
		res.Sources = append(res.Sources, p.sourceLocked(sl, c.flight))
	}
	if !alive {
		return LookupResult{}, fmt.Errorf("session %d: %w", l.session, ErrNoSession)
	}
	if !missed {
		res.Coming += l.awaitingGrowth
	}
	sess.pinned -= len(found) - len(res.Slots)
	p.count.LookupTime.Observe(time.Since(l.began))
	return res, nil
}

// sourceLocked returns the tier that a block was found in, and counts the hit. f is the read or
// check that the lookup waited for, or nil. A block that was read from disk is a hit of the disk
// the first time that a lookup reports it.
func (p *Pool) sourceLocked(sl *tier.Slot, f *diskio.Flight) kv.Tier {
	if f != nil && f.DiskSlot != registry.NoRef || sl.FromDisk {
		sl.FromDisk = false
		p.count.DiskHits++
		return kv.TierDisk
	}
	p.count.HostHits++
	return kv.TierHost
}
