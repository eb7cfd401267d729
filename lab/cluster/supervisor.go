package cluster

import (
	"context"
	"fmt"
	"maps"
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

// Spec says how to start one process.
type Spec struct {
	// Name names the log file; a process may have the name of one that has ended.
	Name    string
	Command []string
	// Env is added to the environment of this process. Settings of Blockyard, Dynamo and
	// NATS are not inherited.
	Env []string
	// Stage orders Stop: processes of a higher stage end first.
	Stage int
	// Line is called with each line of output, by one goroutine. With a nil Line the
	// lines wait for Next.
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
// files in logs. died, unless nil, is called once for each process that has printed a line and
// ends without Kill or Stop. The caller must call Stop.
func NewSupervisor(logs string, died func(error)) *Supervisor {
	// The kernel kills a process started with Pdeathsig when the thread that started it ends. So one
	// goroutine with a thread of its own starts all processes.
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

// Start starts a process of spec. Its standard error goes to the log, and its output to spec.Line
// or to Next. It is killed when this process dies.
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

// inherited returns environ without the settings of Blockyard, Dynamo and NATS: the scenario
// configures its processes. Only the log level stays.
func inherited(environ []string) []string {
	return slices.DeleteFunc(environ, func(v string) bool {
		ours := strings.HasPrefix(v, "BLOCKYARD_") || strings.HasPrefix(v, "DYN_") || strings.HasPrefix(v, "NATS_")
		return ours && !strings.HasPrefix(v, "BLOCKYARD_LOG_LEVEL=")
	})
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
	// Last, because the kernel kills the processes of the starter's thread when it ends.
	if s.starts != nil {
		close(s.starts)
		s.starts = nil
		s.starter.Wait()
	}
	return unclean
}

// stopStage ends the processes of one stage within the time budget, and returns a line for each
// that did not end cleanly; see Stop.
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
