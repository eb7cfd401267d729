package engine

import (
	"os"
	"os/exec"
	"runtime"
	"strings"
	"testing"
	"time"

	"github.com/blockyard-ai/blockyard/agent/agenttest"
	"github.com/blockyard-ai/blockyard/agent/process"
	"github.com/blockyard-ai/blockyard/blockmgr"
	"github.com/blockyard-ai/blockyard/internal/kv"
	"github.com/blockyard-ai/blockyard/internal/proto"
)

// watches counts the pidfds of this process: the processes that a server watches.
func watches() (n int) {
	entries, _ := os.ReadDir("/proc/self/fd")
	for _, e := range entries {
		if to, err := os.Readlink("/proc/self/fd/" + e.Name()); err == nil && strings.Contains(to, "pidfd") {
			n++
		}
	}
	return n
}

func TestWorkersOfOneProcessShareItsWatch(t *testing.T) {
	a := startServer(t, nil)
	c := a.Scheduler(t, 1)
	for range 20 {
		w := a.Worker(t, c, 1)
		agenttest.Bye(t, w)
	}
	s := a.session(1)
	s.mu.Lock()
	procs := len(s.procs)
	s.mu.Unlock()
	if n := watches(); procs != 1 || n != 1 {
		t.Errorf("the session keeps %d processes and the agent watches %d, want 1 and 1", procs, n)
	}
}

// A worker may die between REGISTER and its OK.
func TestWorkerThatDiesWhileItRegistersLeavesItsSession(t *testing.T) {
	a := startServer(t, nil)
	c := a.Scheduler(t, 1)
	for range 50 {
		w := a.Raw(t)
		h := agenttest.Hello(1)
		h.Major, h.Role, h.Session = proto.VersionMajor, string(proto.RoleWorker), c.Welcome().Session
		agenttest.Send(t, w, proto.TypeHello, 1, &h)
		if f := agenttest.Receive(t, w); f.Type != proto.TypeWelcome {
			t.Fatalf("HELLO was answered with %s", f.Type)
		}
		agenttest.Send(t, w, proto.TypeRegister, 2, &proto.Register{DeviceBlocks: 1, BlockBytes: 1})
		w.Close()
	}
	s := a.session(1)
	agenttest.Eventually(t, "the workers leave", func() bool {
		s.mu.Lock()
		defer s.mu.Unlock()
		return len(s.workers) == 0
	})
	agenttest.Eventually(t, "all are counted", func() bool { return a.Stats().Engines.WorkersLost == 50 })
}

// A dead engine's connection can be kept open by a child that inherited it. Its
// place must not be blocked for ever.
func TestSessionOfADeadProcessMakesWay(t *testing.T) {
	a := startServer(t, nil)
	c := a.Scheduler(t, 1)
	child := exec.Command("sleep", "3600")
	agenttest.NoError(t, child.Start())
	dead, _, err := a.processes.Find(a.processes.Identify(int32(child.Process.Pid)))
	if err != nil {
		t.Skip(err)
	}
	defer dead.Release()
	_ = child.Process.Kill() // Wait says whether it ended
	_ = child.Wait()
	<-dead.Exited()
	a.mu.Lock()
	a.byWorker[kv.Worker{ID: 1}].engine = dead
	a.mu.Unlock()
	a.Scheduler(t, 1)
	<-c.Done()
}

// lose makes n sessions one after the other, each of which ends without BYE.
func (a *testServer) lose(t *testing.T, n int) {
	t.Helper()
	for range n {
		a.Scheduler(t, 1).Close()
	}
	agenttest.Eventually(t, "the sessions end", func() bool { return a.Stats().Sessions == 0 })
}

func TestSessionsOfALivingProcessDoNotPileUp(t *testing.T) {
	a := startServer(t, nil)
	a.lose(t, 1) // the first one opens the pool
	agenttest.Eventually(t, "its connection ends", func() bool { return watches() == 0 })
	before := runtime.NumGoroutine()
	a.lose(t, 100)
	agenttest.Eventually(t, "all connections end", func() bool { return watches() == 0 && runtime.NumGoroutine() <= before })
	if n := a.Stats().Engines.AwaitingExit; n != 0 {
		t.Errorf("%d sessions await the exit of a process that holds nothing", n)
	}
}

