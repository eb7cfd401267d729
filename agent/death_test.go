package agent_test

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"strings"
	"testing"

	"github.com/blockyard-ai/blockyard/agent/agenttest"
	"github.com/blockyard-ai/blockyard/internal/proto"
)

// childVariable makes the test binary an engine that is granted slots, loses its
// connection and lives on until its standard input ends. Its value is the
// agent's socket.
const childVariable = "BLOCKYARD_TEST_ENGINE"

func runChild() int {
	c, err := proto.DialScheduler(context.Background(), proto.ClientOptions{Socket: os.Getenv(childVariable), Hello: agenttest.Hello(1)})
	if err == nil {
		r := proto.RequestID{ID: 1}
		if err = c.Open(r, "", "", "", agenttest.Prompt(1, 4)); err == nil {
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
	child.Env = append(os.Environ(), childVariable+"="+string(a.Socket))
	stdin, err := child.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	stdout, err := child.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	agenttest.NoError(t, child.Start())
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
	agenttest.Eventually(t, "the session ends", func() bool { return a.Stats().Sessions == 0 })
	s := a.Stats()
	if q := s.Pools[0].Host.Quarantined; q != 4 || s.Engines.AwaitingExit != 1 {
		t.Errorf("%d slots in quarantine for %d sessions while the engine lives, want 4 for 1", q, s.Engines.AwaitingExit)
	}
	stop()
	agenttest.Eventually(t, "the quarantine ends", func() bool {
		s := a.Stats()
		return s.Pools[0].Host.Quarantined == 0 && s.Pools[0].Host.Granted == 0 && s.Engines.AwaitingExit == 0
	})
}

func TestProcessThatLosesGrantsOverAndOverGetsNoMoreSessions(t *testing.T) {
	a := startAgent(t, testConfig(t))
	a.lose(t, maxAwaitingExit, true)
	if s := a.Stats(); s.Engines.AwaitingExit != maxAwaitingExit || s.Pools[0].Host.Quarantined != maxAwaitingExit {
		t.Errorf("%d sessions wait for %d slots, want %d of each", s.Engines.AwaitingExit, s.Pools[0].Host.Quarantined, maxAwaitingExit)
	}
	_, err := a.Dial(t, 1)
	agenttest.WantRefused(t, err, proto.CodeLimit)
	if r := new(proto.RefusedError); errors.As(err, &r) && !r.Reply.Retryable {
		t.Error("the refusal is for ever")
	}
	a.runEngine(t)() // another process is served
}

func TestPinsOfALostSessionDropAtOnce(t *testing.T) {
	a := startAgent(t, testConfig(t))
	c := a.Scheduler(t, 1)
	agenttest.StorePrompt(t, c, proto.RequestID{ID: 1}, 1, 3)
	r := proto.RequestID{ID: 2}
	agenttest.Open(t, c, r, 1, 3)
	agenttest.Pin(t, c, r, 3)
	c.Close()
	agenttest.Eventually(t, "pins drop", func() bool { return a.Stats().Pools[0].Pins == 0 })
}

func TestLostWorkerIsToldAtTheNextClaim(t *testing.T) {
	a := startAgent(t, testConfig(t))
	c := a.Scheduler(t, 1)
	agenttest.StorePrompt(t, c, proto.RequestID{ID: 1}, 1, 1)
	r := proto.RequestID{ID: 2}
	agenttest.Open(t, c, r, 1, 1)
	if _, err := c.Lookup(t.Context(), r, 0, 1, 0); err != nil {
		t.Fatal(err)
	}
	_, err := c.Claim(t.Context(), r, 1, 0, []uint32{0})
	agenttest.WantRefused(t, err, proto.CodeState) // no worker yet
	first, second := a.Worker(t, c, 1), a.Worker(t, c, 1)
	first.Close()
	agenttest.Eventually(t, "the agent notices", func() bool { return a.Stats().Engines.WorkersLost == 1 })
	_, err = c.Claim(t.Context(), r, 2, 0, []uint32{0})
	agenttest.WantRefused(t, err, proto.CodeState)
	if told, err := c.Claim(t.Context(), r, 3, 0, []uint32{0}); err != nil || told != 1 {
		t.Errorf("told %d workers, error %v: want the one that is left", told, err)
	}
	if job := <-second.Loads(); job.Job != 3 {
		t.Errorf("the worker got job %d, want 3", job.Job)
	}
	agenttest.Bye(t, second)
	_, err = c.Claim(t.Context(), r, 4, 0, []uint32{0})
	agenttest.WantRefused(t, err, proto.CodeState)
	if n := a.Stats().Engines.WorkersLost; n != 1 {
		t.Errorf("%d workers count as lost, want 1: the other said BYE", n)
	}
}

func TestSecondSessionOfAWorkerIsRefusedWhileTheFirstLives(t *testing.T) {
	a := startAgent(t, testConfig(t))
	c := a.Scheduler(t, 1)
	_, err := a.Dial(t, 1)
	agenttest.WantRefused(t, err, proto.CodeState)
	c.Close()
	a.Scheduler(t, 1) // the end of the first one is waited for
}

func TestWorkersOfASessionAreCutOffWithIt(t *testing.T) {
	a := startAgent(t, testConfig(t))
	c := a.Scheduler(t, 1)
	w := a.Worker(t, c, 1)
	agenttest.Bye(t, c)
	<-w.Done()
	h := agenttest.Hello(1)
	h.Session = c.Welcome().Session
	_, err := proto.DialWorker(t.Context(), proto.ClientOptions{Socket: string(a.Socket), Hello: h}, proto.Register{DeviceBlocks: 1, BlockBytes: 1})
	agenttest.WantRefused(t, err, proto.CodeNotFound)
}

// lose makes n sessions one after the other, each of which is granted one slot
// if it stores, and ends without BYE.
func (a *testAgent) lose(t *testing.T, n int, stores bool) {
	t.Helper()
	for i := range n {
		c := a.Scheduler(t, 1)
		if stores {
			r := proto.RequestID{ID: 1}
			agenttest.Open(t, c, r, i, 1)
			agenttest.Grant(t, c, r, 0, 1)
		}
		c.Close()
	}
	agenttest.Eventually(t, "the sessions end", func() bool { return a.Stats().Sessions == 0 })
}
