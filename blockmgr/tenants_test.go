package blockmgr

import (
	"bytes"
	"os"
	"path/filepath"
	"testing"
	"testing/synctest"
	"time"

	"golang.org/x/sys/unix"
	"pgregory.net/rapid"

	"github.com/blockyard-ai/blockyard/blockmgr/registry"
	"github.com/blockyard-ai/blockyard/blockmgr/tenant"
	"github.com/blockyard-ai/blockyard/internal/kv"
)

// setTenants replaces the tenants and waits until they are within their limits.
func (p *testPool) setTenants(tenants ...tenant.Tenant) (settled <-chan struct{}) {
	p.t.Helper()
	settled, err := p.m.SetTenants(tenants)
	if err != nil {
		p.t.Fatalf("tenants: %v", err)
	}
	return settled
}

// owned returns a chain of a tenant, whose salt is its name.
func (p *testPool) owned(name string, seed uint64, n int) []Block {
	blocks := chain(seed, n)
	for i := range blocks {
		blocks[i].Owner = p.m.OwnerOf(name)
	}
	return blocks
}

// slotsOf returns how many slots the blocks of a tenant take in a tier.
func (p *testPool) slotsOf(name string, lv registry.Level) int {
	for _, s := range p.m.Tenants() {
		if s.Name == name {
			return int(s.Used[lv] / testSlotBytes)
		}
	}
	return 0
}

// A tenant at its limit evicts its own coldest block, although the tier has room and others are colder.
func TestTenantStaysWithinItsLimit(t *testing.T) {
	p := newTestPool(t, Config{HostBytes: hostBytes(16), ExtentBytes: hostBytes(16), DiskBytes: hostBytes(16)})
	<-p.setTenants(tenant.Tenant{Name: "a", Salts: []string{"a"}, HostBytes: hostBytes(3), DiskBytes: hostBytes(4)})
	p.store(chain(100, 2)) // nobody's, and older
	for seed := range uint64(6) {
		p.store(p.owned("a", seed+1, 1))
		p.quiesce()
	}
	if host, disk := p.slotsOf("a", registry.Host), p.slotsOf("a", registry.Disk); host != 3 || disk != 4 {
		t.Errorf("the tenant has %d host slots and %d disk slots, want 3 and 4", host, disk)
	}
	if got := p.tiersOf(chain(100, 2)); got != "BB" {
		t.Errorf("blocks of nobody are in %q", got)
	}
	var at string
	for seed := range uint64(6) {
		at += p.tiersOf(p.owned("a", seed+1, 1))
	}
	if at != "--DBBB" {
		t.Errorf("the tenant's blocks are in %q, want the latest ones", at)
	}
	// Blocks in use count against the limit, and so does what comes from disk.
	kept, err := p.Keep([]kv.StoredKey{p.owned("a", 4, 1)[0].Key, p.owned("a", 5, 1)[0].Key, p.owned("a", 6, 1)[0].Key}, time.Hour)
	if err != nil || kept != 3 {
		t.Fatalf("%d kept, %v", kept, err)
	}
	if n := p.store(p.owned("a", 7, 1)); n != 0 || p.Stats().TenantRefused == 0 {
		t.Errorf("%d blocks granted beyond pins that fill the limit, %d refused", n, p.Stats().TenantRefused)
	}
	if got := sources(p.find(p.owned("a", 3, 1))); got != "" {
		t.Errorf("a block on disk comes into host memory beyond the limit: %q", got)
	}
	// A lower limit evicts at once what is not in use.
	settled := p.setTenants(tenant.Tenant{Name: "a", Salts: []string{"a"}, HostBytes: hostBytes(1), DiskBytes: hostBytes(1)})
	if _, err := p.Unkeep([]kv.StoredKey{p.owned("a", 4, 1)[0].Key, p.owned("a", 5, 1)[0].Key, p.owned("a", 6, 1)[0].Key}); err != nil {
		t.Fatal(err)
	}
	<-settled
	if host, disk := p.slotsOf("a", registry.Host), p.slotsOf("a", registry.Disk); host != 1 || disk != 1 {
		t.Errorf("the tenant has %d host slots and %d disk slots, want 1 and 1", host, disk)
	}
}

// bytesOf returns whether some file of a directory has the bytes.
func hasBytes(t fataler, dir string, content []byte) bool {
	t.Helper()
	files, err := os.ReadDir(dir)
	if err != nil {
		t.Fatalf("directory: %v", err)
	}
	for _, f := range files {
		data, err := os.ReadFile(filepath.Join(dir, f.Name()))
		if err != nil {
			t.Fatalf("file: %v", err)
		}
		if bytes.Contains(data, content) {
			return true
		}
	}
	return false
}

