package agent_test

import (
	"context"
	"os"
	"path/filepath"
	"testing"

	"go.uber.org/goleak"
	"go.uber.org/zap"

	"github.com/blockyard-ai/blockyard/agent"
	"github.com/blockyard-ai/blockyard/agent/agenttest"
	"github.com/blockyard-ai/blockyard/blockmgr"
	"github.com/blockyard-ai/blockyard/blockmgr/node"
)

func TestMain(m *testing.M) {
	switch {
	case os.Getenv(childVariable) != "":
		os.Exit(runChild())
	case os.Getenv(agentVariable) != "":
		os.Exit(runAgentChild())
	case os.Getenv(engineVariable) != "":
		os.Exit(runEngineChild())
	}
	goleak.VerifyTestMain(m)
}

// testAgent is a running agent and where it lives.
type testAgent struct {
	*agent.Agent
	agenttest.Socket
	cfg  agent.Config
	stop func() // stops it and waits; further calls do nothing
}

func testConfig(t *testing.T) agent.Config {
	t.Helper()
	dir := t.TempDir()
	return agent.Config{
		Node: "test-node", Socket: filepath.Join(dir, "agent.sock"),
		Tiers: node.Tiers{Config: blockmgr.Config{
			HostDir: filepath.Join(dir, "host"), HostBytes: 1 << 20,
			DiskDir: filepath.Join(dir, "disk"), DiskBytes: 4 << 20,
			ExtentBytes: 256 << 10,
		}},
	}
}

func startAgent(t *testing.T, cfg agent.Config) *testAgent {
	t.Helper()
	return startLoggedAgent(t, cfg, nil)
}

func startLoggedAgent(t *testing.T, cfg agent.Config, log *zap.Logger) *testAgent {
	t.Helper()
	a, err := agent.New(t.Context(), cfg, log)
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- a.Run(ctx) }()
	stopped := false
	ta := &testAgent{Agent: a, Socket: agenttest.Socket(cfg.Socket), cfg: cfg, stop: func() {
		if stopped {
			return
		}
		stopped = true
		cancel()
		if err := <-done; err != nil {
			t.Errorf("agent: %v", err)
		}
	}}
	t.Cleanup(ta.stop)
	return ta
}
