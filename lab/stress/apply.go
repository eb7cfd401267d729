package stress

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/blockyard-ai/blockyard/blockmgr"
	"github.com/blockyard-ai/blockyard/internal/kv"
)

// apply does one operation of a stream: the death of the agent or of an engine's processes, what a
// client (a simulated engine) asks of its pool, or maintenance of a pool. An error means that the
// block manager was wrong, or that the disk never answered, and ends the stream.
func (w *world) apply(o *operation) error {
	w.opNumber++
	w.total.Ops++
	switch o.kind {
	case opClose:
		return w.restart(deathClose, o.rng())
	case opKill:
		return w.restart(deathKill, o.rng())
	case opPower:
		return w.restart(deathPower, o.rng())
	case opGone:
		return w.endProcesses()
	case opForget:
		return w.endOrphan()
	case opRetire:
		return w.retire(o)
	}
	c := w.clients[o.client%len(w.clients)]
	pool, err := w.enter(c) // the client's pool, in which it now has a session
	if err != nil {
		return err
	}
	switch o.kind {
	case opGrant:
		return w.grant(c, pool, o)
	case opCommit:
		return w.commit(c, pool, o)
	case opAbort:
		n := min(o.n, len(c.grants)) // the newest grants
		gone := c.grants[len(c.grants)-n:]
		c.grants = c.grants[:len(c.grants)-n]
		return pool.Abort(c.session, slotsOf(gone, grantSlot))
	case opRegister:
		return w.register(c, pool, o)
	case opLookup, opGlance:
		return w.lookup(c, pool, o)
	case opStorm:
		return w.storm(c, pool, o)
	case opUnpin:
		return w.unpin(c, pool, o.n)
	case opEnd:
		return w.end(c, pool)
	case opDie:
		return w.die(c, pool)
	}
	return w.maintain(c, pool, o)
}

// maintain does an operation on a pool that needs no session, such as a reset, and checks the
// pools after those that change much. A refusal because a block is in use is no error.
func (w *world) maintain(c *client, pool *blockmgr.Pool, o *operation) error {
	run := w.spaces[c.space].run(o)
	keys, hashes := make([]kv.StoredKey, len(run)), make([]kv.SequenceHash, len(run))
	for i := range run {
		keys[i], hashes[i] = run[i].Key, run[i].Seq
	}
	tier := kv.TierHost
	if w.variant.hasDisk() && o.randomBits%2 == 0 {
		tier = kv.TierDisk
	}
	var err error
	switch o.kind {
	case opPrefetch:
		pool.Prefetch(run)
	case opTouch:
		pool.Touch(keys)
	case opKeep:
		_, err = pool.Keep(keys, time.Duration(o.n)*5*time.Millisecond)
	case opResetBlocks:
		_, err = pool.ResetBlocks(tier, hashes)
	case opResetTier:
		err = pool.Reset(tier)
	case opSettle:
		err = w.settle(pool)
	case opRest:
		err = w.rest(pool)
	}
	// A block may be in use, and a faulty disk may have no tier at present.
	if errors.Is(err, blockmgr.ErrActive) || w.variant.faulty() && errors.Is(err, blockmgr.ErrNoTier) {
		return nil
	}
	if err != nil {
		return err
	}
	return w.audit()
}

// restTime is a little longer than the first pause of the disk breaker.
const restTime = 1050 * time.Millisecond

// rest waits until the breaker lets a failed disk be tried again.
func (w *world) rest(pool *blockmgr.Pool) error {
	if !pool.Stats().DiskOpen {
		return nil
	}
	time.Sleep(restTime)
	return nil
}

