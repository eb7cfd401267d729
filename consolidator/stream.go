package consolidator

import (
	"math"
	"sync"

	"github.com/blockyard-ai/blockyard/internal/kv"
	"github.com/blockyard-ai/blockyard/internal/kvevent"
)

// Sink receives a stream's events: in order, with contiguous ids, under the
// stream's lock. It must not block and must not call the stream. The events and
// everything they point to are lent until Publish returns.
type Sink interface {
	Publish(events []kvevent.RouterEvent)
}

// HealthObserver is what a Sink may implement besides, to be told at once when
// the stream's health changes. The rules of Publish hold for it too.
type HealthObserver interface {
	HealthChanged(h kvevent.Health)
}

const (
	// maxEventBlocks caps one event, so that an event fits any sensible message
	// limit (512 stored blocks are about 30 KiB on the wire).
	maxEventBlocks = 512
	// maxPendingEvents and maxPendingBlocks bound what waits for Flush; a change
	// beyond them flushes first.
	maxPendingEvents = kvevent.MaxEventsPerMessage
	maxPendingBlocks = kvevent.MaxBlocksPerMessage
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

// resident is a block of the table. It holds no pointers: the table scales with
// blocks and must cost the garbage collector nothing.
type resident struct {
	parent    kv.SequenceHash
	local     kv.LocalHash
	position  uint32
	refs      [kv.NumTiers]uint16
	hasParent bool
}

func (r *resident) inNoTier() bool { return r.refs == [kv.NumTiers]uint16{} }

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
type Stream struct {
	owner kv.Owner
	sink  Sink

	mu     sync.Mutex
	table  map[kv.SequenceHash]resident
	digest uint64
	pairs  uint64
	lastID uint64
	health kvevent.Health
	stats  StreamStats

	// Pending changes; the slices are reused from one flush to the next.
	pending []change
	stored  []kvevent.StoredBlock
	removed []kv.SequenceHash
	events  []kvevent.RouterEvent
}

// NewStream returns an empty stream of owner with health exact. A nil sink
// drops the events.
func NewStream(owner kv.Owner, sink Sink) *Stream {
	return &Stream{
		owner:  owner,
		sink:   sink,
		table:  make(map[kv.SequenceHash]resident),
		health: kvevent.HealthExact,
	}
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
		at, ok := s.table[b.Hash]
		if !ok {
			at = resident{parent: parent, hasParent: hasParent, position: start + uint32(i), local: b.Local}
		}
		if s.addRefLocked(t, b.Hash, &at) {
			s.pendStoredLocked(t, b.Hash, &at)
		}
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
		if s.dropRefLocked(t, h) {
			s.pendRemovedLocked(t, h)
		}
	}
}

// Clear forgets everything the owner held, in every tier, and emits one Cleared
// event. Pending changes are void and never become events.
func (s *Stream) Clear() {
	s.mu.Lock()
	defer s.mu.Unlock()
	clear(s.table)
	s.digest, s.pairs = 0, 0
	s.resetPendingLocked()
	s.pending = append(s.pending, change{kind: kvevent.Cleared})
	s.flushLocked()
}

// SetHealth says how far the stream can be trusted from now on.
func (s *Stream) SetHealth(h kvevent.Health) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.health == h {
		return
	}
	s.health = h
	if o, ok := s.sink.(HealthObserver); ok {
		o.HealthChanged(h)
	}
}

// Flush gives the pending changes their ids and hands them to the sink.
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

// addRefLocked counts one reference to h in t, where r is h's entry or what
// shall become it, and reports whether it is the first one there.
func (s *Stream) addRefLocked(t kv.Tier, h kv.SequenceHash, r *resident) bool {
	if r.refs[t] == math.MaxUint16 {
		s.stats.RefOverflows++
		return false
	}
	r.refs[t]++
	s.table[h] = *r
	if r.refs[t] > 1 {
		return false
	}
	s.digest += kv.Digest(h, t)
	s.pairs++
	return true
}

// dropRefLocked takes one reference to h in t back and reports whether it was
// the last one there.
func (s *Stream) dropRefLocked(t kv.Tier, h kv.SequenceHash) bool {
	r, ok := s.table[h]
	if !ok || r.refs[t] == 0 {
		s.stats.UnknownRemoves++
		return false
	}
	r.refs[t]--
	if r.inNoTier() {
		delete(s.table, h)
	} else {
		s.table[h] = r
	}
	if r.refs[t] > 0 {
		return false
	}
	s.digest -= kv.Digest(h, t)
	s.pairs--
	return true
}
