package residency

import (
	"github.com/blockyard-ai/blockyard/consolidator/dense"
	"github.com/blockyard-ai/blockyard/consolidator/tokens"
	"github.com/blockyard-ai/blockyard/internal/kv"
	"github.com/blockyard-ai/blockyard/internal/kvevent"
)

// MergeMode says in which tiers a Merged shows its blocks.
type MergeMode uint8

const (
	// MergeTiered shows a block in the tiers in which the worker or the pool has it.
	MergeTiered MergeMode = iota
	// MergeDedup shows a block of any tier on the device, and in no other tier, as
	// KVBM's consolidator does in its mode "dedup". It is for consumers that know no tiers.
	MergeDedup
)

// mergeSource is one of the two streams that a Merged is made of.
type mergeSource uint8

const (
	ownSource mergeSource = iota
	poolSource
)

// Merged is what one worker rank can reach: its own blocks and those of its pool, as
// one stream under the worker's name. It is for consumers that know no pools.
//
// A block is stored in a tier when the first of the two sources has it there, and
// removed when neither has it there. In mode MergeDedup the same holds for all tiers
// together. Each (source, tier) counts by itself. So a block that leaves the host
// while it is on disk stays, and a clear of one source takes only what that source
// alone had.
//
// The events are those of a Stream, but without Cleared: clears of the sources leave
// as removals. Blocks that the pool holds when the worker joins come in without
// events, because there would be one for each block and worker. Snapshot has them. A
// sink that needs to be told may implement StateObserver. When a source stores such a
// block again, an event stores it. Only then may a sink see a block stored twice.
//
// The table holds what the two sources hold, and is bounded by them. Concurrency is
// that of a Stream. The own stream's lock is taken before the Merged's, and that before
// its sinks'. The pool's stream never waits for a Merged: see follower.
type Merged struct {
	// out holds the table. Its references are bits: see Merged.bit.
	out    *Stream
	mode   MergeMode
	tokens *tokens.Table // nil: nobody needs them
	own    mergeInput
	pool   mergeInput
	// follower brings the pool's blocks; nil: there is no pool.
	follower *follower
	// The lock of out guards ownHealth, the own stream's health, and stale: the Merged may
	// hold blocks that the pool has no more.
	ownHealth kvevent.Health
	stale     bool
}

// mergeInput is the sink through which one source enters a Merged.
type mergeInput struct {
	merged *Merged
	source mergeSource
}

// StateObserver is implemented by sinks that want to know when the stream's state has
// grown without events. The rules of Sink hold for it.
type StateObserver interface {
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

// Own returns the sink for the worker's own stream. It must be added before that stream
// holds anything. The merged stream's health is the own stream's, and degraded while the
// merged stream may hold blocks that the pool has no more.
func (m *Merged) Own() Sink { return &m.own }

// FollowPool begins to take in the pool's blocks and every later event, in the
// background. The blocks that the pool holds now come in without events: see
// StateObserver. It may be called once. The error says that the pool's stream has
// MaxSinks already.
func (m *Merged) FollowPool(pool *Stream) (err error) {
	m.follower, err = pool.follow(m)
	return err
}

// Joined returns a channel that is closed once the blocks of the pool at the time of
// FollowPool are in. Without FollowPool it returns nil.
func (m *Merged) Joined() <-chan struct{} {
	if m.follower == nil {
		return nil
	}
	return m.follower.joined
}

// AddSink is Stream.AddSink.
func (m *Merged) AddSink(sink Sink) error { return m.out.AddSink(sink) }

// RemoveSink is Stream.RemoveSink.
func (m *Merged) RemoveSink(sink Sink) { m.out.RemoveSink(sink) }

// Detach ends FollowPool. Once it has returned, no sink hears of the pool. The pool's
// blocks stay. Without FollowPool it does nothing.
func (m *Merged) Detach() {
	if m.follower != nil {
		m.follower.leave()
		m.follower = nil
	}
}

// Close forgets everything without events, releases the tokens and ends FollowPool. The
// own stream must have removed its sink before. Further calls do nothing.
func (m *Merged) Close() {
	m.Detach()
	m.out.Update(func(tx *Tx) {
		for slot := range tx.table.Slots() {
			if tx.Block(slot).Refs != 0 && m.tokens != nil {
				m.tokens.Release(tx.Hash(slot))
			}
		}
		tx.table.Clear()
		tx.digest, tx.pairs = 0, 0
	})
}

// Owner returns the worker.
func (m *Merged) Owner() kv.Owner { return m.out.Owner() }

// Status is Stream.Status.
func (m *Merged) Status() Status { return m.out.Status() }

// Snapshot is Stream.Snapshot.
func (m *Merged) Snapshot() (events []kvevent.RouterEvent, last, digest uint64) {
	return m.out.Snapshot()
}

// Stats returns the counters. UnknownRemoves are removals of blocks that the source did
// not hold, or that had not come in yet.
func (m *Merged) Stats() Stats { return m.out.Stats() }

// Publish implements Sink.
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
					m.remove(tx, in.source, e.Tier, h)
				}
			case kvevent.Cleared:
				m.forget(tx, in.source)
			}
		}
		tx.Flush()
	})
}

