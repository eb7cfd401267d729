package resource

import (
	"os"
	"path/filepath"
	"testing"
)

func TestHeldBytesCountsWhatFilesTakeAndNotWhatTheySay(t *testing.T) {
	dir := t.TempDir()
	if err := os.WriteFile(filepath.Join(dir, "full"), make([]byte, 64<<10), 0o600); err != nil {
		t.Fatal(err)
	}
	hole, err := os.Create(filepath.Join(dir, "hole"))
	if err != nil {
		t.Fatal(err)
	}
	defer hole.Close()
	if err := hole.Truncate(1 << 30); err != nil {
		t.Fatal(err)
	}
	if err := os.Mkdir(filepath.Join(dir, "sub"), 0o700); err != nil {
		t.Fatal(err)
	}
	held, err := HeldBytes(dir)
	if err != nil || held < 64<<10 || held > 1<<20 {
		t.Errorf("held %d, %v; want 64 KiB and a little", held, err)
	}
	for _, none := range []string{"", filepath.Join(dir, "no such")} {
		if held, err := HeldBytes(none); held != 0 || err != nil {
			t.Errorf("%q: held %d, %v", none, held, err)
		}
	}
	if _, err := HeldBytes(filepath.Join(dir, "full")); err == nil {
		t.Error("a file is taken for a directory")
	}
}