// grant asks for slots for a run of blocks, checks that nobody else uses them, and fills them with
// the blocks' content for a new nonce, the number that names a commit. A later operation commits
// them. A client holds at most w.maxSlots.
func (w *world) grant(c *client, pool *blockmgr.Pool, o *operation) error {
	run := w.spaces[c.space].run(o)
	run = run[:min(len(run), w.maxSlots-len(c.grants))]
	res, err := pool.Grant(c.session, run, uint32(o.randomBits%3))
	if err != nil {
		return err
	}
	// Each block is granted a slot, or stored already, or refused.
	if n := len(res.Grants) + res.Present + res.Refused; n != len(run) {
		return fmt.Errorf("grant of %d blocks: %d granted, %d present, %d refused", len(run), len(res.Grants), res.Present, res.Refused)
	}
	data := w.buffer(c.space)
	for _, g := range res.Grants {
		if err := w.checkExclusive(g.Slot); err != nil {
			return err
		}
		// The same operation has the same nonces under every configuration.
		b, nonce := &run[g.Index], uint64(w.opNumber)<<8|uint64(o.first+g.Index)
		fill(data, b.Key, nonce)
		if err := w.memory.write(pool, g.Slot, data); err != nil {
			return err
		}
		c.grants = append(c.grants, grant{block: b, slot: g.Slot, nonce: nonce})
	}
	return nil
}

// commit commits the client's o.n oldest grants, after a check that no other process has touched
// their slots. A grant whose bytes the harness itself has flipped (nonce 0) is aborted instead.
// The ledger learns of the commits first, because the events of the new copies come before
// Commit returns.
func (w *world) commit(c *client, pool *blockmgr.Pool, o *operation) error {
	n := min(o.n, len(c.grants))
	var good, bad []grant
	for _, g := range c.grants[:n] {
		if err := w.checkUnchanged(c.space, pool, g.block, g.slot, g.nonce, "about to be committed"); err != nil {
			return err
		}
		if g.nonce == 0 {
			bad = append(bad, g)
		} else {
			good = append(good, g)
		}
	}
	c.grants = c.grants[n:]
	if err := pool.Abort(c.session, slotsOf(bad, grantSlot)); err != nil {
		return err
	}
	w.ledger.commit(w.spaces[c.space].id, good)
	if err := pool.Commit(c.session, slotsOf(good, grantSlot)); err != nil {
		return err
	}
	return w.ledger.committed(w.spaces[c.space].id, good)
}

// lookup looks up a run of blocks, checks their bytes, and keeps them pinned; the client's oldest
// pins beyond its limit are released.
func (w *world) lookup(c *client, pool *blockmgr.Pool, o *operation) error {
	run := w.spaces[c.space].run(o)
	res, err := look(pool, c.session, run, o.kind == opGlance)
	if err != nil {
		return err
	}
	if err := w.keepPins(c, pool, run, res); err != nil {
		return err
	}
	return w.unpin(c, pool, max(len(c.pins)-w.maxSlots, 0))
}

// look looks up a run of blocks in a session and checks that the answer is consistent. With
// glance it does not wait for blocks on disk.
func look(pool *blockmgr.Pool, s blockmgr.SessionID, run []blockmgr.Block, glance bool) (blockmgr.LookupResult, error) {
	ctx, cancel := context.WithTimeout(context.Background(), waitTime)
	defer cancel()
	if glance {
		cancel() // an ended context waits for nothing
	}
	res, err := pool.Lookup(ctx, s, run)
	if err == nil && (len(res.Slots)+res.Coming > len(run) || len(res.Sources) != len(res.Slots)) {
		err = fmt.Errorf("lookup of %d blocks: %d slots from %d tiers, %d coming", len(run), len(res.Slots), len(res.Sources), res.Coming)
	}
	return res, err
}

// keepPins checks the bytes of the blocks that a lookup has pinned, res for the blocks run, and
// records their pins as the client's.
func (w *world) keepPins(c *client, pool *blockmgr.Pool, run []blockmgr.Block, res blockmgr.LookupResult) error {
	for i, slot := range res.Slots {
		nonce, err := w.checkServed(c.space, pool, &run[i], slot)
		if err == nil && w.control && nonce != 0 {
			err = w.proveCheck(c.space, pool, &run[i], slot)
		}
		if err != nil {
			return err
		}
		c.pins = append(c.pins, pin{&run[i], slot, nonce})
	}
	return nil
}

