package storage

import (
	"errors"
	"fmt"
	"io"
	"os"
)

// DiskOptions are how disk files are opened.
type DiskOptions struct {
	Direct DirectIOMode
	// Wrap puts something between the extent and its file; nil for nothing.
	Wrap func(File) File
}

func (o DiskOptions) wrap(f File) File {
	if o.Wrap == nil {
		return f
	}
	return o.Wrap(f)
}

// DiskExtent is one preallocated file of slots. Reads and writes of different
// slots may run concurrently; Close must come after all of them.
type DiskExtent struct {
	geo    Geometry
	path   string
	file   File
	direct bool
}

// CreateDiskExtent makes the file anew and reserves its space.
func CreateDiskExtent(path string, geo Geometry, o DiskOptions) (*DiskExtent, error) {
	d, err := openDiskExtent(path, os.O_RDWR|os.O_CREATE|os.O_TRUNC, geo, o)
	if err != nil {
		return nil, err
	}
	if err := d.file.Allocate(int64(geo.FileBytes())); err != nil {
		return nil, errors.Join(err, d.file.Close(), os.Remove(path))
	}
	return d, nil
}

// OpenDiskExtent opens a file that CreateDiskExtent made earlier. A file of
// another size is refused.
func OpenDiskExtent(path string, geo Geometry, o DiskOptions) (*DiskExtent, error) {
	st, err := os.Stat(path)
	if err != nil {
		return nil, fmt.Errorf("disk extent: %w", err)
	}
	if uint64(st.Size()) != geo.FileBytes() {
		return nil, fmt.Errorf("disk extent %s: %d bytes, want %d", path, st.Size(), geo.FileBytes())
	}
	return openDiskExtent(path, os.O_RDWR, geo, o)
}

func openDiskExtent(path string, flag int, geo Geometry, o DiskOptions) (*DiskExtent, error) {
	f, direct, err := openDirect(path, flag, o.Direct)
	if err != nil {
		return nil, fmt.Errorf("disk extent: %w", err)
	}
	return &DiskExtent{geo: geo, path: path, file: o.wrap(osFile{f}), direct: direct}, nil
}

// Geometry is how the slots lie in the file.
func (d *DiskExtent) Geometry() Geometry { return d.geo }

// Path is the extent's file.
func (d *DiskExtent) Path() string { return d.path }

// Direct reports whether the page cache is bypassed.
func (d *DiskExtent) Direct() bool { return d.direct }

// ReadSlot fills p, a whole slot of page-aligned memory, from slot i. It says
// nothing about whether the bytes are the right ones. ErrMemory means that p is
// to blame, not the disk.
func (d *DiskExtent) ReadSlot(i uint32, p []byte) error {
	if err := d.check(i, p); err != nil {
		return err
	}
	n, err := d.file.ReadAt(p, d.geo.Offset(i))
	if err == nil && n != len(p) {
		err = io.ErrUnexpectedEOF
	}
	if err != nil {
		return fmt.Errorf("read slot %d of %s: %d of %d bytes: %w", i, d.path, n, len(p), blame(err))
	}
	return nil
}

// WriteSlot writes p, a whole slot of page-aligned memory, to slot i. ErrMemory
// means that p is to blame, not the disk.
func (d *DiskExtent) WriteSlot(i uint32, p []byte) error {
	if err := d.check(i, p); err != nil {
		return err
	}
	n, err := d.file.WriteAt(p, d.geo.Offset(i))
	if err == nil && n != len(p) {
		err = io.ErrShortWrite
	}
	if err != nil {
		return fmt.Errorf("write slot %d of %s: %d of %d bytes: %w", i, d.path, n, len(p), blame(err))
	}
	return nil
}

func (d *DiskExtent) check(i uint32, p []byte) error {
	if i >= d.geo.Slots {
		return fmt.Errorf("slot %d of %s: want 0 to %d", i, d.path, d.geo.Slots-1)
	}
	if uint64(len(p)) != d.geo.SlotBytes {
		return fmt.Errorf("slot %d of %s: buffer of %d bytes, want %d", i, d.path, len(p), d.geo.SlotBytes)
	}
	return nil
}

// Close closes the file and leaves it where it is.
func (d *DiskExtent) Close() error { return d.file.Close() }
