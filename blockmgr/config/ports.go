package config

import (
	"fmt"
	"math"
	"net"
	"strconv"
	"strings"
)

// consolidatorPortOffset is the distance from the leader's port to the consolidator's.
const consolidatorPortOffset = 1000

// namedPort is a TCP port of this node with the variable that sets it.
type namedPort struct {
	name string
	port int
}

// ports returns the ports that KVBM and TensorRT-LLM bind with these variables, so that Validate can
// compare them. A port that is off or free to choose is left out.
func (e *Env) ports() []namedPort {
	ports := []namedPort{{pubPort, int(e.Leader.PubPort)}, {ackPort, int(e.Leader.AckPort)}}
	if e.Events.Consolidate {
		ports = append(ports, namedPort{pubPort + " + 1000, the consolidator's port,", e.consolidatorPort()})
	}
	if e.Events.TRTLLMPort != 0 {
		ports = append(ports, namedPort{trtllmPort, int(e.Events.TRTLLMPort)})
	}
	if e.Stats.Metrics && e.Stats.MetricsPort != 0 {
		ports = append(ports, namedPort{metricsPort, int(e.Stats.MetricsPort)})
	}
	return ports
}

func (e *Env) consolidatorPort() int { return int(e.Leader.PubPort) + consolidatorPortOffset }

// Validate checks that all ports differ and that the consolidator's port, the leader's plus 1000, is
// not too high. The error names the variables.
func (e *Env) Validate() error {
	seen := make(map[int]string)
	for _, p := range e.ports() {
		if p.port > math.MaxUint16 {
			return fmt.Errorf("%s is %d: want at most %d", p.name, p.port, math.MaxUint16)
		}
		if other, taken := seen[p.port]; taken {
			return fmt.Errorf("%s %d: must differ from %s", p.name, p.port, other)
		}
		seen[p.port] = p.name
	}
	return nil
}

// Consolidator returns the consolidator of an engine that publishes on endpoint. The host *
// or 0.0.0.0 in endpoint means this node. For TensorRT-LLM an empty endpoint is the port of
// DYN_KVBM_TRTLLM_ZMQ_PORT. on is false when the environment turns consolidation off.
func (e *Env) Consolidator(engine EventSource, endpoint string) (c Consolidator, on bool, err error) {
	if !e.Events.Consolidate {
		return Consolidator{}, false, nil
	}
	if endpoint == "" && engine == SourceTRTLLM {
		if e.Events.TRTLLMPort == 0 {
			return Consolidator{}, false, fmt.Errorf("%s is not set: want the port on which TensorRT-LLM's events are published", trtllmPort)
		}
		endpoint = tcpEndpoint("127.0.0.1", int(e.Events.TRTLLMPort))
	}
	for _, all := range []string{"tcp://*:", "tcp://0.0.0.0:"} {
		if port, ok := strings.CutPrefix(endpoint, all); ok {
			endpoint = "tcp://127.0.0.1:" + port
		}
	}
	out := tcpEndpoint("0.0.0.0", e.consolidatorPort())
	switch engine {
	case SourceVLLM:
		c, err = NewVLLM(endpoint, out)
	case SourceTRTLLM:
		c, err = NewTRTLLM(endpoint, out)
	default:
		err = checkSource(engine)
	}
	if err != nil {
		return Consolidator{}, false, err
	}
	c.Mode = e.Events.Mode
	return c, true, nil
}

func tcpEndpoint(host string, port int) string {
	return "tcp://" + net.JoinHostPort(host, strconv.Itoa(port))
}
