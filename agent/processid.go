package agent

import (
	"bytes"
	"errors"
	"fmt"
	"io/fs"
	"math"
	"os"
	"strconv"

	"golang.org/x/sys/unix"

	"github.com/blockyard-ai/blockyard/blockmgr"
)

// A process is known to the next agent by its pid and its start time, which
// together no other process of this boot ever has. startField is the number of
// the start time in /proc/PID/stat; the fields from the third on follow the
// process's name, which may contain anything.
const startField = 22

// unseenPID stands for the pid of a process that has none in this agent's pid
// namespace. No kernel gives it to a process.
const unseenPID = math.MaxInt32

// identify names the process that has a pid now. Its start time is 0 when it
// cannot be read or there is no pid: such a process can never be shown to be
// gone.
func identify(pid int32) blockmgr.Process {
	if pid <= 0 {
		return blockmgr.Process{PID: unseenPID}
	}
	start, _ := startTime(pid) // 0 says that it is not known
	return blockmgr.Process{PID: pid, Start: start}
}

// identified reports whether id names exactly one process.
func identified(id blockmgr.Process) bool { return id.PID != unseenPID && id.Start > 0 }

// startTime is when the process with a pid started, in clock ticks since boot.
func startTime(pid int32) (uint64, error) {
	stat, err := os.ReadFile("/proc/" + strconv.Itoa(int(pid)) + "/stat")
	if err != nil {
		return 0, err
	}
	return parseStart(stat)
}

// parseStart finds the start time in the text of a stat file.
func parseStart(stat []byte) (uint64, error) {
	const index = startField - 3
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

// errUnidentified: nobody knows which process is meant.
var errUnidentified = errors.New("its start time was not known")

// find watches the process that an earlier agent knew as id. p is nil when gone
// says that it has exited. An error means that nobody can tell: it counts as
// alive.
func (t *processTable) find(id blockmgr.Process) (p *process, gone bool, err error) {
	if !identified(id) {
		return nil, false, fmt.Errorf("watch process %d: %w", id.PID, errUnidentified)
	}
	fd, err := unix.PidfdOpen(int(id.PID), 0)
	if err == nil {
		if p, err = t.adopt(fd, id.PID); err == nil {
			switch {
			case p.id == id:
				return p, false, nil
			case p.id.Start != 0 || !p.alive(): // the pid is another's by now, or nobody's
				p.release()
				return nil, true, nil
			}
			p.release()
		}
	}
	// The start time alone can still show that the process is gone, for instance
	// when its pid has become that of a thread.
	start, statErr := startTime(id.PID)
	if errors.Is(statErr, fs.ErrNotExist) || statErr == nil && start != id.Start {
		return nil, true, nil
	}
	return nil, false, fmt.Errorf("watch process %d: %w", id.PID, errors.Join(err, statErr))
}
