package tenant_test

import (
	"strings"
	"testing"
	"time"

	"github.com/blockyard-ai/blockyard/blockmgr/registry"
	"github.com/blockyard-ai/blockyard/blockmgr/tenant"
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
	account.Take(registry.Host, 8)
	if account.Over(registry.Host, 2) || !account.Over(registry.Host, 3) || account.Over(registry.Disk, 1000) || !account.Erases() {
		t.Errorf("limit %d, %d used, erases %t", account.Limit(registry.Host), account.Used(registry.Host), account.Erases())
	}
	if b := table.At(table.Index(table.OwnerOf("b"))); b.Erases() || b.TTL() != 0 {
		t.Error("blocks of a tenant without a time to live are erased")
	}
	set(tenant.Tenant{Name: "b", Salts: []string{"b", "a"}, DiskBytes: 10})
	if table.Index(owner) != at || table.OwnerOf("a") == owner || account.Over(registry.Host, 1000) || account.TTL() != 0 || !account.Erases() {
		t.Error("a former tenant has a limit, a salt, a time to live or another index, or its blocks are not erased")
	}
	if s := table.Status(); len(s) != 2 || s[0].Name != "a" || s[0].Listed || s[0].Used[registry.Host] != 8 {
		t.Errorf("status %+v", s)
	}
	account.Give(registry.Host, 8)
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
