package resource

import (
	"cmp"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
)

// Limits bound the memory of this process. Sizes are bytes; 0 means unlimited or
// unknown.
type Limits struct {
	// Groups are the control groups with a memory limit, of either version, from this
	// process's own group to the root.
	Groups []Group
	// MemTotal, MemAvailable and SwapTotal are the node's, from /proc/meminfo.
	// MemAvailable can be allocated without swapping.
	MemTotal, MemAvailable, SwapTotal uint64
	// Memlock is this process's soft RLIMIT_MEMLOCK. The engines, which pin the pool,
	// often have the same limit; theirs cannot be read here. A limit of 0 bytes is given
	// as 1.
	Memlock uint64
	// HugePages are the node's pools of huge pages, by ascending page size.
	HugePages []HugePages
}

// Group is one control group with a memory limit.
type Group struct {
	// Path is the group's directory, as this process sees it.
	Path string
	// Limit is the memory that the group's processes may have together.
	Limit uint64
	// Used is the memory they have now. Memory in tmpfs counts; page cache of files does
	// not, because the kernel frees it on demand.
	Used uint64
}

// Left returns how much memory the group can still get.
func (g Group) Left() uint64 { return g.Limit - min(g.Used, g.Limit) }

// HugePages is a pool of huge pages of one size.
type HugePages struct {
	PageBytes   uint64
	Total, Free uint64
}

// Read returns the limits of the calling process. root is "/", or a test's copy of parts
// of it. With an error Read returns what it could read as well.
func Read(root string) (Limits, error) {
	var l Limits
	var errs []error
	keep := func(err error) {
		// A kernel may lack a file. Then the limit is unknown.
		if err != nil && !errors.Is(err, fs.ErrNotExist) {
			errs = append(errs, err)
		}
	}
	keep(l.readMeminfo(root))
	keep(l.readMemlock(root))
	keep(l.readHugePages(root))
	groups, err := readGroups(root)
	l.Groups = groups
	keep(err)
	return l, errors.Join(errs...)
}

// readMeminfo sets the node's memory and swap, in bytes, from /proc/meminfo.
func (l *Limits) readMeminfo(root string) error {
	path := filepath.Join(root, "proc/meminfo")
	lines, err := readLines(path)
	if err != nil {
		return err
	}
	for _, line := range lines {
		name, value, _ := strings.Cut(line, ":")
		var to *uint64
		switch name {
		case "MemTotal":
			to = &l.MemTotal
		case "MemAvailable":
			to = &l.MemAvailable
		case "SwapTotal":
			to = &l.SwapTotal
		default:
			continue
		}
		kib, err := strconv.ParseUint(strings.TrimSuffix(strings.TrimSpace(value), " kB"), 10, 54)
		if err != nil {
			return fmt.Errorf("%s: %q: want NAME: NUMBER kB", path, line)
		}
		*to = kib << 10
	}
	return nil
}

// readMemlock sets l.Memlock, the limit of locked memory in bytes; 0 is unlimited. It reads
// procfs and not getrlimit, so that a test can set the limit.
func (l *Limits) readMemlock(root string) error {
	path := filepath.Join(root, "proc/self/limits")
	lines, err := readLines(path)
	if err != nil {
		return err
	}
	for _, line := range lines {
		rest, ok := strings.CutPrefix(line, "Max locked memory")
		if !ok {
			continue
		}
		fields := strings.Fields(rest)
		if len(fields) > 0 && fields[0] == "unlimited" {
			return nil
		}
		if len(fields) > 0 {
			if n, err := strconv.ParseUint(fields[0], 10, 64); err == nil {
				l.Memlock = max(n, 1)
				return nil
			}
		}
		return fmt.Errorf("%s: %q: want a number or unlimited", path, line)
	}
	return nil
}

// readHugePages sets l.HugePages: the total and free huge pages of each size, the smallest size
// first.
func (l *Limits) readHugePages(root string) error {
	dir := filepath.Join(root, "sys/kernel/mm/hugepages")
	entries, err := os.ReadDir(dir)
	if err != nil {
		return err
	}
	for _, e := range entries {
		digits, ok := strings.CutPrefix(e.Name(), "hugepages-")
		if !ok {
			continue
		}
		kib, err := strconv.ParseUint(strings.TrimSuffix(digits, "kB"), 10, 54)
		if err != nil {
			return fmt.Errorf("%s: %q: want hugepages-NUMBERkB", dir, e.Name())
		}
		total, err := readNumber(filepath.Join(dir, e.Name(), "nr_hugepages"))
		if err != nil {
			return err
		}
		free, err := readNumber(filepath.Join(dir, e.Name(), "free_hugepages"))
		if err != nil {
			return err
		}
		l.HugePages = append(l.HugePages, HugePages{PageBytes: kib << 10, Total: total, Free: free})
	}
	slices.SortFunc(l.HugePages, func(a, b HugePages) int { return cmp.Compare(a.PageBytes, b.PageBytes) })
	return nil
}

func readLines(path string) ([]string, error) {
	b, err := os.ReadFile(path)
	if err != nil {
		return nil, err
	}
	return strings.Split(strings.TrimSuffix(string(b), "\n"), "\n"), nil
}

// readNumber returns the number in a file that holds nothing else.
func readNumber(path string) (uint64, error) {
	b, err := os.ReadFile(path)
	if err != nil {
		return 0, err
	}
	n, err := strconv.ParseUint(strings.TrimSpace(string(b)), 10, 64)
	if err != nil {
		return 0, fmt.Errorf("%s: %q: want a number", path, b)
	}
	return n, nil
}
