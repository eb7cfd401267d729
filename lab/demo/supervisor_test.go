package demo

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"slices"
	"strings"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/blockyard-ai/blockyard/lab/cluster"
)

func testSupervisor(t *testing.T) (*supervisor, chan error) {
	t.Helper()
	deaths := make(chan error, 16)
	sup := newSupervisor(cluster.Programs{Product: os.Args[0], Lab: os.Args[0]}, t.TempDir(), func(err error) { deaths <- err })
	t.Cleanup(func() { sup.stop(10 * time.Second) })
	return sup, deaths
}

func child(name, behaviour string) processSpec {
	return processSpec{Name: name, Args: []string{behaviour}, ReadyTimeout: 30 * time.Second}
}

// gone reports whether no process with this id runs; one that has ended but was
// not collected counts as gone.
func gone(pid int) bool {
	stat, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		return true
	}
	_, after, _ := strings.Cut(string(stat), ") ")
	return strings.HasPrefix(after, "Z")
}

func awaitGone(t *testing.T, pid int) {
	t.Helper()
	if err := poll(t.Context(), 20*time.Second, func() (bool, error) { return gone(pid), nil }); err != nil {
		t.Errorf("process %d: %v", pid, err)
	}
}

func TestReadyLineIsDecodedAndStopIsClean(t *testing.T) {
	sup, deaths := testSupervisor(t)
	var ready struct {
		HTTP string `json:"http"`
	}
	if err := sup.start(t.Context(), child("a", "obedient"), &ready); err != nil {
		t.Fatal(err)
	}
	if ready.HTTP != "somewhere" {
		t.Errorf("ready line gave %q", ready.HTTP)
	}
	p := sup.procs[0]
	if dirty := sup.stop(30 * time.Second); len(dirty) != 0 {
		t.Errorf("stop: %q", dirty)
	}
	if !gone(p.cmd.Process.Pid) {
		t.Error("the child is still there")
	}
	if got := lastLines(p.logPath); !slices.Equal(got, []string{"drained"}) {
		t.Errorf("log %q", got)
	}
	if len(deaths) != 0 {
		t.Errorf("a child that was stopped was reported: %v", <-deaths)
	}
	if dirty := sup.stop(5 * time.Second); dirty != nil {
		t.Errorf("second stop: %q", dirty)
	}
}

func TestChildThatIsNotReadyInTimeIsKilled(t *testing.T) {
	sup, deaths := testSupervisor(t)
	spec := child("slow", "silent")
	spec.ReadyTimeout = 300 * time.Millisecond
	err := sup.start(t.Context(), spec, new(struct{}))
	if err == nil || !strings.Contains(err.Error(), "start slow: not ready after 300ms") {
		t.Errorf("error %v", err)
	}
	awaitGone(t, sup.procs[0].cmd.Process.Pid)
	if len(deaths) != 0 {
		t.Errorf("reported twice: %v", <-deaths)
	}
}

func TestEarlyDeathCarriesTheLastLogLines(t *testing.T) {
	sup, _ := testSupervisor(t)
	err := sup.start(t.Context(), child("ill", "doomed"), new(struct{}))
	var c *childError
	if !errors.As(err, &c) {
		t.Fatalf("error %v is no childError", err)
	}
	if !strings.Contains(err.Error(), "it ended before it was ready: exit status 3") || strings.Contains(err.Error(), "\n") {
		t.Errorf("error %q", err)
	}
	if len(c.tail) != tailLines || c.tail[tailLines-1] != "line 19" || c.tail[0] != "line 12" {
		t.Errorf("tail %q", c.tail)
	}
}

func TestFirstLineThatIsNotReadyIsRefused(t *testing.T) {
	sup, _ := testSupervisor(t)
	err := sup.start(t.Context(), child("chatty", "garbled"), new(struct{}))
	if err == nil || !strings.Contains(err.Error(), `not a ready line: "listening on port 80`) {
		t.Errorf("error %v", err)
	}
	awaitGone(t, sup.procs[0].cmd.Process.Pid)
}

