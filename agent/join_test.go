package agent

import (
	"errors"
	"slices"
	"testing"
	"time"

	"go.uber.org/zap/zapcore"

	"github.com/blockyard-ai/blockyard/blockmgr"
	"github.com/blockyard-ai/blockyard/internal/kv"
	"github.com/blockyard-ai/blockyard/internal/proto"
)

// A scheduler knows every slot that it has pinned without a CLAIM, also of blocks
// that an earlier LOOKUP of the request had pinned.
func TestLookupNamesTheSlotsOfAllBlocksThatItReports(t *testing.T) {
	a := startAgent(t, testConfig(t))
	c := a.scheduler(t, 1)
	storePrompt(t, c, proto.RequestID{ID: 1}, 1, 4)
	fresh := a.scheduler(t, 2) // no GRANT has told it of the extent
	r := proto.RequestID{ID: 2}
	if err := fresh.Open(r, "", "", "", prompt(1, 4)); err != nil {
		t.Fatal(err)
	}
	first, err := fresh.Lookup(t.Context(), r, 0, 2, 0)
	if err != nil || len(first.Slots) != 2 {
		t.Fatalf("got %+v, error %v: want 2 slots", first, err)
	}
	all, err := fresh.Lookup(t.Context(), r, 0, 4, time.Second)
	if err != nil || len(all.Slots) != 4 || !slices.Equal(all.Slots[:2], first.Slots) {
		t.Fatalf("got %+v, error %v: want 4 slots that begin with %v", all, err, first.Slots)
	}
	for i, s := range all.Slots {
		if err := checkSlot(fresh, s, 1, i); err != nil {
			t.Error(err)
		}
	}
	if pins := a.Stats().Pools[0].Pins; pins != 4 {
		t.Errorf("%d pins, want one for each block", pins)
	}
}

// A worker knows its rank from the start and its session only from its scheduler,
// which may not have come yet.
func TestWorkerJoinsTheSessionThatItsRankHasNow(t *testing.T) {
	a := startAgent(t, testConfig(t))
	dial := func(change func(*proto.Hello)) (*proto.WorkerClient, error) {
		h := proto.Hello{Engine: "test", WorkerID: 1}
		change(&h)
		w, err := proto.DialWorker(t.Context(), proto.ClientOptions{Socket: a.cfg.Socket, Hello: h}, proto.Register{DeviceBlocks: 1, BlockBytes: 4096})
		if err == nil {
			t.Cleanup(func() { w.Close() })
		}
		return w, err
	}
	_, err := dial(func(*proto.Hello) {})
	wantRefused(t, err, proto.CodeNotFound)
	var r *proto.RefusedError
	if !errors.As(err, &r) || !r.Reply.Retryable {
		t.Errorf("a worker that is early is told %v: want it retryable", err)
	}
	c := a.scheduler(t, 1)
	w, err := dial(func(*proto.Hello) {})
	if err != nil || w.Welcome().Session != c.Welcome().Session || !slices.Equal(w.Welcome().NamespaceID, c.Welcome().NamespaceID) {
		t.Fatalf("got error %v, want the session of its rank", err)
	}
	_, err = dial(func(h *proto.Hello) { h.DPRank = 1 })
	wantRefused(t, err, proto.CodeNotFound)
	_, err = dial(func(h *proto.Hello) { h.Namespace = testNamespace(); h.Namespace.Weights = "other" })
	wantRefused(t, err, proto.CodeNamespace)
	_, err = dial(func(h *proto.Hello) { h.Namespace = kv.Namespace{Model: "m"} })
	if err == nil {
		t.Error("half a namespace was taken")
	}
	if err := c.Bye(t.Context(), "test"); err != nil {
		t.Fatal(err)
	}
	_, err = dial(func(*proto.Hello) {})
	wantRefused(t, err, proto.CodeNotFound)
}

func TestSchedulerMustGiveItsNamespace(t *testing.T) {
	a := startAgent(t, testConfig(t))
	c := a.raw(t)
	send(t, c, proto.TypeHello, 1, &proto.Hello{Major: proto.VersionMajor, Role: string(proto.RoleScheduler), WorkerID: 1})
	wantError(t, c, 1, proto.CodeRange)
	wantClosed(t, c)
}

