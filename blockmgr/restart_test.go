package blockmgr

import (
	"errors"
	"os"
	"slices"
	"strings"
	"testing"

	"go.uber.org/zap"
	"go.uber.org/zap/zaptest/observer"

	"github.com/blockyard-ai/blockyard/blockmgr/storage"
	"github.com/blockyard-ai/blockyard/internal/kv"
)

func TestDiskTierIsWarmAfterARestart(t *testing.T) {
	cfg := Config{
		DiscardHost: true, HostDir: t.TempDir(), HostBytes: hostBytes(8),
		DiskDir: t.TempDir(), DiskBytes: 64 * testSlotBytes, ExtentBytes: 16 * testSlotBytes,
	}
	first := openTestPool(t, cfg)
	blocks, other := chain(1, 6), chain(2, 6)
	first.store(blocks)
	first.quiesce()
	first.store(other)
	first.quiesce()
	broken := first.diskLocation(other[3].Key)
	first.finish()

	// One record is damaged while nobody looks.
	tearRecord(t, cfg.DiskDir, broken.Slot)
	second := openTestPool(t, cfg)
	defer second.finish()
	if got := second.tiersOf(blocks) + " " + second.tiersOf(other); got != "DDDDDD DDD-DD" {
		t.Errorf("recovered %q", got)
	}
	if st := second.Stats(); st.Recovered != 11 || st.Disk.Inactive != 11 {
		t.Errorf("%+v", st)
	}
	second.check()
	if got := sources(second.find(blocks)); got != "DDDDDD" {
		t.Errorf("found %q", got)
	}
	if got := sources(second.find(blocks)); got != "HHHHHH" {
		t.Errorf("found %q when they had been promoted", got)
	}
	if got := sources(second.find(other)); got != "DDD" {
		t.Errorf("found %q, want what comes before the damaged record", got)
	}
}

func TestRestartWithAnotherExtentSizeStartsCold(t *testing.T) {
	cfg := Config{HostDir: t.TempDir(), HostBytes: hostBytes(8), DiskDir: t.TempDir(), DiskBytes: 64 * testSlotBytes}
	first := openTestPool(t, cfg)
	first.store(chain(1, 3))
	first.quiesce()
	first.finish()
	core, logs := observer.New(zap.WarnLevel)
	cfg.ExtentBytes, cfg.Log = 1<<20, zap.New(core)
	second := openTestPool(t, cfg)
	defer second.finish()
	if got := second.find(chain(1, 3)); len(got) != 0 || logs.FilterMessageSnippet("made anew").Len() != 2 {
		t.Errorf("%d blocks found, logs %v", len(got), logs.All())
	}
	if n := second.Stats().ExtentsRemoved; n != 2 {
		t.Errorf("%d extents counted as removed, want one in each tier", n)
	}
}

// Its file may go between the look at all files and the one at its own.
func TestExtentThatCannotBeOpenedAgainIsCounted(t *testing.T) {
	cfg := restartConfig(t, true)
	first := openTestPool(t, cfg)
	first.store(chain(1, 3))
	first.quiesce()
	gone := []string{first.hostLocation(chain(1, 1)[0].Key).Path, first.diskLocation(chain(1, 1)[0].Key).Path}
	first.finish()
	m := openTestManager(t, cfg)
	for _, path := range gone {
		if err := os.Remove(path); err != nil {
			t.Fatal(err)
		}
	}
	second := m.openOther("test")
	defer second.finish()
	if st := second.Stats(); st.ExtentsRemoved != 2 || st.Blocks != 0 || st.ExtentsLeaving != 0 {
		t.Errorf("%+v", st)
	}
}

func TestSecondManagerOnTheSameDirectoriesIsRefused(t *testing.T) {
	p := diskPool(t, nil)
	cfg := Config{HostDir: t.TempDir(), HostBytes: hostBytes(8), DiskDir: p.cfg.DiskDir, DiskBytes: 1 << 20}
	if _, err := Open(cfg); !errors.Is(err, storage.ErrLocked) || !strings.Contains(err.Error(), p.cfg.DiskDir) {
		t.Errorf("same disk directory: %v", err)
	}
	cfg = Config{HostDir: p.cfg.HostDir, HostBytes: hostBytes(8)}
	if _, err := Open(cfg); !errors.Is(err, storage.ErrLocked) || !strings.Contains(err.Error(), p.cfg.HostDir) {
		t.Errorf("same host directory: %v", err)
	}
}

// restartConfig has room for 8 blocks in host memory and, with disk, 64 there.
func restartConfig(t *testing.T, disk bool) Config {
	cfg := Config{HostDir: t.TempDir(), HostBytes: hostBytes(8)}
	if disk {
		cfg.DiskDir, cfg.DiskBytes = t.TempDir(), 64*testSlotBytes
	}
	return cfg
}

// ends are the ways in which an agent ends.
var ends = map[string]func(*testPool){
	"closed": (*testPool).finish,
	"killed": func(p *testPool) { p.m.Abandon() },
}

