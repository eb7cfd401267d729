package reload

import (
	"fmt"
	"io"
	"os"
	"slices"
	"sync"
	"sync/atomic"
	"syscall"
	"time"
)

const (
	// maxFile bounds a file, in bytes.
	maxFile = 16 << 20
	// checkEvery is the least time between two looks at the files.
	checkEvery = time.Second
)

// Files is the parsed content of one or more files. Make one with Open.
type Files[T any] struct {
	paths  []string
	parse  func(contents [][]byte) (T, error)
	failed func(error)

	current atomic.Pointer[T]
	// next is the time of the next look, in nanoseconds of Unix time.
	next atomic.Int64

	mu sync.Mutex
	// seen describes the files at the last look, lastError is the error that was reported.
	seen      []state
	lastError string
}

// state tells whether a file has changed.
type state struct {
	size    int64
	modTime time.Time
	inode   uint64
}

// Open returns the files at paths with their parsed value, which Get reads again when a file
// changes. parse gets the contents in the order of paths. failed gets the errors of later reads,
// an equal one only once in a row. The error is that of the first read.
func Open[T any](paths []string, parse func(contents [][]byte) (T, error), failed func(error)) (*Files[T], error) {
	f := &Files[T]{paths: slices.Clone(paths), parse: parse, failed: failed}
	f.next.Store(time.Now().Add(checkEvery).UnixNano())
	if err := f.read(); err != nil {
		return nil, err
	}
	return f, nil
}

// Get returns the last good value. Every checkEvery it first looks for changed files and reads them.
// Only one caller reads at a time; the others do not wait and get the value of before.
func (f *Files[T]) Get() T {
	if now := time.Now(); now.UnixNano() >= f.next.Load() && f.mu.TryLock() {
		defer f.mu.Unlock()
		f.next.Store(now.Add(checkEvery).UnixNano())
		f.reportLocked(f.read())
	}
	return *f.current.Load()
}

// reportLocked calls f.failed for an error that differs from the last one, and remembers it. The
// caller holds f.mu.
func (f *Files[T]) reportLocked(err error) {
	text := ""
	if err != nil {
		text = err.Error()
	}
	if text != "" && text != f.lastError {
		f.failed(err)
	}
	f.lastError = text
}

// read parses the files if one has changed, and stores the value. A file that was bad is read
// again although it has not changed, so that its error does not go away. The caller holds f.mu,
// or is Open.
func (f *Files[T]) read() error {
	now := make([]state, len(f.paths))
	for i, path := range f.paths {
		info, err := os.Stat(path)
		if err != nil {
			return err
		}
		now[i] = state{size: info.Size(), modTime: info.ModTime()}
		if sys, ok := info.Sys().(*syscall.Stat_t); ok {
			now[i].inode = sys.Ino
		}
	}
	if f.lastError == "" && slices.Equal(now, f.seen) {
		return nil
	}
	contents := make([][]byte, len(f.paths))
	for i, path := range f.paths {
		var err error
		if contents[i], err = ReadRegular(path); err != nil {
			return err
		}
	}
	value, err := f.parse(contents)
	if err != nil {
		return err
	}
	f.current.Store(&value)
	f.seen = now
	return nil
}

// ReadRegular returns the contents of a regular file of at most 16 MiB. It does not block
// on a pipe: another kind of file is an error.
func ReadRegular(path string) ([]byte, error) {
	file, err := os.OpenFile(path, os.O_RDONLY|syscall.O_NONBLOCK, 0)
	if err != nil {
		return nil, err
	}
	defer file.Close() //nolint:errcheck // only read
	info, err := file.Stat()
	if err != nil {
		return nil, err
	}
	if !info.Mode().IsRegular() {
		return nil, fmt.Errorf("%s: %s is not a regular file", path, info.Mode().Type())
	}
	data, err := io.ReadAll(io.LimitReader(file, maxFile+1))
	if err == nil && len(data) > maxFile {
		err = fmt.Errorf("%s: more than %d bytes", path, maxFile)
	}
	return data, err
}
