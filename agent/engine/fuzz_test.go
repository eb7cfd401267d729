package engine

import (
	"errors"
	"os"
	"runtime"
	"slices"
	"testing"
	"time"

	"go.uber.org/zap"
	"golang.org/x/sys/unix"

	"github.com/blockyard-ai/blockyard/agent/agenttest"
	"github.com/blockyard-ai/blockyard/blockmgr"
	"github.com/blockyard-ai/blockyard/internal/proto"
)

// FuzzServer has clients send whatever they like, in any order: messages that are
// well formed and out of place, cut short, changed, random, too large, with
// descriptors, and connections that end anywhere. Each frame that wants an answer
// gets one or ends its connection; afterwards a good client is served, no session,
// pin, grant, goroutine or descriptor is left, and the slots of each tier add up.
func FuzzServer(f *testing.F) {
	for _, program := range fuzzSeeds() {
		f.Add(program)
	}
	var a *fuzzAgent
	f.Cleanup(func() {
		if a != nil {
			a.close()
		}
	})
	f.Fuzz(func(t *testing.T, program []byte) {
		if a == nil || a.worn {
			if a != nil {
				a.close()
			}
			a = startFuzzAgent(t)
		}
		a.run(t, program)
		a.check(t)
	})
}

// fuzzSeeds are programs that come far: see fuzzRun.step for their bytes.
func fuzzSeeds() [][]byte {
	ask := func(conn, typ byte, fields ...byte) []byte { return append([]byte{conn, typ}, fields...) }
	join := func(parts ...[]byte) (all []byte) {
		for _, p := range parts {
			all = append(all, p...)
		}
		return all
	}
	openStore := join(ask(0, 16, 1, 0, 0, 0, 1, 3), ask(0, 22, 1, 0, 0, 3, 0))
	commit := ask(0, 24, 1, 0, 3, 1, 1, 1)
	return [][]byte{
		join(openStore, commit, ask(0, 18, 1, 0, 0, 3, 1), ask(1, 34, 1), ask(0, 20, 1, 0, 0, 2, 9), ask(0, 26, 1, 0, 0, 3), ask(0, 28, 1, 0), ask(0, 33)),
		join(openStore, ask(0, 16, 1, 1, 0, 0, 1, 2), ask(0, 25, 1, 0, 3, 1, 1, 1), ask(0, 30, 0, 2, 1, 2), ask(0, 29)),
		join(openStore, ask(3<<2|0, 30), ask(2, 16, 1, 0, 0, 0, 1, 3), ask(2, 18, 1, 0, 0, 3, 2)),
		join(ask(0, 34, 5), ask(0, 34, 4), ask(1, 3, 1, 1), ask(1, 16), ask(0, 27), ask(0, 36)),
		join(openStore, []byte{5<<2 | 0, 22, 1, 0, 0, 3, 0, 20, 1}, []byte{6<<2 | 2, 9, 1, 2, 3, 4, 5, 6, 7, 8, 9}),
		join(ask(0, 18, 1, 0, 0, 1), []byte{4 << 2}, ask(0, 37, 1, 2, 0, 0), ask(0, 37, 1, 1, 1, 0), []byte{4 << 2}, ask(0, 37, 1, 0, 1, 0), ask(0, 37, 3, 0, 1, 0), ask(0, 37, 2, 0, 2, 3), []byte{4<<2 | 2}),
		// Windows and states (groups 1 and 2) beside the full blocks, and how many tokens fit.
		join(openStore, commit, ask(0, 22, 1, 0, 6, 3, 0), ask(0, 24, 1, 0, 3, 1, 1, 1), ask(0, 22, 1, 0, 12, 1, 0), ask(0, 24, 1, 0, 3, 1, 1, 1),
			ask(0, 38, 1, 0, 200, 0), ask(0, 18, 1, 0, 6, 3, 1), ask(0, 20, 1, 0, 6, 2, 9), ask(0, 26, 1, 0, 6, 3), ask(0, 38, 1, 0, 255, 4), ask(0, 18, 1, 0, 18, 1, 0)),
		join(openStore, []byte{7<<2 | 0, 0}, []byte{7<<2 | 1, 1}, []byte{7<<2 | 2, 2}, []byte{7<<2 | 2, 3}),
	}
}

