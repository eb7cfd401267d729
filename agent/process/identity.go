package process

import (
	"bytes"
	"errors"
	"fmt"
	"math"
	"os"
	"path/filepath"
	"strconv"

	"golang.org/x/sys/unix"

	"github.com/blockyard-ai/blockyard/blockmgr"
)

// The next agent knows a process by its pid and its start time, which no other process of this
// boot has together. startField is the number of the start time in /proc/PID/stat. The fields
// from the third on follow the name, which may contain anything.
const startField = 22

// unseenPID stands for the pid of a process outside of this agent's pid namespace. No kernel
// gives it to a process.
const unseenPID = math.MaxInt32

// Identify returns the identity of the process that has a pid now. The start time is 0 when it
// cannot be read; such a process can never be shown to be gone.
func (t *Table) Identify(pid int32) blockmgr.Process {
	if pid <= 0 {
		return blockmgr.Process{PID: unseenPID}
	}
	start, _ := t.startTime(pid) // 0: not known
	return blockmgr.Process{PID: pid, Start: start}
}

// Name names a process in messages.
func Name(pid int32) string {
	if pid <= 0 || pid == unseenPID {
		return "a process outside of this agent's pid namespace"
	}
	return fmt.Sprintf("process %d", pid)
}

// Identified reports whether id names exactly one process.
func Identified(id blockmgr.Process) bool { return id.PID != unseenPID && id.Start > 0 }

// startTime returns the start time of the process with a pid, in clock ticks since boot.
func (t *Table) startTime(pid int32) (uint64, error) {
	stat, err := os.ReadFile(filepath.Join(t.proc, strconv.Itoa(int(pid)), "stat"))
	if err != nil {
		return 0, err
	}
	return parseStart(stat)
}

// parseStart returns the start time, in clock ticks since boot, in the text of a
// /proc/PID/stat. The name, in parentheses, may itself contain parentheses and spaces.
func parseStart(stat []byte) (uint64, error) {
	const index = startField - 3 // fields begins with field 3, the first after the name
	end := bytes.LastIndexByte(stat, ')')
	fields := bytes.Fields(stat[end+1:])
	if end < 0 || len(fields) <= index {
		return 0, fmt.Errorf("process status %.80q: want a name in parentheses and more than %d fields after it", stat, index)
	}
	start, err := strconv.ParseUint(string(fields[index]), 10, 64)
	if err != nil {
		return 0, fmt.Errorf("process status: start time: %w", err)
	}
	return start, nil
}

var (
	// errUnidentified says that the identity names no single process.
	errUnidentified = errors.New("which one was not known when it connected")
	// errHidden says that some process has the pid, and that its start time is hidden.
	errHidden = errors.New("a process has this pid, and its start time cannot be read")
)

// Find watches the process with an identity that an earlier agent recorded. gone says that the
// process has exited; p is nil then. After an error nobody knows whether the process has
// exited: the caller takes it for alive.
//
// Only the kernel's answer for the pid itself shows that a process is gone. An absent /proc
// entry shows nothing: hidepid may hide it.
func (t *Table) Find(id blockmgr.Process) (p *Process, gone bool, err error) {
	if !Identified(id) {
		return nil, false, fmt.Errorf("watch %s: %w", Name(id.PID), errUnidentified)
	}
	fd, err := unix.PidfdOpen(int(id.PID), 0)
	if errors.Is(err, unix.ESRCH) {
		return nil, true, nil
	}
	if err == nil {
		if p, err = t.adopt(fd, id.PID); err == nil {
			switch {
			case p.ID == id:
				return p, false, nil
			case p.ID.Start != 0 || !p.alive(): // another process, or none, has the pid by now
				p.Release()
				return nil, true, nil
			}
			p.Release()
			err = errHidden
		}
	}
	// The start time alone can show that the process is gone, for instance when its pid is
	// that of a thread now.
	start, statErr := t.startTime(id.PID)
	if statErr == nil && start != id.Start {
		return nil, true, nil
	}
	return nil, false, fmt.Errorf("watch process %d: %w", id.PID, errors.Join(err, statErr))
}
