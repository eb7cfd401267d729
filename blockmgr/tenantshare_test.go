package blockmgr

import (
	"fmt"
	"testing"
	"testing/synctest"
	"time"

	"pgregory.net/rapid"

	"github.com/blockyard-ai/blockyard/blockmgr/registry"
	"github.com/blockyard-ai/blockyard/blockmgr/tenant"
	"github.com/blockyard-ai/blockyard/internal/kv"
)

// twoModels returns the pools of two models on a node whose tenant may have limit slots in each tier.
func twoModels(t fataler, limit uint64, dirs ...string) (a, b *testPool) {
	cfg := Config{HostDir: dirs[0], DiskDir: dirs[1], HostBytes: 4 * hostBytes(8), DiskBytes: 4 * hostBytes(8), ExtentBytes: hostBytes(8)}
	m := openTestManager(t, cfg)
	m.setTenants(tenant.Tenant{Name: "t", Salts: []string{"t"}, HostBytes: hostBytes(limit), DiskBytes: hostBytes(limit)})
	return m.openOther("a"), m.openOther("b")
}

// The blocks of a tenant's models share its limit by age: one model cannot keep the others out, and what
// was not used for longest goes, whichever model it is of.
func TestModelsOfATenantShareItsLimit(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a, b := twoModels(t, 8, t.TempDir(), t.TempDir())
		defer b.m.Close()
		for seed := range uint64(8) {
			a.store(a.owned("t", seed+1, 1))
			a.quiesce()
			time.Sleep(time.Second)
		}
		if n := b.store(b.owned("t", 100, 1)); n != 0 {
			t.Fatalf("%d blocks are granted at the limit", n)
		}
		time.Sleep(time.Second) // colder blocks of the other model go
		for seed := range uint64(4) {
			if n := b.store(b.owned("t", 101+seed, 1)); n != 1 {
				t.Errorf("block %d of the second model is refused", seed)
			}
			b.quiesce()
			time.Sleep(time.Second)
		}
		if host, disk := b.count(100, 8); host < 3 || disk < 2 {
			t.Errorf("the second model has %d and %d blocks", host, disk)
		}
		if host, disk := a.count(5, 4); host < 3 || disk < 3 {
			t.Errorf("the first model has %d and %d of its latest 4 blocks", host, disk)
		}
		if host, disk := a.count(1, 2); host+disk != 0 {
			t.Errorf("the first model has %d and %d of its oldest 2 blocks", host, disk)
		}
		for lv := range registry.Level(registry.NumLevels) {
			if n := a.slotsOf("t", lv); n > 8 || n < 6 {
				t.Errorf("level %d: the tenant has %d slots of 8", lv, n)
			}
		}
		// Older blocks of the first model go, the newest of the second stay.
		before, _ := b.count(101, 4)
		b.find(b.owned("t", 103, 1))
		b.find(b.owned("t", 104, 1))
		for seed := range uint64(6) {
			a.store(a.owned("t", 200+seed, 1))
			a.quiesce()
			time.Sleep(time.Second)
		}
		if after, _ := b.count(101, 4); after >= before || after == 0 {
			t.Errorf("of %d blocks of the second model %d are left", before, after)
		}
	})
}

// storeGrown stores one block of the tenant t, if need be after its tier has grown.
func (p *testPool) storeGrown(seed uint64) {
	p.t.Helper()
	for range 3 {
		p.store(p.owned("t", seed, 1))
		p.quiesce()
	}
	if host, _ := p.count(seed, 1); host != 1 {
		p.t.Errorf("block %d is not stored", seed)
	}
}

// count returns how many of n blocks of the tenant t, with seeds from first on, are in each tier.
func (p *testPool) count(first uint64, n int) (host, disk int) {
	keys := map[kv.StoredKey]bool{}
	for i := range n {
		keys[p.owned("t", first+uint64(i), 1)[0].Key] = true
	}
	for _, info := range p.Dump() {
		if !keys[info.Block.Key] {
			continue
		}
		if info.Tiers.Has(kv.TierHost) {
			host++
		}
		if info.Tiers.Has(kv.TierDisk) {
			disk++
		}
	}
	return host, disk
}

