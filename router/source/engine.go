package source

import (
	"fmt"
	"net"
	"strconv"
	"strings"

	"github.com/blockyard-ai/blockyard/internal/kv"
	"github.com/blockyard-ai/blockyard/internal/kvevent"
)

// FromEngine is the kvevent.ModelCard.Source of a worker whose engine's own events are
// followed, without an agent.
const FromEngine = "zmq"

// Engine is a worker whose engine publishes KV events over ZMQ, and which has no agent.
type Engine struct {
	Worker kv.WorkerID
	// Model and BlockSize, in tokens, say which requests the worker serves.
	Model     string
	BlockSize uint32
	// Namespace is zero when unknown.
	Namespace kv.NamespaceID
	// Ranks are the data-parallel ranks, each once.
	Ranks []EngineRank
	// Card describes the server. Whoever announces the engine sets Silent and Source.
	Card kvevent.ModelCard
}

// EngineRank says where one data-parallel rank publishes its events.
type EngineRank struct {
	Rank kv.DPRank
	// Events is the endpoint of the rank's PUB socket, such as tcp://a:5557. Replay is
	// the endpoint of its ROUTER socket, empty without one.
	Events, Replay string
	// Topic is the prefix of the topics to receive. Empty means all.
	Topic string
}

// CheckEndpoint returns an error unless endpoint is a ZMQ endpoint that a router can
// connect to: tcp://HOST:PORT or ipc://PATH.
func CheckEndpoint(endpoint string) error {
	if path, ok := strings.CutPrefix(endpoint, "ipc://"); ok && path != "" {
		return nil
	}
	_, _, err := splitTCP(endpoint)
	return err
}

// splitTCP returns the host and the port of tcp://HOST:PORT.
func splitTCP(endpoint string) (host string, port uint16, err error) {
	rest, ok := strings.CutPrefix(endpoint, "tcp://")
	if ok {
		var text string
		if host, text, err = net.SplitHostPort(rest); err == nil && host != "" {
			n, err := strconv.ParseUint(text, 10, 16)
			if err == nil && n > 0 {
				return host, uint16(n), nil
			}
		}
	}
	return "", 0, fmt.Errorf("%.200q: want tcp://HOST:PORT with a port in 1..65535, or ipc://PATH", endpoint)
}
