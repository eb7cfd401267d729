package storage

import (
	"bytes"
	"errors"
	"os"
	"path/filepath"
	"sync"
	"testing"

	"go.uber.org/zap"

	"github.com/blockyard-ai/blockyard/blockmgr/storage/extent"
	"github.com/blockyard-ai/blockyard/blockmgr/storage/sealed"
)

// keyed is the configuration of a disk arena with a key of 32 bytes b.
func keyed(t *testing.T, dir string, b byte) ArenaConfig {
	t.Helper()
	key, err := sealed.ParseKey(bytes.Repeat([]byte{b}, sealed.KeyBytes), "test")
	if err != nil {
		t.Fatal(err)
	}
	return ArenaConfig{Dir: dir, Bytes: 16 * PageSize, ExtentBytes: 16 * PageSize, Key: key, Log: zap.NewNop()}
}

// An agent that starts while another one makes the arena leaves the other one's slots.key alone.
func TestKeyIsMadeUnderTheLock(t *testing.T) {
	dir := t.TempDir()
	first, second := keyed(t, dir, 1), keyed(t, dir, 2)
	var while error
	first.Disk.Wrap = func(_ string, f extent.File) extent.File { // the table is locked, and has no header yet
		_, while = OpenDiskArena(second)
		return f
	}
	a, err := OpenDiskArena(first)
	if err != nil || !errors.Is(while, ErrLocked) {
		t.Fatalf("the first agent: %v; one that starts at the same time: %v", err, while)
	}
	if _, err := OpenDiskArena(second); !errors.Is(err, ErrLocked) {
		t.Errorf("an agent that starts afterwards: %v", err)
	}
	if err := errors.Join(a.Close(nil), sealed.Check(dir, first.Key)); err != nil {
		t.Error(err)
	}
}

// Of two agents that start at once on a new directory one gets the arena, with its key.
func TestTwoAgentsMakeOneArena(t *testing.T) {
	for range 20 {
		dir := t.TempDir()
		var wg sync.WaitGroup
		cfgs, arenas, errs := [2]ArenaConfig{keyed(t, dir, 1), keyed(t, dir, 2)}, [2]*DiskArena{}, [2]error{}
		for i := range cfgs {
			wg.Go(func() { arenas[i], errs[i] = OpenDiskArena(cfgs[i]) })
		}
		wg.Wait()
		won := 0
		if errs[0] != nil {
			won = 1
		}
		if errs[won] != nil || !errors.Is(errs[1-won], ErrLocked) {
			t.Fatalf("errors %v and %v: want one, that the arena is locked", errs[0], errs[1])
		}
		if err := errors.Join(arenas[won].Close(nil), sealed.Check(dir, cfgs[won].Key)); err != nil {
			t.Fatal(err)
		}
	}
}

// An agent that died before it had made the arena left slots.key, and no slot table or an empty one: any key
// may make the arena.
func TestEmptyTableIsOfAnyKey(t *testing.T) {
	for i, next := range []byte{1, 2, 1, 2} {
		cfg := keyed(t, t.TempDir(), next)
		if _, err := sealed.Open(cfg.Dir, keyed(t, cfg.Dir, 1).Key); err != nil {
			t.Fatal(err)
		}
		if i < 2 {
			if err := os.WriteFile(filepath.Join(cfg.Dir, tableName), nil, 0o600); err != nil {
				t.Fatal(err)
			}
		}
		a, err := OpenDiskArena(cfg)
		if err != nil {
			t.Fatalf("key %d: %v", next, err)
		}
		if err := errors.Join(a.Close(nil), sealed.Check(cfg.Dir, cfg.Key)); err != nil {
			t.Errorf("key %d: %v", next, err)
		}
	}
}
