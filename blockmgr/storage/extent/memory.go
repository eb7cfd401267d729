package extent

import (
	"errors"
	"fmt"
	"os"
	"runtime"
	"runtime/debug"
	"sync/atomic"
	"unsafe"

	"golang.org/x/sys/unix"
)

// ErrMemory means that mapped memory could not be touched: a client truncated its
// file, or the hardware failed under it. The other side of the copy is not to blame.
var ErrMemory = errors.New("mapped memory is damaged")

// blameMemory adds ErrMemory to the error of a read or write whose buffer the kernel
// could not touch.
func blameMemory(err error) error {
	if errors.Is(err, unix.EFAULT) || errors.Is(err, unix.EHWPOISON) {
		return fmt.Errorf("%w: %w", ErrMemory, err)
	}
	return err
}

// Guard runs fn, which touches mapped memory, and turns a fault into ErrMemory.
// Without Guard a truncated file kills the process with SIGBUS.
func Guard(fn func()) (err error) {
	// The setting is the goroutine's: it is restored at the end.
	defer debug.SetPanicOnFault(debug.SetPanicOnFault(true))
	defer func() {
		switch r := recover().(type) {
		case nil:
		case interface { // the runtime's error for a fault at an address
			runtime.Error
			Addr() uintptr
		}:
			err = fmt.Errorf("%w at %#x: %w", ErrMemory, r.Addr(), r)
		default:
			panic(r)
		}
	}()
	fn()
	return nil
}

// NewBuffer returns page-aligned memory outside the Go heap that disk slots can be
// read into. size is rounded up to a page. free gives the memory back.
func NewBuffer(size uint64) (buf []byte, free func(), err error) {
	mem, err := unix.Mmap(-1, 0, int(RoundUp(size, PageSize)), unix.PROT_READ|unix.PROT_WRITE, unix.MAP_PRIVATE|unix.MAP_ANON)
	if err != nil {
		return nil, nil, fmt.Errorf("buffer of %d bytes: %w", size, err)
	}
	return mem[:size:size], func() { _ = unix.Munmap(mem) }, nil // fails only for memory that is not mapped
}

// AlignedBytes returns n zero bytes of page-aligned memory on the Go heap.
func AlignedBytes(n int) []byte {
	b := make([]byte, n+PageSize)
	skip := int(-addressOf(b) & (PageSize - 1)) // to the next page boundary
	return b[skip : skip+n : skip+n]
}

func addressOf(b []byte) uintptr { return uintptr(unsafe.Pointer(unsafe.SliceData(b))) }

// Words returns mapped memory as words. Readers of the file see them little-endian, as
// every platform with this code is.
func Words(mem []byte) []uint64 {
	return unsafe.Slice((*uint64)(unsafe.Pointer(unsafe.SliceData(mem))), len(mem)/8)
}

// MapShared allocates size bytes of a file from off on, and maps them for reading and writing,
// shared with other processes. The memory may not be faulted in yet.
func MapShared(f *os.File, off int64, size uint64) ([]byte, error) {
	fd := int(f.Fd())
	if err := retryInterrupted(func() error { return unix.Fallocate(fd, 0, off, int64(size)) }); err != nil {
		return nil, fmt.Errorf("fallocate: %w", err)
	}
	mem, err := unix.Mmap(fd, off, int(size), unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED)
	if err != nil {
		return nil, fmt.Errorf("mmap: %w", err)
	}
	return mem, nil
}

// populate faults mapped memory in for writing, so that no later access has to wait or can find the
// memory used up.
func populate(mem []byte) error {
	err := retryInterrupted(func() error { return unix.Madvise(mem, unix.MADV_POPULATE_WRITE) })
	if errors.Is(err, unix.EINVAL) {
		// Kernels before 5.14: write to every page and change nothing.
		err = Guard(func() {
			for i := 0; i < len(mem); i += PageSize {
				atomic.AddUint64((*uint64)(unsafe.Pointer(&mem[i])), 0)
			}
		})
	}
	if err != nil {
		return fmt.Errorf("populate: %w", err)
	}
	return nil
}

// retryInterrupted repeats a call that a signal interrupted, such as a profiler's.
// tmpfs undoes an interrupted allocation.
func retryInterrupted(call func() error) error {
	const tries = 100
	var err error
	for range tries {
		if err = call(); !errors.Is(err, unix.EINTR) {
			break
		}
	}
	return err
}

// hugePage is the size of the large pages that tmpfs can use.
const hugePage = 2 << 20

// makeHuge backs the whole huge pages of a new, empty file on tmpfs by huge pages,
// whatever the mount's option says. It needs Linux 6.1. O_DIRECT, GPU registration and
// copies then take a 512th of the page references. The caller allocates the rest of
// the file. After an error the file may have small pages and works all the same.
func makeHuge(f *os.File, size uint64) error {
	size -= size % hugePage
	if size == 0 {
		return nil
	}
	fd := int(f.Fd())
	if err := f.Truncate(int64(size)); err != nil {
		return fmt.Errorf("huge pages: %w", err)
	}
	// The kernel collapses what is there: one small page in each is enough.
	for off := uint64(0); off < size; off += hugePage {
		if err := unix.Fallocate(fd, 0, int64(off), PageSize); err != nil {
			return fmt.Errorf("huge pages: %w", err)
		}
	}
	// MADV_COLLAPSE needs a mapping that is aligned to huge pages. A larger mapping has
	// room for one.
	room, err := unix.MmapPtr(-1, 0, nil, uintptr(size)+hugePage, unix.PROT_NONE, unix.MAP_PRIVATE|unix.MAP_ANON)
	if err != nil {
		return fmt.Errorf("huge pages: %w", err)
	}
	defer func() { _ = unix.MunmapPtr(room, uintptr(size)+hugePage) }() // fails only for memory that is not mapped
	at := unsafe.Add(room, (hugePage-uintptr(room)%hugePage)%hugePage)
	if _, err := unix.MmapPtr(fd, 0, at, uintptr(size), unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED|unix.MAP_FIXED); err != nil {
		return fmt.Errorf("huge pages: %w", err)
	}
	return collapse(unsafe.Slice((*byte)(at), size), func(mem []byte) error { return unix.Madvise(mem, unix.MADV_COLLAPSE) })
}

// maxRefusals bounds the huge pages in a row that the kernel refuses before collapse ends. The kernel
// compacts memory for each of them, which takes time where memory is fragmented.
const maxRefusals = 8

// collapse makes huge pages of mem, all with one call of try. Such a call ends at the first huge page
// that the kernel refuses and leaves the rest small. So collapse then tries the huge pages one by one.
// The error has the last refusal.
func collapse(mem []byte, try func(mem []byte) error) error {
	last := try(mem)
	if last == nil {
		return nil
	}
	pages, made, refusals := len(mem)/hugePage, 0, 0
	for i := 0; i < pages && refusals < maxRefusals; i++ {
		if err := try(mem[i*hugePage : (i+1)*hugePage]); err != nil {
			last, refusals = err, refusals+1
			continue
		}
		made, refusals = made+1, 0
	}
	if made == pages {
		return nil
	}
	return fmt.Errorf("huge pages: %d of %d: %w", made, pages, last)
}
