package agent_test

import (
	"context"
	"os"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/blockyard-ai/blockyard/agent/agenttest"
	"github.com/blockyard-ai/blockyard/internal/kv"
	"github.com/blockyard-ai/blockyard/internal/proto"
)

func TestMalformedFrameCostsOnlyItsConnection(t *testing.T) {
	a := startAgent(t, testConfig(t))
	good := a.Scheduler(t, 1)
	frame := func(typ proto.Type, body ...byte) []byte {
		return append(proto.AppendHeader(nil, proto.Header{Type: typ, Corr: 9, Body: uint32(len(body))}), body...)
	}
	for name, c := range map[string]struct {
		message []byte
		corr    uint32
	}{
		"half a header":    {frame(proto.TypeOpen)[:7], 0},
		"a flag":           {proto.AppendHeader(nil, proto.Header{Type: proto.TypeBye, Flags: 1, Corr: 9}), 0},
		"length too large": {append(frame(proto.TypeOpen)[:12], 0xff, 0xff, 0xff, 0xff), 0},
		"no map":           {frame(proto.TypeLookup, 0xc0), 9},
		"map cut short":    {frame(proto.TypeOpen, 0x81, 0xa3, 'r', 'e', 'q'), 9},
		"larger than 32K":  {make([]byte, proto.MaxFrame+100), 0},
	} {
		bad := a.RawScheduler(t, 2)
		if _, err := bad.Socket().Write(c.message); err != nil {
			t.Fatalf("%s: %v", name, err)
		}
		agenttest.WantError(t, bad, c.corr, proto.CodeMalformed)
		agenttest.WantClosed(t, bad)
	}
	agenttest.StorePrompt(t, good, proto.RequestID{ID: 1}, 1, 2)
	if n := a.Stats().Engines.Malformed; n != 6 {
		t.Errorf("%d malformed frames were counted, want 6", n)
	}
}

func TestRefusedFrameLeavesItsConnectionOpen(t *testing.T) {
	a := startAgent(t, testConfig(t))
	c := a.RawScheduler(t, 1)
	for _, s := range []struct {
		t    proto.Type
		corr uint32
		m    proto.Message
		code string
		req  uint64
	}{
		{proto.TypeLookup, 5, &proto.Lookup{Request: 3, Count: 5000}, proto.CodeRange, 3},
		{proto.TypeLookup, 5, &proto.Lookup{Request: 3, Count: 5}, proto.CodeNotFound, 3},
		{proto.TypeAppend, 0, &proto.Append{Request: 3, Tokens: make([]byte, 4)}, proto.CodeNotFound, 3},
		{proto.TypeClose, 0, &proto.Close{Request: 3}, proto.CodeNotFound, 3},
		{proto.TypeLookup, 0, &proto.Lookup{Request: 3, Count: 5}, proto.CodeRange, 3},
		{proto.TypeBye, 0, &proto.Bye{}, proto.CodeRange, 0},
		{proto.TypeOpen, 7, &proto.Open{Request: 3}, proto.CodeRange, 3},
		{proto.TypeClose, 7, &proto.Close{Request: 3}, proto.CodeRange, 3},
		{proto.TypeHello, 5, &proto.Hello{}, proto.CodeState, 0},
		{proto.TypeRegister, 5, &proto.Register{}, proto.CodeState, 0},
		{proto.TypeWelcome, 5, &proto.Welcome{}, proto.CodeState, 0},
		{999, 5, nil, proto.CodeUnsupported, 0},
	} {
		agenttest.Send(t, c, s.t, s.corr, s.m)
		if e := agenttest.WantError(t, c, s.corr, s.code); e.Request != s.req {
			t.Errorf("%s: the ERROR names request %d, want %d", s.t, e.Request, s.req)
		}
	}
	agenttest.Send(t, c, proto.TypeBye, 6, &proto.Bye{})
	if f := agenttest.Receive(t, c); f.Type != proto.TypeOK || f.Corr != 6 {
		t.Errorf("BYE was answered with %s %d", f.Type, f.Corr)
	}
}

func TestHandshakeErrorsAreNamed(t *testing.T) {
	a := startAgent(t, testConfig(t))
	hello := func(change func(*proto.Hello)) *proto.Hello {
		h := agenttest.Hello(1)
		h.Major, h.Role = proto.VersionMajor, string(proto.RoleScheduler)
		change(&h)
		return &h
	}
	for _, s := range []struct {
		t    proto.Type
		corr uint32
		m    proto.Message
		code string
	}{
		{proto.TypeLookup, 4, &proto.Lookup{}, proto.CodeState},
		{proto.TypeHello, 0, hello(func(*proto.Hello) {}), proto.CodeRange},
		{proto.TypeHello, 4, hello(func(h *proto.Hello) { h.Major = 2 }), proto.CodeUnsupported},
		{proto.TypeHello, 4, hello(func(h *proto.Hello) { h.Role = "x" }), proto.CodeRange},
		{proto.TypeHello, 4, hello(func(h *proto.Hello) { h.WorkerID = 0 }), proto.CodeRange},
		{proto.TypeHello, 4, hello(func(h *proto.Hello) { h.Namespace.Layers = 0 }), proto.CodeRange},
		{proto.TypeHello, 4, hello(func(h *proto.Hello) { h.Namespace = kv.Namespace{} }), proto.CodeRange},
		{proto.TypeHello, 4, hello(func(h *proto.Hello) { h.Role, h.Session = "worker", 77 }), proto.CodeNotFound},
	} {
		c := a.Raw(t)
		agenttest.Send(t, c, s.t, s.corr, s.m)
		agenttest.WantError(t, c, s.corr, s.code)
		agenttest.WantClosed(t, c)
	}
}

