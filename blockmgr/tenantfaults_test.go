package blockmgr

import (
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"go.uber.org/zap"
	"go.uber.org/zap/zaptest/observer"

	"github.com/blockyard-ai/blockyard/blockmgr/registry"
	"github.com/blockyard-ai/blockyard/blockmgr/storage"
	"github.com/blockyard-ai/blockyard/blockmgr/tenant"
	"github.com/blockyard-ai/blockyard/internal/kv"
	"github.com/blockyard-ai/blockyard/internal/waittest"
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
	waittest.Until(t, "the model is within its limit", func() bool { return q.m.ModelUse("test", kv.TierHost) <= 2*hostBytes(4) })
}

// A quota that an operator sets while the limits are read again changes one limit of the new ones, and never
// brings the others back.
func TestQuotaAndReloadKeepEachOthersLimits(t *testing.T) {
	p := newTestPool(t, Config{HostBytes: 2 * hostBytes(4), ExtentBytes: hostBytes(4)})
	set := func(err error) {
		if err != nil {
			t.Error(err)
		}
	}
	for range 2000 {
		var wg sync.WaitGroup
		wg.Go(func() {
			_, err := p.m.SetQuota(QuotaName{Of: OfModel, Name: "a"}, kv.TierHost, hostBytes(4))
			set(err)
		})
		_, err := p.m.SetModelLimits(map[string]Limit{"b": {HostBytes: hostBytes(8)}})
		set(err)
		wg.Wait()
		if _, ok := p.m.ModelLimits()["b"]; !ok {
			t.Fatal("the limits of a reload are gone after the quota of another model")
		}
		_, err = p.m.SetModelLimits(nil)
		set(err)
	}
}

// A tier that pins keep beyond its size is looked at for some minutes, with one log line and a count at the
// end, and again when a session ends.
func TestTrimGivesUpWhileSlotsStayInUse(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		core, logs := observer.New(zap.WarnLevel)
		p := newTestPool(t, Config{HostBytes: 2 * hostBytes(4), ExtentBytes: hostBytes(4), Log: zap.New(core)})
		var seed uint64
		p.demand(&seed, 8)
		other := p.begin()
		for s := range seed {
			p.pin(other, chain(s+1, 1))
		}
		for round := range uint64(2) {
			began := time.Now()
			<-p.resize(kv.TierHost, hostBytes(4))
			if took := time.Since(began); took < 5*time.Minute || took > 15*time.Minute {
				t.Errorf("given up after %v", took)
			}
			if n := p.Stats().TrimsGivenUp; n != round+1 {
				t.Errorf("%d trims are given up, want %d", n, round+1)
			}
		}
		if n := logs.FilterMessageSnippet("a tier is larger than its size").Len(); n != 1 {
			t.Errorf("%d log lines, want 1", n)
		}
		p.wantSized(kv.TierHost, 4, 8)
		p.EndSession(other, nil)
		synctest.Wait()
		p.wantSized(kv.TierHost, 4, 4)
	})
}

// The bytes of a tenant that are in a slot without a block are overwritten with its extent, too. All zeros
// count in the write budget.
func TestExtentsThatLeaveAreOverwrittenWhole(t *testing.T) {
	disk, budget := t.TempDir(), &countedBudget{}
	budget.left.Store(100)
	p := newTestPool(t, Config{DiskDir: disk, HostBytes: hostBytes(4), ExtentBytes: hostBytes(4), DiskBytes: hostBytes(4), Budget: budget})
	p.setTenants(tenant.Tenant{Name: "a", Salts: []string{"a"}, TTL: time.Hour})
	blocks := p.owned("a", 1, 3)
	p.store(blocks)
	p.quiesce()
	p.mu.Lock()
	p.slots.Drop(p.slots.Disk, p.slots.DiskSlot(&blocks[2].Key), storage.StateQuarantined) // a bad sector
	p.mu.Unlock()
	gone, _, _ := p.idleExtent(registry.Disk, 0)
	if gone == nil || !p.takeOut(registry.Disk, gone) {
		t.Fatal("the first disk extent is in use")
	}
	before := budget.records.Load()
	p.broker.drop(gone)
	for i := range blocks {
		if hasBytes(t, disk, p.content(&blocks[i], 0)) {
			t.Errorf("the bytes of block %d are still on disk", i)
		}
	}
	if got := budget.records.Load() - before; got != 3*testSlotBytes {
		t.Errorf("%d bytes of zeros are counted, want %d", got, 3*testSlotBytes)
	}
}

