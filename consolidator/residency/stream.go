package residency

import (
	"iter"
	"sync"

	"github.com/blockyard-ai/blockyard/consolidator/dense"
	"github.com/blockyard-ai/blockyard/internal/kv"
	"github.com/blockyard-ai/blockyard/internal/kvevent"
)

// Stream is the residency of one owner: which blocks it holds in which tiers, event
// ids and digest. Changes wait, coalesced, until Flush. It is safe for concurrent
// use. A block costs 37 to 39 bytes.
type Stream struct {
	owner kv.Owner

	mu sync.Mutex
	tx Tx // everything that mu guards
}

// Status is a stream at one moment.
type Status struct {
	// LastEventID is the id of the last event made; 0 before the first.
	LastEventID uint64
	// Digest is the sum of kv.Digest over all resident (block, tier) pairs, and
	// Blocks the number of these pairs.
	Digest uint64
	Blocks uint64
	Health kvevent.Health
}

// NewStream returns an empty stream of owner with health exact. Sink is its
// first sink; nil is none.
func NewStream(owner kv.Owner, sink Sink) *Stream {
	s := &Stream{owner: owner, tx: Tx{owner: owner, health: kvevent.HealthExact}}
	if sink != nil {
		s.tx.sinks = append(s.tx.sinks, sink)
	}
	return s
}

// Owner returns whose blocks the stream is about.
func (s *Stream) Owner() kv.Owner { return s.owner }

// Update calls change with the stream's state, under the stream's lock. No observer
// sees the stream between two changes of one Update. The function must not keep the
// Tx, and must not call the stream.
func (s *Stream) Update(change func(tx *Tx)) {
	s.mu.Lock()
	defer s.mu.Unlock()
	change(&s.tx)
}

// Store adds one reference in tier t to each of blocks. The blocks are consecutive:
// blocks[0] is the child of parent, or starts a sequence without hasParent. It lies at
// position start, counted in blocks. A block without a reference in t becomes resident
// there. A resident block keeps its parent, position and LocalHash: its hash covers the
// whole prefix, so another opinion would be wrong.
func (s *Stream) Store(t kv.Tier, parent kv.SequenceHash, hasParent bool, start uint32, blocks []kvevent.StoredBlock) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.tx.storeRun(t, parent, hasParent, start, blocks)
}

// StoreAll stores blocks in any order: each block once in each tier in which it has
// references. Events leave with parents before their children. The lock is released
// between two runs of blocks, so that observers see the stream grow.
func (s *Stream) StoreAll(blocks iter.Seq2[kv.SequenceHash, Block]) {
	var table dense.Table[Block]
	for h, b := range blocks {
		slot, found := table.Find(uint64(h))
		if !found {
			slot, _ = table.Insert(uint64(h))
			*table.At(slot) = b
			continue
		}
		table.At(slot).Refs |= b.Refs
	}
	view := table.View()
	defer view.Close()
	for i, e := range snapshotEvents(s.owner, view) {
		s.Store(e.Tier, e.Parent, e.HasParent, e.StartPosition, e.Blocks)
		if i%(maxPendingBlocks/maxEventBlocks) == 0 {
			s.Flush()
		}
	}
}

// Remove takes back one reference in tier t of each of hashes. A block without
// references in t is no longer resident there. Hashes that are not resident in t are
// counted in UnknownRemoves.
func (s *Stream) Remove(t kv.Tier, hashes []kv.SequenceHash) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, h := range hashes {
		if slot, ok := s.tx.Find(h); ok {
			s.tx.DropRef(t, slot)
		} else {
			s.tx.stats.UnknownRemoves++
		}
	}
}

// Clear forgets everything the owner held, in every tier, and emits one Cleared
// event. Pending changes are void and never become events.
func (s *Stream) Clear() { s.Update(func(tx *Tx) { tx.Clear() }) }

// Flush gives the pending changes their ids and hands them to the sinks.
func (s *Stream) Flush() { s.Update((*Tx).Flush) }

// Status flushes, and returns the stream's status.
func (s *Stream) Status() Status {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.tx.Flush()
	return Status{LastEventID: s.tx.lastID, Digest: s.tx.digest, Blocks: s.tx.pairs, Health: s.tx.health}
}

// Stats returns the counters.
func (s *Stream) Stats() Stats {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.tx.stats
}

// View returns the blocks as they are now, pending changes included. The caller closes
// it. The lock is held while pointers to the table's chunks are copied.
func (s *Stream) View() *dense.View[Block] {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.tx.table.View()
}
