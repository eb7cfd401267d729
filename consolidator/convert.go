package consolidator

import (
	"math"

	"github.com/blockyard-ai/blockyard/internal/kv"
	"github.com/blockyard-ai/blockyard/internal/kvevent"
)

// engineBlock is what a rank knows about a block that its engine announced,
// under the engine's hash. It holds no pointers.
type engineBlock struct {
	seq      kv.SequenceHash
	seed     uint64
	position uint32
	refs     [kv.NumTiers]uint16
}

// converter translates one rank's engine events into changes of its stream. It
// is not safe for concurrent use, but for the counters.
type converter struct {
	stream    *Stream
	rank      kv.DPRank
	blockSize int
	maxBlocks int
	count     *counters
	// fullReports: see RankConfig.
	fullReports bool

	known  map[kv.EngineHash]engineBlock
	groups groupFilter
	hasher kv.Hasher
	// lowerTiers: the engine has announced blocks outside its device.
	lowerTiers bool
	// Scratch space, reused from event to event.
	run     []kvevent.StoredBlock
	removed []kv.SequenceHash
}

func newConverter(s *Stream, w kv.Worker, blockSize, maxBlocks int, c *counters) *converter {
	return &converter{
		stream: s, rank: w.Rank, blockSize: blockSize, maxBlocks: maxBlocks, count: c,
		known: make(map[kv.EngineHash]engineBlock),
	}
}

// apply applies one batch.
func (c *converter) apply(b *kvevent.EngineBatch) {
	c.count.batches.Add(1)
	c.count.badEvents.Add(uint64(len(b.Bad)))
	for i := range b.Events {
		e := &b.Events[i]
		c.count.events.Add(1)
		c.count.blocks.Add(uint64(len(e.BlockHashes)))
		if b.HasRank && b.Rank != c.rank {
			c.drop(dropForeignRank, max(1, len(e.BlockHashes)))
			continue
		}
		c.applyEvent(e)
	}
	if len(b.Bad) > 0 {
		// Nobody knows where in the batch they were: after a clear, perhaps, which
		// makes up only for what came before it.
		c.stream.SetHealth(kvevent.HealthDegraded)
	}
	c.count.known.Store(uint64(len(c.known)))
}

// restarted forgets all that is known about the engine, because another
// incarnation of it, which holds nothing, has taken its place.
func (c *converter) restarted() {
	c.groups.reset()
	c.lowerTiers = false
	c.forget(kvevent.HealthExact)
}

// lost forgets every block, because events are missing that may have removed
// any of them.
func (c *converter) lost() { c.forget(kvevent.HealthDegraded) }

func (c *converter) forget(h kvevent.Health) {
	clear(c.known)
	c.count.known.Store(0)
	c.stream.Clear()
	c.stream.SetHealth(h)
}

func (c *converter) applyEvent(e *kvevent.EngineEvent) {
	n := len(e.BlockHashes)
	if e.Ownership != "" && e.Ownership != "framework" {
		c.drop(dropOwnership, max(1, n))
		return
	}
	if e.Kind == kvevent.Cleared {
		c.clearDevice()
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
		c.store(e, tier)
	case kvevent.Removed:
		c.remove(e.BlockHashes, tier)
	}
}

// storing is the place of the next block of a stored event.
type storing struct {
	tier kv.Tier
	seed uint64
	// parent is the block before, when it is known; root says that there is none.
	parent    engineBlock
	hasParent bool
	root      bool
	// report: the event tells what is cached rather than that more is; see the
	// package comment.
	report bool
}

// store applies a stored event that passed the filters. The first block that
// cannot be placed ends it, because the blocks after it hang on it.
func (c *converter) store(e *kvevent.EngineEvent, t kv.Tier) {
	n := len(e.BlockHashes)
	if e.LoRAID != 0 && e.LoRAName == "" {
		// Hashed without a name they would be the base model's blocks.
		c.drop(dropUnnamedLoRA, n)
		return
	}
	if reason, bad := c.malformed(e); bad {
		c.drop(reason, n)
		return
	}
	at := storing{tier: t, root: !e.HasParent, report: c.fullReports && !e.HasParent && n > 1}
	if e.HasParent {
		at.parent, at.hasParent = c.known[e.Parent]
	}
	var ok bool
	if at.seed, ok = seedOf(e, &at); !ok {
		c.drop(dropSaltConflict, n)
		return
	}
	for i := range e.BlockHashes {
		if reason, ok := c.place(e, i, &at); !ok {
			c.drop(reason, n-i)
			return
		}
	}
}

