package extent

import (
	"errors"
	"fmt"
	"os"

	"golang.org/x/sys/unix"
)

// DirectIOMode says whether disk extents bypass the page cache.
type DirectIOMode uint8

const (
	// DirectIOAuto uses O_DIRECT where file system and device take units of PageSize.
	DirectIOAuto DirectIOMode = iota
	// DirectIOOff never uses O_DIRECT.
	DirectIOOff
	// DirectIORequire fails where O_DIRECT does not work.
	DirectIORequire
)

// Validate returns an error for a number that is no mode.
func (m DirectIOMode) Validate() error {
	if m > DirectIORequire {
		return fmt.Errorf("direct I/O mode %d: want 0 (auto), 1 (off) or 2 (require)", m)
	}
	return nil
}

// openExtentFile opens path as o says. refusal says in one line why O_DIRECT is not
// used although o asks for it.
func openExtentFile(path string, flag int, o DiskOptions) (f *os.File, refusal string, err error) {
	if o.Direct != DirectIOOff {
		f, refusal, err = openDirect(path, flag, o.OpenDirect)
		if err != nil {
			return nil, "", err
		}
		if refusal == "" {
			return f, "", nil
		}
		if o.Direct == DirectIORequire {
			return nil, "", fmt.Errorf("direct I/O on %s is required: %s", path, refusal)
		}
	}
	f, err = os.OpenFile(path, flag, 0o600)
	return f, refusal, err
}

// openDirect opens path with O_DIRECT. When the file system refuses direct I/O, f is nil and refusal
// says why; err is for other failures. atOpen passes the flag to open(2). Most file systems also
// take the flag on an open file. Some, such as IBM Storage Scale, heed it only at open.
func openDirect(path string, flag int, atOpen bool) (f *os.File, refusal string, err error) {
	if atOpen {
		f, err = os.OpenFile(path, flag|unix.O_DIRECT, 0o600)
		if errors.Is(err, unix.EINVAL) {
			return nil, "open with O_DIRECT: " + unix.EINVAL.Error(), nil
		}
	} else {
		f, err = os.OpenFile(path, flag, 0o600)
	}
	if err != nil {
		return nil, "", err
	}
	if !atOpen {
		refusal = setDirect(f)
	}
	if refusal == "" {
		refusal = directRefusal(f)
	}
	if refusal != "" {
		return nil, refusal, f.Close()
	}
	return f, "", nil
}

// setDirect sets O_DIRECT on an open file. refusal says why that failed; empty if it did not.
func setDirect(f *os.File) (refusal string) {
	flags, err := unix.FcntlInt(f.Fd(), unix.F_GETFL, 0)
	if err == nil {
		_, err = unix.FcntlInt(f.Fd(), unix.F_SETFL, flags|unix.O_DIRECT)
	}
	if err != nil {
		return "fcntl with O_DIRECT: " + err.Error()
	}
	return ""
}

// directRefusal returns why f, which has O_DIRECT set, cannot be read and written in
// units of PageSize; empty when it can. Kernels before 6.1 and some file systems do not
// report the alignment they want, so directRefusal tries.
func directRefusal(f *os.File) string {
	var st unix.Statx_t
	err := unix.Statx(int(f.Fd()), "", unix.AT_EMPTY_PATH, unix.STATX_DIOALIGN, &st)
	if err != nil || st.Mask&unix.STATX_DIOALIGN == 0 {
		return probeDirect(f)
	}
	return alignmentRefusal(st.Dio_offset_align, st.Dio_mem_align)
}

// alignmentRefusal returns why direct I/O in units of PageSize does not work, empty if it does.
// offset and memory are the alignments in bytes that statx says file offsets and buffers need; zero
// means that the file has no direct I/O.
func alignmentRefusal(offset, memory uint32) string {
	switch {
	case offset == 0 || memory == 0:
		return "the file system offers no direct I/O for this file"
	case PageSize%offset != 0:
		return fmt.Sprintf("direct I/O in units of %d bytes, want at most %d", offset, PageSize)
	case PageSize%memory != 0:
		return fmt.Sprintf("direct I/O from memory aligned to %d bytes, want at most %d", memory, PageSize)
	}
	return ""
}

// probeDirect returns why f, which has O_DIRECT set, cannot be read and written in units of
// PageSize; empty when it can. It reads one page at an odd multiple of PageSize into memory at an
// odd multiple of PageSize: a file that wants more alignment refuses. An empty file gets a page of
// zeros there first, because a read past the end is not refused. Other failures say nothing about
// alignment and will show again in use.
func probeDirect(f *os.File) string {
	st, err := f.Stat()
	if err != nil {
		return ""
	}
	page := oddPage()
	off := int64(PageSize)
	if st.Size() == 0 {
		// Allocate, which comes next, makes a file longer but never shorter.
		defer f.Truncate(0)
		_, err = f.WriteAt(page, off)
	} else if st.Size() < 2*PageSize {
		off = 0
	}
	if err == nil {
		_, err = f.ReadAt(page, off)
	}
	if errors.Is(err, unix.EINVAL) || errors.Is(err, unix.EOPNOTSUPP) {
		return "a direct read or write of one page: " + err.Error()
	}
	return ""
}

// oddPage is one page of memory aligned to PageSize and to no more.
func oddPage() []byte {
	two := AlignedBytes(2 * PageSize)
	if addressOf(two)%(2*PageSize) == 0 {
		return two[PageSize:]
	}
	return two[:PageSize]
}
