package tenant_test

import (
	"reflect"
	"strings"
	"testing"
	"time"

	"github.com/blockyard-ai/blockyard/blockmgr/registry"
	"github.com/blockyard-ai/blockyard/blockmgr/tenant"
	"github.com/blockyard-ai/blockyard/internal/kv"
)

func TestSaltsNameTheirTenant(t *testing.T) {
	table := tenant.NewTable()
	if table.OwnerOf("blockyard-tenant:a:") != 0 {
		t.Error("a salt has an owner without tenants")
	}
	long := strings.Repeat("x", 2000) // connectors send the hash of such a salt
	if err := table.Set([]tenant.Tenant{{Name: "a", Salts: []string{"s", long}}, {Name: "b"}}); err != nil {
		t.Fatal(err)
	}
	a := table.OwnerOf("s")
	for salt, want := range map[string]bool{
		"s": true, long: true, "blockyard-tenant:a:": true, "blockyard-tenant:a:own": true, "blockyard-tenant:a#digest": true,
		"": false, "t": false, "blockyard-tenant:b:s": false, "blockyard-tenant:ab:": false, "blockyard-tenant:a": false, "xblockyard-tenant:a:": false,
	} {
		if got := table.OwnerOf(salt) == a; got != want || a == 0 {
			t.Errorf("salt %.40q is the tenant's: %t, want %t", salt, got, want)
		}
	}
}

// A tenant that leaves the configuration keeps its blocks, and those that it promised to erase are erased.
func TestTenantsComeAndGo(t *testing.T) {
	table := tenant.NewTable()
	set := func(tenants ...tenant.Tenant) {
		t.Helper()
		if err := table.Set(tenants); err != nil {
			t.Fatal(err)
		}
	}
	set(tenant.Tenant{Name: "a", Salts: []string{"a"}, HostBytes: 10, TTL: time.Hour}, tenant.Tenant{Name: "b", Salts: []string{"b"}, DiskBytes: 10})
	owner := table.OwnerOf("a")
	at := table.Index(owner)
	account := table.At(at)
	account.Take("m", registry.Host, 8)
	if account.Over(tenant.AllModels, registry.Host, 2) || !account.Over(tenant.AllModels, registry.Host, 3) || account.Over(tenant.AllModels, registry.Disk, 1000) || !account.Erases() {
		t.Errorf("limit %d, %d used, erases %t", account.Limit(tenant.AllModels, registry.Host), account.Used(tenant.AllModels, registry.Host), account.Erases())
	}
	if b := table.At(table.Index(table.OwnerOf("b"))); b.Erases() || b.TTL() != 0 {
		t.Error("blocks of a tenant without a time to live are erased")
	}
	set(tenant.Tenant{Name: "b", Salts: []string{"b", "a"}, DiskBytes: 10})
	if table.Index(owner) != at || table.OwnerOf("a") == owner || account.Over(tenant.AllModels, registry.Host, 1000) || account.TTL() != 0 || !account.Erases() {
		t.Error("a former tenant has a limit, a salt, a time to live or another index, or its blocks are not erased")
	}
	if s := table.Status(); len(s) != 2 || s[0].Name != "a" || s[0].Listed || s[0].Used[registry.Host] != 8 {
		t.Errorf("status %+v", s)
	}
	account.Give("m", registry.Host, 8)
	if s := table.Status(); len(s) != 1 || s[0].Name != "b" {
		t.Errorf("status %+v without blocks of the former tenant", s)
	}
	if unknown := table.At(table.Index(owner + 1)); !unknown.Erases() {
		t.Error("blocks of a tenant that nobody knows are not erased")
	}
	if table.At(table.Index(0)).Erases() {
		t.Error("blocks of nobody are erased")
	}
}

