package agent

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"runtime"
	"strings"
	"testing"

	"github.com/blockyard-ai/blockyard/internal/kv"
	"github.com/blockyard-ai/blockyard/internal/proto"
)

// childVariable makes the test binary an engine that is granted slots, loses its
// connection and lives on until its standard input ends. Its value is the
// agent's socket.
const childVariable = "BLOCKYARD_TEST_ENGINE"

func runChild() int {
	c, err := proto.DialScheduler(context.Background(), proto.ClientOptions{Socket: os.Getenv(childVariable), Hello: helloOf(1)})
	if err == nil {
		r := proto.RequestID{ID: 1}
		if err = c.Open(r, "", "", "", prompt(1, 4)); err == nil {
			_, err = c.Store(context.Background(), r, 0, 4)
		}
		c.Close()
	}
	fmt.Println("disconnected:", err)
	io.Copy(io.Discard, os.Stdin)
	return 0
}

// runEngine runs a child until it has lost its connection. stop ends it.
func (a *testAgent) runEngine(t *testing.T) (stop func()) {
	t.Helper()
	child := exec.Command(os.Args[0])
	child.Env = append(os.Environ(), childVariable+"="+a.cfg.Socket)
	stdin, err := child.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	stdout, err := child.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := child.Start(); err != nil {
		t.Fatal(err)
	}
	line, err := bufio.NewReader(stdout).ReadString('\n')
	if err != nil || strings.TrimSpace(line) != "disconnected: <nil>" {
		t.Errorf("the engine says %q, error %v", line, err)
	}
	return func() {
		stdin.Close()
		if err := child.Wait(); err != nil {
			t.Error(err)
		}
	}
}

func TestGrantsOfALostSessionWaitForItsProcess(t *testing.T) {
	a := startAgent(t, testConfig(t))
	stop := a.runEngine(t)
	eventually(t, "the session ends", func() bool { return a.Stats().Sessions == 0 })
	s := a.Stats()
	if q := s.Pools[0].Host.Quarantined; q != 4 || s.Engines.AwaitingExit != 1 {
		t.Errorf("%d slots in quarantine for %d sessions while the engine lives, want 4 for 1", q, s.Engines.AwaitingExit)
	}
	stop()
	eventually(t, "the quarantine ends", func() bool {
		s := a.Stats()
		return s.Pools[0].Host.Quarantined == 0 && s.Pools[0].Host.Granted == 0 && s.Engines.AwaitingExit == 0
	})
}

// lose makes n sessions one after the other, each of which is granted one slot
// if it stores, and ends without BYE.
func (a *testAgent) lose(t *testing.T, n int, stores bool) {
	t.Helper()
	for i := range n {
		c := a.scheduler(t, 1)
		if stores {
			r := proto.RequestID{ID: 1}
			if err := c.Open(r, "", "", "", prompt(i, 1)); err != nil {
				t.Fatal(err)
			}
			if got, err := c.Store(t.Context(), r, 0, 1); err != nil || len(got.Grants) != 1 {
				t.Fatalf("session %d: got %+v, error %v", i, got, err)
			}
		}
		c.Close()
	}
	eventually(t, "the sessions end", func() bool { return a.Stats().Sessions == 0 })
}

// watches is the number of processes that the agent watches.
func (a *testAgent) watches() int {
	t := a.server.processes
	t.mu.Lock()
	defer t.mu.Unlock()
	return len(t.byKey)
}

func TestSessionsOfALivingProcessDoNotPileUp(t *testing.T) {
	a := startAgent(t, testConfig(t))
	a.lose(t, 1, false) // the first one opens the pool
	eventually(t, "its connection ends", func() bool { return a.watches() == 0 })
	before := runtime.NumGoroutine()
	a.lose(t, 100, false)
	eventually(t, "all connections end", func() bool { return a.watches() == 0 && runtime.NumGoroutine() <= before })
	if n := a.Stats().Engines.AwaitingExit; n != 0 {
		t.Errorf("%d sessions await the exit of a process that holds nothing", n)
	}
}