func TestEverythingSealedIsServedAfterARestart(t *testing.T) {
	for how, end := range ends {
		for where, disk := range map[string]bool{"host": false, "host and disk": true} {
			t.Run(how+"/"+where, func(t *testing.T) {
				cfg := restartConfig(t, disk)
				blocks, resident := chain(1, 6), "HHHHHH"
				if disk {
					resident = "BBBBBB"
				}
				first := openTestPool(t, cfg)
				first.store(blocks)
				first.quiesce()
				end(first)

				second := openTestPool(t, cfg)
				defer second.finish()
				if got := second.tiersOf(blocks); got != resident || !second.m.Warm() {
					t.Errorf("recovered %q, warm %v", got, second.m.Warm())
				}
				second.check()
				second.checkEvents()
				if st := second.Stats(); st.RecoveredHost != 6 || st.Verified != 0 || st.Host.Inactive != 6 {
					t.Errorf("%+v", st)
				}
				for range 2 {
					if got := sources(second.find(blocks)); got != "HHHHHH" {
						t.Errorf("found %q", got)
					}
				}
				if st := second.Stats(); st.Verified != 6 || st.CorruptHost != 0 {
					t.Errorf("%d blocks compared with their checksums in two lookups, %d bad", st.Verified, st.CorruptHost)
				}
				second.quiesce()
			})
		}
	}
}

// Nobody watched the memory between two agents: what changed there is a miss,
// and the copy on disk serves the next lookup.
func TestHostByteFlippedBetweenTwoAgentsIsAMiss(t *testing.T) {
	for where, disk := range map[string]bool{"host": false, "host and disk": true} {
		t.Run(where, func(t *testing.T) {
			cfg := restartConfig(t, disk)
			first := openTestPool(t, cfg)
			blocks := chain(1, 5)
			first.store(blocks)
			first.quiesce()
			bad := first.hostLocation(blocks[2].Key)
			first.m.Abandon()
			flip(t, bad.Path, bad.Offset+100)

			second := openTestPool(t, cfg)
			defer second.finish()
			if got := sources(second.find(blocks)); got != "HH" {
				t.Errorf("found %q, want the two blocks before the flipped one", got)
			}
			if st := second.Stats(); st.CorruptHost != 1 || st.Host.Quarantined != 0 || st.Host.Free != 4 {
				t.Errorf("%+v", st)
			}
			want := "HH"
			if disk {
				want = "HHDHH"
			}
			if got := sources(second.find(blocks)); got != want {
				t.Errorf("found %q the next time, want %q", got, want)
			}
			second.quiesce()
		})
	}
}

// What had no checksum yet means nothing to the next agent.
func TestUnsealedSlotsAreFreeAfterARestart(t *testing.T) {
	cfg := restartConfig(t, false)
	first := openTestPool(t, cfg)
	blocks := chain(1, 6)
	first.store(blocks)
	first.quiesce()
	slots := first.pin(first.sid, blocks)
	if err := first.Unpin(first.sid, slots); err != nil {
		t.Fatal(err)
	}
	first.m.Abandon()
	states := []storage.State{storage.StateFilled, storage.StateStaging, storage.StateReceiving, storage.StateEvicting}
	for i, state := range states {
		rewriteRecord(t, cfg.HostDir, slots[i], func(r *storage.Record) { r.State = state })
	}

	second := openTestPool(t, cfg)
	defer second.finish()
	if got := second.tiersOf(blocks); got != "----HH" {
		t.Errorf("recovered %q", got)
	}
	if st := second.Stats(); st.Host.Free != 6 || st.Host.Quarantined != 0 || st.RecoveryUnsealed != 1 {
		t.Errorf("%+v", st)
	}
	for _, now := range second.grant(second.sid, chain(2, 6)) {
		for _, old := range slots {
			if now == old {
				t.Errorf("slot %+v came back with the generation it had", now)
			}
		}
	}
}

// A slot whose generation word moved on was being freed when the agent died.
func TestSlotThatWasBeingFreedHasNoBlockAfterARestart(t *testing.T) {
	cfg := restartConfig(t, false)
	first := openTestPool(t, cfg)
	blocks := chain(1, 2)
	first.store(blocks)
	first.quiesce()
	slot := first.hostLocation(blocks[1].Key).Slot
	ref, _ := first.slots.Host.Lookup(slot)
	e, _ := first.slots.Host.At(ref)
	if err := e.Host.SetGeneration(slot.Index, slot.Generation+1); err != nil {
		t.Fatal(err)
	}
	first.m.Abandon()

	second := openTestPool(t, cfg)
	defer second.finish()
	if got := second.tiersOf(blocks); got != "H-" || second.Stats().RecoveryFreed != 1 {
		t.Errorf("recovered %q, %+v", got, second.Stats())
	}
	for _, now := range second.grant(second.sid, chain(2, 7)) {
		if now.Index == slot.Index && now.Generation <= slot.Generation+1 {
			t.Errorf("granted at generation %d, which clients have seen", now.Generation)
		}
	}
}

