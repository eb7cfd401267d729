package storage

import (
	"fmt"
	"os"
	"strconv"
	"strings"

	"github.com/blockyard-ai/blockyard/blockmgr/storage/extent"
)

// extentFile is the name of an extent's file: where its section is in the slot
// table, which is used again, and its id, which is not. Until a host extent is
// populated it has a temporary name.
type extentFile struct {
	section, id uint32
	whole       bool
	// text is the name that was found, when it is not the one that name makes.
	text string
}

const extentPrefix = "extent-"

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

// extentFiles are the extents in a directory. Those of table version 1 had a
// name with one number, which was id and place at once; they are never whole.
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
	if !both {
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
