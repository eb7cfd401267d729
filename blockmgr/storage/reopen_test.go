package storage

import (
	"slices"
	"testing"

	"go.uber.org/zap"
)

// BenchmarkReopen measures what opening a warm arena costs for each slot of
// 4 KiB, records read and extents mapped included.
func BenchmarkReopen(b *testing.B) {
	const extents, extentBytes = 8, 64 << 20
	config := func(dir string) ArenaConfig {
		return ArenaConfig{Dir: dir, Bytes: extents * extentBytes, ExtentBytes: extentBytes, Log: zap.NewNop()}
	}
	perSlot := func(b *testing.B) {
		b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(b.N)/(extents*extentBytes/PageSize), "ns/slot")
	}
	b.Run("disk", func(b *testing.B) {
		cfg := config(b.TempDir())
		d, err := OpenDiskArena(cfg)
		if err != nil {
			b.Fatal(err)
		}
		ns, err := d.Namespace(nsA, PageSize)
		if err != nil {
			b.Fatal(err)
		}
		var parts []DiskExtent
		for range extents {
			part, err := d.Grow(ns, PageSize, 1, 0)
			if err != nil {
				b.Fatal(err)
			}
			parts = append(parts, part)
		}
		for b.Loop() {
			d.Abandon(parts)
			if d, err = OpenDiskArena(cfg); err != nil {
				b.Fatal(err)
			}
			if parts = slices.Collect(d.Claim(ns)); len(parts) != extents {
				b.Fatalf("%d extents", len(parts))
			}
		}
		perSlot(b)
		d.Abandon(parts)
	})
	b.Run("host", func(b *testing.B) {
		cfg := config(tmpfsDir(b))
		h, err := OpenHostArena(cfg)
		if err != nil {
			b.Fatal(err)
		}
		ns, err := h.Namespace(nsA, PageSize)
		if err != nil {
			b.Fatal(err)
		}
		var parts []HostExtent
		for range extents {
			part, err := h.Grow(ns, PageSize, 1, 0)
			if err != nil {
				b.Fatal(err)
			}
			parts = append(parts, part)
		}
		for b.Loop() {
			h.Abandon(parts)
			if h, err = OpenHostArena(cfg); err != nil {
				b.Fatal(err)
			}
			if parts = h.Claim(ns); len(parts) != extents {
				b.Fatalf("%d extents", len(parts))
			}
		}
		perSlot(b)
		h.Abandon(parts)
	})
}