// Blocks with a time to live have another owner in their records, under which the next agent knows them
// although the tenant has no such time any more. Owners are stored: they never change.
func TestRecordsNameTimedBlocks(t *testing.T) {
	table := tenant.NewTable()
	for _, ttl := range []time.Duration{0, time.Hour, 0} {
		if err := table.Set([]tenant.Tenant{{Name: "a", Salts: []string{"a"}, TTL: ttl}}); err != nil {
			t.Fatal(err)
		}
		owner := table.OwnerOf("a")
		stored := table.RecordOwner(owner)
		account := table.At(table.Index(stored))
		if account.Timed(stored) != (ttl > 0) || table.Index(owner) != table.Index(stored) || table.RecordOwner(stored) != stored {
			t.Errorf("time to live %v: owner %x, in records %x", ttl, owner, stored)
		}
		if timed := account.TimedOwner(); owner != 0xe6c632b61e964e1f || timed != 0xd2f6d0996f37a720 {
			t.Errorf("owners %#x and %#x", owner, timed)
		}
	}
	if table.RecordOwner(0) != 0 || table.RecordOwner(77) != 77 || table.At(0).Timed(0) {
		t.Error("blocks of nobody have a tenant")
	}
}

// A change of the tenants takes no limit away in between: pools read the accounts meanwhile.
func TestSetKeepsLimitsMeanwhile(t *testing.T) {
	table := tenant.NewTable()
	tenants := []tenant.Tenant{{Name: "a", TTL: time.Hour, HostBytes: 1}}
	if err := table.Set(tenants); err != nil {
		t.Fatal(err)
	}
	account := table.At(table.Index(table.OwnerOf("blockyard-tenant:a:x")))
	done := make(chan struct{})
	go func() {
		defer close(done)
		for range 2000 {
			if err := table.Set(tenants); err != nil {
				t.Error(err)
			}
		}
	}()
	for {
		select {
		case <-done:
			return
		default:
			if account.TTL() != time.Hour {
				t.Fatal("the tenant is without its time to live for a moment")
			}
		}
	}
}

func TestNobodysBlockExpires(t *testing.T) { tenant.NewTable().At(0).CountExpired() }

// What a tenant has of a model counts in both of its limits. A model that has neither a limit nor a block is
// forgotten: the table does not grow with the names that engines send.
func TestModelsOfATenant(t *testing.T) {
	table := tenant.NewTable()
	limited := tenant.Tenant{Name: "a", Salts: []string{"a"}, HostBytes: 10, Models: map[string]tenant.Limit{"m": {HostBytes: 4}}}
	set := func(n tenant.Tenant) {
		t.Helper()
		if err := table.Set([]tenant.Tenant{n}); err != nil {
			t.Fatal(err)
		}
	}
	want := func(when string, models ...tenant.Share) {
		t.Helper()
		if s := table.Status(); len(s) != 1 || !reflect.DeepEqual(s[0].Models, models) {
			t.Errorf("%s: %+v, want %+v", when, s, models)
		}
	}
	set(limited)
	account := table.At(table.Index(table.OwnerOf("a")))
	account.Take("m", registry.Host, 3)
	account.Take("n", registry.Host, 6)
	for _, c := range []struct {
		model string
		more  uint64
		over  bool
	}{{"m", 1, false}, {"m", 2, true}, {"n", 1000, false}, {tenant.AllModels, 1, false}, {tenant.AllModels, 2, true}} {
		if got := account.Over(c.model, registry.Host, c.more); got != c.over {
			t.Errorf("%d more bytes of model %q are over the limit: %t", c.more, c.model, got)
		}
	}
	want("with blocks", tenant.Share{Model: "m", Limit: [2]uint64{4}, Used: [2]uint64{3}}, tenant.Share{Model: "n", Used: [2]uint64{6}})
	account.Give("n", registry.Host, 6)
	want("without blocks of n", tenant.Share{Model: "m", Limit: [2]uint64{4}, Used: [2]uint64{3}})
	next := limited
	next.SetLimit("m", kv.TierHost, 0)
	next.SetLimit("n", kv.TierDisk, 5)
	if len(limited.Models) != 1 || limited.Models["m"].HostBytes != 4 {
		t.Errorf("SetLimit has changed the limits of a copy: %+v", limited.Models)
	}
	set(next)
	want("with another limit", tenant.Share{Model: "m", Used: [2]uint64{3}}, tenant.Share{Model: "n", Limit: [2]uint64{0, 5}})
	account.Give("m", registry.Host, 3)
	set(tenant.Tenant{Name: "a"})
	want("without limits and blocks")
	next.Models[tenant.AllModels] = tenant.Limit{HostBytes: 1}
	if err := table.Check([]tenant.Tenant{next}); err == nil || !strings.Contains(err.Error(), `tenant "a": limits of 2 models: want at most 1024, each with the name`) {
		t.Errorf("a limit without a model: %v", err)
	}
}
