package agent_test

import (
	"os"
	"reflect"
	"testing"
	"time"

	"github.com/blockyard-ai/blockyard/agent/agenttest"
	"github.com/blockyard-ai/blockyard/agent/limits"
	"github.com/blockyard-ai/blockyard/blockmgr"
	"github.com/blockyard-ai/blockyard/internal/proto"
)

// storeSalted stores the n blocks of a prompt that an engine got with a salt.
func storeSalted(t *testing.T, c *proto.SchedulerClient, id uint64, salt string, seed, n int) (granted int) {
	t.Helper()
	r := proto.RequestID{ID: id}
	agenttest.NoError(t, c.Open(r, "", "", salt, agenttest.Prompt(seed, n)))
	got, err := c.Store(t.Context(), r, 0, n)
	agenttest.NoError(t, err)
	var slots []proto.Slot
	for _, g := range got.Grants {
		agenttest.Fill(t, c, g.Slot, seed, int(g.Index))
		slots = append(slots, g.Slot)
	}
	agenttest.NoError(t, c.Commit(t.Context(), r, slots))
	agenttest.CloseRequest(t, c, r)
	return len(slots)
}

// TestTenantsOfAnAgent: the salts of engines' requests name the tenants, limits hold, a reload changes them,
// and blocks with a time to live are gone from both tiers when it is up.
func TestTenantsOfAnAgent(t *testing.T) {
	cfg := testConfig(t)
	quota := func(a *testAgent, name string) (q blockmgr.Quota) {
		for _, q := range a.Stats().Quotas {
			if q.Of == blockmgr.OfTenant && q.Name == name {
				return q
			}
		}
		return q
	}
	cfg.Limits = limits.Limits{Tenants: []blockmgr.Tenant{{Name: "acme", TTL: time.Second}, {Name: "other", Salts: []string{"s"}}}}
	a := startAgent(t, cfg)
	c := a.Scheduler(t, 1)
	storeSalted(t, c, 1, "blockyard-tenant:acme:own", 1, 3)
	storeSalted(t, c, 2, "s", 2, 4)
	storeSalted(t, c, 3, "nobody's", 3, 2)
	agenttest.Eventually(t, "the tenant's blocks are dropped and overwritten", func() bool {
		s := a.Stats()
		q := quota(a, "acme")
		return s.Quiet && s.Pools[0].BlocksExpired == 3 && s.Pools[0].SlotsErased >= 3 && q.Host.Used+q.Disk.Used == 0
	})
	if s := a.Stats().Pools[0]; s.Blocks != 6 {
		t.Errorf("%d blocks are left, want 6", s.Blocks)
	}
	other := quota(a, "other")
	slot := other.Host.Used / 4
	if slot == 0 || other.Host.Used%4 != 0 {
		t.Fatalf("the other tenant uses %+v", other)
	}
	cfg.Limits.Tenants[1].HostBytes = 2 * slot
	agenttest.NoError(t, a.Reload(cfg))
	agenttest.Eventually(t, "the other tenant is within its new limit", func() bool { return quota(a, "other").Host.Used == 2*slot })
	if n := storeSalted(t, c, 4, "s", 4, 2); n != 2 {
		t.Errorf("%d blocks are granted to a tenant that has others to evict", n)
	}
	if got := quota(a, "other").Host; got.Used != 2*slot || got.Limit != 2*slot {
		t.Errorf("the other tenant has %+v", got)
	}
}

// A reload that fails has changed nothing: neither who may connect, when limits are refused, nor limits,
// when the socket cannot be opened for others.
func TestFailedReloadChangesNothing(t *testing.T) {
	cfg := testConfig(t)
	cfg.Limits = limits.Limits{Tenants: []blockmgr.Tenant{{Name: "acme", HostBytes: 1 << 20}}}
	a := startAgent(t, cfg)
	mode := func() os.FileMode {
		st, err := os.Stat(cfg.Socket)
		agenttest.NoError(t, err)
		return st.Mode()
	}
	before, quotas := mode(), a.Stats().Quotas
	next := cfg
	next.AllowUIDs = []uint32{uint32(os.Getuid()) + 1}
	next.Limits = limits.Limits{Tenants: []blockmgr.Tenant{{Name: "twice"}, {Name: "twice"}}}
	if err := a.Reload(next); err == nil || mode() != before {
		t.Errorf("limits that are wrong: error %v, socket mode %v, want %v", err, mode(), before)
	}
	next.Limits = limits.Limits{Tenants: []blockmgr.Tenant{{Name: "acme", HostBytes: 2 << 20}}}
	agenttest.NoError(t, os.Remove(cfg.Socket))
	if err := a.Reload(next); err == nil || !reflect.DeepEqual(a.Stats().Quotas, quotas) {
		t.Errorf("a socket that is gone: error %v, quotas %+v", err, a.Stats().Quotas)
	}
}
