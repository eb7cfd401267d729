package resource

import (
	"errors"
	"fmt"
	"path/filepath"

	"golang.org/x/sys/unix"
)

// Space describes the file system of a directory.
type Space struct {
	// Dir is the directory asked for, or the nearest one above it that exists, links
	// resolved.
	Dir string
	// Mount is the topmost directory above Dir on the same device.
	Mount string
	// Kind is the file system's name, or its magic number in hex.
	Kind string
	// InMemory is true for tmpfs, ramfs and hugetlbfs.
	InMemory bool
	// Free is how many of Total bytes an ordinary user can still store. Both are 0 where
	// the file system has no size: hugetlbfs, tmpfs and ramfs mounted without one.
	Free, Total uint64
	// Unit is the huge page size on hugetlbfs, which divides the size of every file; 0
	// elsewhere.
	Unit uint64
	// Device tells file systems apart.
	Device uint64
}

// Kinds of file system with rules of their own.
const (
	kindTmpfs     = "tmpfs"
	kindRamfs     = "ramfs"
	kindHugetlbfs = "hugetlbfs"
)

// SpaceOf returns the file system of dir with its free and total bytes. dir need not exist: then the
// nearest directory above it counts.
func SpaceOf(dir string) (Space, error) {
	at, err := filepath.Abs(dir)
	if err != nil {
		return Space{}, fmt.Errorf("space of %q: %w", dir, err)
	}
	var st unix.Stat_t
	for {
		if err = unix.Stat(at, &st); !errors.Is(err, unix.ENOENT) || at == "/" {
			break
		}
		at = filepath.Dir(at)
	}
	if err != nil {
		return Space{}, fmt.Errorf("space of %q: %s: %w", dir, at, err)
	}
	// The directory above a link may be on another file system than its target.
	if at, err = filepath.EvalSymlinks(at); err != nil {
		return Space{}, fmt.Errorf("space of %q: %w", dir, err)
	}
	var fs unix.Statfs_t
	if err := unix.Statfs(at, &fs); err != nil {
		return Space{}, fmt.Errorf("space of %q: statfs %s: %w", dir, at, err)
	}
	s := Space{Dir: at, Mount: mountOf(at, uint64(st.Dev)), Kind: kindOf(uint32(fs.Type)), Device: uint64(st.Dev)}
	unit := uint64(fs.Frsize)
	if unit == 0 {
		unit = uint64(fs.Bsize)
	}
	s.Free, s.Total = fs.Bavail*unit, fs.Blocks*unit
	switch s.Kind {
	case kindHugetlbfs:
		s.InMemory, s.Unit = true, uint64(fs.Bsize)
	case kindTmpfs, kindRamfs:
		s.InMemory = true
	}
	return s, nil
}

// mountOf returns the topmost directory above dir on the same device.
func mountOf(dir string, device uint64) string {
	for dir != "/" {
		var st unix.Stat_t
		up := filepath.Dir(dir)
		if err := unix.Stat(up, &st); err != nil || uint64(st.Dev) != device {
			break
		}
		dir = up
	}
	return dir
}

// kindOf returns the name of a file system type, or its magic number in hexadecimal.
func kindOf(magic uint32) string {
	switch magic {
	case unix.TMPFS_MAGIC:
		return kindTmpfs
	case unix.RAMFS_MAGIC:
		return kindRamfs
	case unix.HUGETLBFS_MAGIC:
		return kindHugetlbfs
	case unix.EXT4_SUPER_MAGIC:
		return "ext4"
	case unix.XFS_SUPER_MAGIC:
		return "xfs"
	case unix.BTRFS_SUPER_MAGIC:
		return "btrfs"
	case unix.OVERLAYFS_SUPER_MAGIC:
		return "overlayfs"
	case unix.NFS_SUPER_MAGIC:
		return "nfs"
	}
	return fmt.Sprintf("%#x", magic)
}
