package blockmgr

import (
	"errors"
	"os"
	"strings"
	"testing"

	"go.uber.org/zap"
	"go.uber.org/zap/zaptest/observer"

	"github.com/blockyard-ai/blockyard/blockmgr/storage"
)

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
		noError(t, os.Remove(path))
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
	noError(t, e.Host.SetGeneration(slot.Index, slot.Generation+1))
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