func TestWorkerMustFitItsSession(t *testing.T) {
	a := startAgent(t, testConfig(t))
	c := a.Scheduler(t, 1)
	dial := func(change func(*proto.Hello), reg proto.Register) error {
		h := agenttest.Hello(1)
		h.Session = c.Welcome().Session
		change(&h)
		w, err := proto.DialWorker(t.Context(), proto.ClientOptions{Socket: string(a.Socket), Hello: h}, reg)
		if err == nil {
			w.Close()
		}
		return err
	}
	reg := proto.Register{DeviceBlocks: 1, BlockBytes: 4096}
	agenttest.WantRefused(t, dial(func(h *proto.Hello) { h.Namespace.Weights = "other" }, reg), proto.CodeNamespace)
	agenttest.WantRefused(t, dial(func(h *proto.Hello) { h.WorkerID = 9 }, reg), proto.CodeState)
	reg.BlockBytes = 4097
	agenttest.WantRefused(t, dial(func(*proto.Hello) {}, reg), proto.CodeRange)
}

func TestUserThatIsNotAllowedIsDenied(t *testing.T) {
	cfg := testConfig(t)
	cfg.AllowUIDs = []uint32{uint32(os.Getuid()) + 1}
	a := startAgent(t, cfg)
	c := a.Raw(t)
	agenttest.WantError(t, c, 0, proto.CodeDenied)
	agenttest.WantClosed(t, c)
	if n := a.Stats().Engines.Denied; n != 1 {
		t.Errorf("%d connections were denied, want 1", n)
	}
}

func TestClientThatSendsAFileIsCutOff(t *testing.T) {
	a := startAgent(t, testConfig(t))
	c := a.RawScheduler(t, 1)
	b, err := proto.AppendFrame(nil, proto.TypeBye, 3, &proto.Bye{})
	if err != nil {
		t.Fatal(err)
	}
	if _, _, err := c.Socket().WriteMsgUnix(b, unix.UnixRights(0), nil); err != nil {
		t.Fatal(err)
	}
	agenttest.WantError(t, c, 3, proto.CodeState)
	agenttest.WantClosed(t, c)
}

// Workers that do not read lose their connections, and only they: nobody waits
// for them, however long a send may take.
func TestWorkerThatDoesNotReadDelaysNobody(t *testing.T) {
	cfg := testConfig(t)
	cfg.SendTimeout = time.Hour
	a := startAgent(t, cfg)
	c := a.Scheduler(t, 1)
	good := a.Worker(t, c, 1)
	const stuck, blocks = 3, 60
	for range stuck {
		w := a.Raw(t)
		h := agenttest.Hello(1)
		h.Major, h.Role, h.Session = proto.VersionMajor, string(proto.RoleWorker), c.Welcome().Session
		agenttest.Send(t, w, proto.TypeHello, 1, &h)
		agenttest.Receive(t, w)
		agenttest.Send(t, w, proto.TypeRegister, 2, &proto.Register{DeviceBlocks: 1, BlockBytes: 1})
		agenttest.Receive(t, w)
	}
	agenttest.StorePrompt(t, c, proto.RequestID{ID: 1}, 1, blocks)
	r := proto.RequestID{ID: 2}
	agenttest.Open(t, c, r, 1, blocks)
	agenttest.Pin(t, c, r, blocks)
	ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
	defer cancel()
	claimed := uint64(0)
	for job := uint64(0); a.Stats().Engines.WorkersLost < stuck; job++ {
		if job == 10*maxQueuedLoads {
			t.Fatalf("%d workers were cut off after %d claims, want %d", a.Stats().Engines.WorkersLost, job, stuck)
		}
		_, err := c.Claim(ctx, r, job, 0, make([]uint32, blocks))
		if err != nil {
			agenttest.WantRefused(t, err, proto.CodeState) // a worker was lost
			continue
		}
		claimed++
		select { // the worker that reads gets every job
		case load := <-good.Loads():
			if load.Job != job || len(load.Slots) != blocks {
				t.Fatalf("got job %d of %d blocks, want job %d of %d", load.Job, len(load.Slots), job, blocks)
			}
		case <-ctx.Done():
			t.Fatal(ctx.Err())
		}
	}
	if claimed <= maxQueuedLoads {
		t.Errorf("%d claims before the last worker was cut off, want more than its queue of %d", claimed, maxQueuedLoads)
	}
	// More are dropped when more claims come before the agent has ended the connection.
	if n := a.Stats().Engines.LoadsDropped; n < stuck {
		t.Errorf("%d LOADs were dropped, want at least the one that found each of %d queues full", n, stuck)
	}
}

