package tenant_test

import (
	"fmt"
	"time"

	"github.com/blockyard-ai/blockyard/blockmgr/registry"
	"github.com/blockyard-ai/blockyard/blockmgr/tenant"
)

func Example() {
	table := tenant.NewTable()
	if err := table.Set([]tenant.Tenant{{Name: "acme", Salts: []string{"s3cret"}, HostBytes: 8 << 20, TTL: time.Hour}}); err != nil {
		panic(err)
	}
	owner := table.OwnerOf("s3cret")
	fmt.Println(owner == table.OwnerOf("blockyard-tenant:acme:own"), table.OwnerOf("another"))
	account := table.At(table.Index(owner))
	account.Take("llama", registry.Host, 6<<20)
	fmt.Println(account.Over(tenant.AllModels, registry.Host, 2<<20), account.Over(tenant.AllModels, registry.Host, 3<<20), account.TTL(), account.Erases())
	// Output:
	// true 0
	// false true 1h0m0s true
}