// A scheduler that is welcomed after the agent began to stop hears of it too.
func TestSessionThatBeginsAsTheAgentStopsIsToldToDrain(t *testing.T) {
	a := startServer(t, nil)
	s := a.Server
	c := a.Scheduler(t, 1)
	s.mu.Lock()
	sess := s.byID[blockmgr.SessionID(c.Welcome().Session)]
	sess.welcomed = false
	s.drainEnd = time.Now().Add(time.Minute)
	s.mu.Unlock()
	s.markWelcomed(sess)
	if d := <-c.Draining(); d.DeadlineMillis == 0 {
		t.Errorf("got %+v", d)
	}
}

func TestPinsDropWithTheNextGeneration(t *testing.T) {
	a := startServer(t, nil)
	c := a.Scheduler(t, 1)
	agenttest.StorePrompt(t, c, proto.RequestID{ID: 9}, 1, 3)
	agenttest.Open(t, c, proto.RequestID{ID: 1}, 1, 3)
	if hit, err := c.Lookup(t.Context(), proto.RequestID{ID: 1}, 0, 3, 0); err != nil || hit.Ready != 3 {
		t.Fatalf("got %+v, error %v", hit, err)
	}
	agenttest.Open(t, c, proto.RequestID{ID: 1, Generation: 5}, 1, 3)
	agenttest.Eventually(t, "the pins drop", func() bool { return a.pool().Pins == 0 })
	s := a.session(1)
	s.mu.Lock()
	defer s.mu.Unlock()
	if len(s.superseded) != 0 {
		t.Errorf("%d requests without grants are kept", len(s.superseded))
	}
}

// BYE has no answer while a worker's link still watches the pool.
func TestByeWaitsUntilWorkersHaveLetGoOfThePool(t *testing.T) {
	a := startServer(t, nil)
	c := a.Scheduler(t, 1)
	sess := a.session(1)
	sess.mu.Lock() // as join has it
	sess.links.Add(1)
	sess.mu.Unlock()
	said := make(chan error, 1)
	go func() { said <- c.Bye(t.Context(), "test") }()
	select {
	case err := <-said:
		t.Errorf("answered at once: %v", err)
	case <-time.After(20 * time.Millisecond): // too short to see it on a busy machine: then the test sees less
	}
	sess.links.Done()
	if err := <-said; err != nil {
		t.Error(err)
	}
	if _, _, unused := sess.pool.Unused(); !unused && !sess.pool.Draining() {
		t.Error("the pool is in use after OK")
	}
}

// Which moment of the end of a session a worker without one meets, it is told the same:
// its rank has none now. One that named the session need not try again.
func TestWorkerThatMeetsAnEndingSessionMayTryAgain(t *testing.T) {
	a := startServer(t, nil)
	c := a.Scheduler(t, 1)
	id := c.Welcome().Session
	joining := func(session uint64) *proto.Conn {
		w := a.Raw(t)
		agenttest.Send(t, w, proto.TypeHello, 1, &proto.Hello{Major: proto.VersionMajor, Role: string(proto.RoleWorker), WorkerID: 1, Session: session})
		return w
	}
	any, named := joining(0), joining(id)
	agenttest.Receive(t, any) // WELCOME
	agenttest.Receive(t, named)
	sess := a.session(1)
	sess.mu.Lock()
	sess.ended = true // as finish has it
	sess.mu.Unlock()
	hello, late := joining(0), joining(id)
	for _, w := range []*proto.Conn{any, named} {
		agenttest.Send(t, w, proto.TypeRegister, 2, &proto.Register{DeviceBlocks: 1, BlockBytes: 4096})
	}
	for _, w := range []struct {
		what  string
		conn  *proto.Conn
		corr  uint32
		again bool
	}{
		{"REGISTER", any, 2, true}, {"REGISTER of one that named it", named, 2, false},
		{"HELLO", hello, 1, true}, {"HELLO of one that named it", late, 1, false},
	} {
		if e := agenttest.WantError(t, w.conn, w.corr, proto.CodeNotFound); e.Retryable != w.again {
			t.Errorf("%s: retryable %v, want %v (%s)", w.what, e.Retryable, w.again, e.Text)
		}
	}
	agenttest.Bye(t, c)
	h := &proto.Hello{WorkerID: 1}
	for _, err := range []error{sess.admit(new(process.Process)), blockmgr.ErrRetired} {
		if r := refusalOf(retryWithoutSession(h, err)); r.Code != proto.CodeNotFound || !r.Retryable {
			t.Errorf("after its end: %v", r)
		}
	}
}