// A block of a tenant with a time to live is gone from both tiers when the time is up, and its bytes are
// nowhere any more. A pin does not keep the block.
func TestBlocksExpireAndAreOverwritten(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		host, disk := t.TempDir(), t.TempDir()
		p := newTestPool(t, Config{HostDir: host, DiskDir: disk, HostBytes: hostBytes(8), ExtentBytes: hostBytes(8), DiskBytes: hostBytes(8)})
		p.setTenants(tenant.Tenant{Name: "a", Salts: []string{"a"}, TTL: time.Minute})
		blocks, others := p.owned("a", 1, 2), chain(2, 2)
		p.store(blocks)
		p.store(others)
		p.quiesce()
		time.Sleep(50 * time.Second)
		if _, err := p.Keep([]kv.StoredKey{blocks[0].Key}, time.Hour); err != nil {
			t.Fatal(err)
		}
		content := p.content(&blocks[0], 0)
		if got := p.tiersOf(blocks); got != "BB" || !hasBytes(t, host, content) || !hasBytes(t, disk, content) {
			t.Fatalf("before the time is up the blocks are in %q", got)
		}
		time.Sleep(20 * time.Second)
		p.quiesce()
		if got := p.tiersOf(blocks) + p.tiersOf(others); got != "--BB" {
			t.Errorf("the blocks are in %q", got)
		}
		for _, dir := range []string{host, disk} {
			for i := range blocks {
				if hasBytes(t, dir, p.content(&blocks[i], 0)) {
					t.Errorf("the bytes of block %d are still in a file", i)
				}
			}
			if !hasBytes(t, dir, p.content(&others[1], 0)) {
				t.Error("the bytes of nobody's block are gone")
			}
		}
		if st := p.Stats(); st.BlocksExpired != 2 || st.SlotsErased != 4 || st.Host.Free != 6 || st.Disk.Free != 6 {
			t.Errorf("%d expired, %d slots erased, %d and %d free", st.BlocksExpired, st.SlotsErased, st.Host.Free, st.Disk.Free)
		}
	})
}

// A block that an engine loads stays until the load has ended, and not longer.
func TestBlockInUseExpiresWhenItIsNot(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := newTestPool(t, Config{HostBytes: hostBytes(8), ExtentBytes: hostBytes(8)})
		p.setTenants(tenant.Tenant{Name: "a", Salts: []string{"a"}, TTL: time.Minute})
		blocks := p.owned("a", 1, 2)
		p.store(blocks)
		p.quiesce()
		other := p.begin()
		slots := p.pin(other, blocks[:1])
		time.Sleep(2 * time.Minute)
		if got := p.tiersOf(blocks); got != "H-" {
			t.Errorf("while one is pinned the blocks are in %q", got)
		}
		if err := p.Unpin(other, slots); err != nil {
			t.Fatal(err)
		}
		time.Sleep(2 * time.Second)
		p.quiesce()
		if got := p.tiersOf(blocks); got != "--" {
			t.Errorf("the blocks are in %q", got)
		}
	})
}

// An evicted block leaves no bytes either, in its slot or in an extent that leaves the tier.
func TestEvictedBlocksOfATenantAreOverwritten(t *testing.T) {
	host, disk := t.TempDir(), t.TempDir()
	p := newTestPool(t, Config{HostDir: host, DiskDir: disk, HostBytes: hostBytes(4), ExtentBytes: hostBytes(4), DiskBytes: 2 * hostBytes(4)})
	p.setTenants(tenant.Tenant{Name: "a", Salts: []string{"a"}, TTL: time.Hour})
	blocks := p.owned("a", 1, 3)
	p.store(blocks)
	p.quiesce()
	p.evictHost(blocks)
	p.quiesce()
	if got := p.tiersOf(blocks); got != "DDD" || hasBytes(t, host, p.content(&blocks[1], 0)) {
		t.Errorf("the blocks are in %q, or their bytes in host memory", got)
	}
	gone, _, _ := p.idleExtent(registry.Disk, 0)
	if gone == nil || !p.takeOut(registry.Disk, gone) {
		t.Fatal("the first disk extent is in use")
	}
	p.broker.drop(gone)
	if got := p.tiersOf(blocks); got != "---" || hasBytes(t, disk, p.content(&blocks[1], 0)) {
		t.Errorf("the blocks are in %q, or their bytes on disk", got)
	}
}

