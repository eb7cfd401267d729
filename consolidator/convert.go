package consolidator

import (
	"time"

	"github.com/blockyard-ai/blockyard/consolidator/dense"
	"github.com/blockyard-ai/blockyard/consolidator/residency"
	"github.com/blockyard-ai/blockyard/consolidator/tokens"
	"github.com/blockyard-ai/blockyard/internal/engineevent"
	"github.com/blockyard-ai/blockyard/internal/kv"
	"github.com/blockyard-ai/blockyard/internal/kvevent"
)

// converter translates one rank's engine events into changes of its stream. It
// is not safe for concurrent use, but for the counters. It is the stream's only
// writer; what it does with the stream's table, it does under the stream's lock.
type converter struct {
	stream    *residency.Stream
	rank      kv.DPRank
	blockSize int
	maxBlocks int
	count     *counters
	tokens    tokens.Sink // nil: nobody wants them
	now       func() time.Time
	// fullReports: see RankConfig.
	fullReports bool

	known      dense.Table[engineBlock]
	identities identities
	groups     groupFilter
	hasher     kv.Hasher
	park       park
	// ready are places whose parked children can be spliced now.
	ready []readyPlace
	// lowerTiers: the engine has announced blocks outside its device.
	lowerTiers bool
	// degraded: blocks were lost. unproven: the state comes from a checkpoint, and
	// nothing has shown yet that it is the present engine's. unlisted are blocks that
	// the engine holds according to its list, and of which nothing else is known.
	degraded, unproven bool
	unlisted           map[kv.EngineHash]struct{}
	// unheard: nobody has answered at the engine's endpoint yet.
	unheard bool
	// canList: the engine may be asked for its list, and wantList: it should be. aside
	// is what was known before a loss for which there was no list; nil: nothing.
	canList, wantList bool
	aside             *aside
	// behindList: frames from before the last list may still wait in the queue. After
	// that, stores of device blocks before listedUntil may be in the list already.
	behindList  bool
	listedUntil time.Time
	// version changes with the state.
	version uint64
}

func newConverter(s *residency.Stream, w kv.Worker, blockSize, maxBlocks int, c *counters) *converter {
	return &converter{
		stream: s, rank: w.Rank, blockSize: blockSize, maxBlocks: maxBlocks, count: c, now: time.Now,
		identities: newIdentities(), park: newPark(defaultParkBytes),
	}
}

// apply applies one batch.
func (c *converter) apply(b *engineevent.Batch) {
	c.stream.Update(func(tx *residency.Tx) { c.applyBatch(tx, b) })
}

func (c *converter) applyBatch(tx *residency.Tx, b *engineevent.Batch) {
	c.count.batches.Add(1)
	c.count.unknownKeys.Add(uint64(b.UnknownKeys))
	for i := range b.Events {
		e := &b.Events[i]
		c.count.events.Add(1)
		c.count.blocks.Add(uint64(len(e.BlockHashes)))
		if b.HasRank && b.Rank != c.rank {
			c.drop(dropForeignRank, max(1, len(e.BlockHashes)))
			continue
		}
		c.applyEvent(tx, e)
	}
	if len(b.Bad) > 0 {
		c.count.bad(b.Bad)
		// Nobody knows where in the batch they were: after a clear, perhaps, which
		// makes up only for what came before it.
		c.degraded, c.wantList = true, c.wantList || c.canList
	}
	c.unproven, c.unheard = false, false
	c.version++
	c.settle(tx)
}

// settle tells the stream how far it can be trusted, after a change and whenever
// time alone may have changed that.
func (c *converter) settle(tx *residency.Tx) {
	c.count.known.Store(uint64(c.known.Len()))
	c.count.parkedBytes.Store(uint64(c.park.bytes))
	c.count.unlisted.Store(uint64(len(c.unlisted)))
	health := kvevent.HealthExact
	overdue := c.park.overdueAt()
	if c.degraded || c.unproven || c.unheard || len(c.unlisted) > 0 || !overdue.IsZero() && !c.now().Before(overdue) {
		health = kvevent.HealthDegraded
	}
	tx.SetHealth(health)
}

// tick does what time alone makes due.
func (c *converter) tick() {
	if !c.park.empty() {
		c.stream.Update(c.settle)
	}
}

// wake is when tick must be called next; zero: not before the next change.
func (c *converter) wake() time.Time {
	if at := c.park.overdueAt(); c.now().Before(at) {
		return at
	}
	return time.Time{}
}

