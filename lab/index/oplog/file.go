package oplog

import (
	"encoding/binary"
	"errors"
	"fmt"
	"os"
	"unsafe"

	"golang.org/x/sys/unix"
)

// errByteOrder says that the machine is not little-endian.
var errByteOrder = errors.New("op logs can be read and written on little-endian machines only")

// Open maps the file at path and checks it. The log is not in the Go heap; its pages
// belong to the kernel's cache. The caller closes it.
func Open(path string) (*Log, error) {
	if binary.NativeEndian.Uint16([]byte{1, 0}) != 1 {
		return nil, errByteOrder
	}
	f, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	info, err := f.Stat()
	if err != nil {
		return nil, err
	}
	size := info.Size()
	if size == 0 || size%8 != 0 || int64(int(size)) != size {
		return nil, fmt.Errorf("op log %s: %d bytes, want a multiple of 8 and more than 0", path, size)
	}
	data, err := unix.Mmap(int(f.Fd()), 0, int(size), unix.PROT_READ, unix.MAP_SHARED|unix.MAP_POPULATE)
	if err != nil {
		return nil, fmt.Errorf("map op log %s: %w", path, err)
	}
	l, err := Parse(unsafe.Slice((*uint64)(unsafe.Pointer(&data[0])), size/8))
	if err != nil {
		return nil, errors.Join(fmt.Errorf("%s: %w", path, err), unix.Munmap(data))
	}
	l.unmap = func() error { return unix.Munmap(data) }
	return l, nil
}

// Close unmaps the log. The slices of its records are invalid afterwards. A log from Parse needs
// no Close.
func (l *Log) Close() error {
	if l.unmap == nil {
		return nil
	}
	unmap := l.unmap
	l.unmap, l.words = nil, nil
	return unmap()
}

// Save writes the words of Builder.Finish to a new file at path.
func Save(path string, words []uint64) error {
	if binary.NativeEndian.Uint16([]byte{1, 0}) != 1 {
		return errByteOrder
	}
	if len(words) == 0 {
		return fmt.Errorf("op log %s: no words to save", path)
	}
	return os.WriteFile(path, unsafe.Slice((*byte)(unsafe.Pointer(&words[0])), 8*len(words)), 0o644)
}
