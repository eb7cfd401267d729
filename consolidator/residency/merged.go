package residency

import (
	"github.com/blockyard-ai/blockyard/consolidator/tokens"
	"github.com/blockyard-ai/blockyard/internal/kv"
	"github.com/blockyard-ai/blockyard/internal/kvevent"
)

// MergeMode selects the tiers in which a Merged shows its blocks.
type MergeMode uint8

const (
	// MergeTiered shows a block in the tiers in which the worker or the pool has it.
	MergeTiered MergeMode = iota
	// MergeDedup shows a block of any tier on the device, and in no other tier, as
	// KVBM's consolidator does in its mode "dedup". It is for consumers that know no tiers.
	MergeDedup
)

// mergeSource is one of the two streams that a Merged merges.
type mergeSource uint8

const (
	ownSource mergeSource = iota
	poolSource
)

// Merged is the stream of all blocks that one worker rank can reach: the rank's own
// blocks and those of its pool, under the worker's name. It is for consumers that do not
// know pools.
//
// The two sources are the own stream and the pool's stream. A stored event tells that the
// first source has a block in a tier. A removed event tells that neither source has the
// block in that tier any more. In mode MergeDedup all tiers count as one. Each (source,
// tier) is recorded separately. So a block that leaves the host while it is on disk
// stays, and a clear of one source removes only the blocks that the other lacks.
//
// A Merged publishes no Cleared events: a clear of a source becomes removals. The blocks
// that the pool holds at FollowPool come in without events, because each worker would
// publish every block of the pool. Snapshot includes these blocks, and a StateObserver is
// called for them. When a source stores one of these blocks again, the Merged publishes a stored
// event. So a sink that took a snapshot may see that block stored twice.
//
// A Merged is safe for concurrent use. Lock order: own stream, Merged, sinks. The pool's
// stream never waits for a Merged: see follower. The table is bounded by those of the
// two sources.
type Merged struct {
	// out publishes the merged events. The references in its table are not counts but a
	// bit for each source: see sourceBit and unpublishedBit.
	out    *Stream
	mode   MergeMode
	tokens *tokens.Table // retains the tokens of the merged blocks; nil: no tokens
	own    mergeInput
	pool   mergeInput
	// follower copies the pool's blocks and events; nil without FollowPool.
	follower *follower
	// The lock of out guards ownHealth and stale. ownHealth is the own stream's health.
	// stale is true while the Merged may hold blocks that the pool no longer has.
	ownHealth kvevent.Health
	stale     bool
}

// mergeInput is the sink that applies the events of one source to a Merged.
type mergeInput struct {
	merged *Merged
	source mergeSource
}

// StateObserver is implemented by sinks that need to know when a Merged has got blocks
// without events. The rules of Sink hold for its method.
type StateObserver interface {
	// StateJoined says that a new Snapshot has blocks for which there was no event.
	StateJoined()
}

// NewMerged returns an empty merged stream of w. A nil sink drops the events.
func NewMerged(w kv.Worker, mode MergeMode, sink Sink) *Merged {
	m := &Merged{out: NewStream(kv.WorkerOwner(w), sink), mode: mode, ownHealth: kvevent.HealthExact}
	m.own = mergeInput{m, ownSource}
	m.pool = mergeInput{m, poolSource}
	return m
}

// KeepTokens makes t retain the tokens of each block while the merged stream holds the
// block, until Close. It must be called before the first event.
func (m *Merged) KeepTokens(t *tokens.Table) { m.tokens = t }

// Own returns the sink for the worker's own stream. The caller adds the sink to that
// stream before the stream holds a block. The health of the Merged is the own stream's,
// and degraded while the Merged may hold blocks that the pool no longer has.
func (m *Merged) Own() Sink { return &m.own }

// FollowPool starts to copy the pool's blocks and to apply every later event of the pool,
// in the background. The blocks that the pool holds now come in without events: see
// StateObserver. FollowPool may be called once. The error says that the pool's stream
// has MaxSinks already.
func (m *Merged) FollowPool(pool *Stream) (err error) {
	m.follower, err = pool.follow(m)
	return err
}

// Joined returns a channel that is closed once the Merged has the blocks that the pool
// held at FollowPool. Without FollowPool it returns nil.
func (m *Merged) Joined() <-chan struct{} {
	if m.follower == nil {
		return nil
	}
	return m.follower.joined
}

// AddSink adds a sink to the merged stream: see Stream.AddSink.
func (m *Merged) AddSink(sink Sink) error { return m.out.AddSink(sink) }

