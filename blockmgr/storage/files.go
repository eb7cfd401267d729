package storage

import (
	"errors"
	"fmt"
	"os"
	"strconv"
	"strings"
	"syscall"

	"github.com/blockyard-ai/blockyard/blockmgr/storage/extent"
)

// extentFile is the name of an extent's file: the number of its section, which is
// used again, and its id, which is not. Until a host extent is published the file has
// a temporary name.
type extentFile struct {
	section, id uint32
	// whole is false for a temporary name.
	whole bool
	// text is the name that was found, when name would make another one.
	text string
}

const extentPrefix = "extent-"

// name returns the file's name in the arena's directory.
func (f extentFile) name() string {
	switch {
	case f.text != "":
		return f.text
	case f.whole:
		return fmt.Sprintf("%s%08x-%08x", extentPrefix, f.section, f.id)
	default:
		return fmt.Sprintf("%s%08x-%08x%s", extentPrefix, f.section, f.id, extent.UnfinishedSuffix)
	}
}

// extentFiles returns the extents in a directory. Those of table version 1 have one
// number in their name, which is both id and section. They are never whole.
func extentFiles(dir string) ([]extentFile, error) {
	entries, err := os.ReadDir(dir)
	if err != nil {
		return nil, err
	}
	var files []extentFile
	for _, e := range entries {
		if f, ok := parseExtentName(e.Name()); ok {
			files = append(files, f)
		}
	}
	return files, nil
}

// parseExtentName reads section, id and the rest of an extentFile from a file's name, such as
// extent-00000001-0000002a. ok is false for a file that is no extent.
func parseExtentName(name string) (f extentFile, ok bool) {
	numbers, ok := strings.CutPrefix(name, extentPrefix)
	if !ok {
		return f, false
	}
	numbers, temporary := strings.CutSuffix(numbers, extent.UnfinishedSuffix)
	first, second, both := strings.Cut(numbers, "-")
	if f.section, ok = parseExtentNumber(first); !ok {
		return f, false
	}
	if !both { // the name of a table of version 1
		return extentFile{id: f.section, text: name}, !temporary
	}
	f.id, ok = parseExtentNumber(second)
	f.whole = !temporary
	return f, ok
}

func parseExtentNumber(digits string) (uint32, bool) {
	n, err := strconv.ParseUint(digits, 16, 32)
	return uint32(n), err == nil && len(digits) == 8
}

// unlink removes a file that may be gone already.
func unlink(path string) error {
	err := os.Remove(path)
	if errors.Is(err, os.ErrNotExist) {
		return nil
	}
	return err
}

// statBlock is the unit in which stat counts what a file takes.
const statBlock = 512

// HeldBytes returns how much of the file system an arena's own files in dir take: its
// extents and its slot table. It is zero when dir is empty or does not exist. Other
// files do not count: no arena takes them over.
func HeldBytes(dir string) (uint64, error) {
	if dir == "" {
		return 0, nil
	}
	entries, err := os.ReadDir(dir)
	if err != nil && !errors.Is(err, os.ErrNotExist) {
		return 0, fmt.Errorf("bytes that an arena holds: %w", err)
	}
	var held uint64
	for _, e := range entries {
		if _, isExtent := parseExtentName(e.Name()); !isExtent && e.Name() != tableName {
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
