package index_test

import (
	"testing"

	"github.com/blockyard-ai/blockyard/internal/kv"
	"github.com/blockyard-ai/blockyard/router/index"
)

// layer is a part of a prompt in one tier.
type layer struct {
	owner    kv.Owner
	tier     kv.Tier
	from, to int
}

// TestHitsThatTierWeightsAreFor: residencies and the hits that they give, in both
// readings. The first five are those that the goldens of tier weighting start from.
func TestHitsThatTierWeightsAreFor(t *testing.T) {
	const pool = 5
	w1, w2, pooled := worker(1, 0), worker(1, 1), worker(2, 0)
	own := func(w kv.Worker, tier kv.Tier, from, to int) layer { return layer{kv.WorkerOwner(w), tier, from, to} }
	of := func(tier kv.Tier, from, to int) layer { return layer{kv.PoolOwner(pool), tier, from, to} }
	for name, tc := range map[string]struct {
		layers       []layer
		continuation map[kv.Worker]index.Hits
		union        map[kv.Worker]index.Hits // nil: the same
	}{
		"device, host and disk; host alone": {
			[]layer{own(w1, kv.TierDevice, 0, 2), own(w1, kv.TierHost, 2, 3), own(w1, kv.TierDisk, 3, 5), own(w2, kv.TierHost, 0, 1)},
			map[kv.Worker]index.Hits{w1: {2, 1, 2}, w2: {0, 1}}, nil},
		"the lower tiers in the pool": {
			[]layer{own(pooled, kv.TierDevice, 0, 2), of(kv.TierHost, 2, 3), of(kv.TierDisk, 3, 5)},
			map[kv.Worker]index.Hits{pooled: {2, 1, 2}}, nil},
		"all four": {
			[]layer{own(w1, kv.TierDevice, 0, 2), own(w1, kv.TierHost, 2, 5), own(w1, kv.TierDisk, 5, 9), own(w1, kv.TierExternal, 9, 14)},
			map[kv.Worker]index.Hits{w1: {2, 3, 4, 5}}, nil},
		"no disk between host and external": {
			[]layer{own(w1, kv.TierDevice, 0, 2), own(w1, kv.TierHost, 2, 3), own(w1, kv.TierExternal, 3, 5)},
			map[kv.Worker]index.Hits{w1: {2, 1, 0, 2}}, nil},
		"two ranks": {
			[]layer{own(w1, kv.TierDevice, 0, 2), own(w1, kv.TierHost, 2, 3), own(w1, kv.TierDisk, 3, 5), own(w2, kv.TierDevice, 0, 1), own(w2, kv.TierDisk, 1, 2)},
			map[kv.Worker]index.Hits{w1: {2, 1, 2}, w2: {1, 0, 1}}, nil},
		"a continuation never returns to a faster tier": {
			[]layer{own(w1, kv.TierDevice, 0, 1), own(w1, kv.TierHost, 1, 2), own(w1, kv.TierDevice, 2, 3)},
			map[kv.Worker]index.Hits{w1: {1, 1}}, map[kv.Worker]index.Hits{w1: {2, 1}}},
		"a continuation takes the slower copy once it is there": {
			[]layer{own(w1, kv.TierDisk, 0, 4), own(w1, kv.TierDevice, 2, 4)},
			map[kv.Worker]index.Hits{w1: {0, 0, 4}}, map[kv.Worker]index.Hits{w1: {2, 0, 2}}},
		"each block counts in its fastest tier": {
			[]layer{own(w1, kv.TierDevice, 0, 3), own(w1, kv.TierHost, 0, 4), own(w1, kv.TierExternal, 0, 6)},
			map[kv.Worker]index.Hits{w1: {3, 1, 0, 2}}, nil},
		"own and pooled blocks alternate": {
			[]layer{own(pooled, kv.TierDevice, 0, 1), of(kv.TierDisk, 1, 2), own(pooled, kv.TierHost, 2, 3), of(kv.TierHost, 3, 4)},
			map[kv.Worker]index.Hits{pooled: {1, 0, 1}}, map[kv.Worker]index.Hits{pooled: {1, 2, 1}}},
		"a pool has no device": {
			[]layer{of(kv.TierDevice, 0, 3)}, nil, nil},
		"a hole ends both": {
			[]layer{own(w1, kv.TierDevice, 0, 2), own(w1, kv.TierHost, 3, 6)},
			map[kv.Worker]index.Hits{w1: {2}}, nil},
		"the first block is nowhere": {
			[]layer{own(w1, kv.TierDevice, 1, 3), of(kv.TierHost, 1, 3)}, nil, nil},
		"far apart tiers of long prompts": {
			[]layer{own(pooled, kv.TierDevice, 0, 128), of(kv.TierHost, 0, 300), of(kv.TierDisk, 290, 1000)},
			map[kv.Worker]index.Hits{pooled: {128, 172, 700}}, nil},
	} {
		t.Run(name, func(t *testing.T) {
			x := newIndex(t, index.Options{})
			join(t, x, w1, w2, worker(9, 0))
			if err := x.SetMember(pooled, pool, true); err != nil {
				t.Fatal(err)
			}
			prompt := series(1, 1001)
			for _, l := range tc.layers {
				apply(t, x, stored(l.owner, l.tier, prompt, l.from, l.to))
			}
			same(t, "continuation", match(t, x, prompt, index.Continuation), tc.continuation)
			if tc.union == nil {
				tc.union = tc.continuation
			}
			same(t, "union", match(t, x, prompt, index.Union), tc.union)
			if n := len(x.Members().List); n != 4 {
				t.Errorf("%d members, want 4: those without hits are known too", n)
			}
		})
	}
}

// TestPoolsFollowTheirMembers: a worker's hits in the pool come and go with its
// membership, for every member at once and for nobody else.
func TestPoolsFollowTheirMembers(t *testing.T) {
	x := newIndex(t, index.Options{})
	prompt := series(1, 200)
	apply(t, x, stored(kv.PoolOwner(1), kv.TierHost, prompt, 0, 150), stored(kv.PoolOwner(2), kv.TierDisk, prompt, 0, 10))
	w1, w2 := worker(1, 0), worker(2, 0)
	set := func(w kv.Worker, pool uint64, known bool) {
		t.Helper()
		if err := x.SetMember(w, pool, known); err != nil {
			t.Fatal(err)
		}
	}
	want := func(hits map[kv.Worker]index.Hits) {
		t.Helper()
		for _, r := range []index.Reading{index.Continuation, index.Union} {
			same(t, "match", match(t, x, prompt, r), hits)
		}
	}
	want(nil)
	set(w1, 1, true)
	set(w2, 1, true)
	want(map[kv.Worker]index.Hits{w1: {0, 150}, w2: {0, 150}})
	set(w2, 2, true)
	want(map[kv.Worker]index.Hits{w1: {0, 150}, w2: {0, 0, 10}})
	set(w1, 0, true)
	want(map[kv.Worker]index.Hits{w2: {0, 0, 10}})
	set(w2, 0, false)
	want(nil)
	set(w1, 1, true)
	apply(t, x, cleared(kv.PoolOwner(1)))
	want(nil)
	apply(t, x, stored(kv.PoolOwner(1), kv.TierHost, prompt, 0, 3))
	want(map[kv.Worker]index.Hits{w1: {0, 3}})
}
