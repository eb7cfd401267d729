package consolidator

import (
	"sync"

	"github.com/blockyard-ai/blockyard/consolidator/dense"
	"github.com/blockyard-ai/blockyard/internal/kv"
	"github.com/blockyard-ai/blockyard/internal/kvevent"
)

const (
	// maxEventBlocks caps one event, so that an event fits any sensible message
	// limit (512 stored blocks are about 30 KiB on the wire).
	maxEventBlocks = 512
	// maxPendingEvents and maxPendingBlocks bound what waits for Flush; a change
	// beyond them flushes first.
	maxPendingEvents = kvevent.MaxEventsPerMessage
	maxPendingBlocks = kvevent.MaxBlocksPerMessage
	// maxPosition is the last position in a sequence that a table can hold.
	maxPosition = 1<<31 - 1
)

// StreamStatus is a stream at one moment.
type StreamStatus struct {
	// LastEventID is the id of the last event made; 0 before the first.
	LastEventID uint64
	// Digest is the sum of kv.Digest over all resident (block, tier) pairs, and
	// Blocks the number of these pairs.
	Digest uint64
	Blocks uint64
	Health kvevent.Health
}

// resident is a block of the table, whose key is its SequenceHash. In a block
// that is there refs is never 0.
type resident struct {
	parent kv.SequenceHash
	local  kv.LocalHash
	place  uint32 // position, and in the lowest bit whether there is a parent
	refs   refCounts
}

func newResident(parent kv.SequenceHash, hasParent bool, position uint32, local kv.LocalHash) resident {
	r := resident{parent: parent, local: local, place: min(position, maxPosition) << 1}
	if hasParent {
		r.place |= 1
	}
	return r
}

func (r *resident) position() uint32 { return r.place >> 1 }
func (r *resident) hasParent() bool  { return r.place&1 != 0 }

// change is a pending event. Its blocks are n elements from index from on, of
// the pending stored blocks or of the pending removed hashes.
type change struct {
	kind      kvevent.Kind
	tier      kv.Tier
	hasParent bool
	parent    kv.SequenceHash
	start     uint32
	from, n   int
}

// Stream is the residency of one owner: state, reference counts, event ids and
// digest. Changes wait, coalesced, until Flush. It is safe for concurrent use.
// A block costs 37 to 39 bytes.
type Stream struct {
	owner kv.Owner

	mu    sync.Mutex
	sinks []Sink
	// followers read the events behind the lock.
	followers []*follower
	table     dense.Table[resident]
	many      manyRefs // references beyond what the table's entries hold
	digest    uint64
	pairs     uint64
	lastID    uint64
	health    kvevent.Health
	stats     StreamStats

	// Pending changes; the slices are reused from one flush to the next.
	pending []change
	stored  []kvevent.StoredBlock
	removed []kv.SequenceHash
	events  []kvevent.RouterEvent
}

// NewStream returns an empty stream of owner with health exact. Sink is its
// first sink; nil is none.
func NewStream(owner kv.Owner, sink Sink) *Stream {
	s := &Stream{owner: owner, health: kvevent.HealthExact}
	if sink != nil {
		s.sinks = append(s.sinks, sink)
	}
	return s
}

// Owner is whose blocks the stream is about.
func (s *Stream) Owner() kv.Owner { return s.owner }

// Store adds one reference in tier t to each of blocks, which are consecutive:
// blocks[0] is the child of parent (or starts its sequence, without hasParent)
// and lies at position start, counted in blocks. A block that had no reference
// in t becomes resident there. A block that is resident in any tier keeps the
// parent, position and LocalHash it was first stored with: its hash covers the
// whole prefix, so that a second opinion can only be wrong.
func (s *Stream) Store(t kv.Tier, parent kv.SequenceHash, hasParent bool, start uint32, blocks []kvevent.StoredBlock) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for i, b := range blocks {
		s.storeLocked(t, b.Hash, newResident(parent, hasParent, start+uint32(i), b.Local))
		parent, hasParent = b.Hash, true
	}
}

// Remove takes back one reference in tier t of each of hashes. A block without
// references left in t is no longer resident there. Hashes that are not
// resident in t are counted and otherwise ignored.
func (s *Stream) Remove(t kv.Tier, hashes []kv.SequenceHash) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, h := range hashes {
		if slot, ok := s.table.Find(uint64(h)); ok {
			s.dropRefLocked(t, slot)
		} else {
			s.stats.UnknownRemoves++
		}
	}
}

