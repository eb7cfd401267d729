package demo

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"io"
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

	"github.com/blockyard-ai/blockyard/lab/cluster"
)

// processSpec says how to start one child.
type processSpec struct {
	// Name is unique in a run; it names the log file.
	Name string
	// Stage orders stopping: processes of a higher stage are stopped first.
	Stage int
	Args  []string
	// Env is added to the parent's environment, see childEnv.
	Env []string
	// ReadyTimeout bounds the wait for the ready line.
	ReadyTimeout time.Duration
}

// process is a started child.
type process struct {
	spec    processSpec
	cmd     *exec.Cmd
	logPath string
	// done is closed when the child has been waited for; err says how it ended
	// and is set before.
	done     chan struct{}
	err      error
	stopping atomic.Bool
}

// supervisor starts the demo's children and makes sure that none outlives it:
// each child is in a process group of its own, so that a Ctrl-C reaches the
// parent alone, and is killed by the kernel should the parent die without
// stopping it.
//
// The kernel's kill is tied to the *thread* that started the child. Therefore
// one goroutine, locked to its thread for as long as the supervisor lives,
// starts them all.
//
// start and stop are for one goroutine.
type supervisor struct {
	programs cluster.Programs
	logDir   string
	// died is called, once per child, when a child ends without being asked to.
	died func(error)

	// starts is nil after stop.
	starts  chan<- func()
	starter sync.WaitGroup
	procs   []*process
}

// newSupervisor makes a supervisor that runs programs and keeps the children's
// stderr in logDir, which must exist. Stop must be called at the end.
func newSupervisor(programs cluster.Programs, logDir string, died func(error)) *supervisor {
	starts := make(chan func())
	s := &supervisor{programs: programs, logDir: logDir, died: died, starts: starts}
	s.starter.Go(func() {
		// Never unlocked: the thread ends with this goroutine.
		runtime.LockOSThread()
		for start := range starts {
			start()
		}
	})
	return s
}

// killPatience bounds the wait for a killed child to be gone: one that hangs in
// the kernel may take longer, and must not take the demo with it.
const killPatience = 5 * time.Second

// start starts a child, waits for its ready line and decodes that into ready.
// On an error no child is left behind, but one that a kill does not end.
func (s *supervisor) start(ctx context.Context, spec processSpec, ready any) error {
	p, stdout, err := s.spawn(spec)
	if err != nil {
		return fmt.Errorf("start %s: %w", spec.Name, err)
	}
	lines := make(chan []byte, 1)
	go p.wait(stdout, lines, s.died)

	timeout := time.NewTimer(spec.ReadyTimeout)
	defer timeout.Stop()
	select {
	case line := <-lines:
		return p.accept(line, ready)
	case <-p.done:
		select {
		case line := <-lines:
			return p.accept(line, ready)
		default:
		}
		return p.failed("start %s: it ended before it was ready: %s", spec.Name, p.ending())
	case <-timeout.C:
		p.kill()
		return p.failed("start %s: not ready after %s", spec.Name, spec.ReadyTimeout)
	case <-ctx.Done():
		p.kill()
		return fmt.Errorf("start %s: %w", spec.Name, context.Cause(ctx))
	}
}

func (s *supervisor) spawn(spec processSpec) (*process, io.ReadCloser, error) {
	logPath := filepath.Join(s.logDir, spec.Name+".log")
	log, err := os.OpenFile(logPath, os.O_CREATE|os.O_WRONLY|os.O_APPEND, 0o600)
	if err != nil {
		return nil, nil, err
	}
	defer log.Close() // the child has its own copy
	exe := s.programs.Product
	if spec.Args[0] == "sim-engine" {
		exe = s.programs.Lab
	}
	cmd := exec.Command(exe, spec.Args...)
	cmd.Env = append(childEnv(os.Environ()), spec.Env...)
	cmd.Stderr = log
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true, Pdeathsig: syscall.SIGKILL}
	stdout, err := cmd.StdoutPipe()
	if err != nil {
		return nil, nil, err
	}
	started := make(chan error)
	s.starts <- func() { started <- cmd.Start() }
	if err := <-started; err != nil {
		return nil, nil, err
	}
	p := &process{spec: spec, cmd: cmd, logPath: logPath, done: make(chan struct{})}
	s.procs = append(s.procs, p)
	return p, stdout, nil
}

