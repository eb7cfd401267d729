package residency

import (
	"iter"
	"sync"

	"github.com/blockyard-ai/blockyard/consolidator/dense"
	"github.com/blockyard-ai/blockyard/internal/kv"
	"github.com/blockyard-ai/blockyard/internal/kvevent"
)

// Stream holds the residency of one owner: which blocks the owner has in which tiers,
// the event ids and the digest. Changes wait, coalesced, until Flush. A Stream is safe
// for concurrent use. A block costs 37 to 39 bytes.
type Stream struct {
	owner kv.Owner

	mu sync.Mutex
	tx Tx // everything that mu guards
}

// Status describes a stream at one moment.
type Status = kvevent.Status

// NewStream returns an empty stream of owner with health exact. sink is the stream's
// first sink; nil adds none.
func NewStream(owner kv.Owner, sink Sink) *Stream {
	s := &Stream{owner: owner, tx: Tx{owner: owner, health: kvevent.HealthExact}}
	if sink != nil {
		s.tx.sinks = append(s.tx.sinks, sink)
	}
	return s
}

// Owner returns the worker rank or the pool that holds the stream's blocks.
func (s *Stream) Owner() kv.Owner { return s.owner }

// Update runs change as one transaction, under the stream's lock. No observer sees the
// stream between two changes of one transaction. Events for the changes wait for the next
// Flush. The function change must not block, keep tx, or call the stream.
func (s *Stream) Update(change func(tx *Tx)) {
	s.mu.Lock()
	defer s.mu.Unlock()
	change(&s.tx)
}

// Store adds one reference in tier t to each of blocks. The blocks are consecutive:
// blocks[0] is the child of parent, or the first of a sequence if hasParent is false. The
// position of blocks[0] is start, counted in blocks. A block without a reference in t
// becomes resident there. A block that is in the table keeps its parent, position and
// LocalHash: its hash covers the whole prefix, so the values are the same. A full table
// drops the other blocks; Stats.TableFull counts them.
func (s *Stream) Store(t kv.Tier, parent kv.SequenceHash, hasParent bool, start uint32, blocks []kvevent.StoredBlock) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.tx.storeRun(t, parent, hasParent, start, blocks)
}

// StoreGroup adds one reference in tier t to each block of a KV group. A block is named by the block
// of the primary group at which it ends. With group 0 it panics: see Store.
func (s *Stream) StoreGroup(t kv.Tier, group uint32, hashes []kv.SequenceHash) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, h := range hashes {
		s.tx.StoreGroup(t, group, h)
	}
}

// StoreAll adds one reference to each block in each tier in which Block.Refs is not 0.
// blocks may come in any order, and a block may come several times; the stream publishes
// parents before children. The lock is released between two events, so that observers see
// the stream grow. Blocks that come in no order must be sorted first: StoreAll collects them in
// a table of its own, and takes the events of a snapshot of it.
func (s *Stream) StoreAll(blocks iter.Seq2[kv.SequenceHash, Block]) {
	var table dense.Table[Block]
	for h, b := range blocks {
		slot, found := table.Find(uint64(h))
		if !found {
			slot, _ = table.Insert(uint64(h))
			*table.At(slot) = b
			continue
		}
		table.At(slot).Refs |= b.Refs // a snapshot reads only which tiers are not 0
	}
	view := table.View()
	defer view.Close()
	for i, e := range snapshotEvents(s.owner, view) {
		s.Store(e.Tier, e.Parent, e.HasParent, e.StartPosition, e.Blocks)
		if i%(maxPendingBlocks/maxEventBlocks) == 0 { // so many events may fill the pending changes
			s.Flush()
		}
	}
}

// Remove takes back one reference in tier t of each block in hashes. With its last
// reference in t a block stops being resident there. Stats.UnknownRemoves counts hashes
// that are not resident in t.
func (s *Stream) Remove(t kv.Tier, hashes []kv.SequenceHash) {
	s.RemoveGroup(t, 0, hashes)
}

// RemoveGroup is Remove for blocks of a KV group, each named by the block of the primary group at
// which it ends.
func (s *Stream) RemoveGroup(t kv.Tier, group uint32, hashes []kv.SequenceHash) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, h := range hashes {
		if slot, ok := s.tx.Find(kv.InGroup(h, group)); ok {
			s.tx.DropRef(t, slot)
		} else {
			s.tx.stats.UnknownRemoves++
		}
	}
}

// Clear forgets every block in every tier, and publishes one Cleared event. Pending
// changes never become events.
func (s *Stream) Clear() { s.Update(func(tx *Tx) { tx.Clear() }) }

// Flush publishes the pending changes to the sinks, with the next event ids.
func (s *Stream) Flush() { s.Update((*Tx).Flush) }

// Status publishes the pending changes, and returns the status after them.
func (s *Stream) Status() Status {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.tx.Flush()
	return Status{
		LastEventID: s.tx.lastID, Health: s.tx.health,
		Digest: s.tx.primary.digest, Blocks: s.tx.primary.pairs,
		GroupDigest: s.tx.grouped.digest, GroupBlocks: s.tx.grouped.pairs,
	}
}

// Stats returns the stream's counters.
func (s *Stream) Stats() Stats {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.tx.stats
}

// View returns the blocks as they are now, pending changes included. The caller must
// close the view. The lock is held only while pointers to the table's chunks are copied.
func (s *Stream) View() *dense.View[Block] {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.tx.table.View()
}