// A disk slot that cannot be overwritten is granted to nobody, and is free once it can.
func TestSlotStaysOutOfUseUntilItIsOverwritten(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		refused := newRefusal(false)
		p := newTestPool(t, Config{HostBytes: hostBytes(4), DiskBytes: hostBytes(4), ExtentBytes: hostBytes(4), WrapDisk: refused.wrap})
		p.setTenants(tenant.Tenant{Name: "a", Salts: []string{"a"}, TTL: time.Minute})
		blocks := p.owned("a", 1, 2)
		p.store(blocks)
		p.quiesce()
		refused.set(unix.EIO)
		time.Sleep(2 * time.Minute)
		synctest.Wait()
		if st := p.Stats(); st.BlocksExpired != 2 || st.Disk.Quarantined != 2 || st.Disk.Free != 2 || st.Host.Free != 4 || st.EraseErrors < 2 {
			t.Errorf("while the disk refuses writes: %+v, host %+v, %d expired, %d errors", st.Disk, st.Host, st.BlocksExpired, st.EraseErrors)
		}
		refused.set(nil)
		time.Sleep(2 * eraseRetry)
		p.quiesce()
		if st := p.Stats(); st.Disk.Free != 4 || st.SlotsErased != 4 {
			t.Errorf("afterwards: %+v, %d slots erased", st.Disk, st.SlotsErased)
		}
	})
}

// After the death of the agent the next one serves no block with a time to live, which nobody measured
// meanwhile. It overwrites their bytes. A tenant's other limits hold on.
func TestRestartEndsTheTimeOfBlocks(t *testing.T) {
	timed, untimed := tenant.Tenant{Name: "a", Salts: []string{"a"}, TTL: time.Hour}, tenant.Tenant{Name: "a", Salts: []string{"a"}}
	limited := tenant.Tenant{Name: "b", Salts: []string{"b"}, HostBytes: hostBytes(2), DiskBytes: hostBytes(2)}
	for name, tenants := range map[string]struct{ before, after []tenant.Tenant }{
		"same tenants":    {[]tenant.Tenant{timed, limited}, []tenant.Tenant{timed, limited}},
		"one is gone":     {[]tenant.Tenant{timed, limited}, []tenant.Tenant{limited}},
		"time is removed": {[]tenant.Tenant{timed, limited}, []tenant.Tenant{untimed, limited}},
		"time is new":     {[]tenant.Tenant{untimed, limited}, []tenant.Tenant{timed, limited}},
	} {
		t.Run(name, func(t *testing.T) {
			cfg := Config{HostDir: t.TempDir(), DiskDir: t.TempDir(), HostBytes: hostBytes(8), ExtentBytes: hostBytes(8), DiskBytes: hostBytes(8)}
			p := openTestPool(t, cfg)
			p.setTenants(tenants.before...)
			blocks, kept := p.owned("a", 1, 2), p.owned("b", 2, 2)
			p.store(blocks)
			p.store(kept)
			p.quiesce()
			content := p.content(&blocks[0], 0)
			p.m.Abandon()

			next := openTestManager(t, cfg)
			for _, f := range next.m.Previous() { // the engine is gone, too
				next.m.Forget(f.Session)
			}
			next.setTenants(tenants.after...)
			q := next.openOther("test")
			defer q.finish()
			q.quiesce()
			if got := q.tiersOf(blocks) + q.tiersOf(kept); got != "--BB" {
				t.Errorf("the blocks are in %q", got)
			}
			if hasBytes(t, cfg.HostDir, content) || hasBytes(t, cfg.DiskDir, content) {
				t.Error("the bytes are still in a file")
			}
			if host, disk := q.slotsOf("b", registry.Host), q.slotsOf("b", registry.Disk); host != 2 || disk != 2 {
				t.Errorf("the other tenant has %d and %d slots", host, disk)
			}
			q.store(q.owned("b", 3, 1))
			q.quiesce()
			if host := q.slotsOf("b", registry.Host); host > 2 {
				t.Errorf("the other tenant has %d slots", host)
			}
		})
	}
}

// A slot that waited for its zeros when the agent died is overwritten by the next one, also where the tenant
// has no time to live any more.
func TestRestartOverwritesSlotsThatWaitedForIt(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		refused := newRefusal(false)
		cfg := Config{HostDir: t.TempDir(), DiskDir: t.TempDir(), HostBytes: hostBytes(4), DiskBytes: hostBytes(4), ExtentBytes: hostBytes(4)}
		failing := cfg
		failing.WrapDisk = refused.wrap
		p := openTestPool(t, failing)
		p.setTenants(tenant.Tenant{Name: "a", Salts: []string{"a"}, TTL: time.Minute})
		blocks := p.owned("a", 1, 2)
		p.store(blocks)
		p.quiesce()
		refused.set(unix.EIO)
		time.Sleep(2 * time.Minute)
		synctest.Wait()
		content := p.content(&blocks[0], 0)
		p.m.Abandon()
		if !hasBytes(t, cfg.DiskDir, content) {
			t.Fatal("the bytes were overwritten before the restart")
		}
		next := openTestManager(t, cfg)
		for _, f := range next.m.Previous() {
			next.m.Forget(f.Session)
		}
		next.setTenants(tenant.Tenant{Name: "a", Salts: []string{"a"}})
		q := next.openOther("test")
		defer q.finish()
		q.quiesce()
		if got := q.tiersOf(blocks); got != "--" || hasBytes(t, cfg.DiskDir, content) {
			t.Errorf("the blocks are in %q, or their bytes on disk", got)
		}
	})
}

