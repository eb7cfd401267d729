package killloop

import (
	"bufio"
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
)

// nursery starts the children of a run. Each is in a process group of its own, so
// that a Ctrl-C reaches the harness alone, and the kernel kills it should the
// harness die. That is tied to the thread which started the child: one goroutine
// that keeps its thread starts them all.
type nursery struct {
	logs   string
	starts chan<- func()
	done   sync.WaitGroup
}

func newNursery(logs string) *nursery {
	starts := make(chan func())
	n := &nursery{logs: logs, starts: starts}
	n.done.Go(func() {
		runtime.LockOSThread() // never unlocked: the thread ends with this goroutine
		for start := range starts {
			start()
		}
	})
	return n
}

// close is for when all children have ended.
func (n *nursery) close() {
	close(n.starts)
	n.done.Wait()
}

// process is a child.
type process struct {
	name    string
	cmd     *exec.Cmd
	stdin   io.WriteCloser
	started int64
	// done is closed when the child has been waited for and its last line was
	// handed over; err and ended are set before.
	done  chan struct{}
	err   error
	ended int64
}

// start runs a command, whose standard error goes to a log named after it. line
// gets each line of its output, on one goroutine.
func (n *nursery) start(name string, command []string, line func([]byte)) (*process, error) {
	log, err := os.OpenFile(filepath.Join(n.logs, name+".log"), os.O_CREATE|os.O_WRONLY|os.O_APPEND, 0o600)
	if err != nil {
		return nil, err
	}
	defer log.Close() // the child has its own copy
	p := &process{name: name, cmd: exec.Command(command[0], command[1:]...), done: make(chan struct{})}
	p.cmd.Env = slices.DeleteFunc(os.Environ(), func(v string) bool {
		return strings.HasPrefix(v, "BLOCKYARD_") && !strings.HasPrefix(v, "BLOCKYARD_LOG_LEVEL=") || strings.HasPrefix(v, "DYN_")
	})
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
	n.starts <- func() {
		p.started = now()
		started <- p.cmd.Start()
	}
	if err := <-started; err != nil {
		return nil, fmt.Errorf("start %s: %w", name, err)
	}
	go p.follow(stdout, line)
	return p, nil
}

// follow hands over the output of the child and waits for its end.
func (p *process) follow(stdout io.Reader, line func([]byte)) {
	in := bufio.NewReader(stdout)
	for {
		b, err := in.ReadBytes('\n')
		if err != nil {
			break // of a line that a kill cut short nothing is known
		}
		line(b)
	}
	p.err = p.cmd.Wait()
	p.ended = now()
	close(p.done)
}

// signal sends sig to the child's group. That the child has ended is fine.
func (p *process) signal(sig syscall.Signal) {
	if !p.exited() {
		_ = syscall.Kill(-p.cmd.Process.Pid, sig)
	}
}

// exited reports whether the child has ended.
func (p *process) exited() bool {
	select {
	case <-p.done:
		return true
	default:
		return false
	}
}
