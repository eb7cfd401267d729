package storage

import (
	"errors"
	"fmt"
	"os"
	"syscall"
)

// statBlock is the unit in which stat counts what a file takes.
const statBlock = 512

// HeldBytes is what an arena's own files in dir, its extents and its slot table,
// take of the file system; zero when there is no such directory or dir is empty.
// Files of anybody else do not count: no arena takes them over.
func HeldBytes(dir string) (uint64, error) {
	if dir == "" {
		return 0, nil
	}
	entries, err := os.ReadDir(dir)
	if err != nil && !errors.Is(err, os.ErrNotExist) {
		return 0, fmt.Errorf("what an arena holds: %w", err)
	}
	var held uint64
	for _, e := range entries {
		if _, extent := parseExtentName(e.Name()); !extent && e.Name() != tableName {
			continue
		}
		info, err := e.Info()
		if err != nil || !info.Mode().IsRegular() {
			continue // a file that has just gone holds nothing
		}
		if st, ok := info.Sys().(*syscall.Stat_t); ok {
			held += uint64(st.Blocks) * statBlock
		}
	}
	return held, nil
}
