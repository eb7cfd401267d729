package storage

import (
	"slices"
	"testing"
)

func TestDefaultExtentSizeKeepsTheNumberOfFilesSmall(t *testing.T) {
	for _, c := range []struct{ tier, want uint64 }{
		{0, 64 << 20}, {1 << 20, 64 << 20}, {256 << 30, 64 << 20}, {257 << 30, 128 << 20},
		{2 << 40, 512 << 20}, {4 << 40, 1 << 30}, {16 << 40, 1 << 30},
	} {
		if got := ExtentBytesFor(c.tier); got != c.want {
			t.Errorf("tier of %d bytes: extents of %d, want %d", c.tier, got, c.want)
		}
	}
}

// A tier whose size changes keeps what it stores, although another size would
// have given it other extents.
func TestTableIsTakenOverWhateverExtentsItWasMadeForUnlessOneSizeIsAskedFor(t *testing.T) {
	dir := t.TempDir()
	cfg := diskConfig(dir)
	d := openDisk(t, cfg)
	parts := []DiskExtent{growDisk(t, d, nsA)}
	for _, size := range []uint64{300 << 30, 16 << 40, 64 << 20} {
		noError(t, d.Close(parts))
		cfg.Bytes, cfg.ExtentBytes = size, 0
		d = openDisk(t, cfg)
		if parts = slices.Collect(d.Claim(0)); len(parts) != 1 {
			t.Fatalf("size %d: %d extents are left", size, len(parts))
		}
		if got := d.ExtentBytes(); got != ExtentBytesFor(size) {
			t.Errorf("size %d: extents of %d bytes from now on", size, got)
		}
		// What the table has room for bounds an extent.
		if got := d.MostSlots(testSlot); got != 64 {
			t.Errorf("at most %d slots in an extent", got)
		}
	}
	noError(t, d.Close(parts))
	cfg.ExtentBytes = 8 * testSlot
	d = openDisk(t, cfg)
	defer d.Close(nil)
	if n := d.Unclaimed(0); n != 0 {
		t.Errorf("%d slots of extents of another size", n)
	}
}
