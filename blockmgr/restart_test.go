package blockmgr

import (
	"errors"
	"strings"
	"testing"

	"go.uber.org/zap"
	"go.uber.org/zap/zaptest/observer"

	"github.com/blockyard-ai/blockyard/blockmgr/storage"
)

func TestDiskTierIsWarmAfterARestart(t *testing.T) {
	cfg := Config{HostDir: t.TempDir(), HostBytes: hostBytes(8), DiskDir: t.TempDir(), DiskBytes: 64 * testSlotBytes, ExtentBytes: 16 * testSlotBytes}
	first := openTestPool(t, cfg)
	blocks, other := chain(1, 6), chain(2, 6)
	first.store(blocks)
	first.quiesce()
	first.store(other)
	first.quiesce()
	broken := first.diskLocation(other[3].Key)
	first.finish()

	// One record is damaged while nobody looks.
	flip(t, cfg.DiskDir+"/slots.table", int64(storage.PageSize+int(broken.Slot.Index)*storage.RecordSize+90))
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
	if got := second.find(chain(1, 3)); len(got) != 0 || logs.FilterMessageSnippet("made anew").Len() != 1 {
		t.Errorf("%d blocks found, logs %v", len(got), logs.All())
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
