package blockmgr

import (
	"testing"

	"github.com/blockyard-ai/blockyard/internal/kv"
)

// Numbers of blocks are exact for each namespace, whatever the extent size, and
// namespaces take nothing from each other.
func TestTiersHaveExactlyTheNumberOfBlocksThatWasAskedFor(t *testing.T) {
	const host, disk = 21, 50
	p := newTestPool(t, Config{HostBlocks: host, DiskBlocks: disk, ExtentBytes: hostBytes(8)})
	for _, pool := range []*testPool{p, p.openOther("other")} {
		for seed := range uint64(70) {
			pool.store(chain(seed, 1))
			pool.quiesce()
		}
		st := pool.Stats()
		if st.Host.Capacity != host || st.Disk.Capacity != disk || st.HostEvictions != 70-host || st.DiskEvictions != 70-disk {
			t.Errorf("%+v", st)
		}
		if st.GrowErrors+st.GrowRefused+st.ExtentsYielded != 0 {
			t.Errorf("a tier at its bound counts as failed: %+v", st)
		}
		pool.check()
	}
}

func TestNumbersOfBlocksHoldAfterARestart(t *testing.T) {
	cfg := Config{HostDir: t.TempDir(), HostBlocks: 10, DiskDir: t.TempDir(), DiskBlocks: 20, ExtentBytes: hostBytes(8)}
	first := openTestPool(t, cfg)
	for seed := range uint64(30) {
		first.store(chain(seed, 1))
		first.quiesce()
	}
	first.m.Abandon()
	p := openTestPool(t, cfg)
	defer p.finish()
	if st := p.Stats(); st.RecoveredHost != 10 || st.Recovered != 20 {
		t.Errorf("%+v", st)
	}
	for seed := range uint64(30) {
		p.store(chain(100+seed, 1))
		p.quiesce()
	}
	if st := p.Stats(); st.Host.Capacity != 10 || st.Disk.Capacity != 20 {
		t.Errorf("%+v", st)
	}
}

// Another block size, another slot size: the bound counts blocks, not bytes.
func TestNumbersOfBlocksDoNotDependOnTheirSize(t *testing.T) {
	p := newTestPool(t, Config{HostBlocks: 6, ExtentBytes: hostBytes(4)})
	ns := testNamespace("wide")
	ns.InnerDim = 300
	wide := p.openNamespace(ns)
	for seed := range uint64(9) {
		wide.store(chain(seed, 1))
		wide.quiesce()
	}
	if st := wide.Stats(); wide.SlotBytes() == testSlotBytes || st.Host.Capacity != 6 {
		t.Errorf("slots of %d bytes, %+v", wide.SlotBytes(), st)
	}
	// A disk of so many blocks and no host tier is bypassed like one of bytes.
	bypass := newTestPool(t, Config{DiskBlocks: 4, ExtentBytes: hostBytes(4)})
	bypass.store(chain(1, 3))
	bypass.quiesce()
	if st := bypass.Stats(); st.Disk.Capacity != 4 || st.Host.Capacity != stagingSlots || bypass.tiersOf(chain(1, 3)) != "BBB" {
		t.Errorf("%+v", st)
	}
	if got := bypass.find(chain(1, 3)); len(got) != 3 || got[0] != kv.TierHost {
		t.Errorf("found %q", sources(got))
	}
}
