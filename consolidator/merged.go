package consolidator

import (
	"github.com/blockyard-ai/blockyard/internal/kv"
	"github.com/blockyard-ai/blockyard/internal/kvevent"
)

// MergeMode is how a Merged shows the tiers of its blocks.
type MergeMode uint8

const (
	// MergeTiered: a block is in the tiers in which the worker or the pool has it.
	MergeTiered MergeMode = iota
	// MergeDedup: a block that the worker or the pool has in any tier is on the
	// device, and in no other tier. That is what KVBM's consolidator says in its mode
	// "dedup", for consumers that know no tiers.
	MergeDedup
)

// mergeSource is one of the two streams that a Merged is made of.
type mergeSource uint8

const (
	ownSource mergeSource = iota
	poolSource
)

// Merged is what one worker rank can reach: its own blocks and those of its pool,
// as one stream under the worker's name. It is for consumers that know no pools.
//
// A block is stored in a tier when the first of the two has it there, and removed
// when the last one has it there no more; in mode MergeDedup the same holds for all
// tiers together. Each (source, tier) counts by itself, so that a block that leaves
// the host while it is on disk stays, and a clear of one source takes only what that
// source alone had. Which block is which, their hashes say: adapter and salt are in
// them.
//
// The events are as a Stream's, but without Cleared ones: the sources' clears leave
// as removals. What the pool holds already when the worker joins it is not stored by
// events, which would be as many as the pool has blocks, for each of its workers: it
// is state, to be had by Snapshot. A sink that cannot ask for it may implement
// StateObserver. Such a block is told of when either source stores it the next time,
// so that this is the one case in which a sink that knows the state is told twice.
//
// The table holds what the two sources hold, and is bounded by them. Concurrency: as
// a Stream's; the sources' locks are taken before the Merged's, and that before its
// sinks'. A Snapshot is consistent with the digest and the event id it comes with.
type Merged struct {
	// out holds the table. Its references are bits, see Merged.bit.
	out    *Stream
	mode   MergeMode
	tokens *TokenTable // nil: nobody needs them
	own    mergeInput
	pool   mergeInput
}

// mergeInput is one source's way into a Merged; a pointer to it is the source's sink.
type mergeInput struct {
	merged *Merged
	source mergeSource
}

// StateObserver is what a sink may implement to be told that the stream's state has
// become larger without events. The rules of Sink hold for it.
type StateObserver interface {
	StateJoined()
}

// NewMerged returns an empty merged stream of w. A nil sink drops the events.
func NewMerged(w kv.Worker, mode MergeMode, sink Sink) *Merged {
	m := &Merged{out: NewStream(kv.WorkerOwner(w), sink), mode: mode}
	m.own = mergeInput{m, ownSource}
	m.pool = mergeInput{m, poolSource}
	return m
}

// KeepTokens makes t retain the tokens of each block for as long as the merged
// stream has it, which ends with Close. It must be called before the first event.
func (m *Merged) KeepTokens(t *TokenTable) { m.tokens = t }

// Own is the sink for the worker's own stream: it is to be added with BeginOwn. It
// is a HealthObserver, and the merged stream's health is the own stream's.
func (m *Merged) Own() Sink { return &m.own }

// Pool is the sink for the pool's stream: it is to be added with BeginPool.
func (m *Merged) Pool() Sink { return &m.pool }

// BeginOwn stores what the worker holds already; see Stream.AddSink.
func (m *Merged) BeginOwn(snapshot []kvevent.RouterEvent, _ uint64) {
	m.own.Publish(snapshot)
}

// BeginPool takes in what the pool holds already, without events; see
// Stream.AddSink. What a pool before it held, and was not left, is removed first.
func (m *Merged) BeginPool(snapshot []kvevent.RouterEvent, _ uint64) {
	m.out.mu.Lock()
	defer m.out.mu.Unlock()
	m.forgetLocked(poolSource)
	m.out.flushLocked()
	before := m.out.pairs
	for i := range snapshot {
		m.storeLocked(poolSource, &snapshot[i], false)
	}
	if m.out.pairs == before {
		return
	}
	for _, sink := range m.out.sinks {
		if o, ok := sink.(StateObserver); ok {
			o.StateJoined()
		}
	}
}

// AddSink is as Stream's.
func (m *Merged) AddSink(sink Sink, begin func(snapshot []kvevent.RouterEvent, last uint64)) error {
	return m.out.AddSink(sink, begin)
}

// RemoveSink is as Stream's.
func (m *Merged) RemoveSink(sink Sink) { m.out.RemoveSink(sink) }

// LeavePool removes what only the pool held. The pool's stream must have let go of
// its sink before.
func (m *Merged) LeavePool() {
	m.out.mu.Lock()
	defer m.out.mu.Unlock()
	m.forgetLocked(poolSource)
	m.out.flushLocked()
}

// Close forgets everything, without events, and gives the tokens back. The sources
// must have let go of their sinks before; further calls do nothing.
func (m *Merged) Close() {
	m.out.mu.Lock()
	defer m.out.mu.Unlock()
	table := &m.out.table
	for slot := range table.used {
		if table.at(slot).refs != 0 && m.tokens != nil {
			m.tokens.Release(kv.SequenceHash(table.key(slot)))
		}
	}
	table.clear()
	m.out.digest, m.out.pairs = 0, 0
}

