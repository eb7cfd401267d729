package blockmgr

import (
	"testing"
	"time"

	"github.com/blockyard-ai/blockyard/blockmgr/tenant"
	"github.com/blockyard-ai/blockyard/internal/kv"
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

// An agent that starts with lower limits than the earlier one brings its pools within them.
func TestRestartHoldsLowerLimits(t *testing.T) {
	cfg := Config{HostDir: t.TempDir(), DiskDir: t.TempDir(), HostBytes: 4 * hostBytes(4), ExtentBytes: hostBytes(4)}
	p := openTestPool(t, cfg)
	var seed uint64
	p.demand(&seed, 16)
	p.m.Abandon()
	next := openTestManager(t, cfg)
	for _, f := range next.m.Previous() {
		next.m.Forget(f.Session)
	}
	if _, err := next.m.SetModelLimits(map[string]Limit{"test": {HostBytes: 2 * hostBytes(4)}}); err != nil {
		t.Fatal(err)
	}
	q := next.openOther("test")
	defer q.finish()
	q.quiesce()
	q.m.broker.trimmers.Wait() // the trim that the opening of the pool began
	if used := q.m.ModelUse("test", kv.TierHost); used > 2*hostBytes(4) {
		t.Errorf("%d bytes are used with a limit of %d", used, 2*hostBytes(4))
	}
}
