package agenttest

import (
	"io"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/blockyard-ai/blockyard/internal/kv"
	"github.com/blockyard-ai/blockyard/internal/proto"
)

// Socket is the path of an agent's socket.
type Socket string

// Scheduler connects a worker's scheduler.
func (s Socket) Scheduler(t *testing.T, worker uint64) *proto.SchedulerClient {
	t.Helper()
	return s.Connect(t, Hello(worker))
}

// Connect connects a scheduler with HELLO h, until the end of the test.
func (s Socket) Connect(t *testing.T, h proto.Hello) *proto.SchedulerClient {
	t.Helper()
	c, err := s.DialWith(t, h)
	if err != nil {
		t.Fatal(err)
	}
	return c
}

// Dial is Scheduler where the agent may refuse.
func (s Socket) Dial(t *testing.T, worker uint64) (*proto.SchedulerClient, error) {
	t.Helper()
	return s.DialWith(t, Hello(worker))
}

// DialWith connects a scheduler with HELLO h, which the agent may refuse. The connection closes
// at the end of the test.
func (s Socket) DialWith(t *testing.T, h proto.Hello) (*proto.SchedulerClient, error) {
	t.Helper()
	c, err := proto.DialScheduler(t.Context(), proto.ClientOptions{Socket: string(s), Hello: h})
	if err == nil {
		t.Cleanup(func() { c.Close() })
	}
	return c, err
}

// Worker connects a worker that joins the session of c. The test closes it at its end.
func (s Socket) Worker(t *testing.T, c *proto.SchedulerClient, worker uint64) *proto.WorkerClient {
	t.Helper()
	h := Hello(worker)
	h.Session = c.Welcome().Session
	w, err := s.DialWorker(t, h)
	if err != nil {
		t.Fatal(err)
	}
	return w
}

// DialWorker connects a worker with HELLO h, which the agent may refuse. The connection closes at
// the end of the test.
func (s Socket) DialWorker(t *testing.T, h proto.Hello) (*proto.WorkerClient, error) {
	t.Helper()
	w, err := proto.DialWorker(t.Context(), proto.ClientOptions{Socket: string(s), Hello: h}, proto.Register{DeviceBlocks: 64, BlockBytes: 4096})
	if err == nil {
		t.Cleanup(func() { w.Close() })
	}
	return w, err
}

// WantFound checks that LOOKUP finds the first n blocks of the prompt of seed, and no more. A
// worker loads them and compares the bytes with those of StorePrompt.
func (s Socket) WantFound(t *testing.T, c *proto.SchedulerClient, seed, n int) {
	t.Helper()
	r := proto.RequestID{ID: 1000 + uint64(seed)}
	Open(t, c, r, seed, n+1)
	w := s.Worker(t, c, 1)
	if hit, err := c.Lookup(t.Context(), r, 0, n+1, 10*time.Second); err != nil || hit.Ready != n {
		t.Fatalf("got %+v, error %v: want %d blocks", hit, err, n)
	}
	if _, err := c.Claim(t.Context(), r, 1, 0, make([]uint32, n)); err != nil {
		t.Fatal(err)
	}
	job := <-w.Loads()
	for i, slot := range job.Slots {
		if err := CheckSlot(w, slot, seed, i); err != nil {
			t.Error(err)
		}
	}
	CloseRequest(t, c, r)
	Bye(t, w)
}

// Evicted gathers the EVICTED that a scheduler gets.
type Evicted struct {
	mu     sync.Mutex
	byTier map[kv.Tier][]kv.SequenceHash
	lost   uint64
}

// note records the notices of one EVICTED. lost is the number of lost notices so far.
func (e *Evicted) note(t kv.Tier, hashes []kv.SequenceHash, lost uint64) {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.byTier == nil {
		e.byTier = map[kv.Tier][]kv.SequenceHash{}
	}
	e.byTier[t] = append(e.byTier[t], hashes...)
	e.lost = lost
}

// Of is what left a tier, sorted.
func (e *Evicted) Of(t kv.Tier) []kv.SequenceHash {
	e.mu.Lock()
	defer e.mu.Unlock()
	return slices.Sorted(slices.Values(e.byTier[t]))
}

// Lost returns how many notices the agent had no room for.
func (e *Evicted) Lost() uint64 {
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.lost
}

// Listener connects a scheduler that asks for EVICTED. The second result gathers the notices.
func (s Socket) Listener(t *testing.T, h proto.Hello) (*proto.SchedulerClient, *Evicted) {
	t.Helper()
	got := new(Evicted)
	c, err := proto.DialScheduler(t.Context(), proto.ClientOptions{Socket: string(s), Hello: h, Evicted: got.note})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { c.Close() })
	return c, got
}

// Raw connects without a client, to send what no client sends.
func (s Socket) Raw(t *testing.T) *proto.Conn {
	t.Helper()
	c, err := proto.Dial(t.Context(), string(s))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { c.Close() })
	return c
}

// RawScheduler connects without a client, as the scheduler of a worker, and returns the connection
// after the handshake.
func (s Socket) RawScheduler(t *testing.T, worker uint64) *proto.Conn {
	t.Helper()
	c := s.Raw(t)
	h := Hello(worker)
	h.Major, h.Role = proto.VersionMajor, string(proto.RoleScheduler)
	Send(t, c, proto.TypeHello, 1, &h)
	if f := Receive(t, c); f.Type != proto.TypeWelcome {
		t.Fatalf("HELLO was answered with %s", f.Type)
	}
	return c
}

// Send sends one frame.
func Send(t *testing.T, c *proto.Conn, typ proto.Type, corr uint32, m proto.Message) {
	t.Helper()
	if err := c.Send(typ, corr, m, nil); err != nil {
		t.Fatal(err)
	}
}

// Receive returns the next frame that is not EXTENT_READY.
func Receive(t *testing.T, c *proto.Conn) proto.Frame {
	t.Helper()
	for {
		f, err := c.Receive()
		if err != nil {
			t.Fatal(err)
		}
		if f.File != nil {
			f.File.Close()
		}
		if f.Type != proto.TypeExtentReady {
			return f
		}
	}
}

// WantError checks that the next frame is an ERROR.
func WantError(t *testing.T, c *proto.Conn, corr uint32, code string) proto.Error {
	t.Helper()
	f := Receive(t, c)
	var e proto.Error
	if f.Type != proto.TypeError || f.Corr != corr {
		t.Errorf("got %s with correlation %d, want ERROR with %d", f.Type, f.Corr, corr)
	} else if err := proto.Decode(f.Type, f.Body, &e); err != nil || e.Code != code {
		t.Errorf("got %+v, error %v: want code %s", e, err, code)
	}
	return e
}

// WantClosed checks that the agent closes the connection.
func WantClosed(t *testing.T, c *proto.Conn) {
	t.Helper()
	for {
		f, err := c.Receive()
		if err == io.EOF {
			return
		}
		if err != nil {
			t.Errorf("got error %v, want io.EOF", err)
			return
		}
		if f.File != nil {
			f.File.Close()
		}
	}
}