// tenantStep is a step of TestTenantsAddUp.
type tenantStep struct {
	what         string
	tenant       string
	seed         uint64
	blocks       int
	host, disk   int // limits in slots
	bHost, slots int
}

func drawTenantStep(r *rapid.T) tenantStep {
	draw := func(what string, from, to int) int { return rapid.IntRange(from, to).Draw(r, what) }
	return tenantStep{
		what:   rapid.SampledFrom([]string{"store", "store", "store", "find", "limit", "disk", "expire"}).Draw(r, "step"),
		tenant: rapid.SampledFrom([]string{"a", "b", ""}).Draw(r, "tenant"),
		seed:   rapid.Uint64Range(1, 5).Draw(r, "seed"), blocks: draw("blocks", 1, 4),
		host: draw("host", 0, 6), disk: draw("disk", 0, 6), bHost: draw("host of b", 0, 6), slots: draw("slots", 4, 16),
	}
}

// TestTenantsAddUp: stores, lookups, expiries, resizes and changes of limits in any order end in a pool whose
// slots add up, and whose tenants use what their blocks take and no more than their limits.
func TestTenantsAddUp(t *testing.T) {
	rapid.Check(t, func(r *rapid.T) {
		steps := rapid.SliceOfN(rapid.Custom(drawTenantStep), 1, 25).Draw(r, "steps")
		synctest.Test(t, func(t *testing.T) { runTenantSteps(t, steps) })
	})
}

func runTenantSteps(t *testing.T, steps []tenantStep) {
	p := openTestPool(t, Config{
		HostDir: t.TempDir(), DiskDir: t.TempDir(),
		HostBytes: 2 * hostBytes(4), DiskBytes: 3 * hostBytes(4), ExtentBytes: hostBytes(4),
	})
	defer p.finish()
	limit := func(s *tenantStep) <-chan struct{} {
		return p.setTenants(
			tenant.Tenant{Name: "a", Salts: []string{"a"}, HostBytes: hostBytes(uint64(s.host)), DiskBytes: hostBytes(uint64(s.disk)),
				Models: map[string]Limit{p.ns.Model: {HostBytes: hostBytes(uint64(s.bHost))}}},
			tenant.Tenant{Name: "b", Salts: []string{"b"}, TTL: time.Hour, HostBytes: hostBytes(uint64(s.bHost))})
	}
	limit(&tenantStep{})
	for i := range steps {
		s := &steps[i]
		blocks := p.owned(s.tenant, 10*s.seed+map[string]uint64{"a": 1, "b": 2}[s.tenant], s.blocks)
		switch s.what {
		case "store":
			p.store(blocks)
		case "find":
			p.find(blocks)
		case "limit":
			limit(s)
		case "disk":
			p.resize(kv.TierDisk, hostBytes(uint64(s.slots)))
		case "expire":
			time.Sleep(2 * time.Hour)
		}
	}
	p.quiesce()
	<-p.m.broker.trim()
	p.quiesce()
	p.checkTenants()
}

// checkTenants compares what tenants use with their blocks and their limits.
func (p *testPool) checkTenants() {
	p.t.Helper()
	names, used := map[tenant.Index]string{0: ""}, map[string]int{}
	nameOf := func(b *Block) string { return names[p.m.broker.tenants.Index(b.Owner)] }
	for _, n := range p.m.TenantList() {
		names[p.m.broker.tenants.Index(p.m.OwnerOf(n.Name))] = n.Name
	}
	for _, info := range p.Dump() {
		if info.Tiers.Has(kv.TierHost) {
			used[nameOf(&info.Block)+" in host memory"]++
		}
		if info.Tiers.Has(kv.TierDisk) {
			used[nameOf(&info.Block)+" on disk"]++
		}
	}
	for _, s := range p.m.Tenants() {
		for lv, where := range []string{" in host memory", " on disk"} {
			if got, want := int(s.Used[lv]/testSlotBytes), used[s.Name+where]; got != want {
				p.t.Errorf("%s%s: %d slots are counted, blocks take %d", s.Name, where, got, want)
			}
			var models uint64
			for _, share := range append(s.Models, s.Share) {
				if share.Limit[lv] != 0 && share.Used[lv] > share.Limit[lv] {
					p.t.Errorf("%s%s, model %q: %d bytes of %d", s.Name, where, share.Model, share.Used[lv], share.Limit[lv])
				}
				models += share.Used[lv]
			}
			if models != 2*s.Used[lv] {
				p.t.Errorf("%s%s: %d bytes of all models, with those of each %d", s.Name, where, s.Used[lv], models)
			}
		}
	}
}