// The second copy of a tenant's block, and a block that is given up, leave no bytes in host memory. Nor do
// blocks whose session ends, or whose slot becomes a block of nobody.
func TestCopiesThatAreNotRegisteredAreOverwritten(t *testing.T) {
	host := t.TempDir()
	p := newTestPool(t, Config{HostDir: host, HostBytes: hostBytes(8), ExtentBytes: hostBytes(8)})
	p.setTenants(tenant.Tenant{Name: "a", Salts: []string{"a"}, TTL: time.Hour}, tenant.Tenant{Name: "b", Salts: []string{"b"}})
	block := p.owned("a", 1, 1)
	for range 2 {
		p.register(block)[0].Release()
	}
	p.quiesce()
	if n := p.Stats().SlotsErased; n != 1 {
		t.Errorf("%d slots are overwritten for a second copy, want 1", n)
	}
	partial := p.allocate(1)[0]
	noError(t, partial.InitSequence(Root{Owner: p.m.OwnerOf("a")}))
	copy(partial.Data(), p.content(&block[0], 1))
	partial.Release()
	p.quiesce()
	if n := p.Stats().SlotsErased; n != 2 || hasBytes(t, host, p.content(&block[0], 1)) {
		t.Errorf("%d slots are overwritten after a partial block, want 2 and none of its bytes", n)
	}
	for name, giveUp := range map[string]func(b *MutableBlock, s SessionID){
		"released": func(b *MutableBlock, _ SessionID) { b.Release() },
		"reset, then released": func(b *MutableBlock, _ SessionID) {
			noError(t, b.Reset())
			b.Release()
		},
		"reset, then another tenant's": func(b *MutableBlock, _ SessionID) {
			noError(t, b.Reset())
			noError(t, b.ApplyTokenBlock(TokenBlock{Block: p.owned("b", 3, 1)[0], Tokens: blockTokens(0)}))
			b.Release()
		},
		"session ends": func(_ *MutableBlock, s SessionID) { p.EndSession(s, nil) },
		"session ends, then its process": func(_ *MutableBlock, s SessionID) {
			gone := make(chan struct{})
			p.EndSession(s, gone)
			close(gone)
		},
	} {
		t.Run(name, func(t *testing.T) {
			before, block, s := p.Stats().SlotsErased, p.owned("a", 2, 1), p.begin()
			allocated, err := p.Allocate(s, 1)
			noError(t, err)
			p.prepare(allocated, block)
			if !hasBytes(t, host, p.content(&block[0], 0)) {
				t.Fatal("the bytes of the block are not in host memory")
			}
			giveUp(allocated[0], s)
			waittest.Until(t, "one slot is overwritten", func() bool { return p.Stats().SlotsErased == before+1 })
			if hasBytes(t, host, p.content(&block[0], 0)) {
				t.Error("the bytes of the block that was given up are still in host memory")
			}
		})
	}
}

// A slot that a tenant's block has left without Register becomes a block of nobody, which is no tenant's to
// count or to overwrite.
func TestSlotOfATenantBecomesABlockOfNobody(t *testing.T) {
	p := newTestPool(t, Config{HostBytes: hostBytes(8), ExtentBytes: hostBytes(8)})
	p.setTenants(tenant.Tenant{Name: "a", Salts: []string{"a"}, TTL: time.Hour})
	allocated := p.allocate(1)
	p.prepare(allocated, p.owned("a", 1, 1))
	noError(t, allocated[0].Reset())
	p.prepare(allocated, chain(2, 1))
	handles, err := p.Register(p.sid, allocated)
	noError(t, err)
	handles[0].Release()
	p.checkTenants()
	p.evictHost(chain(2, 1))
	p.quiesce()
	if n := p.Stats().SlotsErased; n != 0 {
		t.Errorf("%d slots of nobody are overwritten", n)
	}
	p.checkTenants()
}