// Owner is the worker.
func (m *Merged) Owner() kv.Owner { return m.out.Owner() }

// Status is as Stream's.
func (m *Merged) Status() StreamStatus { return m.out.Status() }

// Snapshot is as Stream's.
func (m *Merged) Snapshot() (events []kvevent.RouterEvent, last, digest uint64) {
	return m.out.Snapshot()
}

// Stats returns the counters: UnknownRemoves are removals of what the source did not
// hold.
func (m *Merged) Stats() StreamStats { return m.out.Stats() }

// Publish implements Sink.
func (in *mergeInput) Publish(events []kvevent.RouterEvent) {
	m := in.merged
	m.out.mu.Lock()
	defer m.out.mu.Unlock()
	for i := range events {
		e := &events[i]
		switch e.Kind {
		case kvevent.Stored:
			m.storeLocked(in.source, e, true)
		case kvevent.Removed:
			for _, h := range e.Removed {
				m.removeLocked(in.source, e.Tier, h)
			}
		case kvevent.Cleared:
			m.forgetLocked(in.source)
		}
	}
	m.out.flushLocked()
}

// HealthChanged implements HealthObserver. A pool is always sure of what it holds.
func (in *mergeInput) HealthChanged(h kvevent.Health) {
	if in.source == ownSource {
		in.merged.out.SetHealth(h)
	}
}

// shown is the tier under which the stream shows a source's tier t.
func (m *Merged) shown(t kv.Tier) kv.Tier {
	if m.mode == MergeDedup {
		return kv.TierDevice
	}
	return t
}

// bit is the share of a source's tier t in a block's references. In mode tiered
// each tier has one bit for each source, in mode dedup the device has those of all
// tiers.
func (m *Merged) bit(s mergeSource, t kv.Tier) uint32 {
	if m.mode == MergeDedup {
		return 1 << (uint(s)*kv.NumTiers + uint(t))
	}
	return 1 << s
}

// silent marks, among the bits under one tier that the stream shows, a block that is
// there and that no event has told of.
func (m *Merged) silent() uint32 {
	if m.mode == MergeDedup {
		return 1 << (2 * kv.NumTiers)
	}
	return 1 << 2
}

// bits are the source's bits under one tier that the stream shows.
func (m *Merged) bits(s mergeSource) uint32 {
	if m.mode == MergeDedup {
		return (1<<kv.NumTiers - 1) << (uint(s) * kv.NumTiers)
	}
	return 1 << s
}

// storeLocked applies a stored event; tell says whether it is to be published.
func (m *Merged) storeLocked(s mergeSource, e *kvevent.RouterEvent, tell bool) {
	out, t := m.out, m.shown(e.Tier)
	parent, hasParent := e.Parent, e.HasParent
	for i, b := range e.Blocks {
		slot, held := out.table.find(uint64(b.Hash))
		if !held {
			if slot, held = out.table.insert(uint64(b.Hash)); !held {
				out.stats.TableFull++
				return
			}
			*out.table.at(slot) = newResident(parent, hasParent, e.StartPosition+uint32(i), b.Local)
			if m.tokens != nil {
				m.tokens.Retain(b.Hash)
			}
		}
		refs := &out.table.at(slot).refs
		before := refs.of(t)
		now := before | m.bit(s, e.Tier)
		switch {
		case before == 0 && !tell:
			refs.set(t, now|m.silent())
			out.shownLocked(t, slot, false)
		case before == 0:
			refs.set(t, now)
			out.shownLocked(t, slot, true)
		case tell && before&m.silent() != 0:
			refs.set(t, now&^m.silent())
			out.pendStoredLocked(t, b.Hash, out.table.at(slot))
		default:
			refs.set(t, now)
		}
		parent, hasParent = b.Hash, true
	}
}

// removeLocked takes back that source s has h in its tier t.
func (m *Merged) removeLocked(s mergeSource, t kv.Tier, h kv.SequenceHash) {
	slot, held := m.out.table.find(uint64(h))
	if !held || m.out.table.at(slot).refs.of(m.shown(t))&m.bit(s, t) == 0 {
		m.out.stats.UnknownRemoves++
		return
	}
	m.reduceLocked(slot, m.shown(t), m.bit(s, t))
}

// forgetLocked takes back everything that source s has.
func (m *Merged) forgetLocked(s mergeSource) {
	table := &m.out.table
	for slot := range table.used {
		for _, t := range kv.Tiers {
			if table.at(slot).refs.of(t)&m.bits(s) != 0 {
				m.reduceLocked(slot, t, m.bits(s))
			}
		}
	}
}

// reduceLocked takes bits, of which the block in a slot has some, from its
// references in the shown tier t.
func (m *Merged) reduceLocked(slot uint32, t kv.Tier, bits uint32) {
	h := kv.SequenceHash(m.out.table.key(slot))
	refs := &m.out.table.at(slot).refs
	left := refs.of(t) &^ bits
	if left == m.silent() {
		left = 0
	}
	refs.set(t, left)
	if left == 0 && m.out.hiddenLocked(t, slot) && m.tokens != nil {
		m.tokens.Release(h)
	}
}