func TestProcessThatLosesGrantsOverAndOverGetsNoMoreSessions(t *testing.T) {
	a := startAgent(t, testConfig(t))
	a.lose(t, maxAwaitingExit, true)
	if s := a.Stats(); s.Engines.AwaitingExit != maxAwaitingExit || s.Pools[0].Host.Quarantined != maxAwaitingExit {
		t.Errorf("%d sessions wait for %d slots, want %d of each", s.Engines.AwaitingExit, s.Pools[0].Host.Quarantined, maxAwaitingExit)
	}
	if n := a.watches(); n != 1 {
		t.Errorf("one process is watched %d times", n)
	}
	_, err := a.dial(t, 1)
	wantRefused(t, err, proto.CodeLimit)
	if r := new(proto.RefusedError); errors.As(err, &r) && !r.Reply.Retryable {
		t.Error("the refusal is for ever")
	}
	a.runEngine(t)() // another process is served
}

func TestWorkersOfOneProcessShareItsWatch(t *testing.T) {
	a := startAgent(t, testConfig(t))
	c := a.scheduler(t, 1)
	for range 20 {
		w := a.worker(t, c, 1)
		if err := w.Bye(t.Context(), "test"); err != nil {
			t.Fatal(err)
		}
	}
	a.server.mu.Lock()
	s := a.server.byOwner[kv.Worker{ID: 1}]
	a.server.mu.Unlock()
	s.mu.Lock()
	procs := len(s.procs)
	s.mu.Unlock()
	if n := a.watches(); procs != 1 || n != 1 {
		t.Errorf("the session keeps %d processes and the agent watches %d, want 1 and 1", procs, n)
	}
}

func TestPinsOfALostSessionDropAtOnce(t *testing.T) {
	a := startAgent(t, testConfig(t))
	c := a.scheduler(t, 1)
	storePrompt(t, c, proto.RequestID{ID: 1}, 1, 3)
	r := proto.RequestID{ID: 2}
	if err := c.Open(r, "", "", "", prompt(1, 3)); err != nil {
		t.Fatal(err)
	}
	if hit, err := c.Lookup(t.Context(), r, 0, 3, 0); err != nil || hit.Ready != 3 {
		t.Fatalf("got %+v, error %v", hit, err)
	}
	c.Close()
	eventually(t, "pins drop", func() bool { return a.Stats().Pools[0].Pins == 0 })
}

func TestByeFreesGrantsAtOnce(t *testing.T) {
	a := startAgent(t, testConfig(t))
	c := a.scheduler(t, 1)
	r := proto.RequestID{ID: 1}
	if err := c.Open(r, "", "", "", prompt(1, 4)); err != nil {
		t.Fatal(err)
	}
	if got, err := c.Store(t.Context(), r, 0, 4); err != nil || len(got.Grants) != 4 {
		t.Fatalf("got %+v, error %v", got, err)
	}
	if err := c.Bye(t.Context(), "test"); err != nil {
		t.Fatal(err)
	}
	if s := a.Stats().Pools[0].Host; s.Granted != 0 || s.Quarantined != 0 {
		t.Errorf("after BYE %d slots are granted and %d in quarantine", s.Granted, s.Quarantined)
	}
}

