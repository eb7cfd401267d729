package blockmgr

import (
	"context"
	"fmt"

	"github.com/blockyard-ai/blockyard/blockmgr/storage"
	"github.com/blockyard-ai/blockyard/internal/kv"
)

// candidate is one block of a running lookup. Its host slot is held.
type candidate struct {
	ref uint32
	// flight is the read that fills the slot; nil when the block is in host memory.
	flight *flight
}

// Lookup finds the longest prefix of blocks that is resident in any tier. What
// is in host memory is pinned; what is on disk only is read into host memory,
// and Lookup waits for that until ctx is done. The result covers the blocks
// that are ready without a hole, each pinned once for the session until Unpin
// or EndSession. A block that cannot be read, or whose bytes are not what was
// stored, is a miss. Neither that nor a context that is done is an error.
func (p *Pool) Lookup(ctx context.Context, s SessionID, blocks []Block) (LookupResult, error) {
	sess, found, err := p.beginLookup(s, blocks)
	if err != nil || len(found) == 0 {
		return LookupResult{}, err
	}
	for _, c := range found {
		if c.flight == nil {
			continue
		}
		select {
		case <-c.flight.done:
			continue
		case <-ctx.Done():
		case <-p.stop:
		}
		break
	}
	return p.finishLookup(s, sess, found)
}

// beginLookup holds the host slots of the prefix and starts what reads it needs.
func (p *Pool) beginLookup(s SessionID, blocks []Block) (*session, []candidate, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	sess, err := p.checkLocked(s)
	if err != nil {
		return nil, nil, err
	}
	var found []candidate
	if p.host != nil {
		found = p.matchLocked(blocks[:min(len(blocks), max(p.cfg.MaxPinsPerSession-sess.pinned, 0))])
		found = p.promoteLocked(blocks, found)
		if len(found)+sess.pinned >= p.cfg.MaxPinsPerSession && len(found) < len(blocks) {
			p.count.PinsRefused++
		}
	}
	sess.pinned += len(found)
	p.count.Misses += uint64(len(blocks) - len(found))
	return sess, found, nil
}

// matchLocked finds the longest prefix over both tiers and holds it: the host
// slot where there is one, the disk slot (a candidate without ref) where not.
// All is held before anything is promoted, because promotion evicts.
func (p *Pool) matchLocked(blocks []Block) []candidate {
	var found []candidate
	for i := range blocks {
		id := p.reg.find(blocks[i].Key)
		if id == none {
			break
		}
		e := *p.reg.at(id)
		host, disk := e.slots[hostLevel], e.slots[diskLevel]
		onDisk := disk != none && p.disk.slots[disk].resident()
		if onDisk {
			p.touchLocked(p.disk, disk)
		}
		switch {
		case host != none && p.host.slots[host].resident():
			p.holdLocked(p.host, host)
			p.touchLocked(p.host, host)
			if p.host.slots[host].state == storage.StateSealed {
				p.offerLocked(host)
			}
			found = append(found, candidate{ref: host})
		case host != none && p.host.slots[host].state == storage.StateStaging:
			f := p.flights[host]
			p.count.PromotionsShared++
			p.holdLocked(p.host, host)
			found = append(found, candidate{ref: host, flight: f})
		case host == none && onDisk:
			p.holdLocked(p.disk, disk)
			found = append(found, candidate{ref: none})
		default:
			return found
		}
	}
	return found
}

// promoteLocked gives every candidate without a host slot one and starts to
// read its block. When no slot can be had the prefix ends there.
func (p *Pool) promoteLocked(blocks []Block, found []candidate) []candidate {
	for i := range found {
		if found[i].ref != none {
			continue
		}
		ref := p.allocLocked(p.host)
		if ref == none {
			p.abandonLocked(blocks, found, i)
			found = found[:i]
			break
		}
		found[i] = candidate{ref: ref, flight: p.startFlightLocked(&blocks[i], ref)}
	}
	p.wakeGrowerLocked()
	return found
}

// abandonLocked releases what matchLocked holds from candidate i on.
func (p *Pool) abandonLocked(blocks []Block, found []candidate, i int) {
	for ; i < len(found); i++ {
		if ref := found[i].ref; ref != none {
			p.releaseLocked(p.host, ref)
			continue
		}
		id := p.reg.find(blocks[i].Key)
		p.releaseLocked(p.disk, p.reg.at(id).slots[diskLevel])
	}
}

// finishLookup turns the holds of the ready prefix into pins of sess and drops
// the others. When the session has ended meanwhile it drops them all.
func (p *Pool) finishLookup(s SessionID, sess *session, found []candidate) (LookupResult, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.closed {
		return LookupResult{}, ErrClosed
	}
	alive := p.sessions[s] == sess
	var res LookupResult
	ready, broken := alive, false
	for _, c := range found {
		if c.flight != nil && c.flight.finished && !c.flight.ok {
			// The failed read has let go of the slot already.
			p.count.Misses++
			ready, broken = false, true
			continue
		}
		sl := &p.host.slots[c.ref]
		if c.flight == nil && !sl.resident() {
			// Its memory turned out to be damaged meanwhile.
			ready, broken = false, true
		}
		if c.flight != nil && !c.flight.finished {
			ready = false
			if !broken {
				res.Coming++
			}
		}
		sl.holds--
		if ready {
			sl.pins++
			sess.pins[c.ref]++
			res.Slots = append(res.Slots, p.host.name(c.ref))
			res.Sources = append(res.Sources, p.sourceLocked(sl, c.flight != nil))
		}
		p.settleLocked(p.host, c.ref)
	}
	if !alive {
		return LookupResult{}, fmt.Errorf("session %d: %w", s, ErrNoSession)
	}
	sess.pinned -= len(found) - len(res.Slots)
	return res, nil
}

// sourceLocked is the tier that a block was found in, and counts the hit. A
// block that an earlier lookup had promoted still says disk the first time
// that it is reported.
func (p *Pool) sourceLocked(sl *slot, waited bool) kv.Tier {
	if waited || sl.fromDisk {
		sl.fromDisk = false
		p.count.DiskHits++
		return kv.TierDisk
	}
	p.count.HostHits++
	return kv.TierHost
}
