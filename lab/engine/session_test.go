package engine

import (
	"context"
	"net"
	"path/filepath"
	"sync"
	"testing"
	"time"

	"go.uber.org/zap"

	"github.com/blockyard-ai/blockyard/internal/proto"
)

// greeter is an agent that says hello and holds nothing: every connection gets
// a WELCOME made by welcome, OK to REGISTER and BYE, and nothing back by RESUME.
type greeter struct {
	t       *testing.T
	path    string
	welcome func(proto.Hello) proto.Welcome

	listener *net.UnixListener
	group    sync.WaitGroup
	mu       sync.Mutex
	conns    []*proto.Conn
	byes     int
	resumes  int
}

func newGreeter(t *testing.T, welcome func(proto.Hello) proto.Welcome) *greeter {
	t.Helper()
	g := &greeter{t: t, path: filepath.Join(t.TempDir(), "agent.sock"), welcome: welcome}
	var err error
	g.listener, err = net.ListenUnix(proto.Network, &net.UnixAddr{Name: g.path, Net: proto.Network})
	if err != nil {
		t.Fatal(err)
	}
	g.group.Go(g.accept)
	t.Cleanup(func() {
		_ = g.listener.Close()
		g.hangUp()
		g.group.Wait()
	})
	return g
}

func (g *greeter) accept() {
	for {
		c, err := g.listener.AcceptUnix()
		if err != nil {
			return
		}
		conn := proto.NewConn(c, 0)
		g.mu.Lock()
		g.conns = append(g.conns, conn)
		g.mu.Unlock()
		g.group.Go(func() { g.serve(conn) })
	}
}

func (g *greeter) serve(c *proto.Conn) {
	defer c.Close()
	for {
		f, err := c.Receive()
		if err != nil {
			return
		}
		switch f.Type {
		case proto.TypeHello:
			var h proto.Hello
			if err = proto.Decode(f.Type, f.Body, &h); err == nil {
				w := g.welcome(h)
				err = c.Send(proto.TypeWelcome, f.Corr, &w, nil)
			}
		case proto.TypeResume:
			g.mu.Lock()
			g.resumes++
			g.mu.Unlock()
			err = c.Send(proto.TypeResumed, f.Corr, &proto.Resumed{}, nil)
		case proto.TypeRegister:
			err = c.Send(proto.TypeOK, f.Corr, nil, nil)
		case proto.TypeBye:
			g.mu.Lock()
			g.byes++
			g.mu.Unlock()
			_ = c.Send(proto.TypeOK, f.Corr, nil, nil)
			return
		}
		if err != nil {
			g.t.Errorf("%s: %v", f.Type, err)
			return
		}
	}
}

// hangUp ends all connections, as the death of the agent does.
func (g *greeter) hangUp() {
	g.mu.Lock()
	defer g.mu.Unlock()
	for _, c := range g.conns {
		_ = c.Close()
	}
}

func goodWelcome(h proto.Hello) proto.Welcome {
	id := h.Namespace.ID()
	return proto.Welcome{
		Major: proto.VersionMajor, Session: 1, NamespaceID: id[:],
		BlockBytes: h.Namespace.BlockBytes(), SlotBytes: 4096, MaxRequests: 16, MaxPins: 16, HostEnabled: true,
	}
}

// startSession runs a session against g.
func startSession(t *testing.T, g *greeter) (s *session, ctr *counters, stop func()) {
	t.Helper()
	o := testOptions(8)
	o.AgentSocket = g.path
	ctr = new(counters)
	s = newSession(&o, hello(&o, 1, "", ""), newDevice(8, 64), zap.NewNop(), ctr)
	ctx, cancel := context.WithCancel(t.Context())
	var group sync.WaitGroup
	group.Go(func() { s.run(ctx) })
	stop = func() {
		cancel()
		group.Wait()
	}
	t.Cleanup(stop)
	return s, ctr, stop
}

// eventually waits until condition holds.
func eventually(t *testing.T, what string, condition func() bool) {
	t.Helper()
	tick := time.NewTicker(time.Millisecond)
	defer tick.Stop()
	deadline := time.After(20 * time.Second)
	for !condition() {
		select {
		case <-tick.C:
		case <-deadline:
			t.Fatalf("after 20 s still not: %s", what)
		}
	}
}

func TestSessionIsDialledAgainWhenTheAgentGoes(t *testing.T) {
	g := newGreeter(t, goodWelcome)
	s, ctr, stop := startSession(t, g)
	for i := range uint64(3) {
		eventually(t, "connected", func() bool { return s.current.Load() != nil && ctr.snapshot().Sessions == i+1 })
		if i < 2 {
			g.hangUp()
		}
	}
	stop()
	if s.current.Load() != nil {
		t.Error("a stopped session still has a link")
	}
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.byes != 1 {
		t.Errorf("%d goodbyes, want 1: from the session that was alive at the end", g.byes)
	}
	if g.resumes != 2 {
		t.Errorf("%d sessions were resumed, want 2: after each that the agent ended", g.resumes)
	}
}

func TestSessionWithAnotherIdeaOfTheNamespaceIsNotUsed(t *testing.T) {
	for name, spoil := range map[string]func(*proto.Welcome){
		"namespace": func(w *proto.Welcome) { w.NamespaceID = make([]byte, 16) },
		"size":      func(w *proto.Welcome) { w.BlockBytes++ },
	} {
		g := newGreeter(t, func(h proto.Hello) proto.Welcome {
			w := goodWelcome(h)
			spoil(&w)
			return w
		})
		s, ctr, stop := startSession(t, g)
		eventually(t, name+" refused", func() bool { return ctr.snapshot().DialsFailed >= 2 })
		if s.current.Load() != nil || ctr.snapshot().Sessions != 0 {
			t.Errorf("%s: a session was opened", name)
		}
		stop()
	}
}

func TestConversationsAreBounded(t *testing.T) {
	g := newGreeter(t, goodWelcome)
	s, ctr, _ := startSession(t, g)
	eventually(t, "connected", func() bool { return s.current.Load() != nil })
	var open []conversation
	for i := range 20 {
		if c := s.open(attempt{request: uint64(i), ended: func() {}}); c != nil {
			open = append(open, c)
		}
	}
	// MaxSeqs is 4: twice that many.
	if len(open) != 8 || ctr.snapshot().Unconnected != 12 {
		t.Errorf("%d conversations open, %d refused", len(open), ctr.snapshot().Unconnected)
	}
	for _, c := range open {
		c.close()
		<-c.over()
	}
	eventually(t, "room again", func() bool { return s.talks.Load() == 0 })
}

// The engine's HELLO says that it lists its cached hashes; its worker's does not.
func TestSchedulerSaysThatItListsCachedHashes(t *testing.T) {
	said := make(chan proto.Hello, 8)
	g := newGreeter(t, func(h proto.Hello) proto.Welcome {
		said <- h
		return goodWelcome(h)
	})
	s, _, _ := startSession(t, g)
	eventually(t, "both connections are welcomed", func() bool { return s.current.Load() != nil })
	for range 2 {
		if h := <-said; h.ListsCached != (h.Role == string(proto.RoleScheduler)) {
			t.Errorf("a %s says lists_cached %v", h.Role, h.ListsCached)
		}
	}
}