// HealthChanged implements HealthObserver. A pool always knows its blocks.
func (in *mergeInput) HealthChanged(h kvevent.Health) {
	if in.source != ownSource {
		return
	}
	in.merged.out.Update(func(tx *Tx) {
		in.merged.ownHealth = h
		in.merged.settleHealth(tx)
	})
}

// setStale says whether the Merged may hold blocks that the pool has no more. It returns
// the number of the table's slots.
func (m *Merged) setStale(stale bool) (slots uint32) {
	m.out.Update(func(tx *Tx) {
		m.stale = stale
		m.settleHealth(tx)
		slots = tx.table.Slots()
	})
	return slots
}

func (m *Merged) settleHealth(tx *Tx) {
	h := m.ownHealth
	if m.stale && h == kvevent.HealthExact {
		h = kvevent.HealthDegraded
	}
	tx.SetHealth(h)
}

// adopt takes in a chunk of the pool's table, without events. It reports whether any
// block is new.
func (m *Merged) adopt(chunk *dense.Chunk[Block]) (grown bool) {
	m.out.Update(func(tx *Tx) {
		before := tx.pairs
		for i := range chunk {
			if b := chunk[i].Value; b.Refs != 0 {
				m.adoptBlock(tx, kv.SequenceHash(chunk[i].Key()), b)
			}
		}
		grown = tx.pairs > before
	})
	return grown
}

// adoptBlock takes in block h of the pool. The pool has it in the tiers of its
// references.
func (m *Merged) adoptBlock(tx *Tx, h kv.SequenceHash, b Block) {
	tiers := b.Refs
	b.Refs = 0
	slot, held := tx.Find(h)
	if !held {
		if slot, held = m.add(tx, h, b); !held {
			return
		}
	}
	for _, t := range kv.Tiers {
		if tiers.Of(t) > 0 {
			m.hold(tx, poolSource, t, slot, false)
		}
	}
}

// grown tells the sinks that the state is larger than the events said.
func (m *Merged) grown() {
	m.out.Update(func(tx *Tx) {
		tx.Flush()
		for _, sink := range tx.sinks {
			if o, ok := sink.(StateObserver); ok {
				o.StateJoined()
			}
		}
	})
}

// appendPooled appends the pool's blocks in slots first to end-1, by the pool's tiers.
func (m *Merged) appendPooled(dst []pair, first, end uint32) []pair {
	m.out.Update(func(tx *Tx) {
		for slot := first; slot < min(end, tx.table.Slots()); slot++ {
			for _, t := range kv.Tiers {
				if tx.Block(slot).Refs.Of(m.shown(t))&m.bit(poolSource, t) != 0 {
					dst = append(dst, pair{t, tx.Hash(slot)})
				}
			}
		}
	})
	return dst
}

// shown returns the tier under which the stream shows a source's tier t.
func (m *Merged) shown(t kv.Tier) kv.Tier {
	if m.mode == MergeDedup {
		return kv.TierDevice
	}
	return t
}

