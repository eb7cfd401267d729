package agent_test

import (
	"errors"
	"slices"
	"testing"
	"time"

	"go.uber.org/zap/zapcore"

	"github.com/blockyard-ai/blockyard/agent/agenttest"
	"github.com/blockyard-ai/blockyard/internal/kv"
	"github.com/blockyard-ai/blockyard/internal/proto"
)

// A scheduler knows every slot that it has pinned without a CLAIM, also of blocks
// that an earlier LOOKUP of the request had pinned.
func TestLookupNamesTheSlotsOfAllBlocksThatItReports(t *testing.T) {
	a := startAgent(t, testConfig(t))
	c := a.Scheduler(t, 1)
	agenttest.StorePrompt(t, c, proto.RequestID{ID: 1}, 1, 4)
	fresh := a.Scheduler(t, 2) // no GRANT has told it of the extent
	r := proto.RequestID{ID: 2}
	agenttest.Open(t, fresh, r, 1, 4)
	first, err := fresh.Lookup(t.Context(), r, 0, 2, 0)
	if err != nil || len(first.Slots) != 2 {
		t.Fatalf("got %+v, error %v: want 2 slots", first, err)
	}
	all, err := fresh.Lookup(t.Context(), r, 0, 4, time.Second)
	if err != nil || len(all.Slots) != 4 || !slices.Equal(all.Slots[:2], first.Slots) {
		t.Fatalf("got %+v, error %v: want 4 slots that begin with %v", all, err, first.Slots)
	}
	for i, s := range all.Slots {
		if err := agenttest.CheckSlot(fresh, s, 1, i); err != nil {
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
		w, err := proto.DialWorker(t.Context(), proto.ClientOptions{Socket: string(a.Socket), Hello: h}, proto.Register{DeviceBlocks: 1, BlockBytes: 4096})
		if err == nil {
			t.Cleanup(func() { w.Close() })
		}
		return w, err
	}
	_, err := dial(func(*proto.Hello) {})
	agenttest.WantRefused(t, err, proto.CodeNotFound)
	var r *proto.RefusedError
	if !errors.As(err, &r) || !r.Reply.Retryable {
		t.Errorf("a worker that is early is told %v: want it retryable", err)
	}
	c := a.Scheduler(t, 1)
	w, err := dial(func(*proto.Hello) {})
	if err != nil || w.Welcome().Session != c.Welcome().Session || !slices.Equal(w.Welcome().NamespaceID, c.Welcome().NamespaceID) {
		t.Fatalf("got error %v, want the session of its rank", err)
	}
	_, err = dial(func(h *proto.Hello) { h.DPRank = 1 })
	agenttest.WantRefused(t, err, proto.CodeNotFound)
	_, err = dial(func(h *proto.Hello) { h.Namespace = agenttest.Namespace(); h.Namespace.Weights = "other" })
	agenttest.WantRefused(t, err, proto.CodeNamespace)
	_, err = dial(func(h *proto.Hello) { h.Namespace = kv.Namespace{Model: "m"} })
	if err == nil {
		t.Error("half a namespace was taken")
	}
	agenttest.Bye(t, c)
	_, err = dial(func(*proto.Hello) {})
	agenttest.WantRefused(t, err, proto.CodeNotFound)
}

// Shares may lie anywhere in the block, and several workers may have the same.
func TestWorkersShareLiesInTheBlock(t *testing.T) {
	a := startAgent(t, testConfig(t))
	a.Scheduler(t, 1)
	for _, s := range []struct {
		bytes, offset uint64
		code          string
	}{
		{4096, 0, ""}, {4096, 0, ""}, {1024, 3072, ""}, {1, 4095, ""},
		{4096, 1, proto.CodeRange}, {1024, 3073, proto.CodeRange}, {1, 4096, proto.CodeRange}, {256 << 20, 1 << 63, proto.CodeRange},
	} {
		w := a.Raw(t)
		agenttest.Send(t, w, proto.TypeHello, 1, &proto.Hello{Major: proto.VersionMajor, Role: string(proto.RoleWorker), WorkerID: 1})
		agenttest.Receive(t, w)
		agenttest.Send(t, w, proto.TypeRegister, 2, &proto.Register{DeviceBlocks: 1, BlockBytes: s.bytes, Offset: s.offset})
		if s.code != "" {
			agenttest.WantError(t, w, 2, s.code)
			agenttest.WantClosed(t, w)
		} else if f := agenttest.Receive(t, w); f.Type != proto.TypeOK {
			t.Errorf("%d bytes at %d: answered with %s", s.bytes, s.offset, f.Type)
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
		_, err := a.DialWorker(t, proto.Hello{WorkerID: 1})
		agenttest.WantRefused(t, err, proto.CodeNotFound)
	}
	t.Logf("a try takes %v", time.Since(began)/tries)
	if n := lines(); n > 0 {
		t.Errorf("%d tries made %d lines", tries, n)
	}
	for range 2 * maxSampled {
		_, err := a.DialWorker(t, proto.Hello{WorkerID: 1, Session: 77})
		agenttest.WantRefused(t, err, proto.CodeNotFound)
	}
	agenttest.Eventually(t, "the log tells of some", func() bool { return lines() == maxSampled })
	if n := a.Stats().Engines.Refused; n != tries+2*maxSampled {
		t.Errorf("%d refusals are counted", n)
	}
}
