package demo

import (
	"os"
	"path/filepath"
	"testing"
)

func TestSweepRemovesWhatAKilledDemoLeftAndNothingElse(t *testing.T) {
	root := t.TempDir()
	live, lock, err := claimShared(root)
	if err != nil {
		t.Fatal(err)
	}
	defer lock.Close()
	left, other := filepath.Join(root, sharedPrefix+"1"), filepath.Join(root, "other")
	for _, dir := range []string{filepath.Join(left, "ours", "node-1"), other} {
		if err := os.MkdirAll(dir, 0o700); err != nil {
			t.Fatal(err)
		}
	}
	sweepShared(root)
	entries, err := os.ReadDir(root)
	if err != nil {
		t.Fatal(err)
	}
	if len(entries) != 2 || entries[0].Name() != filepath.Base(live) || entries[1].Name() != "other" {
		t.Errorf("after the sweep: %v", entries)
	}
}

func TestHostTierFallsBackToTheWorkDirectory(t *testing.T) {
	const moreThanAnyMemory = 1 << 62
	d, err := makeDirs(t.TempDir(), moreThanAnyMemory)
	if err != nil {
		t.Fatal(err)
	}
	if d.host != filepath.Join(d.work, "host") {
		t.Errorf("host directory %s", d.host)
	}
	if err := d.remove(true); err != nil {
		t.Error(err)
	}
	if _, err := os.Stat(d.logs); err != nil {
		t.Errorf("logs: %v", err)
	}
	if _, err := os.Stat(d.host); err == nil {
		t.Error("the host directory is still there")
	}
}
