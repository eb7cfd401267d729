package agent_test

import (
	"testing"

	"github.com/blockyard-ai/blockyard/agent/agenttest"
	"github.com/blockyard-ai/blockyard/internal/proto"
)

// KVBM's leader and workers speak JSON over ZMQ, for which there is the connector
// protocol here. What its leader puts up with, the agent does too.

func TestC7DuplicateAcknowledgementChangesNothing(t *testing.T) {
	a := startAgent(t, testConfig(t))
	c := a.Scheduler(t, 1)
	r := proto.RequestID{ID: 1}
	if err := c.Open(r, "", "", "", agenttest.Prompt(1, 2)); err != nil {
		t.Fatal(err)
	}
	got, err := c.Store(t.Context(), r, 0, 2)
	if err != nil || len(got.Grants) != 2 {
		t.Fatalf("got %+v, error %v", got, err)
	}
	var slots []proto.Slot
	for _, g := range got.Grants {
		b, err := c.SlotBytes(g.Slot)
		if err != nil {
			t.Fatal(err)
		}
		copy(b, agenttest.Content(1, int(g.Block)))
		slots = append(slots, g.Slot)
	}
	if err := c.Commit(t.Context(), r, slots); err != nil {
		t.Fatal(err)
	}
	agenttest.WantRefused(t, c.Commit(t.Context(), r, slots), proto.CodeState)
	if err := c.Abort(r, slots); err != nil { // refused, which only the log says
		t.Fatal(err)
	}
	a.WantFound(t, c, 1, 2)
	for range 2 { // what is released already is skipped
		if err := c.Release(r, 0, 2); err != nil {
			t.Fatal(err)
		}
	}
	w := a.Raw(t)
	h := agenttest.Hello(1)
	h.Major, h.Role, h.Session = proto.VersionMajor, string(proto.RoleWorker), c.Welcome().Session
	agenttest.Send(t, w, proto.TypeHello, 1, &h)
	agenttest.Send(t, w, proto.TypeRegister, 2, &proto.Register{DeviceBlocks: 1, BlockBytes: 1})
	if welcome, ok := agenttest.Receive(t, w), agenttest.Receive(t, w); welcome.Type != proto.TypeWelcome || ok.Type != proto.TypeOK {
		t.Fatalf("got %s and %s", welcome.Type, ok.Type)
	}
	agenttest.Send(t, w, proto.TypeRegister, 3, &proto.Register{DeviceBlocks: 1, BlockBytes: 1})
	agenttest.WantError(t, w, 3, proto.CodeState)
	agenttest.Eventually(t, "the pins are released", func() bool { return a.Stats().Pools[0].Pins == 0 })
	if s := a.Stats(); s.Engines.WorkersLost != 0 || s.Pools[0].Host.Granted != 0 || s.Sessions != 1 {
		t.Errorf("after duplicates: %+v, %+v", s.Engines, s.Pools[0].Host)
	}
}

func TestC7WorkerThatComesLateIsServedFromThenOn(t *testing.T) {
	a := startAgent(t, testConfig(t))
	c := a.Scheduler(t, 1)
	agenttest.StorePrompt(t, c, proto.RequestID{ID: 1}, 1, 2)
	r := proto.RequestID{ID: 2}
	if err := c.Open(r, "", "", "", agenttest.Prompt(1, 2)); err != nil {
		t.Fatal(err)
	}
	if hit, err := c.Lookup(t.Context(), r, 0, 2, 0); err != nil || hit.Ready != 2 {
		t.Fatalf("got %+v, error %v", hit, err)
	}
	early := a.Worker(t, c, 1)
	if told, err := c.Claim(t.Context(), r, 1, 0, []uint32{0}); err != nil || told != 1 {
		t.Fatalf("told %d workers, error %v", told, err)
	}
	late := a.Worker(t, c, 1)
	if told, err := c.Claim(t.Context(), r, 2, 1, []uint32{0}); err != nil || told != 2 {
		t.Fatalf("told %d workers, error %v", told, err)
	}
	if job := <-early.Loads(); job.Job != 1 {
		t.Errorf("the first worker got job %d, want 1", job.Job)
	}
	job := <-late.Loads()
	if job.Job != 2 || len(job.Slots) != 1 {
		t.Fatalf("the late worker got %+v, want job 2", job)
	}
	if err := agenttest.CheckSlot(late, job.Slots[0], 1, 1); err != nil { // it has the extents too
		t.Error(err)
	}
}

func TestC7WorkerThatComesBeforeThePoolIsReadyIsToldToComeBack(t *testing.T) {
	a := startAgent(t, testConfig(t))
	h := agenttest.Hello(1)
	h.Session = 4711
	register := proto.Register{DeviceBlocks: 1, BlockBytes: 1}
	_, err := proto.DialWorker(t.Context(), proto.ClientOptions{Socket: string(a.Socket), Hello: h}, register)
	agenttest.WantRefused(t, err, proto.CodeNotFound)
	if n := len(a.Stats().Pools); n != 0 {
		t.Errorf("a worker without a scheduler made %d pools", n)
	}
	c := a.Scheduler(t, 1)
	if err := a.Worker(t, c, 1).Bye(t.Context(), "test"); err != nil {
		t.Error(err)
	}
}
