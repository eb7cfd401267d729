package cluster

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"sync"
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
	// linesKept is how many lines of a process's output wait for Next.
	linesKept = 16
	// tailLines and tailBytes bound the end of a log that a Failure carries.
	tailLines = 8
	tailBytes = 4 << 10
)

// Spec says how to start one process.
type Spec struct {
	// Name names the log file; a process may have the name of one that has ended.
	Name    string
	Command []string
	// Env is added to the environment of this process, less its settings of
	// Blockyard, Dynamo and NATS.
	Env []string
	// Stage orders Stop: processes of a higher stage end first.
	Stage int
	// Line is called with each line of output, by one goroutine. Without it lines
	// wait for Next.
	Line func([]byte)
}

// Supervisor starts processes and ends them. Each process is in a process group
// of its own, so that a Ctrl-C reaches the scenario alone. The kernel kills the
// process when the scenario dies.
//
// The kernel ties that kill to the thread that started the process. One goroutine,
// locked to its thread, therefore starts them all.
//
// Methods are for one goroutine.
type Supervisor struct {
	logs    string
	died    func(error)
	starts  chan<- func() // nil after Stop
	starter sync.WaitGroup
	procs   []*Process
}

// NewSupervisor returns a supervisor whose processes write their standard error to
// files in logs. died, unless nil, is called once for each process that has printed
// a line and ends before anybody asks it to. The caller must call Stop.
func NewSupervisor(logs string, died func(error)) *Supervisor {
	starts := make(chan func())
	s := &Supervisor{logs: logs, died: died, starts: starts}
	s.starter.Go(func() {
		runtime.LockOSThread() // never unlocked: the thread ends with this goroutine
		for start := range starts {
			start()
		}
	})
	return s
}

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
	asked atomic.Bool // somebody has asked the process to end
	done  chan struct{}
	err   error
	ended int64
}

// Start starts a process.
func (s *Supervisor) Start(spec Spec) (*Process, error) {
	p := &Process{
		Name: spec.Name, Log: filepath.Join(s.logs, spec.Name+".log"), stage: spec.Stage,
		cmd: exec.Command(spec.Command[0], spec.Command[1:]...), done: make(chan struct{}),
	}
	line := spec.Line
	if line == nil {
		p.lines = make(chan []byte, linesKept)
		line = p.keep
	}
	log, err := os.OpenFile(p.Log, os.O_CREATE|os.O_WRONLY|os.O_APPEND, 0o600)
	if err != nil {
		return nil, err
	}
	defer log.Close() // the process has its own copy
	p.cmd.Env = append(inherited(os.Environ()), spec.Env...)
	p.cmd.Stderr = log
	p.cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true, Pdeathsig: syscall.SIGKILL}
	stdout, err := p.cmd.StdoutPipe()
	if err != nil {
		return nil, err
	}
	if p.Stdin, err = p.cmd.StdinPipe(); err != nil {
		return nil, err
	}
	started := make(chan error)
	s.starts <- func() {
		p.Started = Now()
		started <- p.cmd.Start()
	}
	if err := <-started; err != nil {
		return nil, fmt.Errorf("start %s: %w", spec.Name, err)
	}
	s.procs = append(s.procs, p)
	go p.follow(stdout, line, s.died)
	return p, nil
}

// StartReady starts a process and decodes its ready line into ready. After an error
// the process is not running.
func (s *Supervisor) StartReady(ctx context.Context, spec Spec, ready any) (*Process, error) {
	p, err := s.Start(spec)
	if err != nil {
		return nil, err
	}
	return p, p.ready(ctx, readyTime, ready)
}

// inherited returns environ without what would configure a process otherwise than its
// scenario does. Only the log level stays.
func inherited(environ []string) []string {
	return slices.DeleteFunc(environ, func(v string) bool {
		ours := strings.HasPrefix(v, "BLOCKYARD_") || strings.HasPrefix(v, "DYN_") || strings.HasPrefix(v, "NATS_")
		return ours && !strings.HasPrefix(v, "BLOCKYARD_LOG_LEVEL=")
	})
}

// keep keeps a line for Next, or drops it when nobody takes them.
func (p *Process) keep(line []byte) {
	select {
	case p.lines <- line:
	default:
	}
}

// follow hands over the output and waits for the end of the process.
func (p *Process) follow(stdout io.Reader, line func([]byte), died func(error)) {
	in, said := bufio.NewReader(stdout), false
	for {
		b, err := in.ReadBytes('\n')
		if err != nil {
			break // a line that a kill cut short says nothing
		}
		line(b)
		said = true
	}
	p.err = p.cmd.Wait()
	p.ended = Now()
	close(p.done)
	// Whoever waits for the first line sees the end and reports it.
	if said && died != nil && !p.asked.Load() {
		died(p.failed("%s ended unexpectedly: %s", p.Name, p.ending()))
	}
}

// ready waits for the ready line, for limit at most, and decodes it. A process
// that is not ready is killed.
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
		case line := <-p.lines: // its last word
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

// accept decodes a ready line.
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

// Next decodes the process's next line. At most 16 lines wait.
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

// Done returns a channel that is closed when the process has ended and its last line
// was handed over.
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

// Signal sends sig to the process's group. A process that has ended is fine.
func (p *Process) Signal(sig syscall.Signal) {
	if !p.Exited() {
		_ = syscall.Kill(-p.cmd.Process.Pid, sig)
	}
}

// Pause keeps the process from running until Continue.
func (p *Process) Pause() { p.Signal(syscall.SIGSTOP) }

// Continue lets a paused process run.
func (p *Process) Continue() { p.Signal(syscall.SIGCONT) }

// Kill ends the process at once and waits for that. It reports false for a process
// that is still there after 5 seconds. A nil Process has ended.
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

// Stop ends every process, the highest stage first and the processes of one stage
// together: SIGTERM, then SIGKILL when the stage's share of budget is used up. It
// returns one line for each process that was killed or ended with an error. Without
// a budget every process is killed. A second call does nothing.
func (s *Supervisor) Stop(budget time.Duration) (unclean []string) {
	stages := make(map[int][]*Process)
	for _, p := range s.procs {
		if !p.Exited() || p.err != nil && !p.asked.Load() {
			stages[p.stage] = append(stages[p.stage], p)
		}
	}
	s.procs = nil
	deadline := time.Now().Add(budget)
	for left, stage := range slices.Backward(slices.Sorted(maps.Keys(stages))) {
		share := time.Until(deadline) / time.Duration(left+1)
		unclean = append(unclean, stopStage(stages[stage], share)...)
	}
	// Only now: the kernel kills what the starter's thread started when it ends.
	if s.starts != nil {
		close(s.starts)
		s.starts = nil
		s.starter.Wait()
	}
	return unclean
}

func stopStage(procs []*Process, budget time.Duration) (unclean []string) {
	for _, p := range procs {
		p.asked.Store(true)
		if budget > 0 {
			p.Signal(syscall.SIGTERM)
		}
	}
	timeout := time.NewTimer(budget)
	defer timeout.Stop()
	for _, p := range procs {
		select {
		case <-p.done:
		case <-timeout.C:
			timeout.Reset(0) // the processes after it have no time either
			if !p.Kill() {
				unclean = append(unclean, fmt.Sprintf("%s: still there %s after it was killed", p.Name, killTime))
				continue
			}
		}
		if p.err != nil {
			unclean = append(unclean, fmt.Sprintf("%s: %s", p.Name, p.ending()))
		}
	}
	return unclean
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

// lastLines returns the end of a file. A file that cannot be read has none: the
// lines belong to an error about something else.
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
