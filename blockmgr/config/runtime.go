package config

import (
	"context"
	"fmt"

	"github.com/blockyard-ai/blockyard/internal/kv"
)

// Runtime says which worker the manager serves, how long it lives and what it may use.
type Runtime struct {
	// WorkerID names this engine instance; it must be set.
	WorkerID kv.WorkerID
	// NIXL says whether to use NVIDIA's transfer library, and as which agent.
	NIXL NIXLOptions
	// Metrics registers the manager's metrics; nil for nowhere.
	Metrics MetricsRegistry
	// Cancellation ends the manager when it is closed, such as the Done channel of a
	// context; nil for never. See Context.
	Cancellation <-chan struct{}
}

// Context returns a child of parent that also ends with Cancellation. The caller must call
// cancel.
func (r *Runtime) Context(parent context.Context) (ctx context.Context, cancel context.CancelFunc) {
	ctx, cancel = context.WithCancel(parent)
	if r.Cancellation == nil {
		return ctx, cancel
	}
	go func() {
		select {
		case <-r.Cancellation:
			cancel()
		case <-ctx.Done():
		}
	}()
	return ctx, cancel
}

// Validate checks every field. The error names the first bad field.
func (r *Runtime) Validate() error {
	if r.WorkerID == 0 {
		return fmt.Errorf("worker_id %d: must be set and not be 0", r.WorkerID)
	}
	return r.NIXL.Validate()
}

// NIXLMode says whether to use NIXL.
type NIXLMode uint8

const (
	// NIXLEnabled uses NIXL with an agent that is named for the worker id.
	NIXLEnabled NIXLMode = iota
	// NIXLEnabledWithAgent uses NIXL with the agent that NIXLOptions.Agent names.
	NIXLEnabledWithAgent
	// NIXLDisabled does without.
	NIXLDisabled
)

// maxAgentName bounds NIXLOptions.Agent, which travels in NIXL's metadata.
const maxAgentName = 255

// NIXLOptions says whether to use NIXL, and with which agent. This build cannot load the
// library: the values are checked, and Config.Warnings says that they have no effect.
type NIXLOptions struct {
	// Mode is NIXLEnabled by default.
	Mode NIXLMode
	// Agent is the name of an existing agent, 1 to 255 bytes. It is empty without
	// NIXLEnabledWithAgent.
	Agent string
}

// DisableNIXL returns no NIXL.
func DisableNIXL() NIXLOptions { return NIXLOptions{Mode: NIXLDisabled} }

// Validate checks that mode and agent fit together.
func (o NIXLOptions) Validate() error {
	switch n := len(o.Agent); o.Mode {
	case NIXLEnabledWithAgent:
		if n == 0 || n > maxAgentName {
			return fmt.Errorf("nixl agent name %.64q: %d bytes, want 1 to %d with %s", o.Agent, n, maxAgentName, o.Mode)
		}
	case NIXLEnabled, NIXLDisabled:
		if n != 0 {
			return fmt.Errorf("nixl agent name %.64q: want none with %s", o.Agent, o.Mode)
		}
	default:
		return fmt.Errorf("nixl mode %d: want %d (%s), %d (%s) or %d (%s)", uint8(o.Mode),
			NIXLEnabled, NIXLEnabled, NIXLEnabledWithAgent, NIXLEnabledWithAgent, NIXLDisabled, NIXLDisabled)
	}
	return nil
}

// String returns the mode, and the agent if one is named.
func (o NIXLOptions) String() string {
	if o.Mode == NIXLEnabledWithAgent {
		return fmt.Sprintf("%s %q", o.Mode, o.Agent)
	}
	return o.Mode.String()
}

// String returns "enabled", "enabled with agent" or "disabled".
func (m NIXLMode) String() string {
	switch m {
	case NIXLEnabled:
		return "enabled"
	case NIXLEnabledWithAgent:
		return "enabled with agent"
	case NIXLDisabled:
		return "disabled"
	}
	return fmt.Sprintf("nixl mode %d", uint8(m))
}