// Shares may lie anywhere in the block, and several workers may have the same.
func TestWorkersShareLiesInTheBlock(t *testing.T) {
	a := startAgent(t, testConfig(t))
	a.scheduler(t, 1)
	for _, s := range []struct {
		bytes, offset uint64
		code          string
	}{
		{4096, 0, ""}, {4096, 0, ""}, {1024, 3072, ""}, {1, 4095, ""},
		{4096, 1, proto.CodeRange}, {1024, 3073, proto.CodeRange}, {1, 4096, proto.CodeRange}, {256 << 20, 1 << 63, proto.CodeRange},
	} {
		w := a.raw(t)
		send(t, w, proto.TypeHello, 1, &proto.Hello{Major: proto.VersionMajor, Role: string(proto.RoleWorker), WorkerID: 1})
		receive(t, w)
		send(t, w, proto.TypeRegister, 2, &proto.Register{DeviceBlocks: 1, BlockBytes: s.bytes, Offset: s.offset})
		if s.code != "" {
			wantError(t, w, 2, s.code)
			wantClosed(t, w)
		} else if f := receive(t, w); f.Type != proto.TypeOK {
			t.Errorf("%d bytes at %d: answered with %s", s.bytes, s.offset, f.Type)
		}
	}
}

// Which moment of the end of a session a worker without one meets, it is told the same:
// its rank has none now. One that named the session need not try again.
func TestWorkerThatMeetsAnEndingSessionMayTryAgain(t *testing.T) {
	a := startAgent(t, testConfig(t))
	c := a.scheduler(t, 1)
	id := c.Welcome().Session
	joining := func(session uint64) *proto.Conn {
		w := a.raw(t)
		send(t, w, proto.TypeHello, 1, &proto.Hello{Major: proto.VersionMajor, Role: string(proto.RoleWorker), WorkerID: 1, Session: session})
		return w
	}
	any, named := joining(0), joining(id)
	receive(t, any) // WELCOME
	receive(t, named)
	a.server.mu.Lock()
	sess := a.server.byID[blockmgr.SessionID(id)]
	a.server.mu.Unlock()
	sess.mu.Lock()
	sess.ended = true // as finish has it
	sess.mu.Unlock()
	hello, late := joining(0), joining(id)
	for _, w := range []*proto.Conn{any, named} {
		send(t, w, proto.TypeRegister, 2, &proto.Register{DeviceBlocks: 1, BlockBytes: 4096})
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
		if e := wantError(t, w.conn, w.corr, proto.CodeNotFound); e.Retryable != w.again {
			t.Errorf("%s: retryable %v, want %v (%s)", w.what, e.Retryable, w.again, e.Text)
		}
	}
	if err := c.Bye(t.Context(), "test"); err != nil {
		t.Fatal(err)
	}
	h := &proto.Hello{WorkerID: 1}
	for _, err := range []error{sess.admit(new(process)), blockmgr.ErrRetired} {
		if r := refusalOf(endedIsNone(h, err)); r.Code != proto.CodeNotFound || !r.Retryable {
			t.Errorf("after its end: %v", r)
		}
	}
}

// Workers that start before their scheduler and ask for it every few milliseconds do not
// fill the log, nor does a client that is refused for good again and again.
func TestClientsThatTryAgainDoNotFillTheLog(t *testing.T) {
	log, logs := logged(zapcore.InfoLevel)
	a := startLoggedAgent(t, testConfig(t), log)
	lines := func() int { return logs.FilterMessage("connection ended").Len() }
	began := time.Now()
	const tries = 300
	for range tries {
		_, err := a.dialWorker(t, proto.Hello{WorkerID: 1})
		wantRefused(t, err, proto.CodeNotFound)
	}
	t.Logf("a try takes %v", time.Since(began)/tries)
	if n := lines(); n > 0 {
		t.Errorf("%d tries made %d lines", tries, n)
	}
	for range 2 * maxSampled {
		_, err := a.dialWorker(t, proto.Hello{WorkerID: 1, Session: 77})
		wantRefused(t, err, proto.CodeNotFound)
	}
	eventually(t, "the log tells of some", func() bool { return lines() == maxSampled })
	if n := a.Stats().Engines.Refused; n != tries+2*maxSampled {
		t.Errorf("%d refusals are counted", n)
	}
}
