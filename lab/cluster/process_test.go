package cluster

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"os/signal"
	"slices"
	"strings"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"go.uber.org/goleak"
)

// childVariable, when set, makes the test binary a child that behaves as its first
// argument says.
const childVariable = "CLUSTER_TEST_CHILD"

func TestMain(m *testing.M) {
	if os.Getenv(childVariable) != "" {
		os.Exit(childMain(os.Args[1:]))
	}
	os.Setenv(childVariable, "1")
	// Under the race detector a process lingers for a second by default.
	os.Setenv("GORACE", "atexit_sleep_ms=0")
	goleak.VerifyTestMain(m)
}

// childMain behaves as the first argument says.
func childMain(args []string) int {
	term := make(chan os.Signal, 1)
	signal.Notify(term, syscall.SIGTERM)
	switch args[0] {
	case "obedient":
		fmt.Println(`{"ready":true,"http":"somewhere"}`)
		<-term
		fmt.Fprintln(os.Stderr, "drained")
		return 0
	case "stubborn":
		fmt.Println(`{"ready":true}`)
		select {}
	case "silent":
		fmt.Fprintln(os.Stderr, "waiting for a disk")
		<-term
		return 0
	case "garbled":
		fmt.Println("listening on port 80")
		<-term
		return 0
	case "doomed":
		for i := range 20 {
			fmt.Fprintf(os.Stderr, "line %d\n", i)
		}
		return 3
	case "short-lived":
		fmt.Println(`{"ready":true}`)
		fmt.Fprintln(os.Stderr, "out of luck")
		return 4
	case "parent":
		return parentMain(args[1])
	}
	return 99
}

// parentMain starts a stubborn child through a supervisor, tells its process id
// and never ends by itself.
func parentMain(logDir string) int {
	sup := NewSupervisor(logDir, func(error) {})
	p, err := sup.StartReady(context.Background(), child("grandchild", "stubborn"), new(struct{}))
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	fmt.Printf(`{"ready":true,"pid":%d}`+"\n", p.cmd.Process.Pid)
	select {}
}

func testSupervisor(t *testing.T) (*Supervisor, chan error) {
	t.Helper()
	deaths := make(chan error, 16)
	sup := NewSupervisor(t.TempDir(), func(err error) { deaths <- err })
	t.Cleanup(func() { sup.Stop(10 * time.Second) })
	return sup, deaths
}

func child(name string, behaviour ...string) Spec {
	return Spec{Name: name, Command: append([]string{os.Args[0]}, behaviour...)}
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
	if err := Until(t.Context(), 20*time.Second, 20*time.Millisecond, func() (bool, error) { return gone(pid), nil }); err != nil {
		t.Errorf("process %d: %v", pid, err)
	}
}

func TestReadyLineIsDecodedAndStopIsClean(t *testing.T) {
	sup, deaths := testSupervisor(t)
	var ready struct {
		HTTP string `json:"http"`
	}
	p, err := sup.StartReady(t.Context(), child("a", "obedient"), &ready)
	if err != nil {
		t.Fatal(err)
	}
	if ready.HTTP != "somewhere" {
		t.Errorf("ready line gave %q", ready.HTTP)
	}
	if dirty := sup.Stop(30 * time.Second); len(dirty) != 0 {
		t.Errorf("stop: %q", dirty)
	}
	if !gone(p.cmd.Process.Pid) {
		t.Error("the child is still there")
	}
	if got := lastLines(p.Log); !slices.Equal(got, []string{"drained"}) {
		t.Errorf("log %q", got)
	}
	if len(deaths) != 0 {
		t.Errorf("a child that was stopped was reported: %v", <-deaths)
	}
	if dirty := sup.Stop(5 * time.Second); dirty != nil {
		t.Errorf("second stop: %q", dirty)
	}
}

func TestChildThatIsNotReadyInTimeIsKilled(t *testing.T) {
	sup, deaths := testSupervisor(t)
	p, err := sup.Start(child("slow", "silent"))
	if err != nil {
		t.Fatal(err)
	}
	err = p.ready(t.Context(), 300*time.Millisecond, new(struct{}))
	if err == nil || !strings.Contains(err.Error(), "start slow: not ready after 300ms") {
		t.Errorf("error %v", err)
	}
	awaitGone(t, p.cmd.Process.Pid)
	if len(deaths) != 0 {
		t.Errorf("reported twice: %v", <-deaths)
	}
}

