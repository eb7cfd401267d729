package resource

import (
	"fmt"
	"path/filepath"
	"strconv"
	"strings"
)

// maxMemoryNode is the highest memory node that a policy of memory can name.
const maxMemoryNode = 1022

// MemoryNodes returns the numbers of the memory nodes (NUMA) that have memory, ascending. root is
// "/", or a test's copy of parts of it. A kernel without memory nodes lacks the file: the error is
// fs.ErrNotExist.
func MemoryNodes(root string) ([]int, error) {
	path := filepath.Join(root, "sys/devices/system/node/has_memory")
	lines, err := readLines(path)
	if err != nil {
		return nil, err
	}
	var nodes []int
	for _, part := range strings.Split(strings.Join(lines, ""), ",") {
		low, high, isRange := strings.Cut(strings.TrimSpace(part), "-")
		if !isRange {
			high = low
		}
		first, err := strconv.ParseUint(low, 10, 16)
		last, err2 := strconv.ParseUint(high, 10, 16)
		if err != nil || err2 != nil || first > last || last > maxMemoryNode {
			return nil, fmt.Errorf("%s: %q: want numbers and ranges from 0 to %d, such as 0,2-3", path, part, maxMemoryNode)
		}
		for n := first; n <= last; n++ {
			nodes = append(nodes, int(n))
		}
	}
	return nodes, nil
}
