package demo

import (
	"fmt"
	"io"
	"os"
	"strings"
)

// How much of a child's log a childError carries.
const (
	tailLines = 8
	tailBytes = 4 << 10
)

// childError is a failure of a child process, with the end of its log.
type childError struct {
	err     error
	logPath string
	tail    []string
}

// failed is a childError about p with the message that format and args make.
func (p *process) failed(format string, args ...any) error {
	return &childError{err: fmt.Errorf(format, args...), logPath: p.logPath, tail: lastLines(p.logPath)}
}

// Error is one line; the end of the log is printed apart.
func (e *childError) Error() string { return fmt.Sprintf("%s (log: %s)", e.err, e.logPath) }

func (e *childError) Unwrap() error { return e.err }

// lastLines is the end of a file, or nothing if it cannot be read: it serves an
// error message that is about something else.
func lastLines(path string) []string {
	f, err := os.Open(path)
	if err != nil {
		return nil
	}
	defer f.Close()
	if info, err := f.Stat(); err == nil && info.Size() > tailBytes {
		if _, err := f.Seek(-tailBytes, io.SeekEnd); err != nil {
			return nil
		}
	}
	b, err := io.ReadAll(f)
	if err != nil || len(b) == 0 {
		return nil
	}
	lines := strings.Split(strings.TrimRight(string(b), "\n"), "\n")
	return lines[max(0, len(lines)-tailLines):]
}