func TestEarlyDeathCarriesTheLastLogLines(t *testing.T) {
	sup, _ := testSupervisor(t)
	_, err := sup.StartReady(t.Context(), child("ill", "doomed"), new(struct{}))
	var c *Failure
	if !errors.As(err, &c) {
		t.Fatalf("error %v is no Failure", err)
	}
	if !strings.Contains(err.Error(), "it ended before it was ready: exit status 3") || strings.Contains(err.Error(), "\n") {
		t.Errorf("error %q", err)
	}
	if len(c.Tail) != tailLines || c.Tail[tailLines-1] != "line 19" || c.Tail[0] != "line 12" {
		t.Errorf("tail %q", c.Tail)
	}
}

func TestFirstLineThatIsNotReadyIsRefused(t *testing.T) {
	sup, _ := testSupervisor(t)
	p, err := sup.StartReady(t.Context(), child("chatty", "garbled"), new(struct{}))
	if err == nil || !strings.Contains(err.Error(), `not a ready line: "listening on port 80`) {
		t.Errorf("error %v", err)
	}
	awaitGone(t, p.cmd.Process.Pid)
}

func TestUnexpectedDeathIsReportedOnce(t *testing.T) {
	sup, deaths := testSupervisor(t)
	if _, err := sup.StartReady(t.Context(), child("frail", "short-lived"), new(struct{})); err != nil {
		t.Fatal(err)
	}
	err := <-deaths
	var c *Failure
	if !errors.As(err, &c) || !strings.Contains(err.Error(), "frail ended unexpectedly: exit status 4") || !slices.Equal(c.Tail, []string{"out of luck"}) {
		t.Errorf("reported %v", err)
	}
}

func TestCancelDuringStartKillsTheChild(t *testing.T) {
	sup, _ := testSupervisor(t)
	why := errors.New("enough")
	ctx, cancel := context.WithCancelCause(t.Context())
	cancel(why)
	p, err := sup.StartReady(ctx, child("late", "silent"), new(struct{}))
	if !errors.Is(err, why) {
		t.Errorf("error %v", err)
	}
	awaitGone(t, p.cmd.Process.Pid)
}

func TestStubbornChildIsKilledWithinTheBudget(t *testing.T) {
	sup, _ := testSupervisor(t)
	for i, behaviour := range []string{"obedient", "stubborn", "stubborn", "obedient"} {
		spec := child(fmt.Sprintf("c%d", i), behaviour)
		spec.Stage = i / 2
		if _, err := sup.StartReady(t.Context(), spec, new(struct{})); err != nil {
			t.Fatal(err)
		}
	}
	procs := sup.procs
	start := time.Now()
	dirty := sup.Stop(5 * time.Second)
	if took := time.Since(start); took > 20*time.Second {
		t.Errorf("stop took %s with a budget of 5s", took)
	}
	slices.Sort(dirty)
	if want := []string{"c1: signal: killed", "c2: signal: killed"}; !slices.Equal(dirty, want) {
		t.Errorf("unclean %q, want %q", dirty, want)
	}
	for _, p := range procs {
		if !gone(p.cmd.Process.Pid) {
			t.Errorf("%s is still there", p.Name)
		}
	}
}

// A child that hangs in the kernel does not even end when it is killed.
func TestChildThatAKillDoesNotEndIsGivenUp(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const noProcess = 1 << 30 // greater than any process id
		p := &Process{
			Name: "stuck", done: make(chan struct{}),
			cmd: &exec.Cmd{Process: &os.Process{Pid: noProcess}},
		}
		start := time.Now()
		dirty := stopStage([]*Process{p}, time.Second)
		if want := []string{"stuck: still there 5s after it was killed"}; !slices.Equal(dirty, want) {
			t.Errorf("unclean %q, want %q", dirty, want)
		}
		if took := time.Since(start); took != time.Second+killTime {
			t.Errorf("took %s", took)
		}
	})
}

func TestChildDiesWithItsParent(t *testing.T) {
	sup, deaths := testSupervisor(t)
	var ready struct {
		PID int `json:"pid"`
	}
	p, err := sup.StartReady(t.Context(), child("parent", "parent", t.TempDir()), &ready)
	if err != nil {
		t.Fatal(err)
	}
	if gone(ready.PID) {
		t.Fatal("the grandchild never ran")
	}
	if err := syscall.Kill(p.cmd.Process.Pid, syscall.SIGKILL); err != nil {
		t.Fatal(err)
	}
	<-deaths
	awaitGone(t, ready.PID)
}

func TestChildrenDoNotInheritOurSettings(t *testing.T) {
	got := inherited([]string{"PATH=/bin", "BLOCKYARD_HOST_SIZE=1", "DYN_ROUTER_TEMPERATURE=2", "NATS_SERVER=y", "BLOCKYARD_LOG_LEVEL=debug", "HOME=/"})
	if want := []string{"PATH=/bin", "BLOCKYARD_LOG_LEVEL=debug", "HOME=/"}; !slices.Equal(got, want) {
		t.Errorf("environment %q, want %q", got, want)
	}
}
