package storage

import (
	"os"
	"path/filepath"
	"testing"
)

func TestHeldBytesCountsWhatTheArenasOwnFilesTake(t *testing.T) {
	dir := t.TempDir()
	for name, size := range map[string]int{
		extentFile{section: 1, id: 7, whole: true}.name(): 64 << 10,
		extentFile{section: 2, id: 8}.name():              32 << 10, // never finished
		"slots.table":                                     16 << 10,
		"somebody's file":                                 1 << 20,
		"extent-notes":                                    1 << 20,
	} {
		noError(t, os.WriteFile(filepath.Join(dir, name), make([]byte, size), 0o600))
	}
	hole, err := os.Create(filepath.Join(dir, extentFile{section: 3, id: 9, whole: true}.name()))
	if err != nil {
		t.Fatal(err)
	}
	defer hole.Close()
	noError(t, hole.Truncate(1<<30))
	noError(t, os.Mkdir(filepath.Join(dir, extentFile{section: 4, id: 10, whole: true}.name()), 0o700))
	if held, err := HeldBytes(dir); err != nil || held < 112<<10 || held > 512<<10 {
		t.Errorf("%d bytes are held, %v; want 112 KiB and a little", held, err)
	}
	for _, none := range []string{"", filepath.Join(dir, "no such")} {
		if held, err := HeldBytes(none); held != 0 || err != nil {
			t.Errorf("%q: held %d, %v", none, held, err)
		}
	}
	if _, err := HeldBytes(filepath.Join(dir, "slots.table")); err == nil {
		t.Error("a file is taken for a directory")
	}
}
