package storage

import (
	"errors"
	"fmt"
	"io"
	"os"

	"golang.org/x/sys/unix"
)

// File is what disk extents and the disk's slot table need of a file. It is
// small so that a test can put faults in between; see Faulty.
type File interface {
	io.ReaderAt
	io.WriterAt
	// Allocate makes the file size bytes long and reserves the space.
	Allocate(size int64) error
	Close() error
}

// DirectIOMode says whether disk extents bypass the page cache.
type DirectIOMode uint8

const (
	// DirectIOAuto uses O_DIRECT where a probe shows that it works.
	DirectIOAuto DirectIOMode = iota
	// DirectIOOff never uses O_DIRECT.
	DirectIOOff
	// DirectIORequire fails where O_DIRECT does not work.
	DirectIORequire
)

// Validate refuses numbers that are no mode.
func (m DirectIOMode) Validate() error {
	if m > DirectIORequire {
		return fmt.Errorf("direct I/O mode %d: want 0 (auto), 1 (off) or 2 (require)", m)
	}
	return nil
}

// osFile is a File of the operating system.
type osFile struct{ f *os.File }

var _ File = osFile{}

func (o osFile) ReadAt(p []byte, off int64) (int, error)  { return o.f.ReadAt(p, off) }
func (o osFile) WriteAt(p []byte, off int64) (int, error) { return o.f.WriteAt(p, off) }
func (o osFile) Close() error                             { return o.f.Close() }

func (o osFile) Allocate(size int64) error {
	err := unix.Fallocate(int(o.f.Fd()), 0, 0, size)
	if errors.Is(err, unix.EOPNOTSUPP) {
		// No reservation on this file system: a full disk will show as a failed
		// write, which is a block not stored.
		err = o.f.Truncate(size)
	}
	if err != nil {
		return fmt.Errorf("allocate %d bytes for %s: %w", size, o.f.Name(), err)
	}
	return nil
}

// openDirect opens path, with O_DIRECT when mode and file system allow it. The
// second result says which it was.
func openDirect(path string, flag int, mode DirectIOMode) (*os.File, bool, error) {
	if mode != DirectIOOff {
		f, err := os.OpenFile(path, flag|unix.O_DIRECT, 0o600)
		switch {
		case err == nil && directAligned(f):
			return f, true, nil
		case err == nil:
			err = fmt.Errorf("direct I/O on %s: unit larger than %d bytes", path, PageSize)
			f.Close()
		case !errors.Is(err, unix.EINVAL):
			return nil, false, err
		}
		if mode == DirectIORequire {
			return nil, false, fmt.Errorf("direct I/O required: %w", err)
		}
	}
	f, err := os.OpenFile(path, flag, 0o600)
	return f, false, err
}

// directAligned reports whether f takes O_DIRECT in units of PageSize. Kernels
// and file systems without STATX_DIOALIGN get the benefit of the doubt: theirs
// is the logical block size, which is at most a page.
func directAligned(f *os.File) bool {
	var st unix.Statx_t
	if err := unix.Statx(int(f.Fd()), "", unix.AT_EMPTY_PATH, unix.STATX_DIOALIGN, &st); err != nil || st.Mask&unix.STATX_DIOALIGN == 0 {
		return true
	}
	return st.Dio_offset_align != 0 && PageSize%st.Dio_offset_align == 0 && PageSize%max(st.Dio_mem_align, 1) == 0
}