// storm makes several lookups of overlapping runs at the same time, so that they share reads from
// disk, checks the bytes of all, and releases their pins. Other pins of the client stay.
func (w *world) storm(c *client, pool *blockmgr.Pool, o *operation) error {
	const lookups = 4
	chain := w.spaces[c.space].sequence(o)
	results, errs := make([]blockmgr.LookupResult, lookups), make([]error, lookups)
	var wait sync.WaitGroup
	for i := range lookups {
		wait.Go(func() { results[i], errs[i] = look(pool, c.session, chain[i%2:], i == lookups-1) })
	}
	wait.Wait()
	if err := errors.Join(errs...); err != nil {
		return err
	}
	before := len(c.pins)
	for i, res := range results {
		if err := w.keepPins(c, pool, chain[i%2:], res); err != nil {
			return err
		}
	}
	added := c.pins[before:]
	c.pins = c.pins[:before]
	return pool.Unpin(c.session, slotsOf(added, pinSlot))
}

// unpin releases the client's n oldest pins, after a check that the bytes did not change while
// they were pinned.
func (w *world) unpin(c *client, pool *blockmgr.Pool, n int) error {
	n = min(n, len(c.pins))
	for _, p := range c.pins[:n] {
		if err := w.checkUnchanged(c.space, pool, p.block, p.slot, p.nonce, "pinned"); err != nil {
			return err
		}
	}
	slots := slotsOf(c.pins[:n], pinSlot)
	c.pins = c.pins[n:]
	return pool.Unpin(c.session, slots)
}

// end ends the client's session in good order: it releases half of the pins and leaves the rest
// to the manager. No process uses them any more.
func (w *world) end(c *client, pool *blockmgr.Pool) error {
	if err := w.unpin(c, pool, len(c.pins)/2); err != nil {
		return err
	}
	pool.EndSession(c.session, nil)
	*c = client{space: c.space}
	return nil
}

// die ends the client's session while its processes still write into the granted slots. The dead
// session becomes a ghost until gone ends its processes.
func (w *world) die(c *client, pool *blockmgr.Pool) error {
	g := &ghost{space: c.space, session: c.session, grants: c.grants, gone: make(chan struct{})}
	pool.EndSession(c.session, g.gone)
	*c = client{space: c.space}
	if len(g.grants) == 0 {
		return nil
	}
	w.ghosts = append(w.ghosts, g)
	return w.writeAfterDeath(g)
}

// endProcesses ends the processes of the oldest dead session, after one more write. From then on the
// manager may use the slots again.
func (w *world) endProcesses() error {
	if len(w.ghosts) == 0 {
		return nil
	}
	g := w.ghosts[0]
	if err := w.writeAfterDeath(g); err != nil {
		return err
	}
	w.ghosts = w.ghosts[1:]
	close(g.gone)
	return nil
}

// endOrphan ends the processes of an orphan, a session that an earlier agent had and that does not
// resume, and tells the manager. Until then its pinned slots must keep their bytes.
func (w *world) endOrphan() error {
	if len(w.orphans) == 0 {
		return nil
	}
	g := w.orphans[0]
	if err := w.writeAfterDeath(g); err != nil { // its granted slots must hurt nobody
		return err
	}
	for _, p := range g.pins {
		if err := w.checkUnchanged(g.space, w.pools[g.space], p.block, p.slot, p.nonce, "pinned by a session of an earlier agent"); err != nil {
			return err
		}
	}
	w.orphans = w.orphans[1:]
	w.manager.Forget(g.session)
	return nil
}

// writeAfterDeath writes random bytes into the slots of a session that has ended, as a process
// that is still copying does. None of them may ever be served.
func (w *world) writeAfterDeath(g *ghost) error {
	data := w.buffer(g.space)
	rng := (&operation{randomBits: uint64(w.opNumber)}).rng()
	for _, held := range g.grants {
		scribble(data, rng)
		err := w.memory.write(w.pools[g.space], held.slot, data)
		if err != nil && !errors.Is(err, errUnmapped) {
			return err
		}
	}
	return nil
}