// childEnv is the environment without what would configure a child otherwise
// than the demo means to; only the log level is passed on.
func childEnv(environ []string) []string {
	return slices.DeleteFunc(environ, func(v string) bool {
		ours := strings.HasPrefix(v, "BLOCKYARD_") || strings.HasPrefix(v, "DYN_")
		return ours && !strings.HasPrefix(v, "BLOCKYARD_LOG_LEVEL=")
	})
}

// wait hands over the child's first line of output, discards the rest and
// collects the child when it ends.
func (p *process) wait(stdout io.Reader, first chan<- []byte, died func(error)) {
	out := bufio.NewReader(stdout)
	line, err := out.ReadBytes('\n')
	if err == nil {
		first <- line
	}
	io.Copy(io.Discard, out) //nolint:errcheck // ends with the child, whatever the reason
	p.err = p.cmd.Wait()
	close(p.done)
	// Without a first line it is start that sees the end and tells it.
	if err == nil && !p.stopping.Load() {
		died(p.failed("%s ended unexpectedly: %s", p.spec.Name, p.ending()))
	}
}

// accept decodes the first line; a child that says anything else is killed.
func (p *process) accept(line []byte, ready any) error {
	if err := decodeReady(line, ready); err != nil {
		p.kill()
		return p.failed("start %s: %w", p.spec.Name, err)
	}
	return nil
}

func decodeReady(line []byte, into any) error {
	var r struct {
		Ready bool `json:"ready"`
	}
	if err := json.Unmarshal(line, &r); err != nil || !r.Ready {
		return fmt.Errorf("its first line is not a ready line: %.200q", line)
	}
	if err := json.Unmarshal(line, into); err != nil {
		return fmt.Errorf("ready line %.200q: %w", line, err)
	}
	return nil
}

// stop ends every child, the highest stage first and those of one stage
// together: SIGTERM, and SIGKILL for what is still there when its share of the
// budget is used up. It returns the names of the children that had to be killed
// or ended with an error; afterwards no child is left, but one that a kill does
// not end. Calling it again does nothing.
func (s *supervisor) stop(budget time.Duration) []string {
	procs := s.procs
	s.procs = nil
	stages := make(map[int][]*process)
	for _, p := range procs {
		stages[p.spec.Stage] = append(stages[p.spec.Stage], p)
	}
	var dirty []string
	deadline := time.Now().Add(budget)
	for left, stage := range slices.Backward(sortedKeys(stages)) {
		share := time.Until(deadline) / time.Duration(left+1)
		dirty = append(dirty, stopStage(stages[stage], share)...)
	}
	// Only now: the kernel kills what the starter's thread started when it ends.
	if s.starts != nil {
		close(s.starts)
		s.starts = nil
		s.starter.Wait()
	}
	return dirty
}

func sortedKeys(m map[int][]*process) []int {
	keys := make([]int, 0, len(m))
	for k := range m {
		keys = append(keys, k)
	}
	slices.Sort(keys)
	return keys
}

func stopStage(procs []*process, budget time.Duration) (dirty []string) {
	for _, p := range procs {
		p.stopping.Store(true)
		p.signal(syscall.SIGTERM)
	}
	timeout := time.NewTimer(budget)
	defer timeout.Stop()
	for _, p := range procs {
		select {
		case <-p.done:
		case <-timeout.C:
			timeout.Reset(0) // those after it have no time either
			if !p.kill() {
				dirty = append(dirty, fmt.Sprintf("%s: still there %s after it was killed", p.spec.Name, killPatience))
				continue
			}
		}
		if p.err != nil {
			dirty = append(dirty, fmt.Sprintf("%s: %s", p.spec.Name, p.ending()))
		}
	}
	return dirty
}

// signal sends sig to the child's group. A child that has ended already is fine.
func (p *process) signal(sig syscall.Signal) {
	select {
	case <-p.done:
	default:
		// The error is that the child is gone, which is what was wanted.
		_ = syscall.Kill(-p.cmd.Process.Pid, sig)
	}
}

// kill ends the child and waits for that; false if it is still there after
// killPatience.
func (p *process) kill() bool {
	p.stopping.Store(true)
	p.signal(syscall.SIGKILL)
	timeout := time.NewTimer(killPatience)
	defer timeout.Stop()
	select {
	case <-p.done:
		return true
	case <-timeout.C:
		return false
	}
}

// ending says how the child ended; done must be closed.
func (p *process) ending() string {
	if p.err == nil {
		return "exit status 0"
	}
	return p.err.Error()
}
