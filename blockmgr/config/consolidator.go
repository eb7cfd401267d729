package config

import (
	"fmt"
	"net"
	"strconv"
	"strings"
)

// ConsolidatorMode says how the consolidator merges equal blocks.
type ConsolidatorMode uint8

const (
	// Dedup reports a block when its first source stores it and when its last one
	// removes it.
	Dedup ConsolidatorMode = iota
	// Passthrough reports every event with its own tier.
	Passthrough
	// Tiered reports a block in each tier alone, under one name. KVBM does not have this mode.
	Tiered
)

// String returns "dedup", "passthrough" or "tiered".
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

// Consolidator says where an engine's events come from, and where they go once they are
// merged with the block manager's. NewVLLM and NewTRTLLM make one.
type Consolidator struct {
	// EngineEventEndpoint is the ZMQ endpoint that the engine publishes on:
	// tcp://HOST:PORT or ipc://PATH.
	EngineEventEndpoint string
	// ConsolidatedEventEndpoint is the ZMQ endpoint to bind and to publish on, of the same
	// forms. The host * is all addresses.
	ConsolidatedEventEndpoint string
	// EngineSource is the kind of engine, SourceVLLM or SourceTRTLLM.
	EngineSource EventSource
	// Mode is Dedup by default.
	Mode ConsolidatorMode
}

// NewVLLM consolidates the events of a vLLM engine that publishes on the endpoint in, and
// publishes on the endpoint out.
func NewVLLM(in, out string) (Consolidator, error) { return newConsolidator(SourceVLLM, in, out) }

// NewTRTLLM consolidates the events of a TensorRT-LLM engine that publishes on the endpoint
// in, and publishes on the endpoint out.
func NewTRTLLM(in, out string) (Consolidator, error) { return newConsolidator(SourceTRTLLM, in, out) }

// newConsolidator returns the consolidator of an engine of that kind that publishes on endpoint in.
// It publishes on endpoint out, in mode Dedup. The error names the first bad field.
func newConsolidator(engine EventSource, in, out string) (Consolidator, error) {
	c := Consolidator{EngineEventEndpoint: in, ConsolidatedEventEndpoint: out, EngineSource: engine}
	if err := c.Validate(); err != nil {
		return Consolidator{}, err
	}
	return c, nil
}

// Validate checks every field. The error names the first bad field.
func (c *Consolidator) Validate() error {
	if err := checkSource(c.EngineSource); err != nil {
		return err
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

// checkSource returns an error unless the source is an engine, whose events can be merged with the
// block manager's.
func checkSource(engine EventSource) error {
	switch engine {
	case SourceVLLM, SourceTRTLLM:
		return nil
	case SourceKVBM:
		return fmt.Errorf("consolidator engine_source %s: want %s or %s; the block manager is no engine, it hands its events over directly",
			engine, SourceVLLM, SourceTRTLLM)
	}
	return fmt.Errorf("consolidator engine_source %d: want %d (%s) or %d (%s)",
		uint8(engine), SourceVLLM, SourceVLLM, SourceTRTLLM, SourceTRTLLM)
}

// checkEndpoint checks the ZMQ endpoint of the field name, which is bound if bind is true, else
// connected to. Only an endpoint to bind may have the host *. inproc:// is refused: the engine is
// another process.
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

// EventSource is the kind of program that reports stored and removed blocks. Zero is none.
type EventSource uint8

const (
	// SourceVLLM is a vLLM engine.
	SourceVLLM EventSource = iota + 1
	// SourceTRTLLM is a TensorRT-LLM engine.
	SourceTRTLLM
	// SourceKVBM is the block manager itself.
	SourceKVBM
)

// String returns "vllm", "trtllm" or "kvbm".
func (s EventSource) String() string {
	switch s {
	case SourceVLLM:
		return "vllm"
	case SourceTRTLLM:
		return "trtllm"
	case SourceKVBM:
		return "kvbm"
	}
	return fmt.Sprintf("event source %d", uint8(s))
}

// ParseEventSource returns the source of a name, in any spelling that KVBM takes.
func ParseEventSource(s string) (EventSource, error) {
	switch s {
	case "vllm", "VLLM", "GPU":
		return SourceVLLM, nil
	case "trtllm", "TRTLLM", "TensorRT-LLM":
		return SourceTRTLLM, nil
	case "kvbm", "KVBM":
		return SourceKVBM, nil
	}
	return 0, fmt.Errorf("event source %q: want vllm, VLLM or GPU, trtllm, TRTLLM or TensorRT-LLM, kvbm or KVBM", s)
}
