package agent

import (
	"errors"
	"slices"
	"testing"
	"time"

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
