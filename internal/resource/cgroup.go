package resource

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"strconv"
	"strings"
)

// groupFiles names the files of one version of control groups.
type groupFiles struct {
	limit, used string
	// cache are the fields of memory.stat that count page cache of files. The kernel
	// counts memory in tmpfs as anonymous.
	cache [2]string
}

// filesOf returns the names of the files about memory in a control group of version 1 or 2.
func filesOf(version int) groupFiles {
	if version == 1 {
		return groupFiles{
			"memory.limit_in_bytes", "memory.usage_in_bytes",
			[2]string{"total_inactive_file", "total_active_file"},
		}
	}
	return groupFiles{"memory.max", "memory.current", [2]string{"inactive_file", "active_file"}}
}

// unlimitedV1 is the least that version 1 shows without a limit: the largest int64,
// rounded down to a page of up to 64 KiB.
const unlimitedV1 = 1<<63 - 1<<16

// readGroups returns the control groups with a memory limit that this process is in, and those above
// them. The process may be in a hierarchy of either version or of both. root is "/" outside tests.
// With an error readGroups returns the groups that could be read as well.
func readGroups(root string) ([]Group, error) {
	lines, err := readLines(filepath.Join(root, "proc/self/cgroup"))
	if err != nil {
		return nil, err
	}
	mounts, err := readMounts(root)
	if err != nil {
		return nil, err
	}
	var groups []Group
	var errs []error
	for _, line := range lines {
		// ID:CONTROLLERS:PATH; version 2 has id 0 and names no controllers.
		parts := strings.SplitN(line, ":", 3)
		if len(parts) != 3 {
			errs = append(errs, fmt.Errorf("%s: %q: want ID:CONTROLLERS:PATH", filepath.Join(root, "proc/self/cgroup"), line))
			continue
		}
		version := 0
		switch {
		case parts[0] == "0" && parts[1] == "":
			version = 2
		case hasField(parts[1], "memory"):
			version = 1
		default:
			continue
		}
		for _, m := range mounts {
			if m.version == version {
				found, err := readChain(root, m, parts[2])
				groups = append(groups, found...)
				errs = append(errs, err)
				break
			}
		}
	}
	return groups, errors.Join(errs...)
}

// groupMount is the mount of a hierarchy that may have a memory controller.
type groupMount struct {
	version int
	// point is the mount point, top the group at that point.
	point, top string
}

// readMounts returns the mounted control group hierarchies that may have a memory controller: all of
// version 2, and that of memory of version 1.
func readMounts(root string) ([]groupMount, error) {
	lines, err := readLines(filepath.Join(root, "proc/self/mountinfo"))
	if err != nil {
		return nil, err
	}
	var mounts []groupMount
	for _, line := range lines {
		// ID PARENT MAJ:MIN ROOT POINT OPTIONS [TAGS...] - TYPE SOURCE SUPER
		left, right, _ := strings.Cut(line, " - ")
		at, kind := strings.Fields(left), strings.Fields(right)
		if len(at) < 6 || len(kind) < 1 {
			continue
		}
		m := groupMount{point: unescape(at[4]), top: unescape(at[3])}
		switch kind[0] {
		case "cgroup2":
			m.version = 2
		case "cgroup":
			if len(kind) < 3 || !hasField(kind[2], "memory") {
				continue
			}
			m.version = 1
		default:
			continue
		}
		mounts = append(mounts, m)
	}
	return mounts, nil
}

// readChain returns the groups with a memory limit among group and those above it, up to the top
// of the mount m. group is the path in the hierarchy, as /proc/self/cgroup has it.
func readChain(root string, m groupMount, group string) ([]Group, error) {
	group = path.Clean("/" + group)
	// In a container with the node's view of groups, the mount shows the
	// container's group as its top.
	if rest, ok := strings.CutPrefix(group, m.top); ok && m.top != "/" && (rest == "" || rest[0] == '/') {
		group = path.Clean("/" + rest)
	}
	files := filesOf(m.version)
	var groups []Group
	for {
		dir := path.Join(m.point, group)
		g, err := readGroup(root, dir, files)
		if err != nil && !errors.Is(err, fs.ErrNotExist) {
			return groups, err
		}
		if err == nil && g.Limit != 0 {
			groups = append(groups, g)
		}
		if group == "/" {
			return groups, nil
		}
		group = path.Dir(group)
	}
}

// readGroup returns the limit of the group in dir, and its used memory without page cache. A group
// without a limit has Limit 0.
func readGroup(root, dir string, files groupFiles) (Group, error) {
	g := Group{Path: dir}
	file := filepath.Join(root, dir, files.limit)
	b, err := os.ReadFile(file)
	if err != nil {
		return g, err
	}
	text := strings.TrimSpace(string(b))
	if text == "max" {
		return g, nil
	}
	limit, err := strconv.ParseUint(text, 10, 64)
	if err != nil {
		return g, fmt.Errorf("%s: %q: want a number or max", file, text)
	}
	if limit >= unlimitedV1 { // version 1 has a large number for no limit
		return g, nil
	}
	g.Limit = max(limit, 1) // a limit of 0 stays a limit
	used, err := readNumber(filepath.Join(root, dir, files.used))
	if err != nil {
		return g, err
	}
	cache, err := readCache(filepath.Join(root, dir, "memory.stat"), files)
	if err != nil {
		return g, err
	}
	g.Used = used - min(cache, used)
	return g, nil
}

// readCache returns the bytes of page cache of files in a group, which the kernel gives up before it
// enforces the limit. file is the group's memory.stat; without it the answer is 0.
func readCache(file string, files groupFiles) (uint64, error) {
	lines, err := readLines(file)
	if errors.Is(err, fs.ErrNotExist) {
		return 0, nil
	}
	if err != nil {
		return 0, err
	}
	var sum uint64
	for _, line := range lines {
		name, value, _ := strings.Cut(line, " ")
		if name != files.cache[0] && name != files.cache[1] {
			continue
		}
		n, err := strconv.ParseUint(value, 10, 63)
		if err != nil {
			return 0, fmt.Errorf("%s: %q: want NAME NUMBER", file, line)
		}
		sum += n
	}
	return sum, nil
}

// hasField reports whether a list with commas has the element name.
func hasField(list, name string) bool {
	for field := range strings.SplitSeq(list, ",") {
		if field == name {
			return true
		}
	}
	return false
}

// unescape undoes the kernel's escapes of blanks in mountinfo.
func unescape(s string) string {
	return strings.NewReplacer(`\040`, " ", `\011`, "\t", `\012`, "\n", `\134`, `\`).Replace(s)
}