// TestNoModelOfATenantStarves: whatever its models stored before, each may store a block within a second,
// and together they keep the limit.
func TestNoModelOfATenantStarves(t *testing.T) {
	rapid.Check(t, func(r *rapid.T) {
		limit := rapid.Uint64Range(1, 8).Draw(r, "limit")
		ofModel := rapid.Uint64Range(0, 8).Draw(r, "limit of the first model")
		second := rapid.SliceOfN(rapid.Bool(), 1, 30).Draw(r, "steps are the second model's")
		host, disk := t.TempDir(), t.TempDir()
		synctest.Test(t, func(t *testing.T) {
			a, b := twoModels(t, limit, host, disk)
			defer b.m.Close()
			a.limitModel("a", ofModel)
			for i, other := range second {
				p := map[bool]*testPool{false: a, true: b}[other]
				blocks := p.owned("t", uint64(i+1), 1)
				if p.store(blocks) == 0 {
					p.quiesce()
					time.Sleep(time.Second)
					if p.store(blocks) == 0 {
						t.Errorf("step %d: the block is refused again", i)
					}
				}
				p.quiesce()
				for lv := range registry.Level(registry.NumLevels) {
					if n := p.slotsOf("t", lv); n > int(limit) {
						t.Errorf("step %d: %d slots of %d", i, n, limit)
					}
					if q := p.m.QuotaOf(QuotaName{OfTenantModel, "t", "a"}, kindOf(lv)); ofModel != 0 && q.Used > hostBytes(ofModel) {
						t.Errorf("step %d: the first model has %d bytes of %d slots", i, q.Used, ofModel)
					}
				}
			}
		})
	})
}

// limitModel limits the tenant t in a model to so many slots of each tier, 0 for no limit.
func (p *testPool) limitModel(model string, slots uint64) {
	p.t.Helper()
	for _, kind := range []kv.Tier{kv.TierHost, kv.TierDisk} {
		settled, err := p.m.SetQuota(QuotaName{OfTenantModel, "t", model}, kind, hostBytes(slots))
		if err != nil {
			p.t.Fatalf("limit of model %s: %v", model, err)
		}
		<-settled
	}
}

// A tenant's limit in one model holds beside that of all models: the model evicts its own blocks for its next
// one, also those of another namespace of the model, and the room that it leaves is the other models' at once.
func TestTenantLimitInAModel(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a, b := twoModels(t, 8, t.TempDir(), t.TempDir())
		defer b.m.Close()
		next := func() { a.quiesce(); b.quiesce(); time.Sleep(time.Second) }
		want := func(when string, first, second int) {
			t.Helper()
			for lv := range registry.Level(registry.NumLevels) {
				ofModel := func(model string) int {
					return int(a.m.QuotaOf(QuotaName{OfTenantModel, "t", model}, kindOf(lv)).Used / testSlotBytes)
				}
				if ofModel("a") != first || ofModel("b") != second || a.slotsOf("t", lv) != first+second {
					t.Errorf("%s: level %d: %d slots of model a, %d of b, %d in all; want %d and %d", when, lv, ofModel("a"), ofModel("b"), a.slotsOf("t", lv), first, second)
				}
			}
		}
		for seed := range uint64(7) {
			a.storeGrown(seed + 1)
			next()
		}
		want("without a limit", 7, 0)
		a.limitModel("a", 3)
		want("with a lower limit", 3, 0)
		for seed := range uint64(5) {
			b.storeGrown(100 + seed)
			next()
		}
		for seed := range uint64(4) {
			a.storeGrown(20 + seed)
			next()
		}
		want("at both limits", 3, 5)
		if host, disk := a.count(21, 3); host != 3 || disk != 3 {
			t.Errorf("of the model's latest 3 blocks %d and %d are left", host, disk)
		}
		other := testNamespace("a")
		other.Weights = "another"
		c := a.openNamespace(other)
		c.store(c.owned("t", 200, 1)) // its tiers have no slot yet
		for seed := range uint64(2) {
			next()
			c.storeGrown(200 + seed)
		}
		next()
		if host, _ := b.count(100, 5); host != 5 {
			t.Errorf("%d of 5 blocks of the other model are left", host)
		}
		if host, _ := c.count(200, 2); host != 2 {
			t.Errorf("%d of 2 blocks of the model's other namespace are there", host)
		}
		if q := a.m.QuotaOf(QuotaName{OfTenantModel, "t", "a"}, kv.TierHost); q.Limit != hostBytes(3) || q.Used > q.Limit {
			t.Errorf("the model has %+v", q)
		}
	})
}

