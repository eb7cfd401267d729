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

// Config says what a hub publishes, and where.
type Config struct {
	Options
	// Node names the node. Cluster separates deployments on one NATS.
	Node, Cluster string
	// NATSURL are the NATS servers, separated by commas; empty for none.
	NATSURL string
	// URLFile receives the URL of the embedded NATS server. CheckpointDir has the ranks'
	// checkpoints.
	URLFile, CheckpointDir string
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

// natsOptions are the options of the connection, without its log.
func (c *Config) natsOptions() nats.Options {
	return nats.Options{
		URL: c.NATSURL, Cluster: c.Cluster, Name: "blockyard agent " + c.Node, Node: c.Node,
		Auth: c.Auth, JetStream: c.JetStream,
	}
}

// Options say how engines' events are followed and where events are published. The zero value
// is the default.
type Options struct {
	// Auth is the login to NATS. JetStream stores what is published there, nil for no stream.
	Auth      natsauth.Settings
	JetStream *nats.JetStream
	// Embedded runs a NATS server in the agent, where no URL is set; nil for none. Its URL is
	// written to the socket's path plus .nats, for routers and other agents.
	Embedded *nats.EmbeddedOptions
	// EmbeddedAdvertise is the host in that URL. Default: the server's address, or the
	// machine's name where that is all addresses.
	EmbeddedAdvertise string
	// Dynamo publishes to Dynamo's routers over the same NATS; nil for none. Its Log is set by
	// the agent.
	Dynamo *dynamo.Options
	// ZMQ publishes for each rank the rank's blocks and its pool's in vLLM's event format, at
	// the port of the engine's events plus 1000. An engine that names an endpoint in HELLO has
	// that stream in any case.
	ZMQ bool
	// ZMQMode is how that stream names and merges blocks, unless the engine says it: a
	// proto.Consolidator… constant, default tiered.
	ZMQMode string
	// ZMQHost is the host of those streams, unless the engine names an endpoint; default *,
	// all addresses of the node, as in KVBM.
	ZMQHost string
	// TokenMemory bounds the bytes of the tokens that those streams need; default 256 MiB for
	// the node.
	TokenMemory int
	// WorkerTaints are the labels of the node's workers, for routers.
	WorkerTaints kvevent.Taints
	// FullReports: see consolidator.RankConfig.
	FullReports bool
	// NoCheckpoints writes no checkpoints: the next agent knows what an engine has cached only
	// from its events.
	NoCheckpoints bool
}

func (o *Options) validate(nats bool) error {
	modes := []string{"", proto.ConsolidatorTiered, proto.ConsolidatorDedup, proto.ConsolidatorPassthrough}
	if !slices.Contains(modes, o.ZMQMode) {
		return fmt.Errorf("mode of the a ZMQ stream of a rank is open %q: want one of %q", o.ZMQMode, modes[1:])
	}
	if strings.ContainsAny(o.ZMQHost, ":/ ") && net.ParseIP(o.ZMQHost) == nil {
		return fmt.Errorf("host of the a ZMQ stream of a rank is open %q: want an address, a name, an interface or *", o.ZMQHost)
	}
	if o.TokenMemory < 0 {
		return fmt.Errorf("memory for tokens %d: want 0 (default) or more", o.TokenMemory)
	}
	if o.Embedded != nil && nats {
		return errors.New("embedded NATS server: want no NATS URL besides")
	}
	if o.Dynamo == nil {
		return nil
	}
	if !nats && o.Embedded == nil {
		return errors.New("events for Dynamo's routers: want a NATS URL, over which they go")
	}
	return o.Dynamo.Validate()
}
