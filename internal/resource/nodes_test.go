package resource

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

// nodesOf returns what MemoryNodes makes of the text in has_memory.
func nodesOf(t *testing.T, text string) ([]int, error) {
	t.Helper()
	root := t.TempDir()
	dir := filepath.Join(root, "sys/devices/system/node")
	if err := errors.Join(os.MkdirAll(dir, 0o700), os.WriteFile(filepath.Join(dir, "has_memory"), []byte(text), 0o600)); err != nil {
		t.Fatal(err)
	}
	return MemoryNodes(root)
}

func TestMemoryNodesReadsNumbersAndRanges(t *testing.T) {
	for text, want := range map[string][]int{
		"0\n": {0}, "0-1\n": {0, 1}, "0,2-4,9\n": {0, 2, 3, 4, 9}, "1022\n": {1022},
	} {
		if got, err := nodesOf(t, text); err != nil || !slices.Equal(got, want) {
			t.Errorf("%q: got %v, %v, want %v", text, got, err, want)
		}
	}
}

func TestMemoryNodesRefusesOtherTextAndNamesTheFile(t *testing.T) {
	for _, text := range []string{"", "\n", "x\n", "1-\n", "3-1\n", "0,,1\n", "-1\n", "0-1023\n", "99999999\n"} {
		if got, err := nodesOf(t, text); err == nil || !strings.Contains(err.Error(), "has_memory") {
			t.Errorf("%q: got %v, %v", text, got, err)
		}
	}
}

func TestMemoryNodesOfAKernelWithoutThem(t *testing.T) {
	if got, err := MemoryNodes(t.TempDir()); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("got %v, %v", got, err)
	}
}
