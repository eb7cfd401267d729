package consolidator

import (
	"fmt"
	"os"
	"time"
)

const (
	defaultCheckpointEvery = 500 * time.Millisecond
	// checkpointShare bounds how much of a rank's time goes into copying its state:
	// one part in so many.
	checkpointShare = 200
)

// checkpointFile keeps a rank's checkpoint up to date. The state is copied by the
// rank's goroutine, and written by another one. It belongs to the rank's
// goroutine.
type checkpointFile struct {
	path  string
	every time.Duration
	count *counters
	warn  func(error)

	// version is that of the last copy, and next when another one may be made.
	version uint64
	next    time.Time
	buf     []byte
	busy    bool
	done    chan error // room for one
}

func newCheckpointFile(path string, every time.Duration, c *counters, warn func(error)) *checkpointFile {
	return &checkpointFile{path: path, every: every, count: c, warn: warn, next: time.Now(), done: make(chan error, 1)}
}

// due is when save must be called next; zero when there is nothing to write.
func (f *checkpointFile) due(version uint64) time.Time {
	if f.path == "" || version == f.version {
		return time.Time{}
	}
	return f.next
}

// save begins to write the state if it has changed and it is time.
func (f *checkpointFile) save(now time.Time, version uint64, state func(dst []byte) []byte) {
	if f.path == "" || version == f.version || now.Before(f.next) {
		return
	}
	if f.busy {
		select {
		case err := <-f.done:
			f.written(err)
		default:
			f.next = now.Add(f.every)
			return
		}
	}
	start := time.Now()
	f.buf = state(f.buf[:0])
	f.version, f.busy = version, true
	f.next = now.Add(max(f.every, checkpointShare*time.Since(start)))
	go func() { f.done <- f.write() }()
}

// finish writes the state if it has changed and waits until it is written.
func (f *checkpointFile) finish(version uint64, state func(dst []byte) []byte) {
	f.wait()
	if f.path == "" || version == f.version {
		return
	}
	f.buf = state(f.buf[:0])
	f.version = version
	f.written(f.write())
}

// remove deletes the file.
func (f *checkpointFile) remove() {
	f.wait()
	if f.path == "" {
		return
	}
	if err := os.Remove(f.path); err != nil && !os.IsNotExist(err) {
		f.warn(fmt.Errorf("checkpoint: %w", err))
	}
}

func (f *checkpointFile) wait() {
	if f.busy {
		f.written(<-f.done)
	}
}

func (f *checkpointFile) written(err error) {
	f.busy = false
	if err != nil {
		f.warn(err)
	}
}

// write replaces the file as a whole: whoever reads it sees the old state or the
// new one.
func (f *checkpointFile) write() error {
	f.buf = appendChecksum(f.buf)
	temporary := f.path + ".new"
	err := os.WriteFile(temporary, f.buf, 0o600)
	if err == nil {
		err = os.Rename(temporary, f.path)
	}
	if err != nil {
		f.count.checkpointFailures.Add(1)
		return fmt.Errorf("checkpoint: %w", err)
	}
	f.count.checkpoints.Add(1)
	return nil
}
