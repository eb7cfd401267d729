package cluster

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
	"syscall"
	"time"
)

// readyTime bounds the start of one process on a busy machine.
const readyTime = 30 * time.Second

// linesKept is how many lines of a child's output wait to be taken.
const linesKept = 16

// starter starts children. The kernel ties the death signal of a child to the
// thread that started it: one goroutine that keeps its thread starts them all.
type starter struct {
	logs   string
	starts chan<- func()
	done   sync.WaitGroup
}

func newStarter(logs string) *starter {
	starts := make(chan func())
	s := &starter{logs: logs, starts: starts}
	s.done.Go(func() {
		runtime.LockOSThread() // never unlocked: the thread ends with this goroutine
		for start := range starts {
			start()
		}
	})
	return s
}

// close is for when all children have ended: it kills those that have not.
func (s *starter) close() {
	close(s.starts)
	s.done.Wait()
}

// Process is one child.
type Process struct {
	// Name is what its log file is called.
	Name  string
	cmd   *exec.Cmd
	stdin io.WriteCloser
	lines chan []byte // of its output; what nobody takes is dropped
	// done is closed when the child has been waited for; err is set before.
	done chan struct{}
	err  error
}

// start runs a command. Its standard error is appended to a log of its name.
func (s *starter) start(name string, command, env []string) (*Process, error) {
	log, err := os.OpenFile(filepath.Join(s.logs, name+".log"), os.O_CREATE|os.O_WRONLY|os.O_APPEND, 0o600)
	if err != nil {
		return nil, err
	}
	defer log.Close() // the child has its own copy
	p := &Process{
		Name: name, cmd: exec.Command(command[0], command[1:]...),
		lines: make(chan []byte, linesKept), done: make(chan struct{}),
	}
	p.cmd.Env = append(childEnv(os.Environ()), env...)
	p.cmd.Stderr = log
	p.cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true, Pdeathsig: syscall.SIGKILL}
	stdout, err := p.cmd.StdoutPipe()
	if err != nil {
		return nil, err
	}
	if p.stdin, err = p.cmd.StdinPipe(); err != nil {
		return nil, err
	}
	started := make(chan error)
	s.starts <- func() { started <- p.cmd.Start() }
	if err := <-started; err != nil {
		return nil, fmt.Errorf("start %s: %w", name, err)
	}
	go p.follow(stdout)
	return p, nil
}

// childEnv is the environment without what would configure a child otherwise
// than the rig means to; only the log level is passed on.
func childEnv(environ []string) []string {
	return slices.DeleteFunc(environ, func(v string) bool {
		ours := strings.HasPrefix(v, "BLOCKYARD_") || strings.HasPrefix(v, "DYN_") || strings.HasPrefix(v, "NATS_")
		return ours && !strings.HasPrefix(v, "BLOCKYARD_LOG_LEVEL=")
	})
}

func (p *Process) follow(stdout io.Reader) {
	in := bufio.NewReader(stdout)
	for {
		line, err := in.ReadBytes('\n')
		if err != nil {
			break // the child's end, whatever the reason
		}
		select {
		case p.lines <- line:
		default:
		}
	}
	p.err = p.cmd.Wait()
	close(p.done)
}

// ready waits for the child's ready line and decodes it.
func (p *Process) ready(ctx context.Context, into any) error {
	ctx, cancel := context.WithTimeoutCause(ctx, readyTime, fmt.Errorf("not ready after %s", readyTime))
	defer cancel()
	if err := p.Next(ctx, into); err != nil {
		return fmt.Errorf("start %w", err)
	}
	return nil
}

// Ask writes an order as one line of JSON to the child's standard input, and
// decodes the next line that the child has to say into answer.
func (p *Process) Ask(ctx context.Context, order, answer any) error {
	if err := json.NewEncoder(p.stdin).Encode(order); err != nil {
		return fmt.Errorf("%s: %w", p.Name, err)
	}
	return p.Next(ctx, answer)
}

// Next waits for the next line that the child has to say and decodes it. At most
// 16 lines wait to be taken.
func (p *Process) Next(ctx context.Context, into any) error {
	select {
	case line := <-p.lines:
		if err := json.Unmarshal(line, into); err != nil {
			return fmt.Errorf("%s: line %.200q: %w", p.Name, line, err)
		}
		return nil
	case <-p.done:
		return fmt.Errorf("%s: it ended: %v", p.Name, p.err)
	case <-ctx.Done():
		return fmt.Errorf("%s: %w", p.Name, context.Cause(ctx))
	}
}

// Exited reports whether the child has ended.
func (p *Process) Exited() bool {
	select {
	case <-p.done:
		return true
	default:
		return false
	}
}

// Kill ends the child at once (SIGKILL) and waits for that. A nil Process is
// none.
func (p *Process) Kill() {
	if p == nil {
		return
	}
	p.signal(syscall.SIGKILL)
	<-p.done
}

// Stop keeps the child from running until Continue.
func (p *Process) Stop() { p.signal(syscall.SIGSTOP) }

// Continue lets a stopped child run.
func (p *Process) Continue() { p.signal(syscall.SIGCONT) }

// signal sends sig to the child's group. That the child has ended is fine.
func (p *Process) signal(sig syscall.Signal) {
	if !p.Exited() {
		_ = syscall.Kill(-p.cmd.Process.Pid, sig)
	}
}
