package blockmgr

import (
	"context"
	"fmt"
	"time"

	"github.com/blockyard-ai/blockyard/blockmgr/registry"
	"github.com/blockyard-ai/blockyard/blockmgr/storage"
)

// Allocate gives session s n empty blocks. The grants of their slots are on record before
// Allocate returns. A host tier that cannot grow evicts its coldest blocks.
// ErrNotEnoughBlocks: fewer than n slots are available, perhaps because the tier has yet to
// grow. Then Allocate grants none.
//
// Cost: when the free slots and the blocks without children are fewer than n, Allocate looks at
// every slot of the host tier.
func (p *Pool) Allocate(s SessionID, n int) ([]*MutableBlock, error) {
	if n < 0 {
		return nil, fmt.Errorf("number of blocks %d: want 0 or more", n)
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	sess, err := p.checkLocked(s)
	if err != nil {
		return nil, err
	}
	p.tickLocked()
	if p.slots.Host != nil {
		defer p.wakeGrowerLocked()
	}
	if can := p.obtainableLocked(n); can < n {
		return nil, notEnough(n, can)
	}
	blocks := make([]*MutableBlock, 0, n)
	for range n {
		ref := p.allocLocked(p.slots.Host)
		if ref == registry.NoRef {
			// obtainableLocked counted a slot whose memory turns out to be damaged.
			for _, b := range blocks {
				ref, _ := b.heldLocked()
				delete(sess.granted, ref)
				p.slots.Free(p.slots.Host, ref)
			}
			return nil, notEnough(n, len(blocks))
		}
		p.slots.Grant(ref, s, storage.Record{}) // names no block yet
		sess.grant(ref, time.Now())
		blocks = append(blocks, &MutableBlock{pool: p, session: s, sess: sess, slot: p.slots.Host.Name(ref)})
	}
	p.count.Granted += uint64(n)
	return blocks, nil
}

func notEnough(requested, available int) error {
	return fmt.Errorf("%d blocks requested, %d available: %w", requested, available, ErrNotEnoughBlocks)
}

// obtainableLocked returns how many host slots Allocate could take for want blocks. A result
// below want is exact, any other a lower bound. In a tier that can grow only free slots count,
// because it evicts nothing; the slots that it lacks count as demand for growth.
func (p *Pool) obtainableLocked(want int) int {
	t := p.slots.Host
	if t == nil {
		return 0
	}
	if free := t.Free(); free < want && p.hostGrowsLocked() {
		p.growth.refused += want - free
		return free
	}
	return p.slots.Obtainable(t, want)
}

// Register makes complete blocks of session s visible and returns a handle to each, in
// the order given. The caller has filled them. The pool computes checksums and copies the
// blocks to disk in the background. For a block that host memory has already, Register frees
// the new slot and returns a handle to the existing block.
//
// All blocks are registered, or none: ErrNoBlocks; ErrBadSlot when a block is not the
// session's or is given twice; ErrBlockState when a block is not complete; ErrPins;
// ErrFilling. Register waits for blocks of the same keys that are being read or verified,
// at most for Config.IODeadline.
func (p *Pool) Register(s SessionID, blocks []*MutableBlock) ([]*ImmutableBlock, error) {
	if len(blocks) == 0 {
		return nil, fmt.Errorf("register: %w", ErrNoBlocks)
	}
	awaited, err := p.beginRegister(s, blocks)
	if err != nil {
		return nil, fmt.Errorf("register: %w", err)
	}
	for _, c := range awaited {
		p.awaitFlight(context.Background(), c.flight)
	}
	handles, err := p.finishRegister(s, blocks, awaited)
	if err != nil {
		return nil, fmt.Errorf("register: %w", err)
	}
	return handles, nil
}

// beginRegister checks the blocks and returns those whose keys are already in host slots that
// are being read or verified: Register waits for these flights. Each result holds its slot until
// stopWaitingLocked.
func (p *Pool) beginRegister(s SessionID, blocks []*MutableBlock) (awaited []candidate, err error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if _, _, err := p.registrableLocked(s, blocks); err != nil {
		return nil, err
	}
	for _, b := range blocks {
		ref := p.slots.HostSlot(&b.block.Key)
		if ref == registry.NoRef {
			continue
		}
		sl := p.slots.Host.Slot(ref)
		f := p.mover.Flight(ref)
		if f == nil && sl.Unverified {
			f = p.mover.Verify(ref, sl)
		}
		if f != nil {
			f.Waiters++
			p.slots.Hold(p.slots.Host, ref)
			awaited = append(awaited, candidate{ref: ref, flight: f})
		}
	}
	return awaited, nil
}

// finishRegister checks the blocks again, because the lock was free meanwhile, registers them and
// pins them for the session. It ends the waiting of beginRegister even if it fails.
func (p *Pool) finishRegister(s SessionID, blocks []*MutableBlock, awaited []candidate) ([]*ImmutableBlock, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.life.closed {
		return nil, p.closedLocked()
	}
	defer p.stopWaitingLocked(awaited)
	sess, refs, err := p.registrableLocked(s, blocks)
	if err != nil {
		return nil, err
	}
	now := time.Now()
	for _, b := range blocks {
		ref := p.slots.HostSlot(&b.block.Key)
		if ref != registry.NoRef && !p.slots.Host.Slot(ref).Resident() && !p.supersedeLocked(ref, now) {
			return nil, fmt.Errorf("block %s: %w", b.block.Key, ErrFilling)
		}
	}
	p.tickLocked()
	handles := make([]*ImmutableBlock, len(blocks))
	for i, b := range blocks {
		ref := p.registerOneLocked(sess, b, refs[i])
		sess.pinned++
		p.pinLocked(sess, ref, p.slots.Host.Slot(ref))
		p.slots.UpdateEvictable(p.slots.Host, ref, p.slots.Host.Slot(ref))
		handles[i] = p.handleLocked(s, sess, ref)
	}
	return handles, nil
}

// stopWaitingLocked releases the slots that beginRegister holds. A flight that failed has
// released its slot already.
func (p *Pool) stopWaitingLocked(awaited []candidate) {
	for _, c := range awaited {
		if !c.flight.Finished || c.flight.OK {
			c.flight.Waiters--
			p.slots.Release(p.slots.Host, c.ref)
		}
	}
}

// registrableLocked checks that the session may register all of the blocks, and
// returns their slots.
func (p *Pool) registrableLocked(s SessionID, blocks []*MutableBlock) (*session, []registry.Ref, error) {
	sess, err := p.checkLocked(s)
	if err != nil {
		return nil, nil, err
	}
	if sess.pinned+len(blocks) > p.cfg.MaxPinsPerSession {
		p.count.PinsRefused++
		return nil, nil, fmt.Errorf("%d blocks beside %d pins: want at most %d in all: %w",
			len(blocks), sess.pinned, p.cfg.MaxPinsPerSession, ErrPins)
	}
	refs := make([]registry.Ref, len(blocks))
	seen := make(map[*MutableBlock]struct{}, len(blocks))
	for i, b := range blocks {
		if err := b.check("registration", BlockComplete); err != nil {
			return nil, nil, fmt.Errorf("block %d: %w", i, err)
		}
		if b.pool != p || b.session != s {
			return nil, nil, fmt.Errorf("block %d: session %d of pool %s: %w", i, b.session, b.pool.id, ErrBadSlot)
		}
		ref, held := b.heldLocked()
		if !held {
			return nil, nil, fmt.Errorf("block %d: %w", i, ErrBadSlot)
		}
		if _, twice := seen[b]; twice {
			return nil, nil, fmt.Errorf("block %d: given twice: %w", i, ErrBadSlot)
		}
		seen[b] = struct{}{}
		refs[i] = ref
	}
	return sess, refs, nil
}

// registerOneLocked makes a complete block in slot ref visible and returns ref. If another host
// slot has the block already, it frees ref and returns that slot. The caller pins the result.
func (p *Pool) registerOneLocked(sess *session, b *MutableBlock, ref registry.Ref) registry.Ref {
	sess.endGrant(ref)
	b.state, b.tokens = BlockRegistered, nil
	existing := p.slots.HostSlot(&b.block.Key)
	if existing == registry.NoRef {
		r := p.slots.RecordOf(&b.block)
		r.Priority = b.priority
		p.slots.Occupy(p.slots.Host, ref, &b.block, storage.StateGranted, b.session, r)
		p.fillLocked(ref, &r)
		p.count.Committed++
		return ref
	}
	s := p.slots.Host.Slot(existing)
	if s.State == storage.StateSealed && s.Pins+s.Holds == 0 {
		// The filter counts this use, as it counts a lookup.
		p.mover.Offer(existing, s)
	}
	p.slots.Touch(s.Entry)
	p.slots.Prefer(p.slots.Host, existing, b.priority)
	p.slots.DropGrant(ref, storage.StateFree)
	p.count.Deduplicated++
	return existing
}

// Match finds the longest prefix of blocks that is resident in any tier, as Lookup does, and pins it
// for session s. It returns a handle for each pin.
func (p *Pool) Match(ctx context.Context, s SessionID, blocks []Block) ([]*ImmutableBlock, error) {
	res, err := p.Lookup(ctx, s, blocks)
	if err != nil {
		return nil, err
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	sess, err := p.checkLocked(s)
	if err != nil {
		return nil, err
	}
	handles := make([]*ImmutableBlock, 0, len(res.Slots))
	for _, name := range res.Slots {
		ref, ok := p.findLocked(name)
		if !ok {
			panic(fmt.Sprintf("BUG: slot %d/%d generation %d was freed while session %d has it pinned",
				name.Extent, name.Index, name.Generation, s))
		}
		handles = append(handles, p.handleLocked(s, sess, ref))
	}
	return handles, nil
}
