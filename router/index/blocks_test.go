package index

import (
	"slices"
	"testing"

	"github.com/blockyard-ai/blockyard/internal/kv"
	"github.com/blockyard-ai/blockyard/internal/kvevent"
)

// TestAppendBlocksIsWhatAnOwnerHolds: each block once with all its tiers, of this
// owner alone, and nothing of one that is not known.
func TestAppendBlocksIsWhatAnOwnerHolds(t *testing.T) {
	x := newIndex(t, Options{})
	owner, other := kv.WorkerOwner(worker(1)), kv.PoolOwner(1)
	store := func(o kv.Owner, tier kv.Tier, hashes ...kv.SequenceHash) {
		e := kvevent.RouterEvent{Owner: o, Tier: tier, Kind: kvevent.Stored}
		for _, h := range hashes {
			e.Blocks = append(e.Blocks, kvevent.StoredBlock{Hash: h})
		}
		apply(t, x, e)
	}
	store(owner, kv.TierDevice, 1, 2, 3)
	store(owner, kv.TierDisk, 2)
	store(other, kv.TierHost, 3, 4)
	apply(t, x, kvevent.RouterEvent{Owner: owner, Tier: kv.TierDevice, Kind: kvevent.Removed, Removed: []kv.SequenceHash{1}})
	got := x.AppendBlocks(nil, owner)
	slices.SortFunc(got, func(a, b OwnedBlock) int { return int(a.Hash) - int(b.Hash) })
	want := []OwnedBlock{{2, kv.TierMask(0).With(kv.TierDevice).With(kv.TierDisk)}, {3, kv.TierMask(0).With(kv.TierDevice)}}
	if !slices.Equal(got, want) {
		t.Errorf("got %v, want %v", got, want)
	}
	if got := x.AppendBlocks(nil, kv.PoolOwner(9)); len(got) != 0 {
		t.Errorf("an unknown owner holds %v", got)
	}
}
