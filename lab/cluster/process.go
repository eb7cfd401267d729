package cluster

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"sync/atomic"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

const (
	// readyTime bounds the start of one process on a busy machine.
	readyTime = 30 * time.Second
	// killTime bounds the wait for a killed process. One that hangs in the kernel
	// takes longer, and must not hold its scenario.
	killTime = 5 * time.Second
	// linesKept bounds the lines of a process's output that wait for Next.
	linesKept = 16
	// tailLines and tailBytes bound the end of a log that a Failure carries.
	tailLines = 8
	tailBytes = 4 << 10
)

// Process is a started process.
type Process struct {
	// Name is the name in its Spec, Log the path of its log.
	Name, Log string
	// Stdin is its standard input.
	Stdin io.WriteCloser
	// Started is when it was started, by Now.
	Started int64

	stage int
	cmd   *exec.Cmd
	lines chan []byte // nil when the Spec has a Line
	asked atomic.Bool // Kill or Stop has asked the process to end
	done  chan struct{}
	err   error
	ended int64
}

// keep queues a line for Next, or drops the line when linesKept lines wait.
func (p *Process) keep(line []byte) {
	select {
	case p.lines <- line:
	default:
	}
}

// follow passes each line of stdout to line until the process ends, and then closes p.done. It calls
// died, unless died is nil, when the process ended without Kill or Stop after its first line.
func (p *Process) follow(stdout io.Reader, line func([]byte), died func(error)) {
	in, said := bufio.NewReader(stdout), false
	for {
		b, err := in.ReadBytes('\n')
		if err != nil {
			break // ignores an incomplete last line
		}
		line(b)
		said = true
	}
	p.err = p.cmd.Wait()
	p.ended = Now()
	close(p.done)
	// The caller that waits for the first line sees the end and reports it.
	if said && died != nil && !p.asked.Load() {
		died(p.failed("%s ended unexpectedly: %s", p.Name, p.ending()))
	}
}

// ready waits for the ready line, which a program prints when it serves, and decodes its JSON
// into into. A process that is not ready after limit is killed. The error says how the process
// ended.
func (p *Process) ready(ctx context.Context, limit time.Duration, into any) (err error) {
	defer func() {
		if err != nil {
			p.Kill()
		}
	}()
	timeout := time.NewTimer(limit)
	defer timeout.Stop()
	select {
	case line := <-p.lines:
		return p.accept(line, into)
	case <-p.done:
		select {
		case line := <-p.lines: // printed before the end
			return p.accept(line, into)
		default:
			return p.failed("start %s: it ended before it was ready: %s", p.Name, p.ending())
		}
	case <-timeout.C:
		return p.failed("start %s: not ready after %s", p.Name, limit)
	case <-ctx.Done():
		return fmt.Errorf("start %s: %w", p.Name, context.Cause(ctx))
	}
}

// accept decodes the ready line, a JSON object with "ready": true, into into.
func (p *Process) accept(line []byte, into any) error {
	var r struct {
		Ready bool `json:"ready"`
	}
	if err := json.Unmarshal(line, &r); err != nil || !r.Ready {
		return p.failed("start %s: its first line is not a ready line: %.200q", p.Name, line)
	}
	if err := json.Unmarshal(line, into); err != nil {
		return p.failed("start %s: ready line %.200q: %w", p.Name, line, err)
	}
	return nil
}

// Ask writes an order as one line of JSON to the process's standard input and
// decodes its next line into answer.
func (p *Process) Ask(ctx context.Context, order, answer any) error {
	if err := json.NewEncoder(p.Stdin).Encode(order); err != nil {
		return fmt.Errorf("%s: %w", p.Name, err)
	}
	return p.Next(ctx, answer)
}

// Next waits for the process's next line of output and decodes its JSON into into. The error says
// that the process or ctx ended, or that the line is not JSON.
func (p *Process) Next(ctx context.Context, into any) error {
	select {
	case line := <-p.lines:
		if err := json.Unmarshal(line, into); err != nil {
			return fmt.Errorf("%s: line %.200q: %w", p.Name, line, err)
		}
		return nil
	case <-p.done:
		return fmt.Errorf("%s: it ended: %s", p.Name, p.ending())
	case <-ctx.Done():
		return fmt.Errorf("%s: %w", p.Name, context.Cause(ctx))
	}
}

