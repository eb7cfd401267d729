package agent

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/blockyard-ai/blockyard/publisher/nats"
)

// embeddedConfig is an agent with a NATS server inside, whose socket's directory is
// not there yet, as on a fresh machine.
func embeddedConfig(t *testing.T) Config {
	t.Helper()
	cfg := testConfig(t)
	cfg.Socket = filepath.Join(t.TempDir(), "run", "agent.sock")
	cfg.Events.Embedded = &nats.EmbeddedOptions{}
	return cfg
}

// TestAgentWithAServerInsideStartsOnAFreshMachine: the directory of the URL file is
// that of the socket, and the agent makes it.
func TestAgentWithAServerInsideStartsOnAFreshMachine(t *testing.T) {
	cfg := embeddedConfig(t)
	startAgent(t, cfg)
	b, err := os.ReadFile(cfg.Socket + ".nats")
	if err != nil || !strings.HasPrefix(string(b), "nats://") {
		t.Errorf("URL file: %q, error %v", b, err)
	}
}

// TestRefusedAgentLeavesTheURLFile: an agent that finds its socket in use does not
// send the routers of the one that serves on it to its own server.
func TestRefusedAgentLeavesTheURLFile(t *testing.T) {
	cfg := embeddedConfig(t)
	startAgent(t, cfg)
	before, err := os.ReadFile(cfg.Socket + ".nats")
	if err != nil {
		t.Fatal(err)
	}
	other := embeddedConfig(t)
	other.Socket = cfg.Socket
	if _, err := New(t.Context(), other, nil); err == nil {
		t.Fatal("a second agent started on the socket of the first")
	}
	if after, err := os.ReadFile(cfg.Socket + ".nats"); err != nil || string(after) != string(before) {
		t.Errorf("URL file: %q, error %v; before %q", after, err, before)
	}
}
