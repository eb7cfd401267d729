package publishertest

import (
	"maps"
	"slices"
	"sync"
	"testing"

	"github.com/blockyard-ai/blockyard/internal/kv"
	"github.com/blockyard-ai/blockyard/internal/kvevent"
	"github.com/blockyard-ai/blockyard/internal/waittest"
	"github.com/blockyard-ai/blockyard/publisher"
)

// Owner is the owner of every Source.
var Owner = kv.WorkerOwner(kv.Worker{ID: 7})

// Sink takes a stream's events.
type Sink interface {
	Publish(events []kvevent.RouterEvent)
	HealthChanged(h kvevent.Health)
}

// Source is the stream of an owner that holds device blocks.
type Source struct {
	// Sink takes the events. Set it before the first one.
	Sink Sink

	mu     sync.Mutex
	last   uint64
	blocks map[kv.SequenceHash]struct{}
	health kvevent.Health
}

// NewSource returns a source without blocks.
func NewSource() *Source {
	return &Source{blocks: make(map[kv.SequenceHash]struct{}), health: kvevent.HealthExact}
}

// Owner implements publisher.Source.
func (s *Source) Owner() kv.Owner { return Owner }

// Status implements publisher.Source.
func (s *Source) Status() publisher.Status {
	s.mu.Lock()
	defer s.mu.Unlock()
	return publisher.Status{LastEventID: s.last, Digest: Digest(s.blocks), Blocks: uint64(len(s.blocks)), Health: s.health}
}

// Snapshot implements publisher.Source.
func (s *Source) Snapshot() ([]kvevent.RouterEvent, uint64, uint64) {
	s.mu.Lock()
	defer s.mu.Unlock()
	var events []kvevent.RouterEvent
	for part := range slices.Chunk(slices.Sorted(maps.Keys(s.blocks)), 512) {
		e := kvevent.RouterEvent{Owner: Owner, ID: uint64(len(events)) + 1, Kind: kvevent.Stored}
		for _, h := range part {
			e.Blocks = append(e.Blocks, kvevent.StoredBlock{Hash: h})
		}
		events = append(events, e)
	}
	return events, s.last, Digest(s.blocks)
}

// Store makes one event that stores the blocks first to first+n-1.
func (s *Source) Store(first, n int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	e := kvevent.RouterEvent{Kind: kvevent.Stored}
	for i := range n {
		h := kv.SequenceHash(first + i)
		s.blocks[h] = struct{}{}
		e.Blocks = append(e.Blocks, kvevent.StoredBlock{Hash: h})
	}
	s.publishLocked(e)
}

// Remove makes one event that removes the blocks first to first+n-1.
func (s *Source) Remove(first, n int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	e := kvevent.RouterEvent{Kind: kvevent.Removed}
	for i := range n {
		h := kv.SequenceHash(first + i)
		delete(s.blocks, h)
		e.Removed = append(e.Removed, h)
	}
	s.publishLocked(e)
}

// Clear makes one event that removes every block.
func (s *Source) Clear() {
	s.mu.Lock()
	defer s.mu.Unlock()
	clear(s.blocks)
	s.publishLocked(kvevent.RouterEvent{Kind: kvevent.Cleared})
}

func (s *Source) publishLocked(e kvevent.RouterEvent) {
	s.last++
	e.Owner, e.ID = Owner, s.last
	s.Sink.Publish([]kvevent.RouterEvent{e})
}

// SetHealth changes the source's health.
func (s *Source) SetHealth(h kvevent.Health) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.health = h
	s.Sink.HealthChanged(h)
}

// Digest returns the digest of an owner with these device blocks.
func Digest(blocks map[kv.SequenceHash]struct{}) (sum uint64) {
	for h := range blocks {
		sum += kv.Digest(h, kv.TierDevice)
	}
	return sum
}

// Blocks returns the blocks that events store.
func Blocks(events []kvevent.RouterEvent) map[kv.SequenceHash]struct{} {
	blocks := make(map[kv.SequenceHash]struct{})
	for i := range events {
		for _, b := range events[i].Blocks {
			blocks[b.Hash] = struct{}{}
		}
	}
	return blocks
}

// Eventually waits until condition holds, and fails the test when that takes 30 s.
func Eventually(t testing.TB, what string, condition func() bool) {
	t.Helper()
	waittest.Until(t, what, condition)
}
