package killloop

import (
	"os"
	"path/filepath"
	"slices"
	"testing"

	"go.uber.org/zap"

	"github.com/blockyard-ai/blockyard/blockmgr/storage"
	"github.com/blockyard-ai/blockyard/internal/kv"
)

func keyOf(i int) kv.StoredKey { return kv.BlockKey{byte(i + 1)}.InGroup(0) }

// record returns one that a slot may have, at generation 7.
func record(i int, state storage.State) *storage.Record {
	return &storage.Record{Key: keyOf(i), Length: blockBytes, Generation: 7, State: state}
}

// makeHost makes a host tier of two extents and leaves its files: in the first,
// slot 0 is sealed, 1 granted, 2 filled, 3 sealed with another generation word
// and 4 sealed and then torn; the second one is dropped again.
func makeHost(t *testing.T) (dir string) {
	t.Helper()
	dir = filepath.Join(t.TempDir(), "host")
	h, err := storage.OpenHostArena(storage.ArenaConfig{
		Dir: dir, Bytes: 32 * blockBytes, ExtentBytes: 16 * blockBytes, Log: zap.NewNop(),
	})
	if err != nil {
		t.Fatal(err)
	}
	ns := namespaceOf(0)
	index, err := h.Namespace(ns.ID(), blockBytes)
	if err != nil {
		t.Fatal(err)
	}
	var parts []storage.HostExtent
	for range 2 {
		p, err := h.Grow(index, blockBytes, 1, 0)
		if err != nil {
			t.Fatal(err)
		}
		parts = append(parts, p)
	}
	for i, state := range []storage.State{storage.StateSealed, storage.StateGranted, storage.StateFilled, storage.StateSealed, storage.StateSealed} {
		parts[0].Slots.Put(uint32(i), record(i, state))
		word := uint64(7)
		if i == 3 {
			word = 8
		}
		if err := parts[0].Extent.SetGeneration(uint32(i), word); err != nil {
			t.Fatal(err)
		}
	}
	parts[1].Slots.Put(0, record(9, storage.StateSealed))
	h.Drop(parts[1])
	if err := h.Close(parts[:1], true); err != nil {
		t.Fatal(err)
	}
	return dir
}

// tear damages the record of a block in a slot table.
func tear(t *testing.T, dir string, i int) {
	t.Helper()
	path := filepath.Join(dir, tableName)
	b, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	want := storage.AppendRecord(nil, record(i, storage.StateSealed))
	for at := 0; at < len(b); at += storage.RecordSize {
		if slices.Equal(b[at:at+16], want[:16]) {
			b[at+60]++
			if err := os.WriteFile(path, b, 0o600); err != nil {
				t.Fatal(err)
			}
			return
		}
	}
	t.Fatal("the table has no such record")
}

func TestOnlyWhatIsSealedAtItsGenerationIsReadFromTheFiles(t *testing.T) {
	dir := makeHost(t)
	tear(t, dir, 4)
	got, err := readTier(dir, true)
	if err != nil {
		t.Fatal(err)
	}
	if _, ok := got.Sealed[keyOf(0)]; !ok || len(got.Sealed) != 1 {
		t.Errorf("%d blocks are sealed, want the first alone", len(got.Sealed))
	}
	if got.Slots != 16 || got.Used != 5 || got.Torn != 1 {
		t.Errorf("%d slots, %d used, %d torn; want 16, 5 and 1", got.Slots, got.Used, got.Torn)
	}
}
