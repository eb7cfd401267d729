package extent

import (
	"fmt"
	"os"
	"unsafe"

	"golang.org/x/sys/unix"
)

// hugePage is the size of the large pages that tmpfs can use.
const hugePage = 2 << 20

// makeHuge has the kernel (Linux 6.1) back the whole huge pages of a new, empty
// file on tmpfs by huge ones, whatever the mount's option says: O_DIRECT into
// them, GPU registration and copies take a 512th of the page references. The rest
// of the file is for the caller to allocate. An error means that the file may have
// small pages, and is no reason to go without it.
func makeHuge(f *os.File, size uint64) error {
	size -= size % hugePage
	if size == 0 {
		return nil
	}
	fd := int(f.Fd())
	if err := f.Truncate(int64(size)); err != nil {
		return fmt.Errorf("huge pages: %w", err)
	}
	// The kernel makes one of what is there: a page in each is enough.
	for off := uint64(0); off < size; off += hugePage {
		if err := unix.Fallocate(fd, 0, int64(off), PageSize); err != nil {
			return fmt.Errorf("huge pages: %w", err)
		}
	}
	// The mapping must be aligned to huge pages, for which there is room in a larger
	// one.
	room, err := unix.MmapPtr(-1, 0, nil, uintptr(size)+hugePage, unix.PROT_NONE, unix.MAP_PRIVATE|unix.MAP_ANON)
	if err != nil {
		return fmt.Errorf("huge pages: %w", err)
	}
	defer func() { _ = unix.MunmapPtr(room, uintptr(size)+hugePage) }() // fails only for what is not mapped
	at := unsafe.Add(room, (hugePage-uintptr(room)%hugePage)%hugePage)
	if _, err := unix.MmapPtr(fd, 0, at, uintptr(size), unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED|unix.MAP_FIXED); err != nil {
		return fmt.Errorf("huge pages: %w", err)
	}
	if err := unix.Madvise(unsafe.Slice((*byte)(at), size), unix.MADV_COLLAPSE); err != nil {
		return fmt.Errorf("huge pages: %w", err)
	}
	return nil
}
