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

const (
	// defaultDepth is the queue depth for a device that the kernel says nothing of,
	// and for a disk with heads to move.
	defaultDepth = 4
	// solidDepth is the queue depth for each solid-state device, maxDepth for several
	// of them together.
	solidDepth = 16
	maxDepth   = 64
	// depthWait bounds the wait for a directory on a disk that does not answer.
	depthWait = time.Second
	// maxStacked bounds how deep devices are stacked on devices.
	maxStacked = 8
)

// QueueDepth is how many reads, or writes, of blocks keep the device under a
// directory busy, by what the kernel says of the device. Where the directory does
// not exist yet, the nearest one above it counts.
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

// deviceDepth is the queue depth of a block device in a sysfs; 0 means that it is not
// known. A device that is made of others has what they have together.
func deviceDepth(sys fs.FS, device string, stacked int) int {
	if _, err := fs.Stat(sys, path.Join(device, "partition")); err == nil {
		device = path.Dir(device)
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

func deviceNumber(sys fs.FS, name string) (int, bool) {
	text, err := fs.ReadFile(sys, name)
	if err != nil {
		return 0, false
	}
	n, err := strconv.Atoi(strings.TrimSpace(string(text)))
	return n, err == nil
}
