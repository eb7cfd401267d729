package config

import (
	"fmt"
	"net"
	"strconv"
	"strings"
)

// ConsolidatorMode says what the consolidator does with equal blocks.
type ConsolidatorMode uint8

const (
	// Dedup reports a block when its first source stores it and when its last one
	// removes it.
	Dedup ConsolidatorMode = iota
	// Passthrough reports every event with its own tier.
	Passthrough
	// Tiered reports blocks in each tier by itself, under the same names in all. KVBM
	// does not have it.
	Tiered
)

// String is "dedup", "passthrough" or "tiered".
func (m ConsolidatorMode) String() string {
	switch m {
	case Dedup:
		return "dedup"
	case Passthrough:
		return "passthrough"
	case Tiered:
		return "tiered"
	}
	return fmt.Sprintf("consolidator mode %d", uint8(m))
}

// Consolidator says where an engine's events come from and where they go once
// they are merged with the block manager's. Make one with NewVLLM, NewTRTLLM or
// NewConsolidator.
type Consolidator struct {
	// EngineEventEndpoint is the ZMQ endpoint that the engine publishes on, to
	// connect to: tcp://HOST:PORT or ipc://PATH.
	EngineEventEndpoint string
	// ConsolidatedEventEndpoint is the ZMQ endpoint to bind and publish on, of the
	// same forms; the host * is all addresses.
	ConsolidatedEventEndpoint string
	// EngineSource is the kind of engine, SourceVLLM or SourceTRTLLM.
	EngineSource EventSource
	// Mode is Dedup by default.
	Mode ConsolidatorMode
}

// NewVLLM consolidates the events of a vLLM engine that publishes on the
// endpoint in, and publishes on the endpoint out.
func NewVLLM(in, out string) (Consolidator, error) { return NewConsolidator(SourceVLLM, in, out) }

// NewTRTLLM consolidates the events of a TensorRT-LLM engine that publishes on
// the endpoint in, and publishes on the endpoint out.
func NewTRTLLM(in, out string) (Consolidator, error) { return NewConsolidator(SourceTRTLLM, in, out) }

// NewConsolidator consolidates the events of an engine of any kind. SourceKVBM
// is refused: the block manager's events do not come over ZMQ.
func NewConsolidator(engine EventSource, in, out string) (Consolidator, error) {
	c := Consolidator{EngineEventEndpoint: in, ConsolidatedEventEndpoint: out, EngineSource: engine}
	if err := c.Validate(); err != nil {
		return Consolidator{}, err
	}
	return c, nil
}

// Validate checks every field; the error names the first bad one.
func (c *Consolidator) Validate() error {
	switch c.EngineSource {
	case SourceVLLM, SourceTRTLLM:
	case SourceKVBM:
		return fmt.Errorf("consolidator engine_source %s: want %s or %s; the block manager is no engine, it hands its events over directly",
			c.EngineSource, SourceVLLM, SourceTRTLLM)
	default:
		return fmt.Errorf("consolidator engine_source %d: want %d (%s) or %d (%s)",
			uint8(c.EngineSource), SourceVLLM, SourceVLLM, SourceTRTLLM, SourceTRTLLM)
	}
	if err := checkEndpoint("engine_event_endpoint", c.EngineEventEndpoint, false); err != nil {
		return err
	}
	if err := checkEndpoint("consolidated_event_endpoint", c.ConsolidatedEventEndpoint, true); err != nil {
		return err
	}
	if c.EngineEventEndpoint == c.ConsolidatedEventEndpoint {
		return fmt.Errorf("consolidator consolidated_event_endpoint %q: must not be the engine_event_endpoint", c.ConsolidatedEventEndpoint)
	}
	if c.Mode > Tiered {
		return fmt.Errorf("consolidator mode %d: want %d (%s), %d (%s) or %d (%s)", uint8(c.Mode), Dedup, Dedup, Passthrough, Passthrough, Tiered, Tiered)
	}
	return nil
}

// checkEndpoint checks a ZMQ endpoint to bind or to connect to. Only the former
// may have the host *. inproc:// is refused: the engine is another process.
func checkEndpoint(name, endpoint string, bind bool) error {
	want := "tcp://HOST:PORT or ipc://PATH"
	if endpoint == "" {
		return fmt.Errorf("consolidator %s %q: must be set, to %s", name, endpoint, want)
	}
	scheme, rest, _ := strings.Cut(endpoint, "://")
	switch scheme {
	case "ipc":
		if rest != "" {
			return nil
		}
	case "tcp":
		host, port, err := net.SplitHostPort(rest)
		n, portErr := strconv.ParseUint(port, 10, 16)
		if err != nil || portErr != nil || n == 0 || host == "" {
			break
		}
		if host == "*" && !bind {
			return fmt.Errorf("consolidator %s %q: want a host to connect to, not *", name, endpoint)
		}
		return nil
	}
	return fmt.Errorf("consolidator %s %.128q: want %s", name, endpoint, want)
}
