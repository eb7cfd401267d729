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
		second := rapid.SliceOfN(rapid.Bool(), 1, 30).Draw(r, "steps are the second model's")
		host, disk := t.TempDir(), t.TempDir()
		synctest.Test(t, func(t *testing.T) {
			a, b := twoModels(t, limit, host, disk)
			defer b.m.Close()
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
				}
			}
		})
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