// bit returns the bit of a source's tier t among a block's references. In mode tiered
// each tier has one bit per source. In mode dedup the device has the bits of all tiers.
func (m *Merged) bit(s mergeSource, t kv.Tier) uint32 {
	if m.mode == MergeDedup {
		return 1 << (uint(s)*kv.NumTiers + uint(t))
	}
	return 1 << s
}

// unannounced returns the bit that marks a block that no event has stored, among the
// bits of a shown tier.
func (m *Merged) unannounced() uint32 {
	if m.mode == MergeDedup {
		return 1 << (2 * kv.NumTiers)
	}
	return 1 << 2
}

// bits returns the source's bits of a shown tier.
func (m *Merged) bits(s mergeSource) uint32 {
	if m.mode == MergeDedup {
		return (1<<kv.NumTiers - 1) << (uint(s) * kv.NumTiers)
	}
	return 1 << s
}

// store applies a stored event.
func (m *Merged) store(tx *Tx, s mergeSource, e *kvevent.RouterEvent) {
	parent, hasParent := e.Parent, e.HasParent
	for i, b := range e.Blocks {
		slot, held := tx.Find(b.Hash)
		if !held {
			if slot, held = m.add(tx, b.Hash, NewBlock(parent, hasParent, e.StartPosition+uint32(i), b.Local)); !held {
				return
			}
		}
		m.hold(tx, s, e.Tier, slot, true)
		parent, hasParent = b.Hash, true
	}
}

// add adds block h without references. False means that the table is full.
func (m *Merged) add(tx *Tx, h kv.SequenceHash, b Block) (slot uint32, ok bool) {
	if slot, ok = tx.table.Insert(uint64(h)); !ok {
		tx.stats.TableFull++
		return 0, false
	}
	*tx.table.At(slot) = b
	if m.tokens != nil {
		m.tokens.Retain(h)
	}
	return slot, true
}

// hold records that source s has the block in a slot in its tier. With announce, an
// event stores the block unless one has done so.
func (m *Merged) hold(tx *Tx, s mergeSource, tier kv.Tier, slot uint32, announce bool) {
	t := m.shown(tier)
	tx.table.Own(slot)
	refs := &tx.table.At(slot).Refs
	before := refs.Of(t)
	now := before | m.bit(s, tier)
	switch {
	case before == 0 && !announce:
		refs.Set(t, now|m.unannounced())
		tx.show(t, slot, false)
	case before == 0:
		refs.Set(t, now)
		tx.show(t, slot, true)
	case announce && before&m.unannounced() != 0:
		refs.Set(t, now&^m.unannounced())
		tx.pendStored(t, tx.Hash(slot), tx.Block(slot))
	default:
		refs.Set(t, now)
	}
}

// remove records that source s has block h in its tier t no more.
func (m *Merged) remove(tx *Tx, s mergeSource, t kv.Tier, h kv.SequenceHash) {
	slot, held := tx.Find(h)
	if !held || tx.Block(slot).Refs.Of(m.shown(t))&m.bit(s, t) == 0 {
		tx.stats.UnknownRemoves++
		return
	}
	m.reduce(tx, slot, m.shown(t), m.bit(s, t))
}

// forget records that source s has nothing.
func (m *Merged) forget(tx *Tx, s mergeSource) {
	for slot := range tx.table.Slots() {
		for _, t := range kv.Tiers {
			if tx.Block(slot).Refs.Of(t)&m.bits(s) != 0 {
				m.reduce(tx, slot, t, m.bits(s))
			}
		}
	}
}

// reduce takes bits from the references of the block in a slot, in the shown tier t.
// The block has some of them.
func (m *Merged) reduce(tx *Tx, slot uint32, t kv.Tier, bits uint32) {
	h := tx.Hash(slot)
	tx.table.Own(slot)
	refs := &tx.table.At(slot).Refs
	left := refs.Of(t) &^ bits
	if left == m.unannounced() {
		left = 0
	}
	refs.Set(t, left)
	if left == 0 && tx.hide(t, slot) && m.tokens != nil {
		m.tokens.Release(h)
	}
}
