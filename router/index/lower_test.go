package index_test

import (
	"slices"
	"testing"

	"github.com/blockyard-ai/blockyard/internal/kv"
	"github.com/blockyard-ai/blockyard/internal/kvevent"
	"github.com/blockyard-ai/blockyard/router/index"
)

// These are the ten cases of the lower tiers' black-box behaviour, by their
// letters. There they ask an index per tier to go on from a place and a hash; here
// one question walks all tiers, so that the place is where the device hits end.

// shelf is an index with workers and one pool, 9, of which worker 3 is a member.
type shelf struct {
	t *testing.T
	x *index.Index
}

const shelfPool = 9

func newShelf(t *testing.T) *shelf {
	s := &shelf{t: t, x: newIndex(t, index.Options{})}
	join(t, s.x, worker(1, 0), worker(2, 0))
	if err := s.x.SetMember(worker(3, 0), shelfPool, true); err != nil {
		t.Fatal(err)
	}
	return s
}

func (s *shelf) store(id int, tier kv.Tier, after, blocks []kv.LocalHash) {
	s.t.Helper()
	apply(s.t, s.x, stored(s.owner(id), tier, slices.Concat(after, blocks), len(after), len(after)+len(blocks)))
}

func (s *shelf) remove(id int, tier kv.Tier, prompt []kv.LocalHash, from, to int) {
	s.t.Helper()
	apply(s.t, s.x, removed(s.owner(id), tier, prompt, from, to))
}

// owner is a worker by its id, or the pool.
func (s *shelf) owner(id int) kv.Owner {
	if id == shelfPool {
		return kv.PoolOwner(shelfPool)
	}
	return kv.WorkerOwner(worker(id, 0))
}

// want compares the hits of workers 1, 2 and 3, those without any left out.
func (s *shelf) want(prompt []kv.LocalHash, hits ...index.Hits) {
	s.t.Helper()
	want := make(map[kv.Worker]index.Hits)
	for i, h := range hits {
		if h.Total() > 0 {
			want[worker(i+1, 0)] = h
		}
	}
	same(s.t, "match", match(s.t, s.x, prompt, index.Continuation), want)
}

var none index.Hits

func TestLowerAGoesOnWhereTheDeviceEnds(t *testing.T) {
	s := newShelf(t)
	s.store(1, kv.TierDevice, nil, locals(1, 2))
	s.store(1, kv.TierHost, locals(1, 2), locals(21, 22, 23))
	s.want(locals(1, 2, 21, 22, 23), index.Hits{2, 3})
}

func TestLowerBGoesOnWithinWhatWasStoredAtOnce(t *testing.T) {
	s := newShelf(t)
	s.store(1, kv.TierDevice, nil, locals(10, 31))
	s.store(1, kv.TierHost, locals(10), locals(31, 32, 33))
	s.want(locals(10, 31, 32, 33), index.Hits{2, 2})
}

func TestLowerCBranchesByParent(t *testing.T) {
	s := newShelf(t)
	s.store(1, kv.TierDevice, nil, locals(5))
	s.store(1, kv.TierDevice, nil, locals(7))
	s.store(1, kv.TierHost, locals(5), locals(91, 92))
	s.store(1, kv.TierHost, locals(7), locals(91, 93))
	s.want(locals(5, 91, 92), index.Hits{1, 2})
	s.want(locals(7, 91, 92), index.Hits{1, 1})
}

func TestLowerDWorkersFromDifferentPlacesMeet(t *testing.T) {
	s := newShelf(t)
	four := locals(11, 12, 13, 14)
	s.store(1, kv.TierHost, nil, four)
	s.store(2, kv.TierDevice, nil, four[:2])
	s.store(2, kv.TierHost, four[:2], four[2:])
	s.want(four, index.Hits{0, 4}, index.Hits{2, 2})
	// Both have got to the same place, from where the next tier goes on.
	s.store(1, kv.TierDisk, four, locals(15))
	s.store(2, kv.TierDisk, four, locals(15))
	s.want(slices.Concat(four, locals(15)), index.Hits{0, 4, 1}, index.Hits{2, 2, 1})
}

func TestLowerEOneRemovalEndsADuplicateStore(t *testing.T) {
	s := newShelf(t)
	s.store(1, kv.TierHost, nil, locals(1))
	s.store(1, kv.TierHost, nil, locals(1))
	s.remove(1, kv.TierHost, locals(1), 0, 1)
	s.want(locals(1))
}

