package sealed_test

import (
	"crypto/rand"
	"fmt"
	"path/filepath"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/blockyard-ai/blockyard/blockmgr/storage/extent"
	"github.com/blockyard-ai/blockyard/internal/kv"
)

// benchSlots is the number of slots of a round, benchDepth that of slots written or read at once.
const (
	benchSlots = 16
	benchDepth = 4
)

// BenchmarkDisk compares an encrypted disk extent with one in clear, in rounds that alternate and whose
// order is swapped from round to round. It reports the median of the ratios of bandwidths: 1 is no loss.
func BenchmarkDisk(b *testing.B) {
	for _, mib := range []int{1, 8} {
		b.Run(fmt.Sprintf("%dMiB", mib), func(b *testing.B) {
			plain, sealed := benchExtents(b, uint64(mib)<<20)
			buffers := make([][]byte, benchSlots)
			for i := range buffers {
				buffers[i] = extent.AlignedBytes(mib << 20)
				rand.Read(buffers[i]) // never fails
			}
			var writes, reads []float64
			for round := 0; b.Loop(); round++ {
				pair := []*extent.Disk{plain, sealed}
				if round%2 == 1 {
					slices.Reverse(pair)
				}
				took := map[*extent.Disk][2]time.Duration{}
				for _, d := range pair {
					write := benchRound(b, func(i int) error { return d.WriteSlot(uint32(i), buffers[i], extent.Life{}) })
					took[d] = [2]time.Duration{write, benchRound(b, func(i int) error { return d.ReadSlot(uint32(i), buffers[i], extent.Life{}) })}
				}
				writes = append(writes, took[plain][0].Seconds()/took[sealed][0].Seconds())
				reads = append(reads, took[plain][1].Seconds()/took[sealed][1].Seconds())
			}
			b.ReportMetric(median(writes), "write-ratio")
			b.ReportMetric(median(reads), "read-ratio")
		})
	}
}

// benchExtents makes two extents in one directory: in clear and encrypted.
func benchExtents(b *testing.B, slotBytes uint64) (plain, sealed *extent.Disk) {
	dir := b.TempDir()
	key := testKey(b, 1)
	clear := extent.DiskGeometry(benchSlots, slotBytes)
	encrypted := clear
	encrypted.SealBytes = extent.SealBytes
	plain, err := extent.CreateDisk(filepath.Join(dir, "clear"), clear, extent.DiskOptions{})
	if err == nil {
		sealed, err = extent.CreateDisk(filepath.Join(dir, "sealed"), encrypted, extent.DiskOptions{Cipher: cipherOf(b, dir, key, kv.NamespaceID{}, 1)})
	}
	if err != nil {
		b.Fatal(err)
	}
	b.Cleanup(func() {
		for _, d := range []*extent.Disk{plain, sealed} {
			if err := d.Close(); err != nil {
				b.Error(err)
			}
		}
	})
	return plain, sealed
}

// benchRound does something with each slot, benchDepth at a time, and returns how long it took.
func benchRound(b *testing.B, do func(slot int) error) time.Duration {
	began := time.Now()
	var wg sync.WaitGroup
	for first := range benchDepth {
		wg.Go(func() {
			for i := first; i < benchSlots; i += benchDepth {
				if err := do(i); err != nil {
					b.Error(err)
				}
			}
		})
	}
	wg.Wait()
	return time.Since(began)
}

func median(all []float64) float64 {
	slices.Sort(all)
	return all[len(all)/2]
}
