package agent_test

import (
	"fmt"
	"testing"

	"github.com/blockyard-ai/blockyard/agent/agenttest"
	"github.com/blockyard-ai/blockyard/internal/proto"
)

// heldFile starts a session of an engine that has stored a block, and waits for its
// checkpoint.
func heldFile(t *testing.T, a *testAgent, worker uint64) (*proto.SchedulerClient, string) {
	t.Helper()
	engine, events := newFakePublisher(t)
	hello := agenttest.Hello(worker)
	hello.EventsEndpoint = events
	c := a.Connect(t, hello)
	file := fmt.Sprintf("%s.ranks/%016x-0", a.Socket, worker)
	agenttest.Eventually(t, "there is a checkpoint", func() bool {
		engine.stored(77, agenttest.Prompt(1, 1))
		return agenttest.Exists(file)
	})
	return c, file
}

// An engine that says BYE does not come back, and its id may be random.
func TestEngineThatSaysByeLeavesNoCheckpoint(t *testing.T) {
	a := startAgent(t, testConfig(t))
	c, file := heldFile(t, a, 1)
	agenttest.Bye(t, c)
	if agenttest.Exists(file) {
		t.Error("it is still there")
	}
}

// Without BYE the engine, here this process, may connect again.
func TestEngineThatLosesItsConnectionKeepsItsCheckpoint(t *testing.T) {
	a := startAgent(t, testConfig(t))
	c, file := heldFile(t, a, 1)
	c.Close()
	agenttest.Eventually(t, "the session has ended", func() bool { return a.Stats().Sessions == 0 })
	if !agenttest.Exists(file) {
		t.Error("it is gone")
	}
	a.stop()
	if !agenttest.Exists(file) {
		t.Error("it went with the agent")
	}
}
