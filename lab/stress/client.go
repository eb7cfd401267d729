package stress

import (
	"errors"
	"fmt"
	"slices"

	"github.com/blockyard-ai/blockyard/blockmgr"
)

// grant is a slot that a session fills or has filled.
type grant struct {
	block *blockmgr.Block
	slot  blockmgr.Slot
	// nonce is the commit whose bytes the slot has; 0 after a flip.
	nonce uint64
	// resumed: an earlier agent granted the slot. When another session has stored the
	// block meanwhile, the commit makes no copy.
	resumed bool
}

// pin is a slot that a session loads from.
type pin struct {
	block *blockmgr.Block
	slot  blockmgr.Slot
	// nonce is that of the bytes served; 0 when they are spoiled.
	nonce uint64
}

// client is one engine.
type client struct {
	space int
	// session is 0 without a session. earlier is the session that an earlier agent
	// knew; the client resumes it when it opens the pool again.
	session, earlierSession blockmgr.SessionID
	grants                  []grant
	pins                    []pin
}

// ghost is a session that has ended while its processes still touch its slots.
type ghost struct {
	space   int
	session blockmgr.SessionID
	grants  []grant
	pins    []pin
	// gone is closed when the processes have exited, for the agent that knew the
	// session; nil for a session of an earlier agent.
	gone chan struct{}
}

func slotsOf[T any](held []T, slot func(*T) blockmgr.Slot) []blockmgr.Slot {
	slots := make([]blockmgr.Slot, len(held))
	for i := range held {
		slots[i] = slot(&held[i])
	}
	return slots
}

func grantSlot(g *grant) blockmgr.Slot { return g.slot }
func pinSlot(p *pin) blockmgr.Slot     { return p.slot }

// holders calls do for every session, dead ones included, with the grants and pins that its
// processes may still touch.
func (w *world) holders(do func(who blockmgr.SessionID, grants []grant, pins []pin)) {
	for _, c := range w.clients {
		do(max(c.session, c.earlierSession), c.grants, c.pins)
	}
	for _, g := range w.ghosts {
		do(g.session, g.grants, g.pins)
	}
	for _, g := range w.orphans {
		do(g.session, g.grants, g.pins)
	}
}

// checkExclusive returns an error when any process, of a dead session too, may still touch a slot
// that was just granted, or when the slot had its generation before: each grant of a slot must
// have a higher generation.
func (w *world) checkExclusive(slot blockmgr.Slot) (err error) {
	name := [2]uint32{slot.Extent, slot.Index}
	if last := w.generations[name]; slot.Generation <= last {
		return fmt.Errorf("slot %d/%d is granted at generation %d, and was at %d", slot.Extent, slot.Index, slot.Generation, last)
	}
	w.generations[name] = slot.Generation
	w.holders(func(who blockmgr.SessionID, grants []grant, pins []pin) {
		for _, s := range slices.Concat(slotsOf(grants, grantSlot), slotsOf(pins, pinSlot)) {
			if s.Extent == slot.Extent && s.Index == slot.Index {
				err = fmt.Errorf("slot %d/%d generation %d is granted while session %d holds it at generation %d",
					slot.Extent, slot.Index, slot.Generation, who, s.Generation)
			}
		}
	})
	return err
}

// enter returns the client's pool after it has given the client, a simulated engine, a session
// there, if it has none. A client that had a session with an earlier agent (c.earlierSession)
// resumes it; only the grants and pins that the block manager kept stay the client's.
func (w *world) enter(c *client) (*blockmgr.Pool, error) {
	pool, err := w.pool(c.space)
	if err != nil || c.session != 0 {
		return pool, err
	}
	w.lastSession++
	s := w.lastSession
	if err := pool.BeginSession(s, blockmgr.Process{PID: int32(s), Start: uint64(s)}); err != nil {
		return nil, err
	}
	c.session = s
	if c.earlierSession == 0 {
		return pool, nil
	}
	granted, pinned, err := pool.Resume(s, c.earlierSession, slotsOf(c.grants, grantSlot), slotsOf(c.pins, pinSlot))
	c.earlierSession = 0
	if err != nil {
		return nil, err
	}
	c.grants = slices.DeleteFunc(c.grants, func(g grant) bool { return !slices.Contains(granted, g.slot) })
	for i := range c.grants {
		c.grants[i].resumed = true
	}
	// A slot that was pinned twice is named twice, and returned as often.
	c.pins = slices.DeleteFunc(c.pins, func(p pin) bool { return !slices.Contains(pinned, p.slot) })
	return pool, nil
}

// wrongByte is the error about a block that was served with bytes of another commit, or
// of none.
type wrongByte struct {
	block   *blockmgr.Block
	slot    blockmgr.Slot
	got     uint64
	allowed []uint64
	// torn: the bytes begin like those of got and then differ.
	torn bool
	when string
}

// Error implements error. It names the key, the slot, the content that was there, and the
// contents that were allowed.
func (e *wrongByte) Error() string {
	text := fmt.Sprintf("WRONG BYTES: %s: key %s in slot %d/%d generation %d: content %d", e.when, e.block.Key,
		e.slot.Extent, e.slot.Index, e.slot.Generation, e.got)
	if e.torn {
		text += " (not whole)"
	}
	return text + fmt.Sprintf(", want %v", e.allowed)
}

