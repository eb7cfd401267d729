package kv_test

import (
	"cmp"
	"testing"

	"github.com/blockyard-ai/blockyard/internal/kv"
)

func TestTierNumbersAndNamesAreFrozen(t *testing.T) {
	for number, name := range []string{"device", "host_pinned", "disk", "external"} {
		tier := kv.Tier(number)
		if kv.Tiers[number] != tier || tier.String() != name {
			t.Errorf("tier %d is called %s and listed as %s, want %s", number, tier, kv.Tiers[number], name)
		}
		if got, err := kv.ParseTier(name); err != nil || got != tier {
			t.Errorf("%s: got %d, %v", name, got, err)
		}
	}
	for _, bad := range []string{"", "gpu", "Device", "tier(4)"} {
		if _, err := kv.ParseTier(bad); err == nil {
			t.Errorf("tier %q: no error", bad)
		}
	}
	if got := kv.Tier(kv.NumTiers).String(); got != "tier(4)" {
		t.Errorf("beyond the last tier: %q", got)
	}
}

func TestEveryMediumHasItsTier(t *testing.T) {
	for tier, media := range map[kv.Tier][]string{
		kv.TierDevice:   {"", "GPU", "DEVICE"},
		kv.TierHost:     {"CPU", "CPU_PINNED", "CPU_TIER1"},
		kv.TierDisk:     {"CPU_TIER2", "DISK", "NVME", "STORAGE"},
		kv.TierExternal: {"EXTERNAL", "NETWORK", "REMOTE", "SHARED"},
	} {
		for _, medium := range media {
			if got, ok := kv.TierFromMedium(medium); !ok || got != tier {
				t.Errorf("medium %q: got %s, %t, want %s", medium, got, ok, tier)
			}
		}
	}
	for _, unknown := range []string{"FS", "OBJ", "gpu", " GPU"} {
		if _, ok := kv.TierFromMedium(unknown); ok {
			t.Errorf("medium %q is known", unknown)
		}
	}
}

func TestTierMaskIsASet(t *testing.T) {
	for members := range 1 << kv.NumTiers {
		var m kv.TierMask
		for _, tier := range kv.Tiers {
			if members>>tier&1 == 1 {
				m = m.With(tier).With(tier)
			}
		}
		if m != kv.TierMask(members) {
			t.Errorf("members %04b give mask %04b", members, m)
		}
		for _, tier := range kv.Tiers {
			if m.Has(tier) != (members>>tier&1 == 1) {
				t.Errorf("mask %04b: Has(%s) is %t", m, tier, m.Has(tier))
			}
			if without := m.Without(tier); without.Has(tier) || without.With(tier) != m.With(tier) {
				t.Errorf("mask %04b without %s is %04b", m, tier, without)
			}
		}
	}
}

func TestOwnersAreToldApart(t *testing.T) {
	worker := kv.Worker{ID: 7, Rank: 1}
	owner := kv.WorkerOwner(worker)
	if owner.Worker() != worker {
		t.Errorf("worker %s became %s", worker, owner.Worker())
	}
	if owner.Kind != kv.OwnerWorker || kv.PoolOwner(7).Kind != kv.OwnerPool {
		t.Error("owners have the wrong kind")
	}
	distinct := map[kv.Owner]string{
		owner: "worker 7/1", kv.WorkerOwner(kv.Worker{ID: 7}): "worker 7/0", kv.PoolOwner(7): "pool 7", kv.PoolOwner(1 << 63): "pool 9223372036854775808",
	}
	if len(distinct) != 4 {
		t.Errorf("%d distinct owners, want 4", len(distinct))
	}
	for owner, name := range distinct {
		if owner.String() != name {
			t.Errorf("got %q, want %q", owner, name)
		}
	}
	if got := kv.OwnerKind(9).String(); got != "owner(9)" {
		t.Errorf("an unknown kind is called %q", got)
	}
}

func TestWorkersAndOwnersHaveOneOrder(t *testing.T) {
	worker := func(id kv.WorkerID, rank kv.DPRank) kv.Owner { return kv.WorkerOwner(kv.Worker{ID: id, Rank: rank}) }
	ordered := []kv.Owner{
		worker(1, 0), worker(1, 1), worker(2, 0), worker(10, 3), worker(1<<63, 0),
		kv.PoolOwner(1), kv.PoolOwner(2), kv.PoolOwner(1 << 63),
	}
	for i, a := range ordered {
		for j, b := range ordered {
			if got := a.Compare(b); got != cmp.Compare(i, j) {
				t.Errorf("%s and %s: %d", a, b, got)
			}
			if a.Kind != kv.OwnerWorker || b.Kind != kv.OwnerWorker {
				continue
			}
			if got := a.Worker().Compare(b.Worker()); got != cmp.Compare(i, j) {
				t.Errorf("workers %s and %s: %d", a.Worker(), b.Worker(), got)
			}
		}
	}
}
