// Package tenant knows the tenants of a node: which cache salts are whose, what each may have in the
// tiers, what each has, and for how long its blocks live.
//
//	table := tenant.NewTable()
//	err := table.Set([]tenant.Tenant{{Name: "acme", Salts: []string{"s3"}, HostBytes: 8 << 30, TTL: time.Hour}})
//	owner := table.OwnerOf(salt)             // of a request; goes into the records of its blocks
//	account := table.At(table.Index(owner))  // limits and use
//
// A tenant is a set of cache salts: those of Tenant.Salts, and those that the router's front door makes
// for a tenant of that name. Requests without a salt, or with the salt of nobody, have no tenant.
//
// Records name a tenant by its owner, a hash of its name, so that the blocks of a tenant are known after a
// restart. A block with a time to live has another owner of the tenant (RecordOwner): the next agent erases
// the block even where the tenant has no time to live any more. An Index names the tenant in this process.
// It never changes and is never used again.
//
// Guarantees: a Table may be used from any goroutine. An owner that no tenant has counts as a tenant whose
// blocks are erased: its blocks were stored under a promise that nobody can keep any more.
package tenant
