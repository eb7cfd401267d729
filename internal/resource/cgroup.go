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

// readGroups returns the limited groups of this process and those above them. The
// process may be in a hierarchy of either version or of both.
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

// readMounts returns the hierarchies that may have a memory controller.
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

// readChain returns the limited ones of a group and all groups above it, as far as the
// mount shows them.
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

// readGroup returns one group; a group without a limit has Limit 0.
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
	if limit >= unlimitedV1 {
		return g, nil
	}
	g.Limit = max(limit, 1)
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

// readCache returns how much page cache of files a group has.
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
