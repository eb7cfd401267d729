package blockmgr

import (
	"maps"
	"testing"
	"testing/synctest"
	"time"

	"github.com/blockyard-ai/blockyard/blockmgr/registry"
)

// quotaPools are three namespaces in use, a weighing as much as b and c
// together, on a node whose tiers have eight extents of four slots each.
func quotaPools(t *testing.T, disk bool) map[string]*testPool {
	cfg := Config{HostBytes: 8 * hostBytes(4), ExtentBytes: hostBytes(4), Weights: map[string]uint64{"a": 2}}
	if disk {
		// Host memory of its own for everybody: it is the disk that is short.
		cfg.HostBytes, cfg.HostBlocks, cfg.DiskBytes = 0, 8, 8*hostBytes(4)
	}
	cfg.HostDir, cfg.DiskDir = t.TempDir(), t.TempDir()
	m := openTestManager(t, cfg)
	pools := map[string]*testPool{}
	for _, model := range []string{"a", "b", "c"} {
		pools[model] = m.openOther(model)
	}
	t.Cleanup(func() {
		for _, p := range pools {
			p.check()
			p.checkEvents()
		}
		if err := m.m.Close(); err != nil {
			t.Error(err)
		}
	})
	return pools
}

// demand stores n new blocks, one after the other.
func (p *testPool) demand(seed *uint64, n int) {
	p.t.Helper()
	for range n {
		*seed++
		p.store(chain(*seed, 1))
		p.quiesce()
	}
}

func extents(pools map[string]*testPool, lv registry.Level) map[string]int {
	n := map[string]int{}
	for model, p := range pools {
		st := p.Stats().Host
		if lv == registry.Disk {
			st = p.Stats().Disk
		}
		n[model] = st.Extents
	}
	return n
}

func yielded(pools map[string]*testPool) (n uint64) {
	for _, p := range pools {
		n += p.Stats().ExtentsYielded
	}
	return n
}

func TestNamespacesInUseComeToTheirSharesAndStayThere(t *testing.T) {
	for where, lv := range map[string]registry.Level{"host": registry.Host, "disk": registry.Disk} {
		t.Run(where, func(t *testing.T) {
			pools := quotaPools(t, lv == registry.Disk)
			var seed uint64
			// The first one takes all that nobody else has yet.
			pools["a"].demand(&seed, 40)
			if got := extents(pools, lv); got["a"] != 6 || got["b"] != 1 || got["c"] != 1 {
				t.Errorf("extents %v when only one has demand", got)
			}
			for range 10 {
				for _, model := range []string{"b", "c", "a"} {
					pools[model].demand(&seed, 8)
				}
			}
			want := map[string]int{"a": 4, "b": 2, "c": 2}
			if got := extents(pools, lv); !maps.Equal(got, want) {
				t.Errorf("extents %v, want %v", got, want)
			}
			before := yielded(pools)
			for range 20 {
				for _, model := range []string{"c", "a", "b"} {
					pools[model].demand(&seed, 8)
				}
			}
			if got := extents(pools, lv); !maps.Equal(got, want) || yielded(pools) != before {
				t.Errorf("extents %v, %d changed hands among pools that all have their shares", got, yielded(pools)-before)
			}
		})
	}
}

// TestSetWeightsMovesTheShares: pools in use come to new shares while they run.
func TestSetWeightsMovesTheShares(t *testing.T) {
	pools := quotaPools(t, false)
	var seed uint64
	settle := func(want map[string]int) {
		t.Helper()
		for range 20 {
			for _, model := range []string{"b", "c", "a"} {
				pools[model].demand(&seed, 8)
			}
		}
		if got := extents(pools, registry.Host); !maps.Equal(got, want) {
			t.Errorf("extents %v, want %v", got, want)
		}
	}
	settle(map[string]int{"a": 4, "b": 2, "c": 2})
	m := pools["a"].m
	given := map[string]uint64{"b": 2}
	if err := m.SetWeights(given); err != nil {
		t.Fatal(err)
	}
	given["b"] = 100 // the manager has a copy
	settle(map[string]int{"a": 2, "b": 4, "c": 2})
	if err := m.SetWeights(map[string]uint64{"c": 0}); err == nil {
		t.Error("a share of 0 is taken")
	}
	if got := m.Weights(); !maps.Equal(got, map[string]uint64{"b": 2}) {
		t.Errorf("weights %v", got)
	}
}

// Whoever came last, and whatever the others ask for, has something.
func TestNoNamespaceInUseStarves(t *testing.T) {
	pools := quotaPools(t, false)
	var seed uint64
	for range 10 {
		pools["a"].demand(&seed, 40)
		pools["b"].demand(&seed, 40)
	}
	if got := extents(pools, registry.Host); got["c"] != 1 || got["a"]+got["b"] != 7 {
		t.Errorf("extents %v", got)
	}
	pools["c"].demand(&seed, 4)
	last := chain(seed, 1)
	pools["a"].demand(&seed, 40)
	if got := sources(pools["c"].find(last)); got != "H" {
		t.Errorf("found %q", got)
	}
}

func TestExtentsInUseStayWithANamespaceThatIsOverItsShare(t *testing.T) {
	for what, use := range map[string]func(*testPool, SessionID){
		"pinned": func(p *testPool, s SessionID) {
			for i := range uint64(23) {
				p.pin(s, chain(1+i, 1))
			}
		},
		"granted": func(p *testPool, s SessionID) {
			for i := range uint64(24) {
				p.grant(s, chain(1000+i, 1))
			}
		},
	} {
		t.Run(what, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				pools := quotaPools(t, false)
				a, b := pools["a"], pools["b"]
				var seed uint64
				a.demand(&seed, 23)
				other := a.begin()
				use(a, other)
				a.quiesce()
				b.demand(&seed, 12)
				if got := extents(pools, registry.Host); got["a"] != 6 || got["b"] != 1 || b.Stats().GrowRefused != 1 {
					t.Errorf("extents %v while those of one are in use, refused %d times", got, b.Stats().GrowRefused)
				}
				// Nobody tells the others that they are idle now: they ask again after a while.
				a.EndSession(other, nil)
				time.Sleep(2 * growRetry)
				b.demand(&seed, 12)
				if got := extents(pools, registry.Host); got["a"] >= 6 || got["b"] < 2 {
					t.Errorf("extents %v when they are idle", got)
				}
			})
		})
	}
}
