package agent_test

import (
	"context"
	"fmt"
	"net"
	"os"
	"testing"
	"time"

	"github.com/blockyard-ai/blockyard/agent/agenttest"
	"github.com/blockyard-ai/blockyard/agent/events"
	"github.com/blockyard-ai/blockyard/internal/proto"
)

// TestEventStreamsTakeWhatIsReservedForThem: what a session with every stream opens is not
// more than what was reserved for it.
func TestEventStreamsTakeWhatIsReservedForThem(t *testing.T) {
	publisher, endpoint := newFakePublisher(t)
	a := startAgent(t, testConfig(t))
	a.Scheduler(t, 2) // what the first session of a namespace opens
	hello := agenttest.Hello(1)
	hello.EventsEndpoint, hello.ReplayEndpoint = endpoint, fmt.Sprintf("tcp://127.0.0.1:%d", agenttest.FreePort(t))
	hello.ConsolidatedEndpoint = fmt.Sprintf("tcp://127.0.0.1:%d", agenttest.FreePort(t))
	before, err := openFiles()
	if err != nil {
		t.Fatal(err)
	}
	if _, err := a.DialWith(t, hello); err != nil {
		t.Fatal(err)
	}
	agenttest.Eventually(t, "the engine's events come", func() bool {
		publisher.stored(77, agenttest.Prompt(1, 1))
		return a.Stats().Totals.Ranks.Batches > 0
	})
	after, err := openFiles()
	if err != nil {
		t.Fatal(err)
	}
	reserved := events.MaxRankDescriptors
	t.Logf("%d descriptors more, both ends of the connections included; %d reserved", after-before, reserved)
	if after-before > reserved {
		t.Errorf("%d descriptors more, %d are reserved", after-before, reserved)
	}
}

// TestAgentSurvivesAFloodOfConnections: an agent with few file descriptors is connected to
// far more often than these allow, while engines whose events need descriptors say hello.
// It refuses what it has no room for and serves the others, during the flood and after.
func TestAgentSurvivesAFloodOfConnections(t *testing.T) {
	_, events := newFakePublisher(t)
	t.Setenv(filesVariable, "240")
	a := startAgentChild(t, testConfig(t))
	first := a.client.Scheduler(t, 1)
	var flood []*proto.Conn
	defer func() {
		for _, c := range flood {
			c.Close()
		}
	}()
	for range 300 {
		c, err := proto.Dial(t.Context(), string(a.client.Socket))
		if err != nil {
			break // the socket's queue is full
		}
		flood = append(flood, c)
	}
	agenttest.StorePrompt(t, first, proto.RequestID{ID: 1}, 1, 2)
	served := 0
	for i, c := range flood { // descriptors come back one by one, each with a HELLO at the edge
		c.Close()
		if i%4 != 0 {
			continue
		}
		hello := agenttest.Hello(uint64(100 + i))
		hello.EventsEndpoint = events
		hello.ConsolidatedEndpoint = fmt.Sprintf("tcp://127.0.0.1:%d", agenttest.FreePort(t))
		ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
		engine, err := proto.DialScheduler(ctx, proto.ClientOptions{Socket: string(a.client.Socket), Hello: hello})
		cancel()
		if err == nil {
			served++
			defer engine.Close()
		}
	}
	agenttest.StorePrompt(t, first, proto.RequestID{ID: 2}, 2, 2)
	t.Logf("%d connections, %d engines with events were served meanwhile", len(flood), served)
	first.Close()
	late := agenttest.Hello(1)
	agenttest.Eventually(t, "the engine comes back after the flood", func() bool {
		c, err := a.client.DialWith(t, late)
		if err == nil {
			agenttest.StorePrompt(t, c, proto.RequestID{ID: 1}, 3, 2)
		}
		return err == nil
	})
}

// TestFloodOfTheOperatorsPortLeavesEnginesTheirStreams: whoever reaches the port of
// operators connects far more often than the agent has file descriptors. An engine whose
// events need some is served all the same.
func TestFloodOfTheOperatorsPortLeavesEnginesTheirStreams(t *testing.T) {
	_, events := newFakePublisher(t)
	t.Setenv(filesVariable, "240")
	cfg := testConfig(t)
	cfg.Control = fmt.Sprintf("127.0.0.1:%d", agenttest.FreePort(t))
	a := startAgentChild(t, cfg)
	for range 300 {
		c, err := net.DialTimeout("tcp", cfg.Control, 100*time.Millisecond)
		if err != nil {
			break // the port's queue is full
		}
		defer c.Close()
	}
	hello := agenttest.Hello(1)
	hello.EventsEndpoint = events
	ctx, cancel := context.WithTimeout(t.Context(), 5*time.Second) // then the port lets go by itself
	defer cancel()
	c, err := proto.DialScheduler(ctx, proto.ClientOptions{Socket: string(a.client.Socket), Hello: hello})
	if err != nil {
		t.Fatal(err)
	}
	c.Close()
}

// openFiles counts the open file descriptors of the process.
func openFiles() (int, error) {
	names, err := os.ReadDir("/proc/self/fd")
	return len(names), err
}