// RemoveSink removes a sink of the merged stream: see Stream.RemoveSink.
func (m *Merged) RemoveSink(sink Sink) { m.out.RemoveSink(sink) }

// Detach stops following the pool. Once Detach has returned, the Merged applies no event
// of the pool. The pool's blocks stay. Without FollowPool it does nothing.
func (m *Merged) Detach() {
	if m.follower != nil {
		m.follower.detach()
		m.follower = nil
	}
}

// Close stops following the pool, forgets every block without events, and releases the
// tokens. The caller must have removed the sink Own from its stream. Further calls do
// nothing.
func (m *Merged) Close() {
	m.Detach()
	m.out.Update(func(tx *Tx) {
		for slot := range tx.table.Slots() {
			if b := tx.Block(slot); b.Refs != 0 {
				m.releaseTokens(tx.Hash(slot), b.Group())
			}
		}
		tx.table.Clear()
		tx.primary, tx.grouped, tx.groupBlocks = sums{}, sums{}, 0
	})
}

// Owner returns the worker as an owner.
func (m *Merged) Owner() kv.Owner { return m.out.Owner() }

// Status returns the status of the merged stream: see Stream.Status.
func (m *Merged) Status() Status { return m.out.Status() }

// Snapshot returns the merged blocks: see Stream.Snapshot.
func (m *Merged) Snapshot() (events []kvevent.RouterEvent, last, digest uint64) {
	return m.out.Snapshot()
}

// Stats returns the counters of the merged stream. UnknownRemoves counts removals of
// blocks that the Merged did not have from that source, or not yet.
func (m *Merged) Stats() Stats { return m.out.Stats() }

// Publish implements Sink for the stream of one source, the worker's own or its pool's. It
// applies the source's events to the merged stream, and publishes the changes of that stream.
func (in *mergeInput) Publish(events []kvevent.RouterEvent) {
	m := in.merged
	m.out.Update(func(tx *Tx) {
		for i := range events {
			e := &events[i]
			switch e.Kind {
			case kvevent.Stored:
				m.store(tx, in.source, e)
			case kvevent.Removed:
				for _, h := range e.Removed {
					m.remove(tx, in.source, e.Tier, kv.InGroup(h, e.Group))
				}
			case kvevent.Cleared:
				m.removeAll(tx, in.source)
			}
		}
		tx.Flush()
	})
}

// HealthChanged implements HealthObserver. The health of a pool's stream is ignored: it
// is always exact.
func (in *mergeInput) HealthChanged(h kvevent.Health) {
	if in.source != ownSource {
		return
	}
	in.merged.out.Update(func(tx *Tx) {
		in.merged.ownHealth = h
		in.merged.updateHealth(tx)
	})
}

// setStale records whether the Merged may hold blocks that the pool no longer has. It
// returns the number of slots in the table of the Merged.
func (m *Merged) setStale(stale bool) (slots uint32) {
	m.out.Update(func(tx *Tx) {
		m.stale = stale
		m.updateHealth(tx)
		slots = tx.table.Slots()
	})
	return slots
}

// updateHealth sets the health of the Merged after a change of ownHealth or stale.
func (m *Merged) updateHealth(tx *Tx) {
	h := m.ownHealth
	if m.stale && h == kvevent.HealthExact {
		h = kvevent.HealthDegraded
	}
	tx.SetHealth(h)
}

// shownTier returns the tier in which the merged stream shows blocks that a source has in
// tier t.
func (m *Merged) shownTier(t kv.Tier) kv.Tier {
	if m.mode == MergeDedup {
		return kv.TierDevice
	}
	return t
}

// sourceBit returns the bit that records that source s has a block in tier t. The bit is in
// the block's Refs of tier shownTier(t). In mode tiered each tier has one bit per source.
// In mode dedup the device tier has the bits of all tiers.
func (m *Merged) sourceBit(s mergeSource, t kv.Tier) uint32 {
	if m.mode == MergeDedup {
		return 1 << (uint(s)*kv.NumTiers + uint(t))
	}
	return 1 << s
}

// unpublishedBit returns the bit that marks a block for which no stored event was
// published. It is in the same Refs as the sourceBits of both sources, and above them.
func (m *Merged) unpublishedBit() uint32 {
	if m.mode == MergeDedup {
		return 1 << (2 * kv.NumTiers)
	}
	return 1 << 2
}

