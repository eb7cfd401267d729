package consolidator

import (
	"maps"
	"slices"
	"time"

	"github.com/blockyard-ai/blockyard/consolidator/dense"
	"github.com/blockyard-ai/blockyard/consolidator/residency"
	"github.com/blockyard-ai/blockyard/internal/backoff"
	"github.com/blockyard-ai/blockyard/internal/kv"
)

// aside is what a rank knew before a loss for which there was no list. It is out of
// the stream, because any of it may be gone, and waits for the list to come. Only
// blocks on the device count: a list says nothing about others.
type aside struct {
	known     dense.Table[engineBlock]     // their slots are those of residents
	residents dense.Table[residency.Block] // their references mean nothing
}

// inList reports whether a store in tier t that comes now may be one that the
// engine's last list includes.
func (c *converter) inList(t kv.Tier) bool {
	return t == kv.TierDevice && (c.behindList || !c.listedUntil.IsZero() && c.now().Before(c.listedUntil))
}

// caughtUp says that the queue of frames was empty: what comes from here on was sent
// after the list came, but for what was on its way.
func (c *converter) caughtUp() {
	if c.behindList {
		c.behindList, c.listedUntil = false, c.now().Add(listGrace)
	}
}

// unlist takes h out of the blocks of which only the engine's list has told;
// false when it was not among them.
func (c *converter) unlist(h kv.EngineHash) bool {
	if len(c.unlisted) == 0 {
		return false
	}
	_, ok := c.unlisted[h]
	delete(c.unlisted, h)
	if len(c.unlisted) == 0 {
		c.unlisted = nil // a map does not shrink
	}
	return ok
}

// listed makes up for a loss with the list of the blocks that the engine has on
// its device: what is known, aside or parked, and listed, stays, with one
// announcement, and everything else goes. That a block was announced more often
// cannot be seen; to forget it too early is a miss, and too late would be a wrong
// hit. Listed blocks that are not known leave the stream degraded until the engine
// has announced them again or has removed them.
func (c *converter) listed(list []kv.EngineHash) {
	c.unlisted = make(map[kv.EngineHash]struct{}, len(list))
	for _, h := range list {
		c.unlisted[h] = struct{}{}
	}
	c.behindList, c.wantList = true, false
	c.stream.Update(func(tx *residency.Tx) {
		c.park.keepListed(c.unlisted)
		c.keepListed(tx)
		c.showListed(tx)
		for _, k := range slices.Collect(maps.Keys(c.park.byBlock)) {
			c.parkOnce(k)
			c.unlist(k.hash)
		}
		c.splice(tx)
		c.unlisted = maps.Collect(maps.All(c.unlisted)) // most of it is gone, and a map does not shrink
		// The list says nothing about other tiers.
		c.degraded, c.unproven = c.lowerTiers, false
		c.version++
		c.settle(tx)
	})
}

// keepListed forgets the known blocks that are not listed, and all but one
// announcement of the others.
func (c *converter) keepListed(tx *residency.Tx) {
	for slot := range c.known.Slots() {
		b := c.known.At(slot)
		if b.refs == 0 {
			continue // a free slot
		}
		keep := uint32(0)
		if b.refs.Of(kv.TierDevice) > 0 && c.unlist(kv.EngineHash(c.known.Key(slot))) {
			keep = 1
		}
		refs := b.refs
		for _, t := range kv.Tiers {
			c.release(tx, slot, t, refs.Of(t)-keep)
			keep = 0
		}
	}
}

// showListed stores the blocks aside that are listed, and drops the others.
func (c *converter) showListed(tx *residency.Tx) {
	if c.aside == nil {
		return
	}
	a := c.aside
	var blocks []placedBlock
	for slot := range a.known.Slots() {
		b := a.known.At(slot)
		h := kv.EngineHash(a.known.Key(slot))
		if b.refs.Of(kv.TierDevice) == 0 || !c.unlist(h) {
			continue
		}
		at := *a.residents.At(b.slot)
		at.Refs = 0
		at.Refs.Add(kv.TierDevice)
		blocks = append(blocks, placedBlock{hash: h, seq: kv.SequenceHash(a.residents.Key(b.slot)), at: at, identity: b.identity})
	}
	c.storePlaced(tx, blocks)
	c.dropAside()
	for i := range blocks {
		b := &blocks[i]
		if c.park.waitsFor(b.hash) {
			c.ready = append(c.ready, readyPlace{b.hash, b.seq, b.at.Position() + 1, b.identity})
		}
	}
}

// hide takes every block out of the stream, because events are missing that may
// have removed any of them, and puts them aside until there is a list.
func (c *converter) hide() {
	c.degraded, c.unproven, c.wantList = true, false, true
	c.park.reset()
	c.unlisted = nil
	c.version++
	c.stream.Update(func(tx *residency.Tx) {
		c.putAside(tx.Clear())
		c.settle(tx)
	})
}

// putAside moves what is known aside, to what is there already. The blocks were in
// the stream's table.
func (c *converter) putAside(table dense.Table[residency.Block]) {
	if c.aside == nil {
		c.aside = &aside{known: c.known, residents: table}
		c.known = dense.Table[engineBlock]{}
		return
	}
	for slot := range c.known.Slots() {
		if b := *c.known.At(slot); b.refs != 0 && !c.addAside(c.known.Key(slot), b, &table) {
			c.identities.leave(b.identity)
		}
	}
	c.known.Clear()
}

// addAside puts one block more aside; false when that is not needed, or not
// possible.
func (c *converter) addAside(h uint64, b engineBlock, table *dense.Table[residency.Block]) bool {
	a := c.aside
	if old, there := a.known.Find(h); there {
		a.known.At(old).refs |= b.refs
		return false
	}
	if a.known.Len() >= c.maxBlocks {
		c.drop(dropTableFull, 1)
		return false
	}
	at, there := a.residents.Find(table.Key(b.slot))
	if !there {
		if at, there = a.residents.Insert(table.Key(b.slot)); !there {
			c.drop(dropTableFull, 1)
			return false
		}
		*a.residents.At(at) = *table.At(b.slot)
	}
	slot, ok := a.known.Insert(h)
	if !ok {
		c.drop(dropTableFull, 1)
		return false
	}
	b.slot = at
	*a.known.At(slot) = b
	return true
}

// dropAside forgets what is aside.
func (c *converter) dropAside() {
	if c.aside == nil {
		return
	}
	for slot := range c.aside.known.Slots() {
		if b := c.aside.known.At(slot); b.refs != 0 {
			c.identities.leave(b.identity)
		}
	}
	c.aside = nil
}

const (
	// firstListPause doubles from one failed attempt to get a list to the next, up to
	// maxListPause.
	firstListPause = 2 * time.Second
	maxListPause   = 30 * time.Second
	// listInterval is the least time from a list to one that is not urgent.
	listInterval = 10 * time.Second
)

// listTimes say when a rank may ask its engine for the list.
type listTimes struct {
	// failedUntil is when it may be asked after a failure, next when it may be asked
	// for what is not urgent.
	failedUntil, next time.Time
	failures          int // since the last list
}

func (l *listTimes) failed(now time.Time) {
	l.failures++
	l.failedUntil = now.Add(backoff.Nth(backoff.Doubling(firstListPause, maxListPause), l.failures))
	l.next = l.failedUntil
}

func (l *listTimes) came(now time.Time) {
	l.failures, l.next = 0, now.Add(listInterval)
}