// Clear forgets everything the owner held, in every tier, and emits one Cleared
// event. Pending changes are void and never become events.
func (s *Stream) Clear() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.table.Clear()
	s.many = nil
	s.digest, s.pairs = 0, 0
	s.resetPendingLocked()
	s.pending = append(s.pending, change{kind: kvevent.Cleared})
	s.flushLocked()
}

// SetHealth says how far the stream can be trusted from now on.
func (s *Stream) SetHealth(h kvevent.Health) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.setHealthLocked(h)
}

func (s *Stream) setHealthLocked(h kvevent.Health) {
	if s.health == h {
		return
	}
	s.health = h
	for _, sink := range s.sinks {
		if o, ok := sink.(HealthObserver); ok {
			o.HealthChanged(h)
		}
	}
}

// Flush gives the pending changes their ids and hands them to the sinks.
func (s *Stream) Flush() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.flushLocked()
}

// Status flushes, and then tells where the stream is.
func (s *Stream) Status() StreamStatus {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.flushLocked()
	return StreamStatus{LastEventID: s.lastID, Digest: s.digest, Blocks: s.pairs, Health: s.health}
}

// Stats returns the counters.
func (s *Stream) Stats() StreamStats {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.stats
}

// Pending reports whether changes wait for Flush.
func (s *Stream) Pending() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return len(s.pending) > 0
}

// storeLocked counts one reference in tier t to block h, which is as at says if
// it is not in the table yet. The result is its slot there, and whether it was
// not there before; ok is false, and nothing was counted, when the table is full.
func (s *Stream) storeLocked(t kv.Tier, h kv.SequenceHash, at resident) (slot uint32, added, ok bool) {
	slot, found := s.table.Find(uint64(h))
	if !found {
		if slot, ok = s.table.Insert(uint64(h)); !ok {
			s.stats.TableFull++
			return 0, false, false
		}
		*s.table.At(slot) = at
	}
	s.addRefLocked(t, slot)
	return slot, !found, true
}

// addRefLocked counts one reference in tier t to the block in a slot.
func (s *Stream) addRefLocked(t kv.Tier, slot uint32) {
	s.table.Own(slot)
	r := s.table.At(slot)
	if !r.refs.add(t) {
		s.stats.RefOverflows++
		if s.many == nil {
			s.many = make(manyRefs)
		}
		s.many[refKey{slot, t}]++
		return
	}
	if r.refs.of(t) == 1 {
		s.shownLocked(t, slot, true)
	}
}

// dropRefLocked takes back one reference in tier t to the block in a slot. One that
// is not there is counted and otherwise ignored.
func (s *Stream) dropRefLocked(t kv.Tier, slot uint32) {
	s.table.Own(slot)
	r := s.table.At(slot)
	switch n := r.refs.of(t); {
	case n == 0:
		s.stats.UnknownRemoves++
	case len(s.many) > 0 && n == uint32(refLimits[t]) && s.many.drop(refKey{slot, t}):
	default:
		r.refs.drop(t)
		if n == 1 {
			s.hiddenLocked(t, slot)
		}
	}
}

// shownLocked accounts for a block that has its first reference in tier t, and
// tells the sinks if tell says so.
func (s *Stream) shownLocked(t kv.Tier, slot uint32, tell bool) {
	h := kv.SequenceHash(s.table.Key(slot))
	s.digest += kv.Digest(h, t)
	s.pairs++
	if tell {
		s.pendStoredLocked(t, h, s.table.At(slot))
	}
}

// hiddenLocked accounts for a block whose last reference in tier t is gone, and
// forgets it when it has none in any tier. The result is true when it has.
func (s *Stream) hiddenLocked(t kv.Tier, slot uint32) (forgotten bool) {
	h := kv.SequenceHash(s.table.Key(slot))
	s.digest -= kv.Digest(h, t)
	s.pairs--
	if forgotten = s.table.At(slot).refs == 0; forgotten {
		s.table.Remove(slot)
	}
	s.pendRemovedLocked(t, h)
	return forgotten
}