func TestLowerFRemovingAnOwnerLeavesTheOthers(t *testing.T) {
	s := newShelf(t)
	for _, id := range []int{1, 2, shelfPool} {
		s.store(id, kv.TierDisk, nil, locals(1, 2))
	}
	s.x.RemoveOwner(s.owner(1))
	s.want(locals(1, 2), none, index.Hits{0, 0, 2}, index.Hits{0, 0, 2})
	s.x.RemoveOwner(s.owner(shelfPool))
	s.want(locals(1, 2), none, index.Hits{0, 0, 2})
}

// TestLowerGHolesAndEnds: a walk stops at a hole, which restoring its block heals;
// nothing is found from a place that nobody stored below, nor beyond the end.
func TestLowerGHolesAndEnds(t *testing.T) {
	s := newShelf(t)
	three := locals(1, 2, 3)
	s.store(1, kv.TierHost, nil, three)
	s.remove(1, kv.TierHost, three, 1, 2)
	s.want(three, index.Hits{0, 1})
	s.store(1, kv.TierHost, three[:1], three[1:2])
	s.want(three, index.Hits{0, 3})
	s.store(2, kv.TierDevice, nil, locals(8))
	s.store(2, kv.TierHost, locals(9), locals(2, 3))
	s.want(locals(8, 2, 3), none, index.Hits{1})
	s.store(1, kv.TierDevice, nil, three)
	s.want(three, index.Hits{3})
}

func TestLowerHWithoutDeviceHitsTheRootCounts(t *testing.T) {
	s := newShelf(t)
	s.store(1, kv.TierHost, nil, locals(1, 2))
	s.store(2, kv.TierHost, locals(1), locals(2))
	s.store(shelfPool, kv.TierDisk, nil, locals(1))
	s.want(locals(1, 2), index.Hits{0, 2}, none, index.Hits{0, 0, 1})
}

// TestLowerIContradictionsAreHarmless: a hash that is said to lie in another place
// than before does not take away what it stood for. Dynamo stops at such a store,
// so that of workers whose engines hash otherwise only the first is credited; here
// names are made equal before they come to the index (see router/dynamo), which
// sees no such contradiction but from a broken publisher.
func TestLowerIContradictionsAreHarmless(t *testing.T) {
	s := newShelf(t)
	s.store(1, kv.TierHost, nil, locals(1, 2))
	h := kv.AppendSequence(nil, locals(1, 2))
	apply(t, s.x, kvevent.RouterEvent{
		Owner: s.owner(2), Kind: kvevent.Stored, Tier: kv.TierHost,
		Blocks: []kvevent.StoredBlock{{Hash: 77, Local: 7}, {Hash: h[1], Local: 8}},
	})
	s.want(locals(1, 2), index.Hits{0, 2})
	s.store(2, kv.TierHost, nil, locals(1, 2))
	s.want(locals(1, 2), index.Hits{0, 2}, index.Hits{0, 2})
}

// TestLowerJClearsReachOneOwner: all tiers of a rank, and neither its siblings nor
// the pool; the pool's clear reaches the pool alone.
func TestLowerJClearsReachOneOwner(t *testing.T) {
	s := newShelf(t)
	prompt := series(1, 6)
	for _, id := range []int{1, 2, 3} {
		s.store(id, kv.TierDevice, nil, prompt[:1])
		s.store(id, kv.TierHost, prompt[:1], prompt[1:2])
		s.store(id, kv.TierExternal, prompt[:2], prompt[2:3])
	}
	s.store(shelfPool, kv.TierHost, nil, prompt[:3])
	s.store(shelfPool, kv.TierDisk, prompt[:3], prompt[3:5])
	one := index.Hits{1, 1, 0, 1}
	s.want(prompt, one, one, index.Hits{1, 2, 2})
	apply(t, s.x, cleared(s.owner(1)))
	s.want(prompt, none, one, index.Hits{1, 2, 2})
	apply(t, s.x, cleared(s.owner(3)))
	s.want(prompt, none, one, index.Hits{0, 3, 2})
	s.store(3, kv.TierDevice, nil, prompt[:1])
	apply(t, s.x, cleared(s.owner(shelfPool)))
	s.want(prompt, none, one, index.Hits{1})
}