// A worker may die between REGISTER and its OK.
func TestWorkerThatDiesWhileItRegistersLeavesItsSession(t *testing.T) {
	a := startAgent(t, testConfig(t))
	c := a.scheduler(t, 1)
	for range 50 {
		w := a.raw(t)
		h := helloOf(1)
		h.Major, h.Role, h.Session = proto.VersionMajor, string(proto.RoleWorker), c.Welcome().Session
		send(t, w, proto.TypeHello, 1, &h)
		if f := receive(t, w); f.Type != proto.TypeWelcome {
			t.Fatalf("HELLO was answered with %s", f.Type)
		}
		send(t, w, proto.TypeRegister, 2, &proto.Register{DeviceBlocks: 1, BlockBytes: 1})
		w.Close()
	}
	a.server.mu.Lock()
	s := a.server.byOwner[kv.Worker{ID: 1}]
	a.server.mu.Unlock()
	eventually(t, "the workers leave", func() bool {
		s.mu.Lock()
		defer s.mu.Unlock()
		return len(s.workers) == 0
	})
	eventually(t, "all are counted", func() bool { return a.Stats().Engines.WorkersLost == 50 })
}

func TestLostWorkerIsToldAtTheNextClaim(t *testing.T) {
	a := startAgent(t, testConfig(t))
	c := a.scheduler(t, 1)
	storePrompt(t, c, proto.RequestID{ID: 1}, 1, 1)
	r := proto.RequestID{ID: 2}
	if err := c.Open(r, "", "", "", prompt(1, 1)); err != nil {
		t.Fatal(err)
	}
	if _, err := c.Lookup(t.Context(), r, 0, 1, 0); err != nil {
		t.Fatal(err)
	}
	_, err := c.Claim(t.Context(), r, 1, 0, []uint32{0})
	wantRefused(t, err, proto.CodeState) // no worker yet
	first, second := a.worker(t, c, 1), a.worker(t, c, 1)
	first.Close()
	eventually(t, "the agent notices", func() bool { return a.Stats().Engines.WorkersLost == 1 })
	_, err = c.Claim(t.Context(), r, 2, 0, []uint32{0})
	wantRefused(t, err, proto.CodeState)
	if told, err := c.Claim(t.Context(), r, 3, 0, []uint32{0}); err != nil || told != 1 {
		t.Errorf("told %d workers, error %v: want the one that is left", told, err)
	}
	if job := <-second.Loads(); job.Job != 3 {
		t.Errorf("the worker got job %d, want 3", job.Job)
	}
	if err := second.Bye(t.Context(), "test"); err != nil {
		t.Error(err)
	}
	_, err = c.Claim(t.Context(), r, 4, 0, []uint32{0})
	wantRefused(t, err, proto.CodeState)
	if n := a.Stats().Engines.WorkersLost; n != 1 {
		t.Errorf("%d workers count as lost, want 1: the other said BYE", n)
	}
}

func TestSecondSessionOfAWorkerIsRefusedWhileTheFirstLives(t *testing.T) {
	a := startAgent(t, testConfig(t))
	c := a.scheduler(t, 1)
	_, err := a.dial(t, 1)
	wantRefused(t, err, proto.CodeState)
	c.Close()
	a.scheduler(t, 1) // the end of the first one is waited for
}

func TestWorkersOfASessionAreCutOffWithIt(t *testing.T) {
	a := startAgent(t, testConfig(t))
	c := a.scheduler(t, 1)
	w := a.worker(t, c, 1)
	if err := c.Bye(t.Context(), "test"); err != nil {
		t.Fatal(err)
	}
	<-w.Done()
	h := helloOf(1)
	h.Session = c.Welcome().Session
	_, err := proto.DialWorker(t.Context(), proto.ClientOptions{Socket: a.cfg.Socket, Hello: h}, proto.Register{DeviceBlocks: 1, BlockBytes: 1})
	wantRefused(t, err, proto.CodeNotFound)
}

// A dead engine's connection can be kept open by a child that inherited it. Its
// place must not be blocked for ever.
func TestSessionOfADeadProcessMakesWay(t *testing.T) {
	a := startAgent(t, testConfig(t))
	c := a.scheduler(t, 1)
	dead := &process{exited: make(chan struct{})}
	close(dead.exited)
	a.server.mu.Lock()
	a.server.byOwner[kv.Worker{ID: 1}].engine = dead
	a.server.mu.Unlock()
	a.scheduler(t, 1)
	<-c.Done()
}