// sourceBits returns all bits that source s may have in one shown tier.
func (m *Merged) sourceBits(s mergeSource) uint32 {
	if m.mode == MergeDedup {
		return (1<<kv.NumTiers - 1) << (uint(s) * kv.NumTiers)
	}
	return 1 << s
}

// store applies a stored event of source s, the worker's own stream or its pool's.
func (m *Merged) store(tx *Tx, s mergeSource, e *kvevent.RouterEvent) {
	parent, hasParent := e.Parent, e.HasParent
	for i, b := range e.Blocks {
		key := kv.InGroup(b.Hash, e.Group)
		slot, found := tx.Find(key)
		if !found {
			block := NewBlock(parent, hasParent, e.StartPosition+uint32(i), b.Local)
			if e.Group != 0 {
				block = newGroupBlock(b.Hash, e.Group)
			}
			if slot, found = m.add(tx, key, block); !found {
				return
			}
		}
		m.addSource(tx, s, e.Tier, slot, true)
		parent, hasParent = b.Hash, true
	}
}

// add inserts b with the key h, and retains its tokens. It returns false when the table is full.
func (m *Merged) add(tx *Tx, h kv.SequenceHash, b Block) (slot uint32, ok bool) {
	if slot, ok = tx.table.Insert(uint64(h)); !ok {
		tx.stats.TableFull++
		return 0, false
	}
	*tx.table.At(slot) = b
	switch {
	case b.Group() != 0:
		tx.groupBlocks++
	case m.tokens != nil:
		m.tokens.Retain(h)
	}
	return slot, true
}

// releaseTokens releases the tokens of a block that leaves the table. The block of the primary group
// retains them, and no block of another group does.
func (m *Merged) releaseTokens(key kv.SequenceHash, group uint32) {
	if m.tokens != nil && group == 0 {
		m.tokens.Release(key)
	}
}

// addSource records that source s, the worker's own stream or its pool's, has the block in a slot
// in tier. If publish is true and the Merged has published no stored event for the block, one
// becomes pending. The Refs of a Merged hold a bit for each source, and the unpublished bit for
// a block that came without an event.
func (m *Merged) addSource(tx *Tx, s mergeSource, tier kv.Tier, slot uint32, publish bool) {
	t := m.shownTier(tier) // where consumers see the block: mode dedup shows the device only
	tx.table.Unshare(slot)
	refs := &tx.table.At(slot).Refs
	before := refs.Of(t)
	now := before | m.sourceBit(s, tier)
	switch {
	case before == 0 && !publish: // no source had the block in t; no event now
		refs.Set(t, now|m.unpublishedBit())
		tx.addPair(t, slot, false)
	case before == 0:
		refs.Set(t, now)
		tx.addPair(t, slot, true)
	case publish && before&m.unpublishedBit() != 0: // consumers do not know the block in t yet
		refs.Set(t, now&^m.unpublishedBit())
		tx.pendStored(t, tx.Hash(slot), tx.Block(slot))
	default:
		refs.Set(t, now)
	}
}

// remove records that source s no longer has the block with key h in tier t. If the other source has not the
// block either, the Merged removes it.
func (m *Merged) remove(tx *Tx, s mergeSource, t kv.Tier, h kv.SequenceHash) {
	slot, found := tx.Find(h)
	if !found || tx.Block(slot).Refs.Of(m.shownTier(t))&m.sourceBit(s, t) == 0 {
		tx.stats.UnknownRemoves++
		return
	}
	m.clearBits(tx, slot, m.shownTier(t), m.sourceBit(s, t))
}

// removeAll records that source s no longer has any block: its stream was cleared.
func (m *Merged) removeAll(tx *Tx, s mergeSource) {
	for slot := range tx.table.Slots() {
		for _, t := range kv.Tiers {
			if tx.Block(slot).Refs.Of(t)&m.sourceBits(s) != 0 {
				m.clearBits(tx, slot, t, m.sourceBits(s))
			}
		}
	}
}

// clearBits clears sources' bits of the block in a slot, in the shown tier t. The block must
// have at least one of them. A block that no source has any more is removed from t.
func (m *Merged) clearBits(tx *Tx, slot uint32, t kv.Tier, bits uint32) {
	h, group := tx.Hash(slot), tx.Block(slot).Group()
	tx.table.Unshare(slot)
	refs := &tx.table.At(slot).Refs
	left := refs.Of(t) &^ bits
	if left == m.unpublishedBit() { // no source has the block
		left = 0
	}
	refs.Set(t, left)
	if left == 0 && tx.removePair(t, slot) {
		m.releaseTokens(h, group)
	}
}
