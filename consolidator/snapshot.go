package consolidator

import (
	"cmp"
	"slices"

	"github.com/blockyard-ai/blockyard/internal/kv"
	"github.com/blockyard-ai/blockyard/internal/kvevent"
)

// placed is a resident (block, tier) pair of a snapshot.
type placed struct {
	hash kv.SequenceHash
	resident
	tier kv.Tier
}

// tierHash names a block in one tier.
type tierHash struct {
	tier kv.Tier
	hash kv.SequenceHash
}

// Snapshot flushes, and returns everything the owner holds as stored events
// with ids from 1, together with the id of the last event it includes and the
// digest after it. Across all tiers a parent stands before its children. The
// events are the caller's. The lock is held while the table is copied, not
// while it is sorted.
func (s *Stream) Snapshot() (events []kvevent.RouterEvent, last uint64, digest uint64) {
	pairs, last, digest := s.copyPairs()
	slices.SortFunc(pairs, func(a, b placed) int {
		return cmp.Or(cmp.Compare(a.position, b.position), cmp.Compare(a.tier, b.tier), cmp.Compare(a.hash, b.hash))
	})
	return chainPairs(s.owner, pairs), last, digest
}

func (s *Stream) copyPairs() (pairs []placed, last, digest uint64) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.flushLocked()
	pairs = make([]placed, 0, s.pairs)
	for h, r := range s.table {
		for _, t := range kv.Tiers {
			if r.refs[t] > 0 {
				pairs = append(pairs, placed{hash: h, resident: r, tier: t})
			}
		}
	}
	return pairs, s.lastID, s.digest
}

// chainPairs builds events of pairs, which are sorted by position. Each block
// but the head of an event follows its parent. A block is a head when its parent
// is not in its tier, when a sibling follows the parent already, or when an event
// is full. Heads come in order of position, so that every parent, which lies one
// position lower, was emitted with an earlier head.
func chainPairs(owner kv.Owner, pairs []placed) []kvevent.RouterEvent {
	index := make(map[tierHash]int, len(pairs))
	for i, p := range pairs {
		index[tierHash{p.tier, p.hash}] = i
	}
	follower := make(map[tierHash]int, len(pairs))
	var heads []int
	for i, p := range pairs {
		parent := tierHash{p.tier, p.parent}
		at, inTier := index[parent]
		_, taken := follower[parent]
		follows := p.hasParent && inTier && !taken && pairs[at].position+1 == p.position
		if !follows || p.position%maxEventBlocks == 0 {
			heads = append(heads, i)
			continue
		}
		follower[parent] = i
	}
	events := make([]kvevent.RouterEvent, 0, len(heads))
	for _, i := range heads {
		head := pairs[i]
		e := kvevent.RouterEvent{
			Owner: owner, Tier: head.tier, ID: uint64(len(events)) + 1, Kind: kvevent.Stored,
			Parent: head.parent, HasParent: head.hasParent, StartPosition: head.position, HasStart: true,
		}
		for ok := true; ok; i, ok = follower[tierHash{head.tier, pairs[i].hash}] {
			e.Blocks = append(e.Blocks, kvevent.StoredBlock{Hash: pairs[i].hash, Local: pairs[i].local})
		}
		events = append(events, e)
	}
	return events
}
