package front

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"

	"golang.org/x/sys/unix"
)

// cores are the processors of a run.
type cores struct{ router, load int }

// twoCores returns the last two processors that this process may use: one for the router under
// test, one for load and stubs.
func twoCores() (c cores, err error) {
	var set unix.CPUSet
	if err := unix.SchedGetaffinity(0, &set); err != nil {
		return c, err
	}
	if set.Count() < 2 {
		return c, errors.New("one processor: the router under test needs one of its own")
	}
	var found []int
	for i := 0; len(found) < set.Count(); i++ {
		if set.IsSet(i) {
			found = append(found, i)
		}
	}
	return cores{router: found[len(found)-1], load: found[len(found)-2]}, nil
}

// pinned returns a command that runs on one processor from its first instruction on.
func pinned(core int, command []string) []string {
	return append([]string{"taskset", "-c", strconv.Itoa(core)}, command...)
}

// pinSelf keeps all threads of this process on the processor core.
func pinSelf(core int) error {
	var set unix.CPUSet
	set.Set(core)
	threads, err := filepath.Glob("/proc/self/task/*")
	if err != nil {
		return err
	}
	for _, path := range threads {
		id, err := strconv.Atoi(filepath.Base(path))
		if err != nil {
			return err
		}
		// A thread that has ended needs no processor. New ones inherit theirs.
		if err := unix.SchedSetaffinity(id, &set); err != nil && !errors.Is(err, unix.ESRCH) {
			return fmt.Errorf("processor %d: %w", core, err)
		}
	}
	return nil
}

// usage is what a group of processes has used.
type usage struct {
	nanos int64 // processor time
	bytes int64 // resident memory
}

// groupUsage returns the processor time and the resident memory of the living processes of a
// process group together.
func groupUsage(group int) (u usage, err error) {
	stats, err := filepath.Glob("/proc/[0-9]*/stat")
	if err != nil {
		return u, err
	}
	found := false
	for _, path := range stats {
		text, err := os.ReadFile(path)
		if err != nil || groupOf(text) != group {
			continue // it has ended, or is another's
		}
		pid, err := strconv.Atoi(filepath.Base(filepath.Dir(path)))
		if err != nil {
			return u, err
		}
		one, err := processUsage(pid)
		if err != nil {
			return u, fmt.Errorf("process %d: %w", pid, err)
		}
		u.nanos, u.bytes, found = u.nanos+one.nanos, u.bytes+one.bytes, true
	}
	if !found {
		return u, fmt.Errorf("process group %d has ended", group)
	}
	return u, nil
}

// groupOf returns the process group of a text of /proc/PID/stat; 0 when it has none.
func groupOf(stat []byte) int {
	// The name of the program, in parentheses, may hold anything.
	fields := bytes.Fields(stat[bytes.LastIndexByte(stat, ')')+1:])
	if len(fields) < 3 {
		return 0
	}
	group, err := strconv.Atoi(string(fields[2]))
	if err != nil {
		return 0
	}
	return group
}

// processUsage returns the processor time of a process in nanoseconds, and its resident memory in
// bytes.
func processUsage(pid int) (u usage, err error) {
	// The id of the clock of a process's processor time, made as clock_getcpuclockid(3) does.
	const schedClock = 2
	var ts unix.Timespec
	if err := unix.ClockGettime(int32(^pid<<3|schedClock), &ts); err != nil {
		return u, err
	}
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/statm", pid))
	if err != nil {
		return u, err
	}
	var size, resident int64
	if _, err := fmt.Sscan(string(text), &size, &resident); err != nil {
		return u, fmt.Errorf("statm %q: %w", text, err)
	}
	return usage{ts.Nano(), resident * int64(os.Getpagesize())}, nil
}
