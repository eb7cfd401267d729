package resource

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"syscall"
)

// statBlock is the unit in which stat counts what a file takes.
const statBlock = 512

// HeldBytes is what the files in a directory take of its file system; zero when
// it does not exist or dir is empty.
func HeldBytes(dir string) (uint64, error) {
	if dir == "" {
		return 0, nil
	}
	files, err := os.ReadDir(dir)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return 0, fmt.Errorf("what is held: %w", err)
	}
	var held uint64
	for _, f := range files {
		info, err := f.Info()
		if err != nil || !info.Mode().IsRegular() {
			continue // a file that has just gone holds nothing
		}
		if st, ok := info.Sys().(*syscall.Stat_t); ok {
			held += uint64(st.Blocks) * statBlock
		}
	}
	return held, nil
}
