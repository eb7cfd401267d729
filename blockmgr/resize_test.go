package blockmgr

import (
	"errors"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"pgregory.net/rapid"

	"github.com/blockyard-ai/blockyard/blockmgr/registry"
	"github.com/blockyard-ai/blockyard/internal/kv"
)

// resize changes a tier's size and returns whether the tier is within it now.
func (p *testPool) resize(kind kv.Tier, bytes uint64) (settled <-chan struct{}) {
	p.t.Helper()
	settled, err := p.m.Resize(kind, bytes)
	if err != nil {
		p.t.Fatalf("resize: %v", err)
	}
	return settled
}

// sized returns the size of a tier and the bytes that it uses, in slots.
func (p *testPool) sized(kind kv.Tier) (size, used uint64) {
	p.t.Helper()
	s, err := p.m.Size(kind)
	if err != nil {
		p.t.Fatalf("size: %v", err)
	}
	return s.Bytes / testSlotBytes, s.Used / testSlotBytes
}

// wantSized checks the size of a tier and the bytes that it uses, in slots.
func (p *testPool) wantSized(kind kv.Tier, size, used uint64) {
	p.t.Helper()
	if s, u := p.sized(kind); s != size || u != used {
		p.t.Errorf("%s has %d slots of which %d are used, want %d and %d", kind, s, u, size, used)
	}
}

// A larger host tier grows before it evicts; a smaller one gives the coldest extents back.
func TestHostTierIsResizedWhileItIsInUse(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := newTestPool(t, Config{HostBytes: 2 * hostBytes(4), ExtentBytes: hostBytes(4)})
		var seed uint64
		p.demand(&seed, 8)
		p.wantSized(kv.TierHost, 8, 8)
		<-p.resize(kv.TierHost, 4*hostBytes(4))
		p.quiesce() // the tier grows ahead of its demand
		p.demand(&seed, 8)
		p.wantSized(kv.TierHost, 16, 16)
		if n := p.Stats().HostEvictions; n != 0 {
			t.Errorf("%d evictions while the tier grows", n)
		}
		<-p.resize(kv.TierHost, 2*hostBytes(4)+1) // two extents and no more
		if got := p.Stats(); got.Host.Extents != 2 || got.HostEvictions != 8 || got.ExtentsYielded != 2 {
			t.Errorf("%d extents, %d evictions, %d extents given back", got.Host.Extents, got.HostEvictions, got.ExtentsYielded)
		}
		for s := range seed {
			if want := map[bool]string{true: "H"}[s >= 8]; sources(p.find(chain(s+1, 1))) != want {
				t.Errorf("block %d: want %q", s+1, want)
			}
		}
	})
}

// An extent with a pinned block stays until the block is no longer pinned, and goes then by itself.
func TestShrinkingWaitsForBlocksInUse(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := newTestPool(t, Config{HostBytes: 2 * hostBytes(4), ExtentBytes: hostBytes(4)})
		var seed uint64
		p.demand(&seed, 8)
		other := p.begin()
		var pinned []Slot
		for s := range seed {
			pinned = append(pinned, p.pin(other, chain(s+1, 1))...)
		}
		settled := p.resize(kv.TierHost, hostBytes(4))
		time.Sleep(time.Second)
		p.wantSized(kv.TierHost, 4, 8)
		if got := p.resize(kv.TierHost, hostBytes(4)); got != settled {
			t.Error("a second resize is not settled with the first one")
		}
		if err := p.Unpin(other, pinned); err != nil {
			t.Fatal(err)
		}
		<-settled
		p.wantSized(kv.TierHost, 4, 4)
		p.demand(&seed, 4) // the tier evicts and goes on
		p.wantSized(kv.TierHost, 4, 4)
	})
}

func TestDiskTierIsResizedWhileItIsInUse(t *testing.T) {
	p := newTestPool(t, Config{HostBytes: hostBytes(4), DiskBytes: 2 * hostBytes(4), ExtentBytes: hostBytes(4)})
	var seed uint64
	p.demand(&seed, 8)
	p.wantSized(kv.TierDisk, 8, 8)
	<-p.resize(kv.TierDisk, 3*hostBytes(4))
	p.demand(&seed, 4)
	p.wantSized(kv.TierDisk, 12, 12)
	if n := p.Stats().DiskEvictions; n != 0 {
		t.Errorf("%d evictions while the tier grows", n)
	}
	<-p.resize(kv.TierDisk, hostBytes(4))
	p.wantSized(kv.TierDisk, 4, 4)
	p.demand(&seed, 4)
	if got := sources(p.find(chain(seed, 1))); got != "H" {
		t.Errorf("found %q", got)
	}
}

