package extent

import (
	"errors"
	"fmt"
	"runtime"
	"runtime/debug"

	"golang.org/x/sys/unix"
)

// ErrMemory: mapped memory could not be touched, because a client truncated its
// file or the hardware failed under it. The other side of the copy is not to
// blame.
var ErrMemory = errors.New("mapped memory is damaged")

// blame adds ErrMemory to the error of a read or write whose buffer the kernel
// could not touch.
func blame(err error) error {
	if errors.Is(err, unix.EFAULT) || errors.Is(err, unix.EHWPOISON) {
		return fmt.Errorf("%w: %w", ErrMemory, err)
	}
	return err
}

// Guard runs fn, which touches mapped memory, and turns a fault into
// ErrMemory: a file that somebody truncated would otherwise kill the process
// with SIGBUS.
func Guard(fn func()) (err error) {
	defer debug.SetPanicOnFault(debug.SetPanicOnFault(true))
	defer func() {
		switch r := recover().(type) {
		case nil:
		case interface {
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

// NewBuffer is page-aligned memory of its own that disk slots can be read into;
// free gives it back. size is rounded up to a page.
func NewBuffer(size uint64) (buf []byte, free func(), err error) {
	mem, err := unix.Mmap(-1, 0, int(RoundUp(size, PageSize)), unix.PROT_READ|unix.PROT_WRITE, unix.MAP_PRIVATE|unix.MAP_ANON)
	if err != nil {
		return nil, nil, fmt.Errorf("buffer of %d bytes: %w", size, err)
	}
	return mem[:size:size], func() { _ = unix.Munmap(mem) }, nil // fails only for memory that is not mapped
}
