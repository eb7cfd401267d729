// Package agenttest has what tests of the agent's packages share: clients that connect to an
// agent's socket, and prompts with known content.
//
//	a := agenttest.Socket("/tmp/agent.sock")
//	c := a.Scheduler(t, 1)                                   // worker 1
//	agenttest.StorePrompt(t, c, proto.RequestID{ID: 1}, 1, 3) // three blocks of prompt 1
//	a.WantFound(t, c, 1, 3)
//
// Every client is closed at the end of its test. A helper that fails ends its test.
package agenttest