// place stores block i of e at the place that at describes, and moves at on to
// the next block. A false result means that it was not stored, and why.
func (c *converter) place(e *kvevent.EngineEvent, i int, at *storing) (dropReason, bool) {
	h := e.BlockHashes[i]
	b, known := c.known[h]
	if known {
		at.seed = b.seed
	} else if len(c.known) >= c.maxBlocks {
		return dropTableFull, false
	}
	local := c.hasher.Local(kv.BlockTokens(e.Tokens, i, c.blockSize, e.Eagle), at.seed, blockObjects(e, i))
	seq, position := b.seq, b.position
	switch {
	case at.root:
		seq, position = kv.SequenceHash(local), 0
	case at.hasParent:
		seq, position = kv.Chain(at.parent.seq, local), at.parent.position+1
	case !known:
		return dropUnknownParent, false
	}
	if known && seq != b.seq {
		return dropHashConflict, false
	}
	b.seq, b.seed, b.position = seq, at.seed, position
	switch refs := &b.refs[at.tier]; {
	case *refs == 0:
		*refs = 1
		c.run = append(c.run[:0], kvevent.StoredBlock{Hash: seq, Local: local})
		c.stream.Store(at.tier, at.parent.seq, at.hasParent, position, c.run)
	case at.report || *refs == math.MaxUint16:
		c.count.reannounced.Add(1)
	default:
		*refs++
	}
	c.known[h] = b
	at.parent, at.hasParent, at.root = b, true, false
	return 0, true
}

// remove takes back one announcement of each of hashes in tier t.
func (c *converter) remove(hashes []kv.EngineHash, t kv.Tier) {
	c.removed = c.removed[:0]
	for _, h := range hashes {
		b, ok := c.known[h]
		if !ok || b.refs[t] == 0 {
			c.drop(dropUnknownBlock, 1)
			continue
		}
		b.refs[t]--
		c.keep(h, b)
		if b.refs[t] == 0 {
			c.removed = append(c.removed, b.seq)
		}
	}
	c.stream.Remove(t, c.removed)
}

// clearDevice applies the engine's AllBlocksCleared: its device cache is empty,
// blocks in other tiers stay where they are.
func (c *converter) clearDevice() {
	c.removed = c.removed[:0]
	for h, b := range c.known {
		if b.refs[kv.TierDevice] == 0 {
			continue
		}
		b.refs[kv.TierDevice] = 0
		c.keep(h, b)
		c.removed = append(c.removed, b.seq)
	}
	c.stream.Remove(kv.TierDevice, c.removed)
	if !c.lowerTiers {
		c.stream.SetHealth(kvevent.HealthExact)
	}
}

// keep writes b back, or forgets it when no tier holds it.
func (c *converter) keep(h kv.EngineHash, b engineBlock) {
	if b.refs == [kv.NumTiers]uint16{} {
		delete(c.known, h)
		return
	}
	c.known[h] = b
}

// malformed checks a stored event's shape.
func (c *converter) malformed(e *kvevent.EngineEvent) (dropReason, bool) {
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
	}
	return 0, false
}

// seedOf is the hash seed of an event's blocks. A sequence has one LoRA adapter
// and one salt, and vLLM names the salt at the first block only: with a known
// parent its seed holds, and a salt that contradicts it is refused.
func seedOf(e *kvevent.EngineEvent, at *storing) (uint64, bool) {
	own := kv.LocalSeed(e.LoRAName, e.Salt)
	if !at.hasParent {
		return own, true
	}
	return at.parent.seed, e.Salt == "" || own == at.parent.seed
}

func blockObjects(e *kvevent.EngineEvent, i int) []uint64 {
	if e.Multimodal == nil {
		return nil
	}
	return e.Multimodal[i]
}

// drop counts n blocks that are not applied.
func (c *converter) drop(r dropReason, n int) {
	c.count.dropped[r].Add(uint64(n))
	if r.losesState() {
		c.stream.SetHealth(kvevent.HealthDegraded)
	}
}
