package resource

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
)

func TestSpaceOfADirectoryToBeIsThatOfItsNearestAncestor(t *testing.T) {
	dir := t.TempDir()
	want, err := SpaceOf(dir)
	if err != nil {
		t.Fatal(err)
	}
	got, err := SpaceOf(filepath.Join(dir, "not", "yet"))
	if err != nil {
		t.Fatal(err)
	}
	got.Free, want.Free = 0, 0
	if got != want || got.Dir != dir || got.Kind == "" || got.Total == 0 || got.Device == 0 {
		t.Errorf("got %+v, want %+v", got, want)
	}
	if !strings.HasPrefix(dir, got.Mount) {
		t.Errorf("mount %s of %s", got.Mount, dir)
	}
}

func TestSharedMemoryIsRecognised(t *testing.T) {
	s, err := SpaceOf("/dev/shm/blockyard-test-not-there")
	if err != nil {
		t.Fatal(err)
	}
	if s.Kind != kindTmpfs {
		t.Skip("/dev/shm is " + s.Kind)
	}
	if !s.InMemory || s.Mount != "/dev/shm" || s.Unit != 0 || s.Free > s.Total {
		t.Errorf("%+v", s)
	}
}

func TestFileInTheWayIsAnErrorThatNamesTheDirectory(t *testing.T) {
	file := filepath.Join(t.TempDir(), "f")
	if err := os.WriteFile(file, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := SpaceOf(filepath.Join(file, "d")); err == nil || !strings.Contains(err.Error(), file) {
		t.Errorf("got %v", err)
	}
}
