package blockmgr

import (
	"testing"
	"time"

	"github.com/blockyard-ai/blockyard/blockmgr/tenant"
)

// A block that comes into a tier full of blocks with a time to live costs a few of them, and not all: the
// slots of evicted ones are free only when they are overwritten.
func TestOneBlockDoesNotEvictAllThatMustBeOverwritten(t *testing.T) {
	p := newTestPool(t, Config{HostBytes: hostBytes(64), ExtentBytes: hostBytes(64)})
	<-p.setTenants(tenant.Tenant{Name: "a", Salts: []string{"a"}, TTL: time.Hour})
	for seed := range uint64(64) {
		p.store(p.owned("a", seed+1, 1))
	}
	p.quiesce()
	stored := 0
	for seed := range uint64(10) {
		stored += p.store(chain(1000+seed, 1))
		p.quiesce()
	}
	if st := p.Stats(); st.HostEvictions > 20 || stored < 8 {
		t.Errorf("%d evictions for %d of 10 blocks", st.HostEvictions, stored)
	}
}