// A record that cannot be of this pool, or of a block that is there already, is
// not taken over.
func TestRecordsThatContradictOthersAreDroppedAtARestart(t *testing.T) {
	for what, c := range map[string]struct {
		change         func(r *storage.Record, other Block)
		foreign, twice uint64
	}{
		"another namespace": {func(r *storage.Record, _ Block) { r.Namespace++ }, 1, 0},
		"another length":    {func(r *storage.Record, _ Block) { r.Length++ }, 1, 0},
		"a block twice":     {func(r *storage.Record, other Block) { r.Key = other.Key }, 0, 1},
	} {
		t.Run(what, func(t *testing.T) {
			cfg := restartConfig(t, false)
			first := openTestPool(t, cfg)
			blocks := chain(1, 3)
			first.store(blocks)
			first.quiesce()
			slot := first.hostLocation(blocks[2].Key).Slot
			first.m.Abandon()
			rewriteRecord(t, cfg.HostDir, slot, func(r *storage.Record) { c.change(r, blocks[0]) })
			p := openTestPool(t, cfg)
			defer p.finish()
			if got := p.tiersOf(blocks); got != "HH-" || p.Stats().Host.Free != 6 {
				t.Errorf("recovered %q, %+v", got, p.Stats().Host)
			}
			if st := p.Stats(); st.RecoveryForeign != c.foreign || st.RecoveryTwice != c.twice || st.RecoveryUnsealed+st.RecoveryFreed != 0 {
				t.Errorf("%+v", st)
			}
			if got := sources(p.find(blocks)); got != "HH" {
				t.Errorf("found %q", got)
			}
		})
	}
}

// Live host memory is not compared: a byte that changes there is served, and the
// comparisons of these tests see it.
func TestFlippedByteOfALiveHostBlockIsSeen(t *testing.T) {
	p := openTestPool(t, restartConfig(t, false))
	defer p.finish()
	blocks := chain(1, 1)
	p.store(blocks)
	p.quiesce()
	bad := p.hostLocation(blocks[0].Key)
	flip(t, bad.Path, bad.Offset)
	got, want := p.read(p.pin(p.sid, blocks)[0]), p.content(&blocks[0], 0)
	if got[0] != want[0]^0xff || !slices.Equal(got[1:], want[1:]) {
		t.Errorf("served %x..., stored %x...", got[:4], want[:4])
	}
}

// tierOfFour is a config in which one tier has four slots and outlives the agent.
func tierOfFour(t *testing.T, disk bool) Config {
	cfg := Config{HostDir: t.TempDir(), HostBytes: hostBytes(4)}
	if disk {
		cfg.HostBytes, cfg.DiscardHost = hostBytes(16), true
		cfg.DiskDir, cfg.DiskBytes = t.TempDir(), 4*testSlotBytes
	}
	return cfg
}

// evictionOrder stores new blocks until the four given ones have left the tier,
// and tells in which order they did.
func (p *testPool) evictionOrder(t *testing.T, tier kv.Tier, blocks []Block) (order []int) {
	gone := map[int]bool{}
	for n := uint64(0); len(order) < len(blocks); n++ {
		if n == 8 {
			t.Fatalf("only %v left", order)
		}
		p.storeAt(chain(100+n, 1), 9)
		p.quiesce()
		for i, b := range blocks {
			p.sink.mu.Lock()
			_, there := p.sink.resident[sinkKey{p.id, tier, b.Key}]
			p.sink.mu.Unlock()
			if !there && !gone[i] {
				gone[i] = true
				order = append(order, i)
			}
		}
	}
	return order
}

func TestEvictionOrderOutlivesTheAgent(t *testing.T) {
	for tier, disk := range map[kv.Tier]bool{kv.TierHost: false, kv.TierDisk: true} {
		for what, use := range map[string]func(*testPool, []Block){
			"recency": func(p *testPool, blocks []Block) {
				for _, b := range blocks {
					p.storeAt([]Block{b}, 1)
					p.quiesce()
				}
				for _, i := range []int{2, 0, 3, 1} {
					for range 1 << recencyShift {
						p.find(blocks[i : i+1])
					}
				}
				// On disk the recency is written with the next change of its page.
				p.storeAt(blocks[1:2], 2)
			},
			"priority": func(p *testPool, blocks []Block) {
				for i, priority := range []uint32{2, 4, 1, 3} {
					p.storeAt(blocks[i:i+1], priority)
					p.quiesce()
				}
			},
		} {
			t.Run(tier.String()+"/"+what, func(t *testing.T) {
				cfg := tierOfFour(t, disk)
				blocks := slices.Concat(chain(1, 1), chain(2, 1), chain(3, 1), chain(4, 1))
				first := openTestPool(t, cfg)
				use(first, blocks)
				first.finish()
				second := openTestPool(t, cfg)
				defer second.finish()
				if got := second.evictionOrder(t, tier, blocks); !slices.Equal(got, []int{2, 0, 3, 1}) {
					t.Errorf("evicted in order %v", got)
				}
			})
		}
	}
}