// A demand that no block of another model can fill evicts none: a model whose block is larger than the limit, or
// whose own blocks in use leave too little of it.
func TestImpossibleDemandEvictsNoOtherModel(t *testing.T) {
	large := testNamespace("large")
	large.InnerDim = 300 // slots of 20 KiB
	for _, c := range []struct {
		name       string
		limit      uint64
		large, few int
	}{{"no block fits", 4, 0, 4}, {"pinned blocks fill the limit", 11, 2, 1}} {
		t.Run(c.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				a, _ := twoModels(t, c.limit, t.TempDir(), t.TempDir())
				defer a.m.Close()
				b := a.openNamespace(large)
				for seed := range uint64(c.large) {
					b.storeGrown(100 + seed)
					b.pin(b.sid, b.owned("t", 100+seed, 1))
				}
				for seed := range uint64(c.few) {
					a.storeGrown(seed + 1)
				}
				for seed := range uint64(3) {
					time.Sleep(time.Second)
					if n := b.store(b.owned("t", 200+seed, 1)); n != 0 {
						t.Errorf("%d blocks are granted beyond the limit", n)
					}
				}
				time.Sleep(time.Second)
				if host, disk := a.count(1, c.few); host != c.few || disk != c.few {
					t.Errorf("of %d blocks %d and %d are left", c.few, host, disk)
				}
			})
		})
	}
}

// Models that share a tenant's limit do not keep the node from giving up what pins keep beyond a size.
func TestTrimGivesUpWhileATenantStores(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a, b := twoModels(t, 8, t.TempDir(), t.TempDir())
		defer a.m.Close()
		var seed uint64
		a.demand(&seed, 16)
		for s := range seed {
			a.pin(a.sid, chain(s+1, 1))
		}
		b.store(b.owned("t", 500, 1))
		settled := a.resize(kv.TierHost, hostBytes(8))
		for round := range uint64(200) {
			time.Sleep(5 * time.Second)
			a.store(a.owned("t", 1000+round, 2))
			b.store(b.owned("t", 2000+round, 2))
		}
		if n := a.Stats().TrimsGivenUp; n != 1 {
			t.Errorf("%d trims are given up, want 1", n)
		}
		select {
		case <-settled:
		default:
			t.Error("a caller still waits for the size")
		}
	})
}

// The first block that lacks room has other models' blocks evicted at once, the next ones together.
func TestSharingPausesBetweenRuns(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a, b := twoModels(t, 16, t.TempDir(), t.TempDir())
		defer a.m.Close()
		for seed := range uint64(16) {
			a.storeGrown(seed + 1)
		}
		time.Sleep(time.Second)
		left := func(when string, want int) {
			t.Helper()
			synctest.Wait()
			if host, _ := a.count(1, 16); host != want {
				t.Errorf("%s: %d blocks of the other model are left, want %d", when, host, want)
			}
		}
		b.store(b.owned("t", 100, 1))
		left("at once", 14) // room for the block and a sixteenth of the limit
		for seed := range uint64(6) {
			b.store(b.owned("t", 101+seed, 1))
		}
		left("within the pause", 14)
		time.Sleep(time.Second)
		left("after the pause", 9) // four lacked room
	})
}

// On disk, too, the age of a block is its last use, which host memory alone has seen.
func TestTenantKeepsWhatIsReadOnDisk(t *testing.T) {
	for _, models := range []int{1, 2} {
		t.Run(fmt.Sprint(models, " models"), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) { keepsWhatIsRead(t, models) })
		})
	}
}

func keepsWhatIsRead(t *testing.T, models int) {
	a, b := twoModels(t, 8, t.TempDir(), t.TempDir())
	defer a.m.Close()
	a.setTenants(tenant.Tenant{Name: "t", Salts: []string{"t"}, DiskBytes: hostBytes(8)})
	if models == 1 {
		b = a
	}
	for seed := range uint64(4) {
		b.store(b.owned("t", 100+seed, 1))
	}
	b.quiesce()
	for seed := range uint64(12) {
		for hot := range uint64(4) {
			b.find(b.owned("t", 100+hot, 1))
		}
		a.storeGrown(seed + 1)
		time.Sleep(time.Second)
		if _, disk := b.count(100, 4); disk != 4 {
			t.Errorf("step %d: %d of 4 blocks that are read are left on disk", seed, disk)
		}
	}
	if n := b.Stats().DiskEvictions; models == 2 && n != 0 {
		t.Errorf("%d disk copies of the model that only reads were evicted", n)
	}
}
