package extent_test

import (
	"fmt"
	"log"
	"os"
	"path/filepath"

	"github.com/blockyard-ai/blockyard/blockmgr/storage/extent"
)

// A block is written to a slot of a disk extent and read again.
func ExampleDisk() {
	dir, err := os.MkdirTemp("", "extent")
	check(err)
	defer os.RemoveAll(dir)
	const slotBytes = 2 * extent.PageSize
	disk, err := extent.CreateDisk(filepath.Join(dir, "e0"), extent.DiskGeometry(8, slotBytes), extent.DiskOptions{})
	check(err)
	slot := extent.AlignedBytes(slotBytes)
	copy(slot, "keys and values")
	check(disk.WriteSlot(3, slot, extent.Life{}))
	check(disk.Sync())

	again := extent.AlignedBytes(slotBytes)
	check(disk.ReadSlot(3, again, extent.Life{}))
	fmt.Printf("%q at %d of %d bytes\n", again[:15], disk.Geometry().Offset(3), disk.Geometry().FileBytes())
	check(disk.Close())
	// Output:
	// "keys and values" at 24576 of 65536 bytes
}

func check(err error) {
	if err != nil {
		log.Fatal(err)
	}
}