// Bounds of package engine.
const (
	maxQueuedLoads  = 256
	maxAwaitingExit = 64
	maxSampled      = 30
	maxGrants       = 16384
)

func TestPinsAreCapped(t *testing.T) {
	cfg := testConfig(t)
	cfg.MaxPins = 3
	a := startAgent(t, cfg)
	c := a.Scheduler(t, 1)
	if n := c.Welcome().MaxPins; n != 3 {
		t.Errorf("WELCOME says %d pins, want 3", n)
	}
	agenttest.StorePrompt(t, c, proto.RequestID{ID: 1}, 1, 6)
	r := proto.RequestID{ID: 2}
	agenttest.Open(t, c, r, 1, 6)
	if hit, err := c.Lookup(t.Context(), r, 0, 6, 0); err != nil || hit.Ready != 3 {
		t.Errorf("got %+v, error %v: want 3 blocks", hit, err)
	}
	agenttest.NoError(t, c.Release(r, 0, 6))
	if hit, err := c.Lookup(t.Context(), r, 3, 3, 0); err != nil || hit.Ready != 3 {
		t.Errorf("after RELEASE: got %+v, error %v: want 3 blocks", hit, err)
	}
}

func TestRequestsAreCapped(t *testing.T) {
	cfg := testConfig(t)
	cfg.MaxRequests = 2
	a := startAgent(t, cfg)
	c := a.RawScheduler(t, 1)
	for id := range uint64(3) {
		agenttest.Send(t, c, proto.TypeOpen, 0, &proto.Open{Request: id})
	}
	if e := agenttest.WantError(t, c, 0, proto.CodeLimit); e.Request != 2 {
		t.Errorf("the ERROR names request %d, want 2", e.Request)
	}
	agenttest.Send(t, c, proto.TypeClose, 0, &proto.Close{Request: 0})
	agenttest.Send(t, c, proto.TypeOpen, 0, &proto.Open{Request: 2})
	agenttest.Send(t, c, proto.TypeStore, 8, &proto.Store{Request: 2, Count: 1})
	agenttest.WantError(t, c, 8, proto.CodeRange) // no tokens yet: the request is open
}

func TestLostPieceOfTokensBreaksTheRequest(t *testing.T) {
	a := startAgent(t, testConfig(t))
	c := a.RawScheduler(t, 1)
	agenttest.Send(t, c, proto.TypeOpen, 0, &proto.Open{Request: 1, Tokens: make([]byte, 4*agenttest.BlockSize)})
	agenttest.Send(t, c, proto.TypeAppend, 0, &proto.Append{Request: 1, Offset: 20, Tokens: make([]byte, 4)})
	agenttest.WantError(t, c, 0, proto.CodeState)
	agenttest.Send(t, c, proto.TypeLookup, 4, &proto.Lookup{Request: 1, Count: 1})
	agenttest.WantError(t, c, 4, proto.CodeState)
	agenttest.Send(t, c, proto.TypeOpen, 0, &proto.Open{Request: 1, Generation: 1, Tokens: make([]byte, 4*agenttest.BlockSize)})
	agenttest.Send(t, c, proto.TypeLookup, 5, &proto.Lookup{Request: 1, Generation: 1, Count: 1})
	if f := agenttest.Receive(t, c); f.Type != proto.TypeLookupHit {
		t.Errorf("the next generation's LOOKUP was answered with %s", f.Type)
	}
	agenttest.Send(t, c, proto.TypeLookup, 6, &proto.Lookup{Request: 1, Generation: 0, Count: 1})
	agenttest.WantError(t, c, 6, proto.CodeNotFound)
}

func TestOnlyPinnedBlocksCanBeClaimed(t *testing.T) {
	a := startAgent(t, testConfig(t))
	c := a.Scheduler(t, 1)
	a.Worker(t, c, 1)
	agenttest.StorePrompt(t, c, proto.RequestID{ID: 1}, 1, 2)
	r := proto.RequestID{ID: 2}
	agenttest.Open(t, c, r, 1, 2)
	if _, err := c.Lookup(t.Context(), r, 0, 1, 0); err != nil {
		t.Fatal(err)
	}
	_, err := c.Claim(t.Context(), r, 1, 0, []uint32{0, 1})
	agenttest.WantRefused(t, err, proto.CodeState)
	if _, err := c.Claim(t.Context(), r, 2, 0, []uint32{0}); err != nil {
		t.Error(err)
	}
}
