package checkpoint

import (
	"fmt"
	"os"
	"sync/atomic"
	"time"
)

// A rank spends at most one part in copyShare of its time on copying its state.
const copyShare = 200

// Counters count writes. They may be read by any goroutine.
type Counters struct{ Written, Failed atomic.Uint64 }

// File keeps a rank's checkpoint up to date. The caller's goroutine copies the state,
// another one writes it. A File belongs to the caller's goroutine.
type File struct {
	path  string
	every time.Duration
	count *Counters
	warn  func(error)

	// version is the version of the last copy, next the earliest time of another one.
	version uint64
	next    time.Time
	buf     []byte     // the copy; the writing goroutine owns it while writing is true
	writing bool       // no result has been taken from done since the last copy
	done    chan error // room for one
}

// NewFile returns a File at path that is written at most once in every. With an empty path every
// method does nothing. warn gets the errors.
func NewFile(path string, every time.Duration, c *Counters, warn func(error)) *File {
	return &File{path: path, every: every, count: c, warn: warn, next: time.Now(), done: make(chan error, 1)}
}

// Due returns the time of the next Save; zero when there is nothing to write.
func (f *File) Due(version uint64) time.Time {
	if f.path == "" || version == f.version {
		return time.Time{}
	}
	return f.next
}

// Save begins to write the state in the background if version has changed and the pause since
// the last write is over. The caller calls it often. state appends the file's content without
// its checksum to dst. The result of a write is taken by a later call, and errors are logged.
func (f *File) Save(now time.Time, version uint64, state func(dst []byte) []byte) {
	if f.path == "" || version == f.version || now.Before(f.next) {
		return
	}
	if f.writing {
		select {
		case err := <-f.done:
			f.written(err)
		default: // the last write is not over
			f.next = now.Add(f.every)
			return
		}
	}
	start := time.Now()
	f.buf = state(f.buf[:0])
	f.version, f.writing = version, true
	// A large state is copied less often: copying takes at most one part in copyShare of the time.
	f.next = now.Add(max(f.every, copyShare*time.Since(start)))
	go func() { f.done <- f.write() }()
}

// Finish writes the state if its version has changed, and waits until it is written.
func (f *File) Finish(version uint64, state func(dst []byte) []byte) {
	f.wait()
	if f.path == "" || version == f.version {
		return
	}
	f.buf = state(f.buf[:0])
	f.version = version
	f.written(f.write())
}

// Remove deletes the file, after a write that has begun. An absent file is no error.
func (f *File) Remove() {
	f.wait()
	if f.path == "" {
		return
	}
	if err := os.Remove(f.path); err != nil && !os.IsNotExist(err) {
		f.warn(fmt.Errorf("checkpoint: %w", err))
	}
}

func (f *File) wait() {
	if f.writing {
		f.written(<-f.done)
	}
}

func (f *File) written(err error) {
	f.writing = false
	if err != nil {
		f.warn(err)
	}
}

// write writes f.buf and its checksum in place of the file, in a goroutine of its own. The file is
// replaced as a whole: a reader sees the old state or the new one. write counts its success or
// failure.
func (f *File) write() error {
	f.buf = AppendChecksum(f.buf)
	temporary := f.path + ".new"
	err := os.WriteFile(temporary, f.buf, 0o600)
	if err == nil {
		err = os.Rename(temporary, f.path)
	}
	if err != nil {
		f.count.Failed.Add(1)
		return fmt.Errorf("checkpoint: %w", err)
	}
	f.count.Written.Add(1)
	return nil
}