// fuzzAgent is an agent that many programs run against.
type fuzzAgent struct {
	*testServer
	dir string
	// worn says that programs have left so much in quarantine, for this process to
	// exit, that the next one needs another agent.
	worn            bool
	goroutines, fds int // when nothing is connected
}

func startFuzzAgent(t *testing.T) *fuzzAgent {
	t.Helper()
	dir, err := os.MkdirTemp("", "fuzz")
	if err != nil {
		t.Fatal(err)
	}
	cfg := Config{AllowUIDs: []uint32{uint32(os.Getuid())}, MaxPins: 8, MaxRequests: 3, SendTimeout: 100 * time.Millisecond}
	fa := &fuzzAgent{testServer: newServer(t, dir, cfg, blockmgr.Config{HostBytes: 256 << 10, DiskBytes: 256 << 10}, zap.NewNop()), dir: dir}
	fa.serveGood(t)
	agenttest.Eventually(t, "the agent is quiet", func() bool { return fa.quiet() && fa.pool().Disk.Extents == 1 })
	fa.goroutines, fa.fds = runtime.NumGoroutine(), openFiles(t)
	return fa
}

func openFiles(t *testing.T) int {
	t.Helper()
	list, err := os.ReadDir("/proc/self/fd")
	if err != nil {
		t.Fatal(err)
	}
	return len(list) - 1 // that of the directory itself
}

// run carries out a program and ends its connections, in order where they stand.
func (a *fuzzAgent) run(t *testing.T, program []byte) {
	r := &fuzzRun{t: t, agent: a, in: program}
	for steps := 0; len(r.in) > 0 && steps < 100; steps++ {
		r.step()
	}
	for _, c := range r.conns {
		if c != nil && c.Conn != nil {
			c.ask(t, proto.TypeBye, 1<<31, &proto.Bye{Reason: "the program ends"}, nil)
			c.close()
		}
	}
	r.lists.Wait()
}

// serveGood stores and finds a block.
func (a *fuzzAgent) serveGood(t *testing.T) {
	t.Helper()
	c, err := proto.DialScheduler(t.Context(), proto.ClientOptions{Socket: string(a.Socket), Hello: hybridHello(99)})
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	r := proto.RequestID{ID: 1}
	agenttest.Open(t, c, r, 99, 1)
	var got proto.StoreAnswer
	agenttest.Eventually(t, "a good client gets a slot", func() bool {
		got, err = c.Store(t.Context(), r, 0, 1)
		return err != nil || got.Refused == 0 || a.full()
	})
	if err != nil {
		t.Fatal(err)
	}
	if got.Refused > 0 {
		return
	}
	for _, g := range got.Grants {
		agenttest.NoError(t, c.Commit(t.Context(), r, []proto.Slot{g.Slot}))
	}
	if hit, err := c.Lookup(t.Context(), r, 0, 1, 5*time.Second); err != nil || hit.Ready != 1 {
		t.Fatalf("a good client found %+v, error %v", hit, err)
	}
	agenttest.Bye(t, c)
}

// close stops the agent, which may outlive the test that started it.
func (a *fuzzAgent) close() {
	if err := errors.Join(a.stop(), os.RemoveAll(a.dir)); err != nil {
		panic(err)
	}
}

// quiet reports whether nothing is pending in any pool.
func (a *fuzzAgent) quiet() bool {
	return !slices.ContainsFunc(a.pools.Manager().Pools(), func(p *blockmgr.Pool) bool { return !p.Idle() })
}

// full reports whether sessions that ended without BYE have left too little.
func (a *fuzzAgent) full() bool { return a.pool().Host.Quarantined > 16 }