// continued says that the engine is still the one whose state this is.
func (c *converter) continued() {
	if c.unproven {
		c.unproven = false
		c.stream.Update(c.settle)
	}
}

// alone says that the engine has not been heard of, and connected that it is there,
// though it may have nothing to say.
func (c *converter) alone() {
	c.unheard = true
	c.stream.Update(c.settle)
}

func (c *converter) connected() {
	if c.unheard {
		c.unheard = false
		c.stream.Update(c.settle)
	}
}

// restarted forgets all that is known about the engine, because another
// incarnation of it, which holds nothing, has taken its place.
func (c *converter) restarted() {
	c.groups.reset()
	c.lowerTiers, c.degraded = false, false
	c.forget()
}

// lost forgets every block, because events are missing that may have removed
// any of them.
func (c *converter) lost() {
	c.degraded = true
	c.forget()
}

func (c *converter) forget() {
	c.unproven, c.wantList, c.aside = false, false, nil
	c.forgetBlocks()
	c.version++
	c.stream.Update(func(tx *residency.Tx) {
		tx.Clear()
		c.settle(tx)
	})
}

func (c *converter) applyEvent(tx *residency.Tx, e *engineevent.Event) {
	n := len(e.BlockHashes)
	if e.Ownership != "" && e.Ownership != "framework" {
		c.drop(dropOwnership, max(1, n))
		return
	}
	if e.Kind == kvevent.Cleared {
		c.clearDevice(tx)
		return
	}
	switch e.Locality {
	case "", "LOCAL":
	case "REMOTE":
		c.drop(dropRemote, n)
		return
	default:
		c.drop(dropUnknownLocality, n)
		return
	}
	tier, ok := kv.TierFromMedium(e.Medium)
	if !ok {
		c.drop(dropUnknownMedium, n)
		return
	}
	if !c.groups.accepts(e, tier) {
		c.drop(dropGroup, n)
		return
	}
	c.lowerTiers = c.lowerTiers || tier != kv.TierDevice
	switch e.Kind {
	case kvevent.Stored:
		c.store(tx, e, tier)
		c.splice(tx)
	case kvevent.Removed:
		c.remove(tx, e.BlockHashes, tier)
	}
}

// remove takes back one announcement of each of hashes in tier t.
func (c *converter) remove(tx *residency.Tx, hashes []kv.EngineHash, t kv.Tier) {
	for _, h := range hashes {
		slot, ok := c.known.Find(uint64(h))
		switch {
		case ok && c.known.At(slot).refs.Of(t) > 0:
			c.release(tx, slot, t, 1)
		case c.park.remove(h, t):
		case t == kv.TierDevice && c.unlist(h):
		default:
			c.drop(dropUnknownBlock, 1)
		}
	}
}

// clearDevice applies the engine's AllBlocksCleared: its device cache is empty,
// blocks in other tiers stay where they are.
func (c *converter) clearDevice(tx *residency.Tx) {
	for slot := range c.known.Slots() {
		c.release(tx, slot, kv.TierDevice, c.known.At(slot).refs.Of(kv.TierDevice))
	}
	c.park.clearTier(kv.TierDevice)
	c.unlisted, c.wantList = nil, false
	c.dropAside()
	if !c.lowerTiers {
		c.degraded = false
	}
}

// malformed checks a stored event's shape.
func (c *converter) malformed(e *engineevent.Event) (dropReason, bool) {
	n := len(e.BlockHashes)
	tokens := n * c.blockSize
	if e.Eagle {
		tokens++
	}
	switch {
	case len(e.Tokens) == 0 && e.BlockSize == 0:
		return dropPlaceholder, true
	case int64(e.BlockSize) != int64(c.blockSize):
		return dropBlockSize, true
	case len(e.Tokens) != tokens, e.Multimodal != nil && len(e.Multimodal) != n:
		return dropTokenCount, true
	case e.LoRAID != 0 && e.LoRAName == "":
		// Hashed without a name they would be the base model's blocks.
		return dropUnnamedLoRA, true
	}
	return 0, false
}

func blockObjects(e *engineevent.Event, i int) []uint64 {
	if e.Multimodal == nil {
		return nil
	}
	return e.Multimodal[i]
}

// drop counts n blocks that are not applied.
func (c *converter) drop(r dropReason, n int) {
	c.count.dropped[r].Add(uint64(n))
	c.degraded = c.degraded || r.losesState()
}
