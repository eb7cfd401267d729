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
	agenttest.Open(t, c, r, 1, 2)
	slots := agenttest.Grant(t, c, r, 0, 2)
	for i, s := range slots {
		agenttest.Fill(t, c, s, 1, i)
	}
	agenttest.NoError(t, c.Commit(t.Context(), r, slots))
	agenttest.WantRefused(t, c.Commit(t.Context(), r, slots), proto.CodeState)
	if err := c.Abort(r, slots); err != nil { // refused, which only the log says
		t.Fatal(err)
	}
	a.WantFound(t, c, 1, 2)
	for range 2 { // what is released already is skipped
		agenttest.NoError(t, c.Release(r, 0, 2))
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