func TestResizeSaysWhyItIsRefused(t *testing.T) {
	p := newTestPool(t, Config{HostBytes: 2 * hostBytes(4), ExtentBytes: hostBytes(4)})
	for _, c := range []struct {
		kind  kv.Tier
		bytes uint64
		is    error
		text  string
	}{
		{kv.TierHost, hostBytes(4) - 1, ErrSize, "want 16KiB (one extent)"},
		{kv.TierHost, 1 << 62, ErrSize, "host size"},
		{kv.TierDisk, hostBytes(4), ErrNoTier, "tier disk is off"},
	} {
		if _, err := p.m.Resize(c.kind, c.bytes); !errors.Is(err, c.is) || !strings.Contains(err.Error(), c.text) {
			t.Errorf("%s of %d bytes: error %v, want %q", c.kind, c.bytes, err, c.text)
		}
	}
	p.wantSized(kv.TierHost, 8, 4)
	blocks := newTestPool(t, Config{HostBlocks: 8})
	if _, err := blocks.m.Resize(kv.TierHost, hostBytes(4)); !errors.Is(err, ErrNoTier) || !strings.Contains(err.Error(), "number of blocks") {
		t.Errorf("error %v of a tier that is bounded in blocks", err)
	}
}

// A model never has more than its limit, may use up a lower one at once, and another model gets the room.
func TestModelStaysWithinItsLimit(t *testing.T) {
	for where, lv := range map[string]registry.Level{"host": registry.Host, "disk": registry.Disk} {
		t.Run(where, func(t *testing.T) {
			pools := quotaPools(t, lv == registry.Disk)
			a := pools["a"]
			var seed uint64
			set := func(extents uint64) {
				t.Helper()
				settled, err := a.m.SetModelLimits(map[string]Limit{"a": Limit{}.With(kindOf(lv), extents*hostBytes(4))})
				if err != nil {
					t.Fatal(err)
				}
				<-settled
			}
			set(3)
			a.demand(&seed, 40)
			if got := extents(pools, lv); got["a"] != 3 {
				t.Errorf("extents %v with a limit of 3", got)
			}
			last := chain(seed, 1)
			if got := sources(a.find(last)); got != "H" {
				t.Errorf("the last block is found in %q", got)
			}
			set(2)
			if got := extents(pools, lv); got["a"] != 2 || a.m.ModelUse("a", kindOf(lv)) != 2*hostBytes(4) {
				t.Errorf("extents %v, %d bytes with a limit of 2", got, a.m.ModelUse("a", kindOf(lv)))
			}
			pools["b"].demand(&seed, 40)
			if got := extents(pools, lv); got["b"] != 5 {
				t.Errorf("extents %v: the other model does not get the room", got)
			}
			set(0)
			for range 10 {
				a.demand(&seed, 8)
			}
			if got := extents(pools, lv); got["a"] < 4 {
				t.Errorf("extents %v without a limit", got)
			}
		})
	}
}

// TestResizeKeepsWhatAPoolPromises: stores, lookups, pins and resizes of both tiers in any order end in a
// pool whose slots add up, whose bytes are right, and whose tiers are within their last sizes.
func TestResizeKeepsWhatAPoolPromises(t *testing.T) {
	rapid.Check(t, func(r *rapid.T) {
		p := openTestPool(t, Config{
			HostDir: t.TempDir(), DiskDir: t.TempDir(),
			HostBytes: 2 * hostBytes(4), DiskBytes: 4 * hostBytes(4), ExtentBytes: hostBytes(4),
		})
		defer p.finish()
		var stored uint64
		for range rapid.IntRange(1, 20).Draw(r, "steps") {
			switch rapid.SampledFrom([]string{"store", "find", "host", "disk", "limit"}).Draw(r, "step") {
			case "store":
				stored++
				p.store(chain(stored, rapid.IntRange(1, 5).Draw(r, "blocks")))
			case "find":
				if stored > 0 {
					p.find(chain(rapid.Uint64Range(1, stored).Draw(r, "chain"), 5))
				}
			case "host":
				p.resize(kv.TierHost, hostBytes(uint64(rapid.IntRange(4, 24).Draw(r, "slots"))))
			case "disk":
				p.resize(kv.TierDisk, hostBytes(uint64(rapid.IntRange(4, 24).Draw(r, "slots"))))
			case "limit":
				limit := Limit{HostBytes: hostBytes(uint64(rapid.IntRange(4, 24).Draw(r, "slots")))}
				if _, err := p.m.SetModelLimits(map[string]Limit{"test": limit}); err != nil {
					r.Fatal(err)
				}
			}
		}
		p.quiesce()
		<-p.m.broker.trim()
		p.check()
		for _, kind := range []kv.Tier{kv.TierHost, kv.TierDisk} {
			if size, used := p.sized(kind); used > size {
				r.Errorf("%s uses %d slots of %d", kind, used, size)
			}
		}
	})
}
