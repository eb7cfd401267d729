package events

import (
	"errors"
	"fmt"
	"net"
	"slices"
	"strings"

	"github.com/blockyard-ai/blockyard/internal/kvevent"
	"github.com/blockyard-ai/blockyard/internal/natsauth"
	"github.com/blockyard-ai/blockyard/internal/proto"
	"github.com/blockyard-ai/blockyard/publisher/dynamo"
	"github.com/blockyard-ai/blockyard/publisher/nats"
)

// Config configures the outputs of a hub.
type Config struct {
	Options
	// Node names the node. Cluster separates deployments on one NATS.
	Node, Cluster string
	// NATSURL are the NATS servers, separated by commas; empty for none.
	NATSURL string
	// URLFile receives the URL of the embedded NATS server. CheckpointDir has the ranks'
	// checkpoints.
	URLFile, CheckpointDir string
	// NoReadAhead ignores routers' hints of requests that are on their way.
	NoReadAhead bool
}

// Validate checks every field. The error names the first bad one and shows no credentials.
func (c *Config) Validate() error {
	if c.Cluster != "" {
		if err := kvevent.CheckCluster(c.Cluster); err != nil {
			return err
		}
	}
	if c.NATSURL != "" {
		o := c.natsOptions()
		if err := o.Validate(); err != nil {
			return err
		}
	}
	return c.Options.validate(c.NATSURL != "")
}

// natsOptions returns the options of the connection, without its log.
func (c *Config) natsOptions() nats.Options {
	return nats.Options{
		URL: c.NATSURL, Cluster: c.Cluster, Name: "blockyard agent " + c.Node, Node: c.Node,
		Auth: c.Auth, JetStream: c.JetStream,
	}
}

// Options say how engines' events are followed and where events are published. The zero value
// is the default.
type Options struct {
	// Auth is the login to NATS. JetStream stores the published messages, nil for no stream.
	Auth      natsauth.Settings
	JetStream *nats.JetStream
	// Embedded runs a NATS server in the agent, nil for none. It excludes a NATS URL. The agent
	// writes the server's URL to the socket's path plus .nats, for routers and other agents.
	Embedded *nats.EmbeddedOptions
	// EmbeddedAdvertise is the host in the embedded server's URL. Default: the server's
	// address, or the machine's name if the server listens on all addresses.
	EmbeddedAdvertise string
	// Dynamo publishes to Dynamo's routers over the same NATS; nil for none. Its Log is set by
	// the agent.
	Dynamo *dynamo.Options
	// ZMQ publishes for each rank the rank's blocks and its pool's in vLLM's event format, at
	// the port of the engine's events plus 1000. An engine that names an endpoint in HELLO gets
	// the stream there without ZMQ too.
	ZMQ bool
	// ZMQMode says how a ZMQ stream names and merges blocks: a proto.Consolidator… constant,
	// default tiered. HELLO overrides it.
	ZMQMode string
	// ZMQHost is the host of the ZMQ streams, default * for all addresses of the node, as in
	// KVBM. An endpoint in HELLO overrides it.
	ZMQHost string
	// TokenMemory bounds the bytes of the tokens that the node keeps for ZMQ streams; default
	// 256 MiB.
	TokenMemory int
	// WorkerTaints are the labels of the node's workers, for routers.
	WorkerTaints kvevent.Taints
	// FullReports: see consolidator.RankConfig.
	FullReports bool
	// NoCheckpoints writes no checkpoints. The next agent then learns an engine's blocks from
	// the engine's events only.
	NoCheckpoints bool
}

// validate checks the options. nats says that a NATS URL is set. The error names the first bad
// option and its value.
func (o *Options) validate(nats bool) error {
	modes := []string{"", proto.ConsolidatorTiered, proto.ConsolidatorDedup, proto.ConsolidatorPassthrough}
	if !slices.Contains(modes, o.ZMQMode) {
		return fmt.Errorf("mode of the ranks' ZMQ streams %q: want one of %q", o.ZMQMode, modes[1:])
	}
	if strings.ContainsAny(o.ZMQHost, ":/ ") && net.ParseIP(o.ZMQHost) == nil {
		return fmt.Errorf("host of the ranks' ZMQ streams %q: want an address, a name, an interface or *", o.ZMQHost)
	}
	if o.TokenMemory < 0 {
		return fmt.Errorf("memory for tokens %d: want 0 (default) or more", o.TokenMemory)
	}
	if o.Embedded != nil && nats {
		return errors.New("embedded NATS server: want no NATS URL, which names another server")
	}
	if o.Dynamo == nil {
		return nil
	}
	if !nats && o.Embedded == nil {
		return errors.New("events for Dynamo's routers: want a NATS URL or an embedded NATS server")
	}
	return o.Dynamo.Validate()
}
