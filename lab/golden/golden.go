package golden

import (
	"flag"
	"os"
	"path/filepath"
	"testing"
)

var update = flag.Bool("update", false, "write the golden files in testdata anew")

// Compare fails the test where text differs from the file name in testdata/golden.
// With -update it writes the file instead.
func Compare(t *testing.T, name, text string) {
	t.Helper()
	file := filepath.Join("testdata", "golden", name)
	if *update {
		if err := os.MkdirAll(filepath.Dir(file), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(file, []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
		return
	}
	want, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	if string(want) != text {
		t.Errorf("%s differs; if that is meant, write it anew with -run Golden -update\nwant:\n%s\ngot:\n%s", file, want, text)
	}
}