// Done returns a channel that is closed when the process has ended and its last line was
// passed on.
func (p *Process) Done() <-chan struct{} { return p.done }

// Exited reports whether the process has ended.
func (p *Process) Exited() bool {
	select {
	case <-p.done:
		return true
	default:
		return false
	}
}

// Result returns how an ended process ended, and when by Now. It must not be
// called before Done.
func (p *Process) Result() (ended int64, err error) { return p.ended, p.err }

// Signal sends sig to the process's group. It does nothing after the end of the process.
func (p *Process) Signal(sig syscall.Signal) {
	if !p.Exited() {
		_ = syscall.Kill(-p.cmd.Process.Pid, sig)
	}
}

// PeakRSS returns the most memory that the running process has had resident, in bytes.
func (p *Process) PeakRSS() (uint64, error) {
	status, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", p.cmd.Process.Pid))
	if err != nil {
		return 0, err
	}
	for line := range strings.Lines(string(status)) {
		if value, ok := strings.CutPrefix(line, "VmHWM:"); ok {
			kib, err := strconv.ParseUint(strings.TrimSuffix(strings.TrimSpace(value), " kB"), 10, 64)
			return kib << 10, err
		}
	}
	return 0, p.failed("its status has no VmHWM")
}

// End asks the process to end (SIGTERM), and waits for its end. A process that has not ended after limit is
// killed. The error says so, or how else the process did not end in order.
func (p *Process) End(ctx context.Context, limit time.Duration) error {
	p.asked.Store(true)
	p.Signal(syscall.SIGTERM)
	timeout := time.NewTimer(limit)
	defer timeout.Stop()
	select {
	case <-p.done:
	case <-timeout.C:
		p.Kill()
		return p.failed("end: still there %s after SIGTERM", limit)
	case <-ctx.Done():
		p.Kill()
		return p.failed("end: %w", context.Cause(ctx))
	}
	if p.err != nil {
		return p.failed("end: %s", p.ending())
	}
	return nil
}

// Pause keeps the process from running until Continue.
func (p *Process) Pause() { p.Signal(syscall.SIGSTOP) }

// Continue lets a paused process run.
func (p *Process) Continue() { p.Signal(syscall.SIGCONT) }

// Kill kills the process and waits for its end. It returns false for a process that still
// lives after 5 seconds. It returns true for a nil Process.
func (p *Process) Kill() bool {
	if p == nil {
		return true
	}
	p.asked.Store(true)
	p.Signal(syscall.SIGKILL)
	timeout := time.NewTimer(killTime)
	defer timeout.Stop()
	select {
	case <-p.done:
		return true
	case <-timeout.C:
		return false
	}
}

// ending says how the process ended; done must be closed.
func (p *Process) ending() string {
	if p.err == nil {
		return "exit status 0"
	}
	return p.err.Error()
}

// Failure is an error of a process, with the end of its log.
type Failure struct {
	err error
	log string
	// Tail is the last lines of the log.
	Tail []string
}

// failed returns a Failure of p.
func (p *Process) failed(format string, args ...any) error {
	return &Failure{err: fmt.Errorf(format, args...), log: p.Log, Tail: lastLines(p.Log)}
}

// Error returns one line; it names the log.
func (f *Failure) Error() string { return fmt.Sprintf("%s (log: %s)", f.err, f.log) }

// Unwrap returns the error without the log.
func (f *Failure) Unwrap() error { return f.err }

// lastLines returns the last tailLines lines of a log for an error; nil when the file cannot be
// read. It reads at most tailBytes from the end.
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

// Now returns nanoseconds of the kernel's monotonic clock, which all processes of
// the machine share.
func Now() int64 {
	var ts unix.Timespec
	if err := unix.ClockGettime(unix.CLOCK_MONOTONIC, &ts); err != nil {
		panic(fmt.Sprintf("BUG: the monotonic clock: %v", err))
	}
	return ts.Nano()
}

// PID returns the id of the process, which is the id of its process group too.
func (p *Process) PID() int { return p.cmd.Process.Pid }