// check compares what is left with what was there before.
func (a *fuzzAgent) check(t *testing.T) {
	agenttest.Eventually(t, "the sessions end", func() bool { return a.Stats().Sessions == 0 })
	a.serveGood(t)
	agenttest.Eventually(t, "the agent is quiet", a.quiet)
	s, all := a.Stats(), a.pools.Manager().Pools()
	for _, pool := range all {
		p := pool.Stats()
		if p.Pins != 0 || p.Sessions != 0 || p.Host.Granted != 0 {
			t.Errorf("left behind: %+v", p)
		}
		for _, tier := range []*blockmgr.TierStats{&p.Host, &p.Disk} {
			if sum := tier.Free + tier.Granted + tier.Staging + tier.Receiving + tier.Quarantined + tier.Active + tier.Inactive; sum != tier.Capacity {
				t.Errorf("%d slots in some state, %d in all: %+v", sum, tier.Capacity, tier)
			}
		}
	}
	a.worn = len(all) > 1 || s.Engines.AwaitingExit > 30 || a.full()
	if len(all) > 1 {
		return // a namespace of its own has files and goroutines of its own
	}
	goroutines, fds := a.goroutines, a.fds
	if n := s.Engines.AwaitingExit; n > 0 { // each waits in agent and pool, and they share the watch of this process
		goroutines, fds = goroutines+2*n+1, fds+1
	}
	tick := time.NewTicker(time.Millisecond)
	defer tick.Stop()
	deadline := time.After(10 * time.Second)
	for runtime.NumGoroutine() > goroutines || openFiles(t) > fds {
		select {
		case <-tick.C:
		case <-deadline:
			stacks := make([]byte, 1<<20)
			t.Fatalf("%d goroutines and %d files, want %d and %d:\n%s", runtime.NumGoroutine(), openFiles(t), goroutines, fds, stacks[:runtime.Stack(stacks, true)])
		}
	}
}

// fuzzConn is one connection of a program; its Conn is nil once it has ended.
type fuzzConn struct {
	*proto.Conn
	granted, pinned []proto.Slot // what answers named
}

func (c *fuzzConn) close() {
	if c.Conn != nil {
		c.Conn.Close()
		c.Conn = nil
	}
}

// write sends one message as it is.
func (c *fuzzConn) write(message, oob []byte) {
	if _, _, err := c.Socket().WriteMsgUnix(message, oob, nil); err != nil {
		c.close()
	}
}

// ask sends a message and, when it has a correlation, waits for the answer or the
// connection's end.
func (c *fuzzConn) ask(t *testing.T, typ proto.Type, corr uint32, m proto.Message, oob []byte) {
	b, err := proto.AppendFrame(nil, typ, corr, m)
	if err != nil {
		t.Fatal(err)
	}
	c.write(b, oob)
	c.await(t, corr)
}

// await takes frames until the answer with this correlation has come.
func (c *fuzzConn) await(t *testing.T, corr uint32) {
	if corr == 0 || c.Conn == nil {
		return
	}
	_ = c.SetReceiveDeadline(time.Now().Add(10 * time.Second)) // fails only on a closed socket
	for {
		f, err := c.Receive()
		if errors.Is(err, os.ErrDeadlineExceeded) {
			t.Fatalf("no answer to correlation %d", corr)
		}
		if err != nil {
			c.close()
			return
		}
		if f.File != nil {
			f.File.Close()
		}
		c.note(t, f)
		if f.Corr == corr {
			return
		}
	}
}

// note keeps the slots that a frame names. Whatever an agent sends is in range.
func (c *fuzzConn) note(t *testing.T, f proto.Frame) {
	m, known := proto.NewMessage(f.Type)
	if !known {
		t.Fatalf("the agent sent %s", f.Type)
	}
	if m == nil {
		return
	}
	if err := proto.Decode(f.Type, f.Body, m); err != nil {
		t.Fatalf("the agent sent a bad frame: %v", err)
	}
	switch m := m.(type) {
	case *proto.Grant:
		grants, _ := proto.ParseGrants(nil, m.Grants) // Decode has checked them
		for _, g := range grants {
			c.granted = append(c.granted, g.Slot)
		}
	case *proto.LookupHit:
		c.pinned, _ = proto.ParseSlots(c.pinned, m.Slots)
	}
}

// oneFile is the control data that carries a descriptor.
func oneFile() []byte { return unix.UnixRights(0) }
