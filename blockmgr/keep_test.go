package blockmgr

import (
	"errors"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/blockyard-ai/blockyard/internal/kv"
)

func keysOf(blocks []Block) []kv.StoredKey {
	keys := make([]kv.StoredKey, len(blocks))
	for i := range blocks {
		keys[i] = blocks[i].Key
	}
	return keys
}

// flood stores so many other blocks that everything leaves the host tier, and the
// disk tier, that can.
func (p *testPool) flood() {
	p.t.Helper()
	for seed := range uint64(16) {
		p.storeAt(chain(1000+seed, 1), 9)
		p.quiesce()
	}
}

func TestKeptBlocksStayUntilTheirTimeIsOver(t *testing.T) {
	for where, resident := range map[string][2]string{"host": {"HHH", "---"}, "host and disk": {"BBB", "---"}} {
		t.Run(where, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				cfg := Config{HostBytes: hostBytes(8)}
				if where != "host" {
					cfg.DiskBytes = 8 * testSlotBytes
				}
				p := newTestPool(t, cfg)
				blocks := chain(1, 3)
				p.store(blocks)
				p.quiesce()
				if kept, err := p.Keep(keysOf(blocks), time.Minute); err != nil || kept != 3 {
					t.Fatalf("%d kept, %v", kept, err)
				}
				p.flood()
				if got := p.tiersOf(blocks); got != resident[0] {
					t.Errorf("resident %q while they are kept", got)
				}
				p.check()
				time.Sleep(time.Minute + time.Second)
				synctest.Wait()
				if st := p.Stats(); st.Host.Active != 0 || st.Disk.Active != 0 {
					t.Errorf("%+v", st)
				}
				p.check()
				p.flood()
				if got := p.tiersOf(blocks); got != resident[1] {
					t.Errorf("resident %q after their time", got)
				}
			})
		})
	}
}

func TestKeepingAgainMakesItTheLongerTime(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := newTestPool(t, Config{HostBytes: hostBytes(8)})
		blocks := chain(1, 2)
		p.store(blocks)
		p.quiesce()
		for _, ttl := range []time.Duration{time.Minute, time.Hour, time.Second} {
			if kept, err := p.Keep(keysOf(blocks), ttl); err != nil || kept != 2 {
				t.Fatalf("%d kept, %v", kept, err)
			}
		}
		time.Sleep(59 * time.Minute)
		p.flood()
		if got := p.tiersOf(blocks); got != "HH" {
			t.Errorf("resident %q before the hour is over", got)
		}
		time.Sleep(2 * time.Minute)
		synctest.Wait()
		if st := p.Stats(); st.Host.Active != 0 || p.slots.Kept() != 0 || p.keeper.timer != nil {
			t.Errorf("%+v", st.Host)
		}
	})
}

func TestAtMostHalfOfATierIsKept(t *testing.T) {
	p := newTestPool(t, Config{HostBytes: hostBytes(8)})
	blocks := chain(1, 7)
	p.store(blocks)
	p.quiesce()
	keys := append(keysOf(blocks), chain(2, 1)[0].Key)
	if kept, err := p.Keep(keys, time.Hour); err != nil || kept != 4 {
		t.Errorf("%d kept, %v", kept, err)
	}
	if st := p.Stats(); st.KeepRefused != 3 || st.Host.Active != 4 {
		t.Errorf("%+v", st)
	}
	p.check()
	p.flood()
	if got := p.tiersOf(blocks); got != "HHHH---" {
		t.Errorf("resident %q", got)
	}
}

func TestKeepRefusesTimesOutOfRangeAndClosedPools(t *testing.T) {
	p := newTestPool(t, Config{HostBytes: hostBytes(8)})
	for _, ttl := range []time.Duration{0, -1, MaxKeep + 1} {
		if _, err := p.Keep(nil, ttl); err == nil || !strings.Contains(err.Error(), ttl.String()) {
			t.Errorf("%v: %v", ttl, err)
		}
	}
	if err := p.m.Close(); err != nil {
		t.Fatal(err)
	}
	if _, err := p.Keep(nil, time.Hour); !errors.Is(err, ErrClosed) {
		t.Errorf("closed: %v", err)
	}
}

// A kept block can still turn out to be bad; then it is gone, and no account of
// it is left.
func TestKeptBlockThatIsCorruptIsDropped(t *testing.T) {
	cfg := restartConfig(t, true)
	p := openTestPool(t, cfg)
	blocks := chain(1, 2)
	p.store(blocks)
	p.quiesce()
	slot := p.hostLocation(blocks[1].Key)
	p.finish()
	flip(t, slot.Path, slot.Offset)

	second := openTestPool(t, cfg)
	defer second.finish()
	if kept, err := second.Keep(keysOf(blocks), time.Hour); err != nil || kept != 2 {
		t.Fatalf("%d kept, %v", kept, err)
	}
	if got := sources(second.find(blocks)); got != "H" {
		t.Errorf("found %q", got)
	}
	second.check()
	second.mu.Lock()
	kept := second.slots.Kept() // one in host memory, two on disk
	second.mu.Unlock()
	if st := second.Stats(); st.CorruptHost != 1 || kept != 3 || st.Host.Quarantined != 0 {
		t.Errorf("%d slots kept, %+v", kept, st)
	}
	if got := sources(second.find(blocks)); got != "HD" {
		t.Errorf("found %q the next time", got)
	}
	second.quiesce()
}
