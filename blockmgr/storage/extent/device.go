package extent

import (
	"fmt"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

// statBlock is the unit in which stat counts what a file has allocated.
const statBlock = 512

// FSInfo describes the file system of a directory.
type FSInfo struct {
	// InMemory is true for tmpfs and hugetlbfs.
	InMemory bool
	// Unit divides the size of every file: the huge page size on hugetlbfs, PageSize
	// elsewhere.
	Unit uint64
}

// StatFS describes the file system that dir is on.
func StatFS(dir string) (FSInfo, error) {
	var st unix.Statfs_t
	if err := unix.Statfs(dir, &st); err != nil {
		return FSInfo{}, fmt.Errorf("file system of %s: %w", dir, err)
	}
	switch st.Type {
	case unix.TMPFS_MAGIC:
		return FSInfo{InMemory: true, Unit: PageSize}, nil
	case unix.HUGETLBFS_MAGIC:
		return FSInfo{InMemory: true, Unit: max(uint64(st.Bsize), PageSize)}, nil
	}
	return FSInfo{Unit: PageSize}, nil
}

const (
	// defaultDepth is the queue depth of a rotating disk, and of an unknown device.
	defaultDepth = 4
	// solidDepth is the queue depth of one solid-state device, maxDepth the bound for
	// several together.
	solidDepth = 16
	maxDepth   = 64
	// depthWait bounds the wait for a directory on a disk that does not answer.
	depthWait = time.Second
	// maxStacked bounds the levels of devices that are made of devices.
	maxStacked = 8
)

// QueueDepth returns how many concurrent reads, or writes, of blocks keep the device under a
// directory busy. It follows the kernel's description of the device. For a missing directory it
// takes the nearest existing parent.
func QueueDepth(dir string) int {
	found := make(chan int, 1)
	go func() { found <- queueDepth(dir) }() // ends when the disk answers
	select {
	case n := <-found:
		return n
	case <-time.After(depthWait):
		return defaultDepth
	}
}

// queueDepth returns how many concurrent reads, or writes, keep the device under a directory busy. It
// may wait for the disk without a bound.
func queueDepth(dir string) int {
	var st unix.Stat_t
	for err := unix.Stat(dir, &st); err != nil; err = unix.Stat(dir, &st) {
		up := filepath.Dir(dir)
		if err != unix.ENOENT || up == dir {
			return defaultDepth
		}
		dir = up
	}
	name := fmt.Sprintf("dev/block/%d:%d", unix.Major(st.Dev), unix.Minor(st.Dev))
	resolved, err := filepath.EvalSymlinks(filepath.Join("/sys", name))
	if err != nil {
		return defaultDepth // no block device: a network, or a file system with several
	}
	if n := deviceDepth(os.DirFS("/sys"), strings.TrimPrefix(resolved, "/sys/"), maxStacked); n > 0 {
		return min(n, maxDepth)
	}
	return defaultDepth
}

// deviceDepth returns the queue depth of a block device; 0 means unknown. sys is /sys, device the
// device's path in sys. A device that is made of others, such as a RAID, has the sum of theirs.
// stacked bounds the levels of such devices.
func deviceDepth(sys fs.FS, device string, stacked int) int {
	if _, err := fs.Stat(sys, path.Join(device, "partition")); err == nil {
		device = path.Dir(device) // a partition's queue is the whole disk's
	}
	parts, _ := fs.ReadDir(sys, path.Join(device, "slaves")) // most devices have none
	sum := 0
	for _, part := range parts {
		if stacked > 0 {
			sum += deviceDepth(sys, path.Join("class/block", part.Name()), stacked-1)
		}
	}
	if sum > 0 {
		return sum
	}
	rotational, ok := deviceNumber(sys, path.Join(device, "queue/rotational"))
	if !ok {
		return 0
	}
	if rotational != 0 {
		return defaultDepth
	}
	if n, ok := deviceNumber(sys, path.Join(device, "queue/nr_requests")); ok && n > 0 {
		return min(n, solidDepth)
	}
	return solidDepth
}

// deviceNumber reads a sysfs file with one number. ok is false without such a file.
func deviceNumber(sys fs.FS, name string) (n int, ok bool) {
	text, err := fs.ReadFile(sys, name)
	if err != nil {
		return 0, false
	}
	n, err = strconv.Atoi(strings.TrimSpace(string(text)))
	return n, err == nil
}