// checkServed checks the bytes of a block that a lookup has pinned, and returns their nonce, which
// names the commit that they come from. In the negative control it counts wrong bytes and returns
// 0; otherwise they are an error.
func (w *world) checkServed(space int, pool *blockmgr.Pool, b *blockmgr.Block, slot blockmgr.Slot) (nonce uint64, err error) {
	data := w.buffer(space)
	if err := w.memory.read(pool, slot, data); err != nil {
		return 0, fmt.Errorf("block %s was looked up: %w", b.Key, err)
	}
	nonce = nonceOf(data)
	// allowed are the commits that the ledger knows for the block; ok: nonce is one of them.
	allowed, ok := w.ledger.serve(w.spaces[space].id, b.Key, nonce)
	if ok && holds(data, b.Key, nonce) {
		w.total.Verified++
		return nonce, nil
	}
	if ok {
		allowed = []uint64{nonce}
	}
	return 0, w.wrong(&wrongByte{block: b, slot: slot, got: nonce, allowed: allowed, torn: ok, when: "looked up"})
}

// checkUnchanged checks that a slot which a process holds has the bytes of the commit nonce, as it
// had before. A nonce of 0 is not checked, because the harness itself has flipped the bytes. when
// says in errors how the slot is held. pool is nil while the namespace's pool is not open: then
// the slot is checked only if its extent is mapped.
func (w *world) checkUnchanged(space int, pool *blockmgr.Pool, b *blockmgr.Block, slot blockmgr.Slot, nonce uint64, when string) error {
	if nonce == 0 {
		return nil
	}
	data := w.buffer(space)
	err := w.memory.read(pool, slot, data)
	if pool == nil && errors.Is(err, errUnmapped) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("block %s is %s: %w", b.Key, when, err)
	}
	if !holds(data, b.Key, nonce) {
		return w.wrong(&wrongByte{block: b, slot: slot, got: nonceOf(data), allowed: []uint64{nonce}, torn: nonceOf(data) == nonce, when: when})
	}
	w.total.Checked++
	return nil
}

// proveCheck is the negative control of served: it proves that the check is not blind. It flips
// one bit of a block that served has just verified, in host memory, which the agent trusts. So
// served gets the wrong byte and must count it. Then the bit is flipped back. A background check
// of the agent may have seen the flip meanwhile.
func (w *world) proveCheck(space int, pool *blockmgr.Pool, b *blockmgr.Block, slot blockmgr.Slot) error {
	bit := (&operation{randomBits: uint64(w.opNumber)}).rng().IntN(8 * int(w.spaces[space].desc.BlockBytes()))
	if err := w.memory.flip(pool, slot, bit); err != nil {
		return err
	}
	before := w.total.WrongBytes
	_, err := w.checkServed(space, pool, b, slot)
	w.total.Flipped++
	w.total.Seen += w.total.WrongBytes - before
	return errors.Join(err, w.memory.flip(pool, slot, bit))
}

// wrong counts a wrong byte. It ends the run unless this is the negative control.
func (w *world) wrong(e *wrongByte) error {
	w.total.WrongBytes++
	if w.control {
		return nil
	}
	return e
}

// buffer returns room for the bytes of a block.
func (w *world) buffer(space int) []byte {
	return w.buf[:w.spaces[space].desc.BlockBytes()]
}

// maxHandles bounds the blocks of one registration.
const maxHandles = 2

// register stores blocks through handles, as a program that embeds the manager does, and checks
// the bytes behind each handle. Blocks that are resident already keep their bytes, so the ledger
// is offered the new content only. The nonce names the commit. Without free blocks, or while
// another client fills one of the blocks, register does nothing.
func (w *world) register(c *client, pool *blockmgr.Pool, o *operation) error {
	run := w.spaces[c.space].run(o)
	run = run[:min(len(run), maxHandles)]
	blocks, err := pool.Allocate(c.session, len(run))
	if errors.Is(err, blockmgr.ErrNotEnoughBlocks) {
		return nil
	}
	if err != nil {
		return err
	}
	nonce := uint64(w.opNumber) << 8
	for i, b := range blocks {
		if err := w.checkExclusive(b.Slot()); err != nil {
			return err
		}
		tokens := make([]uint32, w.spaces[c.space].desc.BlockSize)
		if err := b.ApplyTokenBlock(blockmgr.TokenBlock{Block: run[i], Tokens: tokens}); err != nil {
			return err
		}
		fill(b.Data(), run[i].Key, nonce)
	}
	w.ledger.offer(w.spaces[c.space].id, run, nonce)
	handles, err := pool.Register(c.session, blocks)
	w.ledger.offerEnds()
	if errors.Is(err, blockmgr.ErrFilling) { // another client fills one of the blocks
		for _, b := range blocks {
			b.Release()
		}
		return nil
	}
	if err != nil {
		return err
	}
	for i, h := range handles {
		if h.Key() != run[i].Key {
			return fmt.Errorf("block %s was registered, the handle is of %s", run[i].Key, h.Key())
		}
		if _, err := w.checkServed(c.space, pool, &run[i], h.Slot()); err != nil {
			return err
		}
		h.Release()
	}
	return nil
}