func TestUnexpectedDeathIsReportedOnce(t *testing.T) {
	sup, deaths := testSupervisor(t)
	if err := sup.start(t.Context(), child("frail", "short-lived"), new(struct{})); err != nil {
		t.Fatal(err)
	}
	err := <-deaths
	var c *childError
	if !errors.As(err, &c) || !strings.Contains(err.Error(), "frail ended unexpectedly: exit status 4") || !slices.Equal(c.tail, []string{"out of luck"}) {
		t.Errorf("reported %v", err)
	}
}

func TestCancelDuringStartKillsTheChild(t *testing.T) {
	sup, _ := testSupervisor(t)
	why := errors.New("enough")
	ctx, cancel := context.WithCancelCause(t.Context())
	cancel(why)
	if err := sup.start(ctx, child("late", "silent"), new(struct{})); !errors.Is(err, why) {
		t.Errorf("error %v", err)
	}
	awaitGone(t, sup.procs[0].cmd.Process.Pid)
}

func TestStubbornChildIsKilledWithinTheBudget(t *testing.T) {
	sup, _ := testSupervisor(t)
	for i, behaviour := range []string{"obedient", "stubborn", "stubborn", "obedient"} {
		spec := child(fmt.Sprintf("c%d", i), behaviour)
		spec.Stage = i / 2
		if err := sup.start(t.Context(), spec, new(struct{})); err != nil {
			t.Fatal(err)
		}
	}
	procs := sup.procs
	start := time.Now()
	dirty := sup.stop(5 * time.Second)
	if took := time.Since(start); took > 20*time.Second {
		t.Errorf("stop took %s with a budget of 5s", took)
	}
	slices.Sort(dirty)
	if want := []string{"c1: signal: killed", "c2: signal: killed"}; !slices.Equal(dirty, want) {
		t.Errorf("unclean %q, want %q", dirty, want)
	}
	for _, p := range procs {
		if !gone(p.cmd.Process.Pid) {
			t.Errorf("%s is still there", p.spec.Name)
		}
	}
}

// A child that hangs in the kernel does not even end when it is killed.
func TestChildThatAKillDoesNotEndIsGivenUp(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const noProcess = 1 << 30 // greater than any process id
		p := &process{
			spec: processSpec{Name: "stuck"}, done: make(chan struct{}),
			cmd: &exec.Cmd{Process: &os.Process{Pid: noProcess}},
		}
		start := time.Now()
		dirty := stopStage([]*process{p}, time.Second)
		if want := []string{"stuck: still there 5s after it was killed"}; !slices.Equal(dirty, want) {
			t.Errorf("unclean %q, want %q", dirty, want)
		}
		if took := time.Since(start); took != time.Second+killPatience {
			t.Errorf("took %s", took)
		}
	})
}

func TestChildDiesWithItsParent(t *testing.T) {
	sup, deaths := testSupervisor(t)
	var ready struct {
		PID int `json:"pid"`
	}
	spec := child("parent", "parent")
	spec.Args = append(spec.Args, t.TempDir())
	if err := sup.start(t.Context(), spec, &ready); err != nil {
		t.Fatal(err)
	}
	if gone(ready.PID) {
		t.Fatal("the grandchild never ran")
	}
	if err := syscall.Kill(sup.procs[0].cmd.Process.Pid, syscall.SIGKILL); err != nil {
		t.Fatal(err)
	}
	<-deaths
	awaitGone(t, ready.PID)
}

func TestChildrenDoNotInheritOurSettings(t *testing.T) {
	got := childEnv([]string{"PATH=/bin", "BLOCKYARD_HOST_SIZE=1", "DYN_ROUTER_TEMPERATURE=2", "BLOCKYARD_LOG_LEVEL=debug", "HOME=/"})
	if want := []string{"PATH=/bin", "BLOCKYARD_LOG_LEVEL=debug", "HOME=/"}; !slices.Equal(got, want) {
		t.Errorf("environment %q, want %q", got, want)
	}
}
