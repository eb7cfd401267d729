package extent

import (
	"errors"
	"fmt"
	"io"
	"os"

	"golang.org/x/sys/unix"
)

// File is the interface of disk extents and the disk's slot table to a file. Tests wrap it; see
// package storagetest. All methods but Close may be called concurrently.
type File interface {
	io.ReaderAt
	io.WriterAt
	// Allocate makes the file size bytes long and reserves the space.
	Allocate(size int64) error
	// Sync returns when all earlier writes and the file size are on stable storage. After an
	// error any of them may be missing.
	Sync() error
	Close() error
}

// osFile is a File of the operating system.
type osFile struct {
	f *os.File
	// zeroFill makes Allocate write zeros where the file system reserves nothing.
	zeroFill bool
	// zeros are the bytes of zeros that Allocate has written.
	zeros uint64
	// sparse is true when Allocate reserved nothing.
	sparse bool
}

var _ File = (*osFile)(nil)

// NewFile returns an open file as a File.
func NewFile(f *os.File) File { return &osFile{f: f} }

func (o *osFile) ReadAt(p []byte, off int64) (int, error)  { return o.f.ReadAt(p, off) }
func (o *osFile) WriteAt(p []byte, off int64) (int, error) { return o.f.WriteAt(p, off) }
func (o *osFile) Sync() error                              { return unix.Fdatasync(int(o.f.Fd())) }
func (o *osFile) Close() error                             { return o.f.Close() }

// Allocate implements File.
func (o *osFile) Allocate(size int64) error {
	err := retryInterrupted(func() error { return unix.Fallocate(int(o.f.Fd()), 0, 0, size) })
	if errors.Is(err, unix.EOPNOTSUPP) {
		err = o.allocateUnreserved(size)
	}
	return err
}

// zeroFillBytes is the size of one write of zeros.
const zeroFillBytes = 16 << 20

// allocateUnreserved makes the file size bytes long where fallocate does not work.
// Zeros take the space now. A hole does not: a full disk shows as a failed write, which
// is a block not stored.
func (o *osFile) allocateUnreserved(size int64) error {
	if !o.zeroFill {
		o.sparse = true
		return o.f.Truncate(size)
	}
	// O_DIRECT takes whole pages from page-aligned memory. So the last write may go past size,
	// and Truncate cuts the file again.
	end := int64(RoundUp(uint64(size), PageSize))
	zeros := AlignedBytes(int(min(zeroFillBytes, end)))
	for off := int64(0); off < end; {
		n, err := o.f.WriteAt(zeros[:min(int64(len(zeros)), end-off)], off)
		if err != nil {
			return fmt.Errorf("write zeros at %d: %w", off, err)
		}
		off += int64(n)
		o.zeros += uint64(n)
	}
	return o.f.Truncate(size)
}
